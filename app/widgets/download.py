"""How far a download is, on one line. No widget."""

from __future__ import annotations

from textual.content import Content

from app.fetch import Fetch
from app.i18n import _
from app.models.pulling import Progress, Stage
from app.sanitize import sanitize_line
from app.widgets.meters import size

_NARROW = 60


def download_line(fetch: Fetch, width: int) -> Content:
    """Return name, bar, bytes, speed and time left of a download, and the key that stops it."""
    name = Content.styled(sanitize_line(fetch.name), "bold")
    stops = Content.styled("   " + _("^X stops"), "$muted")
    progress = fetch.progress
    if progress is None or progress.total == 0:
        return name + Content(" · " + _("asking for it…")) + stops
    cells = 10 if width < _NARROW else 24
    filled = cells * min(progress.done, progress.total) // progress.total
    bar = Content.assemble(("━" * filled, "$primary"), ("─" * (cells - filled), "$rule"))
    words = _stage(progress.stage) + " " + _of(progress)
    if fetch.rate > 0:
        words += f" · {fetch.rate / 1e6:.1f} MB/s · " + _left((progress.total - progress.done) / fetch.rate)
    return Content(" ").join([name, bar, Content(words)]) + stops


def _stage(stage: Stage) -> str:
    if stage is Stage.DOWNLOAD:
        return _("downloading")
    return _("unpacking") if stage is Stage.UNPACK else _("checking")


def _of(progress: Progress) -> str:
    if progress.total >= 1e9:
        return _("{done} of {total}").format(done=f"{progress.done / 1e9:.2f}", total=size(progress.total))
    return _("{done} of {total}").format(done=f"{progress.done / 1e6:.0f}", total=size(progress.total))


def _left(seconds: float) -> str:
    if seconds < 60:
        return _("{n} s left").format(n=round(seconds))
    if seconds < 3600:
        return _("{n} min left").format(n=round(seconds / 60))
    return _("{n} h left").format(n=f"{seconds / 3600:.1f}")

"""The tiers in words: sizes, rates, reasons and bars as people read them.

Knows no widget, no colour and no terminal. The screen and the command line use the same words; the command
line never chooses a language, so that it speaks English.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from app.devices import gpu_words
from app.i18n import _
from app.sanitize import sanitize_line
from app.tiers.layout import Activity
from app.tiers.report import Limit, Link, TierReport, TierTotal
from engine import BlockPlace, EngineState, Tier, TierEvent


def size(n_bytes: float) -> str:
    """Return an amount in MB or GB (1e6 and 1e9 bytes)."""
    if not n_bytes:
        return "0 MB"
    return (
        f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.{0 if n_bytes >= 1e7 else 1}f} MB"
    )


def size_of(part: float, whole: float) -> str:
    """Return a part and its whole in the unit of the whole."""
    unit, places = (1e9, 2) if whole >= 1e9 else (1e6, 0 if whole >= 1e7 else 1)
    return f"{part / unit:.{places}f}/{size(whole)}"


def rate(bytes_per_s: float) -> str:
    """Return a rate in MB or GB per second."""
    return f"{size(bytes_per_s)}/s"


def duration(seconds: float) -> str:
    """Return a time in seconds or milliseconds."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


def tier_name(tier: Tier) -> str:
    """Return what people call a tier."""
    return "NVMe" if tier is Tier.NVME else tier.value.upper()


def short_name(block: BlockPlace) -> str:
    """Return a block's name in a few columns: "L12 attention", "head 2"."""
    name = sanitize_line(block.name)
    if block.layer is None:
        return name
    return f"L{block.layer} " + (_("attn") if block.kind == "attention" else _("ffn"))


def clock(event: TierEvent) -> str:
    """Return the time of day of an event."""
    return time.strftime("%H:%M:%S", time.localtime(event.at))


def moving_words(report: TierReport, link: Link) -> str:
    """Return which block is on its way over `link` and how far, and how many follow; empty for none."""
    if not link.moving:
        return ""
    first, *others = link.moving
    share = f"{first.share:.0%}" if first.share else _("next")
    more = _(", {n} more").format(n=len(others)) if others else ""
    return f"{short_name(report.blocks[first.index])} {share}{more}"


def link_words(link: Link) -> str:
    """Return how fast a link is, of how fast it can be."""
    if not link.rate:
        return _("idle")
    return size_of(link.rate, link.ceiling) + "/s" if link.ceiling else rate(link.rate)


def why_no_map(report: TierReport) -> str:
    """Say why there is nothing to draw; empty when there is."""
    if report.known:
        return ""
    if report.state is EngineState.LOADING:
        return _("a model is being loaded: its map comes with it")
    if report.model is None:
        return _("no model is loaded: F3 chooses one, and its map appears here")
    return _("NumPy computes this model: all weights are in memory, and nothing is streamed")


def limit_words(report: TierReport) -> str:
    """Say what holds the speed back."""
    share = f"{report.stall_share or 0.0:.0%}"
    planned = limited_words(report.limited_by)
    match report.limit:
        case Limit.DISK:
            return _("the disk: waiting {share}").format(share=share)
        case Limit.DISK_IN_PART:
            return _("partly the disk: waiting {share}").format(share=share)
        case Limit.COMPUTE if report.streams:
            # The plan may have taken the disk for slower than it is: what was measured wins.
            what = _("computing") if report.limited_by in ("", "the disk") else planned
            return _("{what}: waiting {share}").format(what=what, share=share)
        case Limit.COMPUTE:
            return planned or (_("computing") if report.gpu is None else _("the GPU"))
        case Limit.PLANNED:
            return _("{what}, by plan").format(what=planned)
        case _:
            return _("not measured yet")


def limited_words(limited_by: str) -> str:
    """Say what the plan takes to be the limit."""
    words = {
        "the disk": _("the disk"),
        "memory bandwidth": _("memory bandwidth"),
        "the processor": _("the processor"),
        "video memory bandwidth": _("video memory bandwidth"),
        "the GPU": _("the GPU"),
        "the link to the GPU": _("the link to the GPU"),
    }
    return words.get(limited_by, limited_by)


def gpu_line(report: TierReport) -> str:
    """Return which GPU computes, and why; empty where the processor does."""
    if report.gpu is None:
        return ""
    return sanitize_line(report.reason) or gpu_words(report.gpu)


def why_there(report: TierReport, index: int) -> str:
    """Say why a block is where it is, and what happens to it."""
    block, activity = report.blocks[index], report.cells[index].activity
    links = (report.link, report.copies)
    ways = [moving for link in links if link is not None for moving in link.moving]
    share = next((moving.share for moving in ways if moving.index == index), 0.0)
    match activity:
        case Activity.MOVING if report.gpu is not None and share > 0:
            return _("on its way to the GPU: {share} is there").format(share=f"{share:.0%}")
        case Activity.MOVING if report.gpu is not None:
            return _("next to the GPU; nothing of it is there yet")
        case Activity.ACTIVE:
            return _("in the staging ring: the processor computes it now")
        case Activity.STAGED:
            return _("in the staging ring, ready for its turn; it is given up after it")
        case Activity.MOVING if share > 0:
            return _("on its way from the disk into memory: {share} is there").format(share=f"{share:.0%}")
        case Activity.MOVING:
            return _("next from the disk; nothing of it is there yet")
    if block.tier is Tier.VRAM:
        return _("stays in video memory: the GPU finds it there in every pass")
    if block.tier is Tier.RAM:
        return _("stays in memory: every pass finds it there")
    if block.kind == "embedding":
        return _("stays in the file: a pass reads only the rows of its tokens")
    return _("does not fit the budget: it is read from the file for every pass")


class Bar(NamedTuple):
    """The parts of a bar, each with a shape of its own."""

    stays: str
    ring: str
    free: str
    """The rest of what may be used."""
    beyond: str
    """Of a GPU: what is not for us."""


def bar_parts(total: TierTotal, width: int) -> Bar:
    """Return a bar of `width` cells."""
    whole = max(total.whole, total.used, 1)
    ring = -(-width * total.ring // whole) if total.ring else 0
    beyond = width * (whole - max(total.total, total.used)) // whole
    eighths = min((width - ring - beyond) * 8, round((total.used - total.ring) * width * 8 / whole))
    if total.used > total.ring:
        eighths = max(1, eighths)
    stays = "█" * (eighths // 8) + EIGHTHS_ACROSS[eighths % 8]
    stays = stays[: width - ring - beyond]
    return Bar(stays, "▒" * ring, "░" * (width - ring - beyond - len(stays)), "·" * beyond)


EIGHTHS_ACROSS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def tier_numbers(total: TierTotal) -> str:
    """Return what stands behind a bar."""
    amount = size(total.used) if total.tier is Tier.NVME else size_of(total.used, total.total)
    return f"{amount} {total.blocks}{total.letter}"


def legend(report: TierReport) -> str:
    """Return what the letters and shapes mean, those of this machine."""
    if report.gpu is not None:
        return _("V vram R ram N nvme •ring ▶now ↑▄move")
    return _("R ram  N nvme  • ring  ▶ now  ↑▄ move")


def row_legend() -> str:
    """Return what the rows of the map are."""
    return _("a attention  f feed-forward")


def now_words(report: TierReport) -> str:
    """Return the speed at this moment."""
    if not report.generating:
        return _("idle")
    speed = report.now_tok_s or report.tok_s
    return _("{speed} tok/s").format(speed=f"{speed:.3g}") if speed else _("reading prompt")


def speed_words(report: TierReport) -> str:
    """Return the speed of a whole reply beside the planned one."""
    parts = []
    if report.tok_s:
        told = _("reply {speed}") if report.generating else _("last reply {speed}")
        parts.append(told.format(speed=f"{report.tok_s:.3g}"))
    if report.predicted_tok_s:
        parts.append(_("planned {speed}").format(speed=f"{report.predicted_tok_s:.3g}"))
    return " · ".join(parts) + _(" tok/s") if parts else _("no reply yet")


def waiting_words(report: TierReport) -> str:
    """Return how much of a pass is in memory when it begins, and how long a pass waits for the rest."""
    parts = []
    if report.hit_rate is not None:
        parts.append(_("hit {share}").format(share=f"{report.hit_rate:.0%}"))
    if report.stall_s is not None:
        parts.append(_("stall {time} a pass").format(time=duration(report.stall_s)))
    return " · ".join(parts)

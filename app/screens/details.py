"""What made one message: model, settings, counts and times, as they were stored with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.conversation import Turn
from app.decoding_words import changes_of, decoding_line, turn_quality
from app.i18n import _
from app.request import ORDINARY
from app.sanitize import sanitize, sanitize_line
from app.screens.dialog import Dialog
from app.skip_rows import block_names
from app.widgets.meters import size
from engine import SamplingParams


class DetailsScreen(Dialog[None]):
    """A list of facts over the chat."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "Close")]

    def __init__(self, turn: Turn, title: str) -> None:
        """Show `turn` of the conversation called `title`."""
        super().__init__()
        self._turn = turn
        self._title = title

    def compose(self) -> ComposeResult:
        """Build the list."""
        rows = list(_facts(self._turn))
        width = max(cell_len(name) for name, _value in rows) + 2
        lines = [
            Content.assemble((name + " " * (width - cell_len(name)), "$muted"), sanitize_line(str(value)))
            for name, value in rows
        ]
        for part in self._turn.attachments:
            lines += [
                Content(""),
                Content.styled(sanitize_line(part.name), "bold"),
                Content(sanitize(part.text)),
            ]
        panel = VerticalScroll(Static(Content("\n").join(lines)), id="help-panel")
        panel.border_title = self._title or _("Details")
        yield panel


def _facts(turn: Turn) -> Iterator[tuple[str, object]]:
    """Yield name and value of everything known."""
    yield _("written"), datetime.fromtimestamp(turn.created_at / 1000).strftime("%Y-%m-%d %H:%M:%S")
    if turn.role == "user":
        return
    stats = turn.stats
    yield _("model"), turn.model or "—"
    for name, label in (
        ("backend", _("computed by")),
        ("gpu", _("GPU")),
        ("threads", _("threads")),
        ("context", _("context")),
        ("system", _("system prompt")),
    ):
        if turn.made_by.get(name):
            yield label, turn.made_by[name]
    for name, label in (("ram_budget", _("memory for weights")), ("vram_budget", _("video memory"))):
        memory = turn.made_by.get(name)
        if isinstance(memory, int):
            yield label, size(memory)
    yield (
        _("prompt"),
        _("{total:,} tokens, {cached:,} of them cached").format(
            total=stats.prompt_tokens, cached=stats.cached_tokens
        ),
    )
    if stats.dropped_messages:
        yield _("left out"), _("{count} oldest messages did not fit").format(count=stats.dropped_messages)
    yield (
        _("reply"),
        _("{count:,} tokens, {rate:.1f} tok/s").format(
            count=stats.completion_tokens, rate=stats.decode_tok_s
        ),
    )
    yield _("first token"), f"{stats.ttft_s:.2f} s"
    if stats.nvme_read_bytes:
        yield (
            _("read from disk"),
            _("{size:.1f} GB, waited {stall:.1f} s").format(
                size=stats.nvme_read_bytes / 1e9, stall=stats.stall_s
            ),
        )
    if stats.h2d_bytes:
        yield _("to the GPU"), _("{size} copied").format(size=size(stats.h2d_bytes))
    if turn.sampling is not None:
        yield _("sampling"), _in_words(asdict(turn.sampling))
    for at, changed in _changes(turn):
        yield _("from token {n:,} on").format(n=at), _in_words(changed)
    yield from _decoding(turn)
    yield _("seed"), stats.seed


def _decoding(turn: Turn) -> Iterator[tuple[str, object]]:
    """Yield how ids were computed and what that brought, where it was not as usual."""
    stats, changes = turn.stats, changes_of(turn)
    if (decoding := turn.decoding or ORDINARY) != ORDINARY or changes:
        yield _("computed with"), decoding_line(decoding)
    for at, changed in changes:
        yield _("from token {n:,} on").format(n=at), decoding_line(changed)
    if stats.skipped_blocks:
        yield _("left out"), _("{count} blocks").format(count=stats.skipped_blocks)
    if stats.skip_effect is not None:
        yield "", block_names(stats.skip_effect.skipped)
    if quality := turn_quality(turn):
        yield _("text"), quality
    if stats.drafted_tokens:
        yield (
            _("drafts"),
            _("{taken:,} of {drafted:,} tokens taken, {share}").format(
                taken=stats.accepted_tokens,
                drafted=stats.drafted_tokens,
                share=f"{stats.acceptance_rate:.0%}",
            ),
        )
    if stats.expected_speed_up:
        factor = f"{stats.expected_speed_up:.2f}"
        yield _("drafts"), _("not tried: {factor}x plain expected").format(factor=factor)
    if isinstance(name := turn.made_by.get("draft_model"), str):
        yield _("draft model"), name
    if stats.speed_up and (stats.drafted_tokens or stats.skipped_blocks):
        yield (
            _("against plain steps"),
            _("{factor}x, a plain one took {seconds} s").format(
                factor=f"{stats.speed_up:.2f}", seconds=f"{stats.plain_step_s:.3g}"
            ),
        )
    if stats.recomputed_tokens:
        yield (
            _("computed again"),
            _("{count:,} tokens, for other blocks").format(count=stats.recomputed_tokens),
        )


def _changes(turn: Turn) -> list[tuple[int, dict[str, object]]]:
    """Return from which token on the reply was drawn in another way; imported nonsense is left out."""
    stored = turn.made_by.get("changes")
    pairs = (
        [pair for pair in stored if isinstance(pair, list) and len(pair) == 2]
        if isinstance(stored, list)
        else []
    )
    return [(at, new) for at, new in pairs if isinstance(at, int) and isinstance(new, dict)]


def _in_words(sampling: dict[str, object]) -> str:
    """Return the fields that differ from the defaults, or that all are default."""
    defaults = asdict(SamplingParams())
    changed = [f"{name} {value}" for name, value in sampling.items() if value != defaults.get(name)]
    return ", ".join(changed) or _("the defaults")

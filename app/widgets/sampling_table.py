"""All sampling parameters as rows of label, slider and value, changed with keys or the mouse.

Knows the rows and how they are edited. Where the values come from and where they go is for others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.visual import VisualType
from textual.widget import Widget

from app.i18n import _
from app.sampling_fields import (
    FIELDS,
    SEED,
    SamplingField,
    has_effect,
    help_text,
    label,
    shown_value,
    with_values,
)
from app.widgets.slider import fraction_at, slider
from engine import SamplingParams

_MARK: Final = 1
_VALUE: Final = 8
_NOTE_LINES: Final = 4


class SamplingTable(Widget, can_focus=True):
    """The rows. Every accepted change is posted as `Edited`."""

    DEFAULT_CSS = """
    SamplingTable { height: auto; width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("home", "move(-99)", show=False),
        Binding("end", "move(99)", show=False),
        Binding("left,h", "step(-1)", show=False),
        Binding("right,l", "step(1)", show=False),
        Binding("shift+left", "step(-1, True)", show=False),
        Binding("shift+right", "step(1, True)", show=False),
        Binding("r", "reset", show=False),
        Binding("R", "reset_all", show=False),
        Binding("enter", "accept", show=False),
        Binding("backspace", "rub_out", show=False),
    ]

    class Edited(Message):
        """Someone changed a parameter, or took its own value away."""

        def __init__(self, params: SamplingParams, own: frozenset[str]) -> None:
            """`params` as they are now; `own` names those that do not come from the base."""
            super().__init__()
            self.params = params
            self.own = own

    def __init__(self, *, id: str | None = None) -> None:
        """Show the defaults until told otherwise."""
        super().__init__(id=id)
        self._params = SamplingParams()
        self._base = SamplingParams()
        self._own: frozenset[str] | None = None
        self._waiting: Collection[str] = ()
        self._last_seed = 0
        self._row = 0
        self._entry = ""
        self._problem = ""
        self._rows_at: list[int | None] = []

    # -- what is shown

    def set_values(
        self,
        params: SamplingParams,
        *,
        base: SamplingParams | None = None,
        own: Collection[str] | None = None,
        waiting: Collection[str] = (),
        last_seed: int = 0,
    ) -> None:
        """Show `params`. Resetting a row gives it back its value in `base` (the defaults, if None).

        With `own` only those rows count as set and the others as taken from `base`; `waiting` are marked.
        """
        shown = (self._params, self._base, self._own, self._waiting)
        self._params, self._base = params, base or SamplingParams()
        self._own = None if own is None else frozenset(own)
        self._waiting, self._last_seed = waiting, last_seed
        if shown != (self._params, self._base, self._own, self._waiting):
            self.refresh()

    @property
    def typing(self) -> bool:
        """Whether a number is being typed."""
        return bool(self._entry)

    def drop_entry(self) -> None:
        """Forget what was typed but not accepted."""
        self._entry = self._problem = ""
        self.refresh()

    def get_content_height(self, container: Any, viewport: Any, width: int) -> int:
        """Return what all rows and the help of the focused one take."""
        return len(FIELDS) + sum(field.begins for field in FIELDS) + 1 + _NOTE_LINES

    def render(self) -> VisualType:
        """Draw as much as there is room for: help gives way first, then the gaps, then far rows."""
        width, height = self.content_size
        note = self._note(width)
        gaps = height >= self.get_content_height(None, None, width)
        lines: list[Content] = []
        self._rows_at = []
        for row, field in enumerate(FIELDS):
            if field.begins and gaps:
                lines.append(Content(""))
                self._rows_at.append(None)
            lines.append(self._line(row, field, width))
            self._rows_at.append(row)
        if len(lines) + 2 <= height:
            lines += ([Content("")] if len(lines) + len(note) < height else []) + note
        else:
            room = height - (1 if self._problem else 0)
            first = max(0, min(self._row - room // 2, len(lines) - room))
            lines, self._rows_at = lines[first : first + room], self._rows_at[first : first + room]
            lines += note[:1] if self._problem else []
        return Content("\n").join(lines[:height])

    def _line(self, row: int, field: SamplingField, width: int) -> Content:
        chosen = row == self._row and self.has_focus
        set_here = self._own is None or field.name in self._own
        live = set_here and has_effect(field, self._params)
        name = label(field.name)
        wide = max(Content(label(other.name)).cell_length for other in FIELDS)
        value = self._value(field, chosen)
        bar = max(0, width - _MARK - wide - 1 - _VALUE - 1)
        parts: list[Content | str | tuple[str, str]] = [
            ("▌" if chosen else " ", "$primary"),
            Content.styled(name, "bold" if chosen else "" if live else "$muted"),
            " " * (wide - Content(name).cell_length + 1),
            self._bar(field, bar, live),
            " " * (width - _MARK - wide - 1 - (0 if field is SEED else bar) - value.cell_length),
            value if live or chosen else value.stylize("$muted"),
        ]
        line = Content.assemble(*parts)
        return line.stylize("on $primary 15%") if chosen else line

    def _bar(self, field: SamplingField, width: int, live: bool) -> Content:
        if field is SEED or width < 4:
            return Content("" if field is SEED else " " * width)
        value = getattr(self._params, field.name)
        # Where a parameter works both ways, what is filled begins at the value that does nothing.
        two_ways = field.off is not None and field.low < field.off < field.high
        origin = field.fraction(field.off) if two_ways and field.off is not None else 0.0
        return slider(field.fraction(value), width, origin=origin, live=live)

    def _value(self, field: SamplingField, chosen: bool) -> Content:
        if chosen and self._entry:
            return Content.styled(f"{self._entry}▏", "bold $accent")
        text = shown_value(field, self._params)
        return Content.assemble(
            (text, "bold" if chosen else ""), ("…" if field.name in self._waiting else "", "$warning")
        )

    def _note(self, width: int) -> list[Content]:
        """Return the lines about the focused row: what is wrong, or its help and its range."""
        field = FIELDS[self._row]
        if self._problem:
            return _wrapped(Content.assemble(("✗ ", "$error"), self._problem), width)
        lines = _wrapped(Content.styled(help_text(field.name), "$muted"), width)
        if field is SEED:
            return [*lines, Content.styled(_("space: random or fixed"), "$muted")]
        words = _("{low} to {high} · usually {value}")
        if self._own is not None:
            words = _("{low} to {high} · otherwise {value}")
        usual = shown_value(field, self._base)
        text = words.format(low=f"{field.low:g}", high=f"{field.high:g}", value=usual)
        return [*lines, *_wrapped(Content(text), width)]

    # -- changes

    def action_move(self, by: int) -> None:
        """Choose another row; what was typed is accepted first."""
        if self._entry and not self._accept():
            return
        self._problem = ""
        self._row = min(max(self._row + by, 0), len(FIELDS) - 1)
        self.refresh()

    def action_step(self, direction: int, large: bool = False) -> None:
        """Change the value of the row."""
        field = FIELDS[self._row]
        value = getattr(self._params, field.name)
        self._set(field, self._last_seed if value is None else field.stepped(value, direction, large=large))

    def action_reset(self) -> None:
        """Give the row the value of the base."""
        name = FIELDS[self._row].name
        params = with_values(self._params, {name: getattr(self._base, name)})
        self._change(params, (self._own or frozenset()) - {name})

    def action_reset_all(self) -> None:
        """Give all rows the values of the base."""
        self._change(self._base, frozenset())

    def action_accept(self) -> None:
        """Take the number that was typed."""
        if self._entry:
            self._accept()

    def action_rub_out(self) -> None:
        """Take back what was typed last."""
        self._entry, self._problem = self._entry[:-1], ""
        self.refresh()

    def on_key(self, event: events.Key) -> None:
        """Type a number; space switches the seed between random and fixed."""
        field = FIELDS[self._row]
        if event.key == "space" and field is SEED:
            self._set(field, self._last_seed if self._params.seed is None else None)
        elif event.character is not None and event.character in "0123456789.,-":
            self._entry += event.character.replace(",", ".")
            self._problem = ""
            self.refresh()
        else:
            return
        event.stop()
        event.prevent_default()

    def on_click(self, event: events.Click) -> None:
        """Choose the row under the mouse; on its slider, also set its value."""
        place = event.get_content_offset(self)
        if place is None or place.y >= len(self._rows_at) or (row := self._rows_at[place.y]) is None:
            return
        self._entry = self._problem = ""
        self._row = row
        start = _MARK + max(Content(label(field.name)).cell_length for field in FIELDS) + 1
        width = self.content_size.width - start - _VALUE - 1
        if start <= place.x < start + width and FIELDS[row] is not SEED:
            self._set(FIELDS[row], FIELDS[row].value_at(fraction_at(place.x - start, width)))
        self.refresh()

    def on_blur(self) -> None:
        """Show no row as chosen."""
        self.refresh()

    def _accept(self) -> bool:
        field = FIELDS[self._row]
        try:
            value = field.parse(self._entry)
        except ValueError as error:
            self._entry, self._problem = "", str(error)
            self.refresh()
            return False
        self._set(field, value)
        return True

    def _set(self, field: SamplingField, value: int | float | None) -> None:
        params = with_values(self._params, {field.name: value})
        self._change(params, (self._own or frozenset()) | {field.name})

    def _change(self, params: SamplingParams, own: frozenset[str]) -> None:
        """Show and post a change, if it is one."""
        self._entry = self._problem = ""
        if params != self._params or self._own not in (None, own):
            self._params = params
            self._own = None if self._own is None else own
            self.post_message(self.Edited(params, own))
        self.refresh()


def _wrapped(content: Content, width: int) -> list[Content]:
    """Return `content` in lines that begin below the labels."""
    return [Content.assemble(" " * _MARK, line) for line in content.wrap(max(1, width - _MARK))]

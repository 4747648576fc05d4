"""The engine's switches: what is on, which key turns it, what has not been acknowledged yet.

Shows the list it is given: a switch that the engine does not have is not in it. As a column of lines, or as
one line for terminals where the column has no room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from textual.content import Content
from textual.geometry import Size
from textual.visual import VisualType

from app.i18n import _
from app.widgets.still import Still

_INDENT: Final = 4
_GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Switch:
    """One thing that is on or off from the next token."""

    label: str
    """In the person's language."""
    key: str
    """As people write it, such as F7."""
    on: bool
    """As the engine has it, or while `pending` as it was asked for."""
    pending: bool = False
    note: str = ""
    """What it does to the output, or how it does, in a few words."""
    how: str = ""
    """What was chosen, and what has come of it."""

    @property
    def notes(self) -> list[str]:
        """What there is to say of it."""
        return [words for words in (self.how, self.note) if words]


def switch_line(switch: Switch) -> Content:
    """Return a switch without what there is to say of it, such as `[x] F7 greedy…`."""
    return Content.assemble(
        (f"[{'x' if switch.on else ' '}]", "bold $primary" if switch.on else "$muted"),
        (f" {switch.key} ", "bold"),
        (switch.label, "" if switch.on else "$muted"),
        ("…" if switch.pending else "", "$warning"),
    )


def switch_lines(switch: Switch, width: int) -> list[Content]:
    """Return a switch in lines of `width` cells; a single short note stands behind it."""
    line, notes = switch_line(switch), [Content.styled(note, "$muted") for note in switch.notes]
    if len(notes) == 1 and line.cell_length + _GAP + notes[0].cell_length <= width:
        return [Content.assemble(line, " " * _GAP, notes[0])]
    below = (part for note in notes for part in note.wrap(max(8, width - _INDENT)))
    return [line, *(Content.assemble(" " * _INDENT, part) for part in below)]


class Switches(Still):
    """A line or more for each switch."""

    DEFAULT_CSS = """
    Switches { height: auto; width: 100%; }
    """

    def __init__(self) -> None:
        """Show none."""
        super().__init__()
        self._switches: tuple[Switch, ...] = ()

    def show(self, switches: Sequence[Switch]) -> None:
        """Show these."""
        if tuple(switches) != self._switches:
            n_lines = len(self._lines(self.content_size.width))
            self._switches = tuple(switches)
            self.display = bool(switches)
            # Numbers change twice a second; only other lines are worth a layout of the screen.
            self.refresh(layout=len(self._lines(self.content_size.width)) != n_lines)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as the notes take."""
        return len(self._lines(width))

    def render(self) -> VisualType:
        """Draw them."""
        return Content("\n").join(self._lines(self.content_size.width))

    def _lines(self, width: int) -> list[Content]:
        lines = [line for switch in self._switches for line in switch_lines(switch, width)]
        return [Content.styled(_("SWITCHES"), "$muted"), *lines]


class SwitchLine(Still):
    """What is on, in a line or two: with its notes as far as there is room. Hidden where nothing is on."""

    DEFAULT_CSS = """
    SwitchLine { height: auto; max-height: 2; width: 100%; padding: 0 1; }
    """

    def __init__(self) -> None:
        """Show none."""
        super().__init__()
        self._switches: tuple[Switch, ...] = ()

    def show(self, switches: Sequence[Switch]) -> None:
        """Show which of these are on."""
        shown = tuple(switch for switch in switches if switch.on or switch.pending)
        if shown != self._switches:
            n_lines = len(self._lines(self.content_size.width))
            self._switches = shown
            self.set_class(bool(shown), "-any")
            self.refresh(layout=len(self._lines(self.content_size.width)) != n_lines)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as it takes."""
        return len(self._lines(width))

    def render(self) -> VisualType:
        """Draw it."""
        width, height = self.content_size
        return Content("\n").join(self._lines(width, max(1, height)))

    def _lines(self, width: int, most: int = 2) -> list[Content]:
        """What does not fit loses how it was chosen, then its notes, then its end."""
        choices = [_packed([_brief(each, parts) for each in self._switches], width) for parts in (2, 1, 0)]
        fitting = (choice for choice in choices if len(choice) <= most and _is_within(choice, width))
        lines = next(fitting, choices[-1][:most])
        return [line.truncate(width, ellipsis=True) for line in lines]


def _packed(parts: Sequence[Content], width: int) -> list[Content]:
    """Return the parts in as few lines of `width` cells as hold them in their order."""
    lines: list[Content] = []
    for part in parts:
        if lines and lines[-1].cell_length + _GAP + part.cell_length <= width:
            lines[-1] = Content.assemble(lines[-1], " " * _GAP, part)
        else:
            lines.append(part)
    return lines


def _is_within(lines: Sequence[Content], width: int) -> bool:
    return all(line.cell_length <= width for line in lines)


def _brief(switch: Switch, parts: int) -> Content:
    notes = switch.notes[-parts:] if parts else []
    told = ": " + " · ".join(notes) if notes else ""
    waits = ("…" if switch.pending else "", "$warning")
    return Content.assemble((f"{switch.key} ", "bold"), switch.label, waits, (told, "$muted"))

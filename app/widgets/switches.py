"""The engine's switches: what is on, which key turns it, what has not been acknowledged yet.

Shows the list it is given: a switch that the engine does not have is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.visual import VisualType
from textual.widget import Widget

from app.i18n import _


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


def switch_line(switch: Switch) -> Content:
    """Return one switch, such as `[x] F7 greedy…  always the same reply`."""
    return Content.assemble(
        (f"[{'x' if switch.on else ' '}]", "bold $primary" if switch.on else "$muted"),
        (f" {switch.key} ", "bold"),
        (switch.label, "" if switch.on else "$muted"),
        ("…" if switch.pending else "", "$warning"),
        (f"  {switch.note}" if switch.note else "", "$muted"),
    )


class Switches(Widget):
    """A line for each switch."""

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
            self._switches = tuple(switches)
            self.display = bool(switches)
            self.refresh(layout=True)

    def render(self) -> VisualType:
        """Draw them."""
        heading = Content.styled(_("SWITCHES"), "$muted")
        return Content("\n").join([heading, *(switch_line(switch) for switch in self._switches)])

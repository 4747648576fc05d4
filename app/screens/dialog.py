"""What all dialogs have in common, and the command palette made one of them. Knows no dialog's content."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.command import CommandList, CommandPalette
from textual.screen import ModalScreen, ScreenResultType

from app.i18n import _
from app.palette import Commands


class Dialog(ModalScreen[ScreenResultType]):
    """Closes once: of two quick presses the second would close, or choose, a second time."""

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close, and give `result` to whoever opened it."""
        return super().dismiss(result) if self.is_current else AwaitComplete()


class Palette(CommandPalette):
    """Textual's palette with our commands. Closes once; its keys do nothing while its list has no room."""

    CSS_PATH = "palette.tcss"

    def __init__(self) -> None:
        """Offer all commands."""
        super().__init__([Commands], placeholder=_("Search for commands…"))

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close."""
        return super().dismiss(result) if self.is_current else AwaitComplete()

    def _action_command_list(self, action: str) -> None:
        if self.query_one(CommandList).scrollable_content_region:
            super()._action_command_list(action)

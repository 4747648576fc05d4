"""A list to choose from: Textual's, with one correction. Knows nothing of what it lists."""

from __future__ import annotations

from typing import Literal

from textual.widgets import OptionList


class SteadyOptionList(OptionList):
    """A list whose page keys do nothing while it has no room, where Textual's own end the program."""

    def _move_page(self, direction: Literal[-1, 1]) -> None:
        if self.scrollable_content_region:
            super()._move_page(direction)

"""What the word at the cursor may become: a short list above the message box, which keeps the focus.

Knows choices, not where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.sanitize import sanitize_line
from app.widgets.option_list import SteadyOptionList


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to go on."""

    insert: str
    """What takes the place of the word."""
    note: str = ""
    """What it means, in a few words."""
    done: bool = True
    """Whether the word is complete with it; a folder is not."""


class CompletionList(SteadyOptionList, can_focus=False):
    """Shows choices while there are any; the message box moves the highlight."""

    DEFAULT_CSS = """
    CompletionList {
        display: none;
        height: auto;
        max-height: 6;
        width: 100%;
        padding: 0 1;
        border: none;
        background: $surface;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        scrollbar-size-vertical: 1;
        & > .option-list--option { padding: 0; }
        & > .option-list--option-highlighted { background: $primary 25%; color: $foreground; }
    }
    """

    def __init__(self, choose: Callable[[Choice], None]) -> None:
        """Show nothing; `choose` is called with the choice that is clicked."""
        super().__init__(markup=False)
        self._choose = choose
        self._choices: list[Choice] = []
        self._width = 0
        """Cells of the longest choice, within reason: the notes stand below one another."""

    def offer(self, choices: Sequence[Choice]) -> None:
        """Show `choices`, the first one highlighted, or nothing."""
        if self._choices == list(choices) or not self.is_attached:
            return
        self._choices = list(choices)
        self._width = min(40, max((cell_len(choice.insert) for choice in choices), default=0))
        self.display = bool(choices)
        self.set_options(Option(self._line(place, marked=not place)) for place in range(len(choices)))
        self.highlighted = 0 if choices else None

    def move(self, step: int) -> None:
        """Go on by `step` choices, round and round."""
        before = self.highlighted or 0
        self.highlighted = after = (before + step) % len(self._choices)
        for place in (before, after):
            self.replace_option_prompt_at_index(place, self._line(place, marked=place == after))

    @property
    def choice(self) -> Choice | None:
        """The highlighted choice."""
        return self._choices[self.highlighted] if self.display and self.highlighted is not None else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take what was clicked."""
        event.stop()
        self._choose(self._choices[event.option_index])

    def _line(self, place: int, *, marked: bool) -> Content:
        """Return what the list shows of a choice; the mark is for who sees no colours."""
        choice = self._choices[place]
        text = sanitize_line(choice.insert)
        gap = " " * max(0, self._width - cell_len(text))
        note = (f"{gap}  {sanitize_line(choice.note)}", "$muted") if choice.note else ""
        return Content.assemble("▸ " if marked else "  ", text, note)

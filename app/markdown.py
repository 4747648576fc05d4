"""Markdown as it streams: which part of a growing text is closed, and which may still change its meaning.

Markdown is decided block by block: a list, a table or a code fence is not known before it ends. `Splitter`
hands out closed top-level blocks exactly once, in order, at a cost that grows with what is new; what is
left is the open tail. Knows the grammar, not the widgets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from app.sanitize import sanitize

_FENCE: Final = re.compile(r"(?P<mark>`{3,}(?=[^`]*$)|~{3,})")
_HEADING: Final = re.compile(r"#{1,6}(\s|$)")
_UNDECIDED: Final = re.compile(r"(\d{1,9}[.)]?|[-+*])\Z")
"""What may yet become the marker of a list's next item."""
_FORMING_FENCE: Final = re.compile(r"\s*(`{1,3}|~{1,3})$")
_DEFINITION: Final = re.compile(r"^ {0,3}\[[^\]]+\]:", re.MULTILINE)
_MAX_CHECKED: Final = 64_000
"""Characters: an open tail longer than this is not parsed again, so that one huge block costs no more."""


def make_parser(*, find_links: bool = True) -> MarkdownIt:
    """Return the parser of replies: GitHub's Markdown, HTML shown as text, line breaks kept.

    `find_links` makes links of bare addresses. What the parser hands out is clean, whatever it decoded.
    """
    parser = MarkdownIt("gfm-like", {"html": False, "linkify": find_links})
    # Models break lines on purpose (verse, addresses); Markdown would join them.
    parser.core.ruler.after("inline", "keep_line_breaks", _keep_line_breaks)
    # The text was clean, but `&#x202e;` and `http://a/%1b]52` in it are decoded.
    parser.core.ruler.push("clean", lambda state: _clean(state.tokens))
    return parser


def redefines(text: str) -> bool:
    """Whether `text` has a link definition: the only thing that changes blocks which were already closed."""
    return _DEFINITION.search(text) is not None


def weight(text: str) -> int:
    """Return about how many widgets it would take to show `text`.

    A code fence is one however long; other lines count one each, those of a table one for every two cells.
    """
    widgets, fence = 0, ""
    for line in text.splitlines():
        if fence:
            fence = "" if _closes(fence, line) else fence
        elif opening := _FENCE.match(line):
            fence = opening["mark"]
            widgets += 1
        else:
            widgets += max(1, line.count("|") // 2)
    return widgets


def _keep_line_breaks(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


def _clean(tokens: Sequence[Token]) -> None:
    for token in tokens:
        token.content, token.info = sanitize(token.content), sanitize(token.info)
        _clean(token.children or ())


class Splitter:
    """Splits one growing text into closed blocks and an open tail."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._parser = make_parser()
        self._open = ""
        self._line = 0
        """Where in `_open` the first line begins that is not yet looked at."""
        self._fence = ""
        """The marker of the top-level code fence that is open."""
        self._after_blank = False
        self._refused = -1
        """The border that the parser refused last."""

    def push(self, text: str) -> str:
        """Take new text; return the blocks that it closes, empty if none."""
        self._open += text
        closed = ""
        while (end := self._open.find("\n", self._line)) >= 0:
            closed += self._take_line(self._open[self._line : end])
        if (rest := self._open[self._line :]) and not self._fence and self._starts_block(rest):
            closed += self._cut(self._line)
        return closed

    def flush(self) -> str:
        """Return the tail: the text has ended."""
        tail, self._open = self._open, ""
        return tail

    @property
    def in_code(self) -> bool:
        """Whether the tail is an open code fence."""
        return bool(self._fence)

    @property
    def tail(self) -> str:
        """The open tail, without the marker of a code fence; grows until a block is closed."""
        text = self._open.lstrip().partition("\n")[2] if self._fence else self._open
        head, _, last = text.rpartition("\n")
        if _FORMING_FENCE.match(last):  # half a marker would flicker as text
            text = head
        return text.rstrip("\n")

    def _take_line(self, line: str) -> str:
        """Look at one whole line and step behind it; return what it closes."""
        closed = ""
        if self._fence:
            if _closes(self._fence, line):
                self._fence = ""
                return self._step(line, closes=True)
            return self._step(line)
        opening = _FENCE.match(line)
        heading = _HEADING.match(line) is not None
        if opening or heading or self._starts_block(line + "\n"):
            closed = self._cut(self._line, line)
        if opening and not self._open[: self._line].strip():
            # It begins what is open, so it stands at the top level; others are left to the parser.
            self._fence = opening["mark"]
        self._after_blank = not line.strip()
        return closed + self._step(line, closes=heading)

    def _step(self, line: str, *, closes: bool = False) -> str:
        """Go behind `line`; return everything up to there if `line` closes it."""
        self._line += len(line) + 1
        return self._cut(self._line, "x") if closes else ""

    def _starts_block(self, line: str) -> bool:
        """Whether `line`, which may still grow, looks like the first of a new block."""
        return self._after_blank and not line[0].isspace() and not _UNDECIDED.match(line)

    def _cut(self, border: int, line: str | None = None) -> str:
        """Return the text before `border` if a top-level block begins there with `line`, else nothing."""
        line = self._open[border:] if line is None else line
        before = self._open[:border]
        if not before.strip() or border == self._refused or border > _MAX_CHECKED:
            return ""
        row = before.count("\n")
        tokens = self._parser.parse(before + line)
        if not any(token.level == 0 and token.map and token.map[0] == row for token in tokens):
            self._refused = border
            return ""
        self._open, self._line, self._refused = self._open[border:], self._line - border, -1
        return before


def _closes(fence: str, line: str) -> bool:
    """Whether `line` ends the code fence that `fence` began."""
    mark = line.strip()
    indent = len(line) - len(line.lstrip(" "))
    return indent < 4 and len(mark) >= len(fence) and set(mark) == {fence[0]}

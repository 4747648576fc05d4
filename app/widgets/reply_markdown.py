"""Markdown to which closed blocks are appended: Textual's widget with our parser and two corrections."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from textual.content import Content
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from app.markdown import make_parser
from app.widgets.ground import Ground

MAX_COLOURED_LINES: Final = 1_000
"""Colouring takes 0.15 ms a line, in which no key is answered: longer code stays plain."""


async def _keep(table: MarkdownBlock, block: MarkdownBlock) -> None:
    """Leave a table as it is: it was complete when it was appended.

    `Markdown.append` parses the last block anew together with what follows it; for a table it then replaces
    the last row by cells of another kind, and a streamed table would differ from an opened one.
    """


# Made from the registry of blocks, because Textual does not export the class itself.
_ClosedTable = type("ClosedTable", (Markdown.BLOCKS["table_open"],), {"_update_from_block": _keep})


class _ClosedFence(MarkdownFence):
    """A code block that is coloured once, not again with every change of style or size."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Return the code in colours."""
        return (
            Content(code) if code.count("\n") > MAX_COLOURED_LINES else _coloured(code, language, ansi, dark)
        )


@lru_cache(maxsize=64)
def _coloured(code: str, language: str, ansi: bool, dark: bool) -> Content:
    return MarkdownFence.highlight(code, language, ansi, dark)


class ReplyMarkdown(Markdown, Ground):
    """Shows a reply; links are reported, never opened."""

    BLOCKS = {  # noqa: RUF012  Textual declares it so
        **Markdown.BLOCKS,
        "fence": _ClosedFence,
        "code_block": _ClosedFence,
        "table_open": _ClosedTable,
    }

    def __init__(self, text: str) -> None:
        """Show `text`, which must be clean."""
        super().__init__(text, parser_factory=make_parser, open_links=False, classes="body")

"""Markdown to which closed blocks are appended: Textual's widget with our parser and one correction."""

from __future__ import annotations

from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from app.markdown import make_parser


async def _keep(table: MarkdownBlock, block: MarkdownBlock) -> None:
    """Leave a table as it is: it was complete when it was appended.

    `Markdown.append` parses the last block anew together with what follows it; for a table it then replaces
    the last row by cells of another kind, and a streamed table would differ from an opened one.
    """


# Made from the registry of blocks, because Textual does not export the class itself.
_ClosedTable = type("ClosedTable", (Markdown.BLOCKS["table_open"],), {"_update_from_block": _keep})


class ReplyMarkdown(Markdown):
    """Shows a reply; links are reported, never opened."""

    BLOCKS = {**Markdown.BLOCKS, "table_open": _ClosedTable}  # noqa: RUF012  Textual declares it so

    def __init__(self, text: str) -> None:
        """Show `text`, which must be clean."""
        super().__init__(text, parser_factory=make_parser, open_links=False, classes="body")

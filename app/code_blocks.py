"""The code blocks of a message, for copying. Knows Markdown, not the widgets that show it."""

from __future__ import annotations

from app.conversation import Turn
from app.markdown import make_parser


def code_blocks(turn: Turn) -> list[str]:
    """Return the code blocks of `turn` in order, clean, without the line break that ends each.

    Pasted into a shell, that line break would run the last command before it was read.
    """
    tokens = make_parser(find_links=False).parse(turn.text)
    return [
        token.content.removesuffix("\n")
        for token in tokens
        if token.type in ("fence", "code_block") and token.content.strip()
    ]

"""Make untrusted text safe to show: model output, history, pasted text, GGUF metadata, file names.

A terminal obeys what it is sent. Control bytes would move its cursor, clear it or write its clipboard, and
bidirectional overrides would show text in another order than it is read. Both functions work character by
character, so that cleaning a text in pieces gives the same as cleaning it whole. They do not make text safe
as *markup*: whoever shows it passes it as plain content. Imports no widget.
"""

from __future__ import annotations

import re
from typing import Final

_REPLACEMENT: Final = "\ufffd"
_SPACES: Final = re.compile(r"\s+")


def _table() -> dict[int, str | None]:
    """Return the replacement of every character that must not reach the terminal."""
    # C0 characters become their pictures, so that an ESC is seen for what it is.
    table: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(0x20)}
    table[0x7F] = "\u2421"
    table.update(dict.fromkeys(range(0x80, 0xA0), _REPLACEMENT))  # C1: one byte may start a sequence as well
    table.update(dict.fromkeys(range(0xD800, 0xE000), _REPLACEMENT))  # lone surrogates cannot be encoded
    table.update(dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)]))  # bidi embeds and overrides
    # The line and paragraph separators: str.splitlines breaks there but Markdown parsers do not.
    table.update(dict.fromkeys((0x2028, 0x2029), "\n"))
    table[ord("\r")] = None
    del table[ord("\n")], table[ord("\t")]
    return table


_TABLE: Final = _table()


def sanitize(text: str) -> str:
    """Return `text` without control characters other than newline and tab, and without bidi overrides."""
    return text.translate(_TABLE)


def sanitize_line(text: str) -> str:
    """Return `text` cleaned and on one line, for names, titles and messages."""
    return _SPACES.sub(" ", text).strip().translate(_TABLE)

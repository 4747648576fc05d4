"""Find messages by their words, Chinese, Japanese and Korean included.

FTS5's tokenizer takes a run of Han characters as one word, so such characters are indexed one by one and a
word of them is searched as a phrase. Knows SQL of the full-text table only.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from typing import Final

# A pattern, not compiled: `re` keeps it compiled from the first use on, which is after the first frame.
_CJK: Final = (
    "[\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U000323af]"
)
_ENDS_A_PHRASE: Final = {ord('"'): " ", 0: " "}
_SNIPPET: Final = 60
_QUERY: Final = """
SELECT conversation.id, conversation.title, conversation.updated_at, message.text
FROM message_fts
JOIN message ON message.id = message_fts.rowid
JOIN conversation ON conversation.id = message.conversation_id
WHERE message_fts MATCH ?
ORDER BY message.id DESC
LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """The newest message of one conversation that has all the words."""

    conversation_id: int
    title: str
    updated_at: int
    """Milliseconds since 1970."""
    snippet: str
    """The text around the first word found."""


def cjk_spaced(text: str) -> str:
    """Return `text` with every CJK character standing alone between spaces."""
    return re.sub(_CJK, r" \g<0> ", text)


def match_expression(query: str) -> str:
    """Return the FTS5 expression for the words typed, the last one as a prefix; '' for no word."""
    phrases = []
    for word in query.split():
        inside = " ".join(cjk_spaced(word).translate(_ENDS_A_PHRASE).split())
        if any(character.isalnum() for character in inside):
            phrases.append(f'"{inside}"')
    if not phrases:
        return ""
    return " ".join(phrases) + ("" if query[-1].isspace() else "*")


def search(connection: sqlite3.Connection, query: str, limit: int = 200) -> list[SearchHit]:
    """Return one hit for each conversation, newest first, out of the `limit` newest messages that match."""
    expression = match_expression(query)
    if not expression:
        return []
    hits: dict[int, SearchHit] = {}
    for conversation_id, title, updated_at, text in connection.execute(_QUERY, (expression, limit)):
        if conversation_id not in hits:
            snippet = _snippet(text, query)
            hits[conversation_id] = SearchHit(conversation_id, title, updated_at, snippet)
    return list(hits.values())


def _snippet(text: str, query: str) -> str:
    found = text.casefold().find(query.split()[0].casefold())
    start = max(0, found - _SNIPPET // 3)
    return ("…" if start else "") + text[start : start + _SNIPPET]

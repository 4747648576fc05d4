"""Find messages by their words, Chinese, Japanese and Korean included.

FTS5's tokenizer takes a run of Han characters as one word, so such characters are indexed one by one and a
word of them is searched as a phrase. Knows the SQL of the full-text table and where the words are in a text.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

# A pattern, not compiled: `re` keeps it compiled from the first use on, which is after the first frame.
_CJK: Final = (
    "[\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U000323af]"
)
_ENDS_A_PHRASE: Final = {ord('"'): " ", 0: " "}
_SNIPPET: Final = 60
_LONG_SNIPPET: Final = 160
"""Where every message is listed, with a line or two for each."""
_FACTS: Final = """
    conversation.id, message.id, conversation.title, conversation.updated_at, message.role,
    message.created_at, message.model, message.text
"""
# What only the message's row knows is asked last and in this order: most rows end at the role.
_FILTERS: Final = """
    (:role = '' OR message.role = :role) AND message.created_at >= :since
    AND (:model = '' OR instr(lower(message.model), lower(:model)) > 0) AND message.deleted_at IS NULL
"""
_QUERY: Final = f"""
SELECT {_FACTS}
FROM message_fts
JOIN message ON message.id = message_fts.rowid
JOIN conversation ON conversation.id = message.conversation_id
WHERE message_fts MATCH :words AND {_FILTERS} AND conversation.deleted_at IS NULL
ORDER BY message_fts.rowid DESC
LIMIT :limit
"""
_RECENT: Final = f"""
SELECT {_FACTS}
FROM conversation JOIN message ON message.id = (
    SELECT max(message.id) FROM message WHERE message.conversation_id = conversation.id AND {_FILTERS}
)
WHERE conversation.deleted_at IS NULL AND conversation.updated_at >= :since
ORDER BY conversation.updated_at DESC, conversation.id DESC
LIMIT :limit
"""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that was found, and the conversation that it is of."""

    conversation_id: int
    message_id: int
    title: str
    updated_at: int
    """When the conversation changed last; milliseconds since 1970."""
    role: str
    created_at: int
    """When the message was written; milliseconds since 1970."""
    snippet: str
    """The text around the first word found."""
    model: str = ""
    """Which model wrote it; empty for the person's own."""


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


def search(
    connection: sqlite3.Connection,
    query: str,
    role: str = "",
    model: str = "",
    since_ms: int = 0,
    limit: int = 200,
    *,
    per_message: bool = False,
) -> list[SearchHit]:
    """Return what `Reads.search` says."""
    expression = match_expression(query)
    if not expression:
        return []
    values = {"words": expression, "role": role, "model": model, "since": since_ms, "limit": limit}
    rows = connection.execute(_QUERY, values)
    if per_message:
        return _hits(rows, query, _LONG_SNIPPET)
    newest: dict[int, Sequence[Any]] = {}
    for row in rows:
        newest.setdefault(row[0], row)
    return _hits(newest.values(), query, _SNIPPET)


def recent(
    connection: sqlite3.Connection, role: str = "", model: str = "", since_ms: int = 0, limit: int = 200
) -> list[SearchHit]:
    """Return what `Reads.recent` says."""
    values = {"role": role, "model": model, "since": since_ms, "limit": limit}
    return _hits(connection.execute(_RECENT, values), "", _LONG_SNIPPET)


def found_at(text: str, query: str) -> list[tuple[int, int]]:
    """Return where in `text` the words of `query` are, as starts and ends, without overlaps."""
    pattern = _pattern(query)
    return [found.span() for found in re.finditer(pattern, text.translate(_FOLDS))] if pattern else []


class _Folds(dict[int, int]):
    """Each character as the index sees it, without case and accents; one for one, so that places stay."""

    def __missing__(self, code: int) -> int:
        plain = unicodedata.normalize("NFD", chr(code))[0].lower()
        self[code] = ord(plain) if len(plain) == 1 else code
        return self[code]


_FOLDS: Final = _Folds()


def _pattern(query: str) -> str:
    """Return a pattern for the words of `query` in a folded text; '' for no word."""
    words = query.translate(_FOLDS).split()
    patterns = []
    for place, word in enumerate(words):
        parts = re.findall(rf"{_CJK}|(?:(?!{_CJK})[^\W_])+", word)
        if not parts:
            continue
        start = "" if re.match(_CJK, parts[0]) else rf"(?:(?<![^\W_])|(?<={_CJK}))"
        is_beginning = place == len(words) - 1 and not query[-1].isspace()
        end = "" if is_beginning or re.match(_CJK, parts[-1]) else rf"(?:(?![^\W_])|(?={_CJK}))"
        inside = re.escape(parts[0])
        for before, part in pairwise(parts):
            touches = re.match(_CJK, before) or re.match(_CJK, part)
            inside += (r"[\W_]*" if touches else r"[\W_]+") + re.escape(part)
        patterns.append(start + inside + end)
    # The longer first: of two words that begin alike the shorter would hide the longer.
    return "|".join(sorted(patterns, key=len, reverse=True))


def _hits(rows: Iterable[Sequence[Any]], query: str, width: int) -> list[SearchHit]:
    pattern = _pattern(query)
    hits = []
    for *facts, text in rows:
        conversation_id, message_id, title, updated_at, role, created_at, model = facts
        when_and_who = (updated_at, role, created_at)
        snippet = _snippet(text, pattern, width)
        hits.append(SearchHit(conversation_id, message_id, title, *when_and_who, snippet, model))
    return hits


def _snippet(text: str, pattern: str, width: int) -> str:
    found = re.search(pattern, text.translate(_FOLDS)) if pattern else None
    start = max(0, found.start() - width // 3) if found else 0
    return ("…" if start else "") + text[start : start + width]

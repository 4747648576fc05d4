"""Finds tokens that are written out in a text, such as <|im_end|> or Gemma's runs of newlines.

Knows texts and ids; does not know which of them may be looked for. Called by `tokenizer`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class SpecialTokens:
    """Leftmost, longest matches of a set of literal texts.

    Tables of lengths rather than one regular expression: Gemma has 6,400 of these tokens, and compiling an
    expression for them takes half a second.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        """Look for the keys of `ids`, none of them empty."""
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {prefix: sorted(group, reverse=True) for prefix, group in lengths.items()}
        first = "".join({text[0] for text in ids})
        # (?!) never matches: the case of no tokens at all.
        self._start = re.compile(f"[{re.escape(first)}]" if first else "(?!)")

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, id) of every match, from left to right, in characters of `text`."""
        position = 0
        while start := self._start.search(text, position):
            position = start.start()
            match = self._match(text, position)
            if match is None:
                position += 1
            else:
                yield position, *match
                position = match[0]

    def _match(self, text: str, start: int) -> tuple[int, int] | None:
        """Return end and id of the longest token at `start`."""
        for prefix in (text[start : start + 2], text[start]):
            for length in self._lengths.get(prefix, ()):
                found = text[start : start + length]  # shorter at the end of the text
                if found in self._ids:
                    return start + len(found), self._ids[found]
        return None

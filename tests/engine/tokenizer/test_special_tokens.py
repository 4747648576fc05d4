"""Tokens written out in a text are found leftmost and longest, as a regular expression would find them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from engine.tokenizer.special_tokens import SpecialTokens

LETTERS = "ab<\n"


@given(st.sets(st.text(LETTERS, min_size=1, max_size=5)), st.text(LETTERS))
def test_matches_are_leftmost_and_longest(tokens: set[str], text: str) -> None:
    ids = {token: token_id for token_id, token in enumerate(sorted(tokens))}
    pattern = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)"
    expected = [(match.start(), match.end(), ids[match.group()]) for match in re.finditer(pattern, text)]
    assert list(SpecialTokens(ids).find(text)) == expected

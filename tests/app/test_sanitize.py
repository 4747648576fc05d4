"""No character of foreign text can command the terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sanitize import sanitize, sanitize_line

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)
BIDI = {*"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}


@given(ANY_TEXT)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    for character in sanitize(text):
        assert unicodedata.category(character) not in ("Cc", "Cs") or character in "\n\t"
        assert character not in BIDI | {"\u2028", "\u2029"}


@given(ANY_TEXT, st.integers(0, 60))
def test_cleaning_in_pieces_is_cleaning_the_whole(text: str, place: int) -> None:
    assert sanitize(text[:place]) + sanitize(text[place:]) == sanitize(text)


@given(ANY_TEXT)
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    assert sanitize(sanitize(text)) == sanitize(text)


@given(ANY_TEXT)
def test_a_line_is_one_line(text: str) -> None:
    line = sanitize_line(text)
    assert line.splitlines() == ([line] if line else [])
    assert "\t" not in line


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("\x1b[2J", "␛[2J"),
        ("\x9b2J", "\ufffd2J"),
        ("a\u202eb\u2066c", "abc"),
        ("one\r\ntwo\tthree\n", "one\ntwo\tthree\n"),
        ("\ud83d", "\ufffd"),
        ("中文 👩‍👩‍👧 é", "中文 👩‍👩‍👧 é"),
    ],
)
def test_what_is_dangerous_becomes_visible_and_what_is_text_stays(text: str, clean: str) -> None:
    assert sanitize(text) == clean

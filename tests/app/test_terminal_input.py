"""Pastes: what is inside is text, however it arrives, and what is outside is left alone."""

from __future__ import annotations

import pytest
from textual import events
from textual._xterm_parser import XTermParser

from app.terminal_input import KeyParser, PasteCleaner

PASTE = "\x1b[200~a\x1b[31mred\x1b\x1b]52;c;aGk=\x07\x11 \x9b2J\u202e\r\n\x1b[201\r\x03\x1b[201~"
CLEAN = "\x1b[200~a␛[31mred␛␛]52;c;aGk=␇␑ \ufffd2J\r\n␛[201\r␃\x1b[201~"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_control_characters_of_a_paste_are_shown(size: int) -> None:
    text = f"x\x1b[A{PASTE}y\x1b{PASTE}\x1b[2"
    cleaner = PasteCleaner()
    cleaned = "".join(cleaner.clean(text[start : start + size]) for start in range(0, len(text), size))
    assert cleaned == f"x\x1b[A{CLEAN}y\x1b{CLEAN}\x1b[2"


def test_a_lone_escape_is_not_kept_waiting() -> None:
    assert PasteCleaner().clean("\x1b") == "\x1b"


def test_a_paste_becomes_one_event_and_no_key() -> None:
    parsed = list(XTermParser().feed(PasteCleaner().clean(PASTE + "z")))
    assert [type(event) for event in parsed] == [events.Paste, events.Key]
    assert parsed[0].text == CLEAN[6:-6]


def test_alt_with_a_digit_is_a_key_as_alt_with_a_letter_is() -> None:
    parser = KeyParser()
    keys = [*parser.feed("\x1b1\x1b9\x1b[A3"), *parser.feed("")]
    assert [event.key for event in keys if isinstance(event, events.Key)] == ["alt+1", "alt+9", "up", "3"]
    assert keys[0].character is None

"""What a terminal sends, made into events: Textual's driver with four corrections.

Textual's own ends the program at the first byte that is not UTF-8 (a key of a terminal in another encoding);
it takes control characters inside a paste for keys: a coloured log would send a message half way, or quit;
it draws on standard error, which may go to a file; and it takes Alt with a digit, as most terminals send it,
for a character that macOS has there. Knows bytes and Textual's parser, none of our widgets.
"""

from __future__ import annotations

import os
import selectors
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import Final

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from app.sanitize import sanitize

_WAIT_S: Final = 0.1


class TerminalDriver(LinuxDriver):
    """Reads any bytes and draws on standard output; all else is Textual's."""

    def __init__(
        self,
        app: App[object],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        """Take what Textual gives to every driver."""
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = sys.__stdout__

    def run_input_thread(self) -> None:
        """Read until the driver is told to stop."""
        decoder = getincrementaldecoder("utf-8")("replace")
        parser, pastes = KeyParser(), PasteCleaner()
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_WAIT_S) and (text := pastes.clean(decoder.decode(self._read()))):
                    for event in parser.feed(text):
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)

    def _read(self) -> bytes:
        """Return what was sent; nothing from a terminal that is gone, and that not too often."""
        try:
            data = os.read(self.fileno, 4096)
        except OSError:
            data = b""
        if not data:
            self.exit_event.wait(_WAIT_S)
        return data


class KeyParser(XTermParser):
    """Textual's parser, to which ESC and a digit are a key."""

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        if len(sequence) == 2 and sequence[0] == "\x1b" and sequence[1] in "0123456789":
            return [events.Key(f"alt+{sequence[1]}", None)]
        return super()._sequence_to_key_events(sequence, alt)


class PasteCleaner:
    """Makes a paste text and nothing else, however its bytes are split between two reads."""

    def __init__(self) -> None:
        """Begin outside a paste."""
        self._inside = False
        self._passed = ""
        """Outside: the last characters, which may be the beginning of the mark of a paste."""
        self._held = ""
        """Inside: characters that may be the beginning of the mark of its end."""

    def clean(self, text: str) -> str:
        """Return `text` with what a paste must not hold made visible or left out."""
        cleaned = ""
        while text:
            part, text = self._to_end(text) if self._inside else self._to_start(text)
            cleaned += part
        return cleaned

    def _to_start(self, text: str) -> tuple[str, str]:
        """Return what is outside a paste, and the rest. Holds nothing back: a lone ESC is a key."""
        known = self._passed + text
        place = known.find(BRACKETED_PASTE_START)
        if place < 0:
            self._passed = known[1 - len(BRACKETED_PASTE_START) :]
            return text, ""
        border = place + len(BRACKETED_PASTE_START) - len(self._passed)
        self._inside, self._passed = True, ""
        return text[:border], text[border:]

    def _to_end(self, text: str) -> tuple[str, str]:
        """Return what is inside a paste, cleaned, with the mark of its end; and the rest."""
        pasted, end, rest = (self._held + text).partition(BRACKETED_PASTE_END)
        self._inside, self._held = not end, ""
        if not end:
            beginnings = (BRACKETED_PASTE_END[:size] for size in range(len(BRACKETED_PASTE_END), 0, -1))
            self._held = next((mark for mark in beginnings if pasted.endswith(mark)), "")
            pasted = pasted.removesuffix(self._held)
        # Terminals send a carriage return for a line break.
        return "\r".join(map(sanitize, pasted.split("\r"))) + end, rest

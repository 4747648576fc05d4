"""The alphabet in which byte-level BPE vocabularies spell bytes, from GPT-2.

Printable bytes of Latin-1 are spelled by their own character, the other 68 by the characters from U+0100 on,
so that no token holds a blank. Source: Radford et al. 2019, and the `tokenizers` library, whose ByteLevel
pre-tokenizer writes it. Called by `bpe`.
"""

from __future__ import annotations


def _alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _alphabet()


def to_bytes(text: str) -> bytes:
    """Return the bytes that a token's text spells; UTF-8 of a text that is not spelled in the alphabet."""
    try:
        return bytes([_BYTE_OF[character] for character in text])
    except KeyError:
        return text.encode("utf-8")

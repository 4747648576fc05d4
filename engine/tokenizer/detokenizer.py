"""Token ids to text, as they come: whole characters only, nothing lost.

Knows UTF-8 and the space that SentencePiece puts before a text; does not know vocabularies. Called by the
generation loop and by `Tokenizer.decode`.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """One text being written. Bytes that cannot be UTF-8 become U+FFFD as soon as that is certain."""

    def __init__(self, tokenizer: Tokenizer, *, starts_text: bool = False) -> None:
        """Begin a text.

        `starts_text`: the ids are a text of their own, so the space which the tokenizer puts before a text
        (if it does) is taken away again. Leave it out where the ids continue a text: there the space is real.
        """
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = starts_text and tokenizer.space_prefix

    def push(self, token_id: int) -> str:
        """Add one id; return the characters that are now complete, possibly none."""
        data = self._tokenizer.token_bytes(token_id)
        if self._at_start and token_id != self._tokenizer.bos_id:
            self._at_start = False
            if not self._tokenizer.is_special(token_id):
                data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """End the text; return U+FFFD for a character that never came to its end, otherwise nothing."""
        return self._utf8.decode(b"", final=True)

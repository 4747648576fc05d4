"""Text to token ids and back, for one model: special tokens are set apart here, plain text goes to its model.

    tokenizer.encode("Hello")  ->  [15496]

Knows which tokens may be read out of a text; does not know how plain text is cut (`bpe`, `spm`) and does not
read files (`load`). Called by the prompt, the generation loop and the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Protocol

from engine.errors import TokenizerError
from engine.tokenizer.detokenizer import Detokenizer
from engine.tokenizer.special_tokens import SpecialTokens
from engine.tokenizer.vocabulary import TokenKind, Vocabulary

_CONTROL = (TokenKind.CONTROL, TokenKind.UNKNOWN)
_SPECIAL = (*_CONTROL, TokenKind.USER_DEFINED)
_SURROGATE = re.compile("[\ud800-\udfff]")


class SubwordModel(Protocol):
    """How plain text becomes ids: BPE on bytes or SentencePiece."""

    space_prefix: bool
    """A text begins with a space that was not typed."""

    def encode(self, text: str) -> list[int]:
        """Cut text without special tokens; no surrogates in it, and no space is put before it."""

    def spelled_bytes(self, text: str) -> bytes:
        """Return the bytes that a NORMAL token of this spelling stands for."""


class Tokenizer:
    """The tokenizer of one model. Immutable; any number of threads may `encode` at a time."""

    def __init__(self, vocabulary: Vocabulary, model: SubwordModel, *, add_bos: bool) -> None:
        """Join a checked vocabulary and its model; callers use `load_tokenizer`."""
        self._vocabulary = vocabulary
        self._model = model
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eot_id = vocabulary.eot_id
        """End of a turn; None where the model has no such token."""
        self.stop_ids = vocabulary.stop_ids
        """Every id after which a reply is over."""
        self.add_bos = add_bos and vocabulary.bos_id is not None
        """The model expects BOS before a text."""
        self.space_prefix = model.space_prefix
        """`encode` puts a space before a text (SentencePiece)."""
        self.control_tokens = vocabulary.ids_of_kinds(*_CONTROL)
        """Tokens that are read out of a text only with `parse_special`."""
        self._always = SpecialTokens(vocabulary.ids_of_kinds(TokenKind.USER_DEFINED))

    @cached_property
    def _with_control(self) -> SpecialTokens:
        return SpecialTokens(self._vocabulary.ids_of_kinds(*_SPECIAL))

    def encode(
        self, text: str, *, parse_special: bool = False, add_bos: bool = False, starts_text: bool = True
    ) -> list[int]:
        """Return the ids of `text`.

        `parse_special`: control tokens written out in the text become their ids; never for text that somebody
        typed. `add_bos`: BOS first; TokenizerError when the model has none. `starts_text`: False for a part
        that follows other tokens, so that SentencePiece's space is not put before it (nor is it after a
        control token, as in Hugging Face's tokenizers and unlike llama.cpp). Surrogates that do not make a
        character become U+FFFD; a character that the vocabulary cannot spell is left out or becomes <unk>.
        """
        if _SURROGATE.search(text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids = [self._bos()] if add_bos else []
        position = 0
        for start, end, token_id in (self._with_control if parse_special else self._always).find(text):
            ids += self._encode_plain(text[position:start], starts_text and position == 0)
            ids.append(token_id)
            position = end
        return ids + self._encode_plain(text[position:], starts_text and position == 0)

    def _encode_plain(self, text: str, first: bool) -> list[int]:
        if not text:
            return []
        return self._model.encode(" " + text if first and self.space_prefix else text)

    def _bos(self) -> int:
        if self.bos_id is None:
            raise TokenizerError(
                f"{self._vocabulary.path}: the vocabulary names no BOS token; leave BOS out for this model"
            )
        return self.bos_id

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, the inverse of `encode`; control tokens are written out.

        Blanks of SentencePiece (U+2581) come back as spaces, whichever was typed.
        """
        detokenizer = Detokenizer(self, starts_text=True)
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()

    def token_text(self, token_id: int) -> str:
        """Return the token in the file's own spelling; TokenizerError for an id outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            raise TokenizerError(
                f"token id {token_id} does not exist: the vocabulary of {self._vocabulary.path} has "
                f"{self.vocab_size} tokens"
            )
        return self._vocabulary.tokens[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that the token adds to a text; errors as for `token_text`."""
        text = self.token_text(token_id)
        kind = self._vocabulary.kinds[token_id]
        if kind == TokenKind.NORMAL:
            return self._model.spelled_bytes(text)
        if kind == TokenKind.BYTE:
            return bytes.fromhex(text[3:5])
        return text.encode("utf-8")

    def is_special(self, token_id: int) -> bool:
        """Whether the token is set apart from plain text; errors as for `token_text`."""
        self.token_text(token_id)
        return self._vocabulary.kinds[token_id] in _SPECIAL

    def id_of(self, text: str) -> int | None:
        """Return the id of the token with exactly this spelling in the file."""
        return self._vocabulary.ids.get(text)

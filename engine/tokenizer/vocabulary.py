"""The vocabulary as the GGUF file states it, checked once: token texts, kinds, and the ids with a role.

Knows the keys under `tokenizer.ggml`; does not know how text is cut into tokens. Every fault is a one-line
error: GGUFError for a key of the wrong type, TokenizerError for values that contradict each other.
Called by `load`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from engine.errors import TokenizerError
from engine.gguf import GGUFFile, ValueType
from engine.gguf.cursor import DAMAGED, printable, shown
from engine.giving_way import giving_way

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TOKENS_KEY = "tokenizer.ggml.tokens"
_KINDS_KEY = "tokenizer.ggml.token_type"
_NO_ID = (-1, 0xFFFF_FFFF)
"""How some converters write "this model has no such token"."""

_TURN_ENDS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_utterance>",
)
"""Tokens with which chat templates end a turn, by name: few files name theirs under a key."""
_TEXT_ENDS = ("<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>")
"""Tokens that end a text or a message, by name."""


class TokenKind(IntEnum):
    """What a token stands for; the number is the one in the file."""

    NORMAL = 1
    """Part of text."""
    UNKNOWN = 2
    """Stands for what has no token; never read out of text."""
    CONTROL = 3
    """Structure, put in by templates only."""
    USER_DEFINED = 4
    """Text that is always one token."""
    UNUSED = 5
    """Padding of the vocabulary."""
    BYTE = 6
    """One byte, spelled <0xNN>."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token id -> text and kind, and the ids with a role."""

    path: Path
    """The file, for messages."""
    tokens: list[str]
    """By id, in the file's own spelling; an empty text is a token that nothing can produce."""
    kinds: bytes
    """By id, a `TokenKind`; the ids of roles that end or begin a text are CONTROL whatever the file says."""
    ids: dict[str, int]
    """Text -> id, without empty texts."""
    bos_id: int | None
    """Begin of text."""
    eos_id: int | None
    """End of text."""
    eot_id: int | None
    """End of a turn, named by the file or known by its text."""
    unk_id: int | None
    """Stands for what has no token."""
    stop_ids: frozenset[int]
    """Every id after which a reply is over."""

    def ids_of_kinds(self, *kinds: TokenKind) -> dict[str, int]:
        """Text -> id of the tokens of these kinds, in the order of ids."""
        found = (match.start() for match in re.finditer(b"[%b]" % bytes(kinds), self.kinds))
        return {self.tokens[i]: i for i in found if self.tokens[i]}

    def fault(self, message: str) -> TokenizerError:
        """Make the error for this vocabulary; `message` holds no raw untrusted text."""
        return _fault(self.path, message)


def read_vocabulary(gguf: GGUFFile, *, default_roles: bool) -> Vocabulary:
    """Read and check the vocabulary of `gguf`.

    `default_roles`: without a key, <unk> is 0, BOS 1 and EOS 2, as in SentencePiece vocabularies.
    """
    tokens = gguf.get_array(TOKENS_KEY).to_strings()
    if not tokens:
        raise _fault(gguf.path, f"{TOKENS_KEY} is empty")
    ids = _ids(gguf.path, tokens)
    kinds = _kinds(gguf, tokens)
    bos_id = _role(gguf, "bos", len(tokens), 1 if default_roles else None)
    eos_id = _role(gguf, "eos", len(tokens), 2 if default_roles else None)
    eot_id = _role(gguf, "eot", len(tokens), None)
    if eot_id is None:
        eot_id = next((ids[text] for text in _TURN_ENDS if text in ids), None)
    ends = {eos_id, eot_id, _role(gguf, "eom", len(tokens), None)}
    ends.update(ids.get(text) for text in (*_TURN_ENDS, *_TEXT_ENDS))
    if bos_id is not None and tokens[bos_id] == "<s>":
        # Where the text begins with another token, </s> is the HTML tag for struck-out text (Gemma).
        ends.add(ids.get("</s>"))
    stop_ids = frozenset(i for i in ends if i is not None)
    for token_id in stop_ids if bos_id is None else stop_ids | {bos_id}:
        # Phi-3 types </s> as USER_DEFINED: left so, a person could type an end.
        kinds[token_id] = TokenKind.CONTROL
    return Vocabulary(
        path=gguf.path,
        tokens=tokens,
        kinds=bytes(kinds),
        ids=ids,
        bos_id=bos_id,
        eos_id=eos_id,
        eot_id=eot_id,
        unk_id=_role(gguf, "unknown", len(tokens), 0 if default_roles else None),
        stop_ids=stop_ids,
    )


def _ids(path: Path, tokens: list[str]) -> dict[str, int]:
    ids = {text: i for i, text in enumerate(giving_way(tokens)) if text}
    if len(ids) + tokens.count("") < len(tokens):
        first, second = next((i, ids[text]) for i, text in enumerate(tokens) if text and ids[text] != i)
        raise _fault(path, f"{TOKENS_KEY} holds {shown(tokens[first])} twice, as {first} and as {second}")
    return ids


def _kinds(gguf: GGUFFile, tokens: list[str]) -> bytearray:
    array = gguf.get_array(_KINDS_KEY, None)
    if array is None:
        return bytearray([TokenKind.NORMAL]) * len(tokens)
    if len(array) != len(tokens):
        raise _fault(gguf.path, f"{_KINDS_KEY} has {len(array)} items for {len(tokens)} tokens")
    if array.element_type in (ValueType.FLOAT32, ValueType.FLOAT64, ValueType.BOOL):
        raise _fault(gguf.path, f"{_KINDS_KEY} holds {array.element_type.name} items, not integers")
    numbers = cast("npt.NDArray[np.integer[Any]]", array.to_numpy())
    unknown = (numbers < int(min(TokenKind))) | (numbers > int(max(TokenKind)))
    if unknown.any():
        index = int(unknown.argmax())
        raise _fault(gguf.path, f"{_KINDS_KEY} is {numbers[index]} for token {index}: 1 to 6 was expected")
    kinds = bytearray(numbers.astype("u1"))
    for match in re.finditer(b"%c" % TokenKind.BYTE, kinds):
        text = tokens[match.start()]
        if not _is_byte(text):
            raise _fault(gguf.path, f"token {match.start()} is typed as a byte but spelled {shown(text)}")
    return kinds


def _is_byte(text: str) -> bool:
    digits = text[3:5]
    return text == f"<0x{digits}>" and len(digits) == 2 and all(c in "0123456789abcdefABCDEF" for c in digits)


def _role(gguf: GGUFFile, name: str, n_tokens: int, default: int | None) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    token_id = gguf.get_int(key, None)
    if token_id is None:
        return default if default is not None and default < n_tokens else None
    if token_id in _NO_ID:
        return None
    if not 0 <= token_id < n_tokens:
        raise _fault(gguf.path, f"{key} is {token_id}, but the vocabulary has {n_tokens} tokens")
    return token_id


def _fault(path: Path, message: str) -> TokenizerError:
    return TokenizerError(f"{printable(str(path))}: {message}; {DAMAGED}")

"""SentencePiece on its own library: the vocabularies that GGUF calls `llama`.

Knows how a model of that library is laid out, and writes one from the GGUF's vocabulary: the few protobuf
fields it takes are written here, so that protobuf itself is not needed. Called by `load`.
Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto.
"""

from __future__ import annotations

import struct

import numpy as np
from sentencepiece import SentencePieceProcessor

from engine.gguf import GGUFFile
from engine.giving_way import giving_way
from engine.tokenizer.vocabulary import TokenKind, Vocabulary

_SCORES_KEY = "tokenizer.ggml.scores"
_BLANK = "▁"
"""U+2581, which stands for a space in SentencePiece vocabularies."""
_N_BYTES = 256

_BPE = b"\x18\x02"
"""TrainerSpec.model_type = BPE."""
_BYTE_FALLBACK = b"\x98\x02\x01"
"""TrainerSpec.byte_fallback = true: characters without a token are spelled in bytes."""
_NORMALIZER = b"\x0a\x08identity" + b"\x18\x00" + b"\x20\x00" + b"\x28\x01"
"""NormalizerSpec: no mapping, no space in front (`Tokenizer` does that), all blanks kept, spaces escaped."""


class SentencePiece:
    """A `SubwordModel`. A character without token becomes bytes, or <unk> where the bytes have no tokens."""

    def __init__(self, gguf: GGUFFile, vocabulary: Vocabulary) -> None:
        """Build from the scores of `gguf`; 0.5 s for 262k tokens."""
        self.space_prefix = gguf.get_bool("tokenizer.ggml.add_space_prefix", True)
        model = _serialise(vocabulary, _scores(gguf, vocabulary))
        try:
            self._processor = SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise vocabulary.fault(f"SentencePiece refuses the vocabulary ({str(error)!r})") from None

    def encode(self, text: str) -> list[int]:
        """Merge by scores."""
        ids: list[int] = self._processor.encode(text)
        return ids

    def spelled_bytes(self, text: str) -> bytes:
        """Turn the blank back into spaces."""
        return text.replace(_BLANK, " ").encode("utf-8")


def _scores(gguf: GGUFFile, vocabulary: Vocabulary) -> list[float]:
    array = gguf.get_array(_SCORES_KEY)
    if len(array) != len(vocabulary.tokens):
        raise vocabulary.fault(f"{_SCORES_KEY} has {len(array)} items for {len(vocabulary.tokens)} tokens")
    scores = array.to_numpy().astype(np.float32)
    finite = np.isfinite(scores)
    if not finite.all():
        index = int(np.argmin(finite))
        raise vocabulary.fault(f"{_SCORES_KEY} is {scores[index]} for token {index}")
    values: list[float] = scores.tolist()
    return values


def _serialise(vocabulary: Vocabulary, scores: list[float]) -> bytes:
    """Write a ModelProto: pieces (field 1), TrainerSpec (2), NormalizerSpec (3)."""
    out = bytearray()
    kinds = _kinds_for_library(vocabulary)
    for token_id, (text, score) in enumerate(giving_way(zip(vocabulary.tokens, scores, strict=True))):
        # The library wants every piece to have a text of its own; this one can be in no text.
        name = text.encode("utf-8") or b"\xf8empty %d" % token_id
        piece = b"\x0a%b%b\x15%b\x18%c" % (
            _varint(len(name)),
            name,
            struct.pack("<f", score),
            kinds[token_id],
        )
        out += b"\x0a%b%b" % (_varint(len(piece)), piece)
    trainer = _BPE
    if vocabulary.kinds.count(TokenKind.BYTE) == _N_BYTES:
        trainer += _BYTE_FALLBACK
    return bytes(out) + b"\x12%c%b" % (len(trainer), trainer) + b"\x1a%c%b" % (len(_NORMALIZER), _NORMALIZER)


def _kinds_for_library(vocabulary: Vocabulary) -> bytes:
    """Return kinds as the library takes them: exactly one UNKNOWN, and nothing else that it should look for.

    USER_DEFINED tokens are set apart by `Tokenizer`, on the text as typed, so they are hidden here. Hidden
    means CONTROL, which the library never reads out of a text.
    """
    hidden = bytes.maketrans(
        bytes([TokenKind.UNKNOWN, TokenKind.USER_DEFINED]), bytes([TokenKind.CONTROL]) * 2
    )
    kinds = bytearray(vocabulary.kinds.translate(hidden))
    for token_id, text in enumerate(giving_way(vocabulary.tokens)):
        if not text:
            kinds[token_id] = TokenKind.CONTROL
    if vocabulary.unk_id is None:
        raise vocabulary.fault("tokenizer.ggml.unknown_token_id is missing, which SentencePiece needs")
    kinds[vocabulary.unk_id] = TokenKind.UNKNOWN
    return bytes(kinds)


def _varint(number: int) -> bytes:
    """Protobuf's variable-length integer."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)

"""Byte-level BPE on the `tokenizers` library: the vocabularies that GGUF calls `gpt2`.

Knows merges and the library; the regular expressions that cut text before the merges are in `pre_tokenizers`.
Called by `load`.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from engine.gguf import GGUFFile
from engine.gguf.cursor import shown
from engine.tokenizer import byte_level
from engine.tokenizer.pre_tokenizers import PreTokenizer
from engine.tokenizer.vocabulary import TokenKind, Vocabulary

_MERGES_KEY = "tokenizer.ggml.merges"


class ByteLevelBPE:
    """A `SubwordModel`. A character whose bytes have no token is left out, as everywhere else."""

    space_prefix = False

    def __init__(self, gguf: GGUFFile, vocabulary: Vocabulary, pre: PreTokenizer) -> None:
        """Build the merges of `gguf`; 0.6 s for 128k tokens, most of it in the library and under the GIL."""
        # Control tokens stay outside, so that no text and no merge can produce one.
        control = vocabulary.ids_of_kinds(TokenKind.CONTROL, TokenKind.UNKNOWN)
        ids = {text: i for text, i in vocabulary.ids.items() if text not in control}
        self._tokenizer = Tokenizer(
            models.BPE(ids, _merges(gguf, vocabulary, ids), ignore_merges=pre.ignore_merges)
        )
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
        to_alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_alphabet])

    def encode(self, text: str) -> list[int]:
        """Cut by the pre-tokenizer, then merge."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def spelled_bytes(self, text: str) -> bytes:
        """Read the byte alphabet."""
        return byte_level.to_bytes(text)


def _merges(gguf: GGUFFile, vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the pairs in order of rank, made of the vocabulary's own strings to save 30 MB of copies."""
    tokens = vocabulary.tokens
    pairs = []
    for rank, merge in enumerate(gguf.get_array(_MERGES_KEY).to_strings()):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise vocabulary.fault(
                f"item {rank} of {_MERGES_KEY} is {shown(merge)}, which does not join two tokens into a third"
            )
        pairs.append((tokens[ids[left]], tokens[ids[right]]))
    return pairs

"""Byte-level BPE: the vocabularies that GGUF calls `gpt2`.

Knows merges; the regular expressions that cut text before the merges are in `pre_tokenizers` and run in the
`tokenizers` library. That library can merge as well, but it takes the merges in one call that holds Python's
lock, 30 ms for 49k of them and 0.2 s for 280k, in which no key is answered. Called by `load`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from tokenizers import Regex, pre_tokenizers

from engine.gguf import GGUFFile
from engine.gguf.cursor import shown
from engine.giving_way import giving_way
from engine.tokenizer import byte_level
from engine.tokenizer.pre_tokenizers import PreTokenizer
from engine.tokenizer.vocabulary import TokenKind, Vocabulary

_MERGES_KEY = "tokenizer.ggml.merges"
_REMEMBERED = 10_000
"""Words whose ids are kept: most of a text is words that were there before."""
_LONGEST = 256
"""Characters of a word that is kept."""


class ByteLevelBPE:
    """A `SubwordModel`. A character whose bytes have no token is left out, as everywhere else."""

    space_prefix = False

    def __init__(self, gguf: GGUFFile, vocabulary: Vocabulary, pre: PreTokenizer) -> None:
        """Read the merges of `gguf`; 0.1 s for 49k, giving way to other threads."""
        # Control tokens stay outside, so that no text and no merge can produce one.
        self._ids = vocabulary.ids.copy()
        for text in vocabulary.ids_of_kinds(TokenKind.CONTROL, TokenKind.UNKNOWN):
            del self._ids[text]
        self._size = len(vocabulary.tokens)
        self._merges = _read_merges(gguf, vocabulary, self._ids)
        self._ignore_merges = pre.ignore_merges
        self._known: dict[str, list[int]] = {}
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
        to_alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._cut = pre_tokenizers.Sequence([*splits, to_alphabet])

    def encode(self, text: str) -> list[int]:
        """Cut by the pre-tokenizer, then merge."""
        ids: list[int] = []
        for word, _place in self._cut.pre_tokenize_str(text):
            known = self._known.get(word)
            ids += self._encode_word(word) if known is None else known
        return ids

    def spelled_bytes(self, text: str) -> bytes:
        """Read the byte alphabet."""
        return byte_level.to_bytes(text)

    def _encode_word(self, word: str) -> list[int]:
        whole = self._ids.get(word) if self._ignore_merges else None
        ids = self._merge(word) if whole is None else [whole]
        if len(word) <= _LONGEST:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[word] = ids
        return ids

    def _merge(self, word: str) -> list[int]:
        """Merge the pair of the lowest rank, of several the leftmost, until none is left."""
        merges, size = self._merges, self._size
        ids = [self._ids[letter] for letter in word if letter in self._ids]
        before, after = list(range(-1, len(ids))), list(range(1, len(ids) + 1))
        pairs = ((merges.get(ids[i] * size + ids[i + 1]), i) for i in range(len(ids) - 1))
        queue = [(merge, i) for merge, i in pairs if merge is not None]
        heapify(queue)
        while queue:
            merge, i = heappop(queue)
            gone = after[i]
            # Neighbours may have been merged since the pair was queued; -1 is in no pair.
            if gone >= len(ids) or merges.get(ids[i] * size + ids[gone]) != merge:
                continue
            ids[i], ids[gone] = merge % size, -1
            after[i] = after[gone]
            before[after[i]] = i
            for left, right in ((before[i], i), (i, after[i])):
                if left >= 0 and right < len(ids):
                    new = merges.get(ids[left] * size + ids[right])
                    if new is not None:
                        heappush(queue, (new, left))
        return [token_id for token_id in ids if token_id >= 0]


def _read_merges(gguf: GGUFFile, vocabulary: Vocabulary, ids: dict[str, int]) -> dict[int, int]:
    """Return left id * size + right id -> rank * size + id of both: numbers in the order of rank.

    `size` is that of the vocabulary. Numbers, since so many small objects would keep the garbage collector
    busy.
    """
    size = len(vocabulary.tokens)
    merges: dict[int, int] = {}
    for rank, merge in enumerate(giving_way(gguf.get_array(_MERGES_KEY).to_strings())):
        left, _, right = merge.partition(" ")
        try:
            merges[ids[left] * size + ids[right]] = rank * size + ids[left + right]
        except KeyError:
            raise vocabulary.fault(
                f"item {rank} of {_MERGES_KEY} is {shown(merge)}, which does not join two tokens into a third"
            ) from None
    return merges

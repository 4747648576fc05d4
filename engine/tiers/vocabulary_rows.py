"""Rows of the two matrices over the vocabulary, embedding and head, which are cut into blocks.

Knows rows and the blocks that hold them; does not know arithmetic, nor when a block comes (the store). Called
by backends that compute on the processor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.cancel import CancelToken
from engine.tiers.blocks import BlockKind
from engine.tiers.residents import Bytes, follows, joined
from engine.tiers.store import TieredWeights
from kernels.quant_types import QuantType


class HeadRows(NamedTuple):
    """Consecutive rows of the output matrix that are in memory."""

    first_row: int
    quant_type: QuantType
    data: Bytes


class VocabularyRows:
    """Of one model."""

    def __init__(self, tiers: TieredWeights) -> None:
        """Take them from `tiers`; a model that has no embedding of its own shares the head's."""
        self._tiers = tiers
        self._head = [block for block in tiers.blocks if block.kind is BlockKind.HEAD]
        self._embedding = [b for b in tiers.blocks if b.kind is BlockKind.EMBEDDING] or self._head

    def head(self, cancel: CancelToken) -> Iterator[HeadRows]:
        """All rows of the output matrix in order; those of one step are in memory until the next.

        Raises as `TieredWeights.acquire`.
        """
        run: HeadRows | None = None
        for block in self._head:
            piece, resident = block.pieces[0], self._tiers.resident(block)
            if run is not None and resident is not None and follows(run.data, resident[0]):
                run = run._replace(data=joined(run.data, resident[0]))
                continue
            if run is not None:
                yield run
                run = None
            if resident is not None:
                run = HeadRows(piece.first_row, piece.quant_type, resident[0])
                continue
            streamed = self._tiers.acquire(block, cancel)
            try:
                yield HeadRows(piece.first_row, piece.quant_type, streamed[0])
            finally:
                self._tiers.release(block)
        if run is not None:
            yield run

    def embedding(self, token_ids: npt.NDArray[np.int32]) -> Bytes:
        """The rows of the embedding of these ids one after another; rows that do not stay come from the file.

        Raises StreamError.
        """
        pieces = [block.pieces[0] for block in self._embedding]
        firsts = [piece.first_row for piece in pieces]
        n_bytes = pieces[0].n_bytes // pieces[0].n_rows
        rows = np.empty((len(token_ids), n_bytes), np.uint8)
        for row, token_id in zip(rows, token_ids.tolist(), strict=True):
            number = bisect_right(firsts, token_id) - 1
            piece, start = pieces[number], (token_id - firsts[number]) * n_bytes
            resident = self._tiers.resident(self._embedding[number])
            if resident is None:
                self._tiers.files.fill(piece.part, piece.offset + start, row.data)
            else:
                row[:] = resident[0][start : start + n_bytes]
        return rows.reshape(-1)

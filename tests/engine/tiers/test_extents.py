"""Pieces of a file read in whole pages: every byte once, every piece where it is said to be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.tiers.blocks import Block, Piece, slot_bytes_for
from engine.tiers.direct_io import ALIGNMENT
from engine.tiers.extents import lay_out
from tests.engine.tiers.faulty_disk import block, piece

N_BYTES = 40 * ALIGNMENT
CONTENT = np.random.default_rng(0).integers(0, 256, (2, N_BYTES), np.uint8)


@st.composite
def some_blocks(draw: st.DrawFn) -> Block:
    """Pieces that do not overlap, in two files, in any order."""
    pieces: list[Piece] = []
    for part in range(2):
        cuts = sorted(draw(st.sets(st.integers(0, N_BYTES), max_size=8)))
        pieces += [piece(a, b - a, part) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    return block(0, *draw(st.permutations(pieces or [piece(0, 1)])))


@given(some_blocks(), st.integers(1, 12))
def test_reading_the_requests_puts_every_piece_where_its_view_is(block: Block, pages: int) -> None:
    layout = lay_out(block.pieces)
    memory = np.zeros(layout.n_bytes, np.uint8)
    written = 0
    for request in layout.requests(pages * ALIGNMENT):
        assert request.n_bytes <= pages * ALIGNMENT
        assert 0 < request.needed <= request.n_bytes
        assert not (request.offset % ALIGNMENT or request.n_bytes % ALIGNMENT or request.at % ALIGNMENT)
        # Only what is said to be needed: the file may end there.
        source = CONTENT[request.part, request.offset : request.offset + request.needed]
        memory[request.at : request.at + request.needed] = source
        written += request.n_bytes
    assert written == layout.n_bytes <= slot_bytes_for(block)
    for (_, part, offset, n_bytes, *_), view in zip(block.pieces, layout.views(memory), strict=True):
        assert np.array_equal(view, CONTENT[part, offset : offset + n_bytes])
        assert not view.flags.writeable


def test_pieces_whose_pages_touch_are_read_as_one() -> None:
    apart, touching = piece(5 * ALIGNMENT, 10), [piece(ALIGNMENT + 7, 10), piece(2 * ALIGNMENT, 10)]
    layout = lay_out([apart, *touching])
    assert [(extent.offset, extent.n_bytes) for extent in layout.extents] == [
        (ALIGNMENT, 2 * ALIGNMENT),
        (5 * ALIGNMENT, ALIGNMENT),
    ]


def test_the_same_place_in_two_files_is_read_from_both() -> None:
    layout = lay_out([piece(0, 10, part=0), piece(0, 10, part=1)])
    assert [extent.part for extent in layout.extents] == [0, 1]
    assert layout.starts == (0, ALIGNMENT)

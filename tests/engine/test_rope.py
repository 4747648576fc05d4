"""Rotation tables: frequencies, scaling and far positions."""

from __future__ import annotations

import numpy as np
import pytest

from engine.architectures import RopePairing
from engine.model_config import RopeConfig
from engine.rope import inverse_frequencies, rope_tables

PLAIN = RopeConfig(dim=8, base=10_000.0, pairing=RopePairing.NEOX)


def test_the_first_pair_turns_by_one_radian_and_the_others_slower() -> None:
    np.testing.assert_allclose(inverse_frequencies(PLAIN), [1, 0.1, 0.01, 0.001])


def test_a_table_in_pieces_is_the_whole_table_bit_for_bit() -> None:
    whole = rope_tables(PLAIN, 0, 10)
    pieces = [rope_tables(PLAIN, start, 5) for start in (0, 5)]
    for table, parts in zip(whole, zip(*pieces, strict=True), strict=True):
        np.testing.assert_array_equal(table, np.concatenate(parts))


def test_linear_scaling_by_4_puts_position_8_where_2_was() -> None:
    scaled = RopeConfig(dim=8, base=10_000.0, pairing=RopePairing.NEOX, frequency_scale=0.25)
    np.testing.assert_allclose(rope_tables(scaled, 8, 1)[0], rope_tables(PLAIN, 2, 1)[0])


def test_factors_divide_the_frequency_of_their_pair() -> None:
    factored = RopeConfig(dim=8, base=10_000.0, pairing=RopePairing.NEOX, factors=(1.0, 1.0, 2.0, 8.0))
    np.testing.assert_allclose(inverse_frequencies(factored), [1, 0.1, 0.005, 0.000125])


def test_angles_at_position_100000_are_exact_to_float32() -> None:
    cosines, _ = rope_tables(PLAIN, 100_000, 1)
    assert cosines[0, 0] == pytest.approx(np.cos(100_000.0), abs=1e-7)

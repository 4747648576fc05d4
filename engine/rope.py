"""Rotary position tables: cosines and sines of a run of positions.

Knows the frequencies and their scaling; does not rotate anything (the kernels do). Angles are computed in
float64, since a float32 angle is off by 0.01 rad at position 100,000.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.model_config import RopeConfig


def inverse_frequencies(rope: RopeConfig) -> npt.NDArray[np.float64]:
    """Angle per position of each pair, [dim / 2], scaling and factors applied."""
    pairs = np.arange(rope.dim // 2, dtype=np.float64)
    frequencies = rope.base ** (-2.0 * pairs / rope.dim) * rope.frequency_scale
    return frequencies if rope.factors is None else frequencies / np.array(rope.factors, np.float64)


def rope_tables(
    rope: RopeConfig, start_pos: int, n_positions: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines [n_positions, dim / 2] of start_pos onwards."""
    positions = np.arange(start_pos, start_pos + n_positions, dtype=np.float64)
    angles = positions[:, None] * inverse_frequencies(rope)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

"""Drawing the next id where the logits are, and beginning a step from it without asking the host.

Knows logits [V] and the chain penalties, top-k, top-p, min-p, temperature, draw, or greedy; does not know
seeds, or what to do where the chain does not fit here (`MOST_CANDIDATES`). engine/sampler.py has the same for
the host.

A pass's state is an array [16] int32: [0] the position of its first id, [1..8] its ids, [9] the id drawn
last, [10] whether the logits of that draw were not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernels.cuda.device import Array, Device, Kernel

MOST_CANDIDATES = 64
"""Ids that `sample` can choose among."""
MOST_PENALISED = 64
"""Distinct ids that `penalize` can lower."""
MOST_IDS = 8
"""Ids that a pass can begin with."""
STATE_SIZE = 16

STEP = Kernel.of("step.cu", "step")
PENALTIES = Kernel.of("sample_penalties.cu", "sample_penalties")
GREEDY = Kernel.of("sample_greedy.cu", "sample_greedy")
TOP = Kernel.of("sample_top.cu", "sample_top")

_SEARCHED = 1024
"""Logits that a block looks at: SEARCHED in candidates.cuh."""
_SMALLEST_TEMPERATURE = 1e-30
"""Below it a float32 would soon be 0; greedy long before."""


class Sampling(NamedTuple):
    """What draws from a vocabulary keep in device memory."""

    best: Array
    """[1] uint64, 0 between draws."""
    n_done: Array
    """[1] uint32: blocks that have finished; 0 between draws."""
    lists: Array
    """[blocks, MOST_CANDIDATES] uint64: each block's best."""


def sampling_scratch(device: Device, n_vocab: int) -> Sampling:
    """Scratch for logits [V]. Raises DeviceMemoryError."""
    return Sampling(
        device.zeros(1, np.uint64),
        device.zeros(1, np.uint32),
        device.empty((_n_blocks(n_vocab), MOST_CANDIDATES), np.uint64),
    )


def begin_step(device: Device, state: Array, position: int, ids: Sequence[int]) -> None:
    """Begin a pass of 1 to MOST_IDS ids at `position`."""
    if not 0 < len(ids) <= MOST_IDS:
        raise ValueError(f"{len(ids)} ids: 1 to {MOST_IDS} are needed")
    _step(device, state, position, ids)


def continue_step(device: Device, state: Array, position: int) -> None:
    """Begin a pass of the one id drawn last, at `position`."""
    _step(device, state, position, ())


def _step(device: Device, state: Array, position: int, ids: Sequence[int]) -> None:
    all_ids = [np.int32(i) for i in (*ids, *(0,) * (MOST_IDS - len(ids)))]
    device.launch(STEP, 1, 32, state, np.int32(position), np.int32(len(ids)), *all_ids)


def penalize(
    device: Device,
    logits: Array,
    ids_counts: Array,
    n_ids: int,
    *,
    repeat: float,
    presence: float,
    frequency: float,
) -> None:
    """Lower the logits [V] of n_ids distinct ids, in place.

    `ids_counts` is [2, MOST_PENALISED] int32: the ids, and how often each occurs.
    """
    if not 0 < n_ids <= MOST_PENALISED:
        raise ValueError(f"{n_ids} ids: 1 to {MOST_PENALISED} are needed")
    device.launch(
        PENALTIES,
        1,
        MOST_PENALISED,
        logits,
        ids_counts[0],
        ids_counts[1],
        np.int32(n_ids),
        np.float32(repeat),
        np.float32(presence),
        np.float32(frequency),
    )


def argmax(device: Device, logits: Array, scratch: Sampling, state: Array, host_id: np.uint64) -> None:
    """Draw the id of the largest of logits [V], the lowest of equals.

    It goes to state[9] and to the int32 at the host's address `host_id` (0: nowhere). When the best logit is
    not finite, the host gets -1, state[10] is 1 and state[9] is 0.
    """
    n_vocab = logits.shape[0]
    device.launch(
        GREEDY,
        _n_blocks(n_vocab),
        256,
        logits,
        np.int32(n_vocab),
        scratch.best,
        scratch.n_done,
        state,
        host_id,
    )


def sample(
    device: Device,
    logits: Array,
    scratch: Sampling,
    state: Array,
    host_id: np.uint64,
    *,
    top_k: int,
    top_p: float,
    min_p: float,
    temperature: float,
    uniform: float,
) -> None:
    """Draw an id from logits [V]; where it goes is said at `argmax`.

    1 <= top_k <= MOST_CANDIDATES, temperature > 0, `uniform` in [0, 1). The candidates are in descending
    order of their logits, the lower id first of equals: the one in whose share `uniform` lies is drawn.
    """
    if not (0 < top_k <= MOST_CANDIDATES and temperature > 0):
        raise ValueError(f"top_k {top_k} at temperature {temperature}: cannot be drawn on the device")
    n_vocab = logits.shape[0]
    device.launch(
        TOP,
        _n_blocks(n_vocab),
        _SEARCHED // 2,
        logits,
        np.int32(n_vocab),
        scratch.lists,
        scratch.n_done,
        state,
        host_id,
        np.int32(top_k),
        np.float32(top_p),
        np.float32(math.log(min_p) if min_p > 0 else -math.inf),
        np.float32(max(temperature, _SMALLEST_TEMPERATURE)),
        np.float32(uniform),
    )


def _n_blocks(n_vocab: int) -> int:
    return -(-n_vocab // _SEARCHED)

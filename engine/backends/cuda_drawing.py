"""Draws from logits in a GPU's memory: only the id comes to the host.

Knows which draws the kernels can do, and how what they need gets there; the chain is that of `sampler`.
Called by the CUDA backend.
"""

from __future__ import annotations

from copy import copy
from typing import cast

import numpy as np

from engine.config import SamplingParams
from engine.logits import DrawRequest, Penalties, not_numbers
from kernels.cuda.device import Array, Device, Event
from kernels.cuda.sampling import (
    MOST_CANDIDATES,
    MOST_IDS,
    MOST_PENALISED,
    argmax,
    penalize,
    sample,
    sampling_scratch,
)
from kernels.cuda.sketch import Launch, Sketch


def is_plain(request: DrawRequest) -> bool:
    """Whether a draw is of the best logit as it is, whatever was drawn before."""
    return request.params.temperature == 0 and not len(request.penalties.ids)


class Drawing:
    """What draws take on the device: made once, used by one draw at a time."""

    def __init__(self, device: Device, vocab_size: int, state: Array) -> None:
        """Reserve memory. `state` is as in kernels/cuda/sampling.py."""
        self._device, self._vocab_size, self._state = device, vocab_size, state
        self._scratch = sampling_scratch(device, vocab_size)
        self._penalised = device.empty((2, MOST_PENALISED), np.int32)
        self._host_penalised = device.pinned(2 * MOST_PENALISED * 4).view(np.int32).reshape(2, MOST_PENALISED)
        self._host_ids = device.pinned(4 * MOST_IDS).view(np.int32)
        self._host_addresses = [device.host_address(self._host_ids[row:]) for row in range(MOST_IDS)]

    def possible(self, request: DrawRequest) -> bool:
        """Whether the kernels can do it."""
        p = request.params
        if len(request.penalties.ids) > MOST_PENALISED:
            return False
        return p.temperature == 0 or (
            p.typical_p >= 1 and 0 < p.top_k <= MOST_CANDIDATES and p.top_k < self._vocab_size
        )

    def begin(self, logits: Array, request: DrawRequest) -> Event:
        """Put a draw from logits [V], which penalties change, on the device -> when it is done.

        The id is in the state then, for a step that follows it.
        """
        p = request.params
        if len(request.penalties.ids):
            self._penalize(logits, request.penalties, p)
        if p.temperature == 0:
            argmax(self._device, logits, self._scratch, self._state, self._host_addresses[0])
        else:
            sample(
                self._device,
                logits,
                self._scratch,
                self._state,
                self._host_addresses[0],
                top_k=p.top_k,
                top_p=p.top_p,
                min_p=p.min_p,
                temperature=p.temperature,
                uniform=request.uniform,
            )
        return self._device.record()

    def launches(self, logits: Array, request: DrawRequest) -> list[Launch]:
        """What a draw consists of."""
        noted, other = Sketch(self._device), copy(self)
        other._device = noted
        other.begin(logits, request)
        return noted.launches

    def finish(self, drawn: Event) -> int:
        """Wait for the id. Raises KernelError when the logits are not numbers."""
        drawn.wait()
        token_id = int(self._host_ids[0])
        if token_id < 0:
            raise not_numbers()
        return token_id

    def begin_best(self, logits: Array) -> Event:
        """Look for the best of every row of logits [up to 8, V] -> when it is found."""
        for row, address in enumerate(self._host_addresses[: logits.shape[0]]):
            argmax(self._device, logits[row], self._scratch, self._state, address)
        return self._device.record()

    def finish_best(self, found: Event, n_rows: int) -> list[int]:
        """Wait for the ids of so many rows; a negative one stands for logits that are not numbers."""
        found.wait()
        return cast(list[int], self._host_ids[:n_rows].tolist())

    def _penalize(self, logits: Array, penalties: Penalties, params: SamplingParams) -> None:
        # Every earlier draw has been waited for, and with it the copy from this memory.
        n_ids = len(penalties.ids)
        self._host_penalised[0, :n_ids] = penalties.ids
        self._host_penalised[1, :n_ids] = penalties.counts
        self._device.copy_async(self._penalised, self._host_penalised)
        penalize(
            self._device,
            logits,
            self._penalised,
            n_ids,
            repeat=params.repeat_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
        )

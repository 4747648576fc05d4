"""Draws on the device against the host's chain: the same id from the same logits and the same number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from engine.config import SamplingParams
from engine.logits import DrawRequest
from engine.sampler import choose, penalize, penalties
from kernels.cuda import sampling
from kernels.cuda.device import Device

VOCABULARIES = [1, 40, 1000, 1024, 1025, 32000, 128256]
NOTHING = penalties([], SamplingParams())


def random_logits(n_vocab: int, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, n_vocab).astype(np.float32)


class Drawing:
    """Draws from one vocabulary, each from its own logits; one scratch for all, as in the engine."""

    def __init__(self, device: Device, n_vocab: int) -> None:
        self.device = device
        self.scratch = sampling.sampling_scratch(device, n_vocab)
        self.state = device.zeros(sampling.STATE_SIZE, np.int32)
        self.host_id = device.pinned(4).view(np.int32)

    def greedy(self, logits: np.ndarray) -> int:
        self._run(logits, None)
        return self._drawn()

    def sampled(self, logits: np.ndarray, params: SamplingParams, uniform: float) -> int:
        self._run(logits, params, uniform)
        return self._drawn()

    def fails(self, logits: np.ndarray, params: SamplingParams | None = None) -> bool:
        """Whether the draw tells the host that the logits are not finite, and leaves an id that exists."""
        self._run(logits, params)
        state = self.device.download(self.state)
        assert (state[9] == 0) == (state[10] == 1)
        return bool(state[10] == 1 and self.host_id[0] == -1)

    def _run(self, logits: np.ndarray, params: SamplingParams | None, uniform: float = 0.5) -> None:
        self.host_id[:] = -7
        on_device, address = self.device.upload(logits), self.device.host_address(self.host_id)
        if params is None:
            sampling.argmax(self.device, on_device, self.scratch, self.state, address)
        else:
            sampling.sample(
                self.device,
                on_device,
                self.scratch,
                self.state,
                address,
                top_k=params.top_k,
                top_p=params.top_p,
                min_p=params.min_p,
                temperature=params.temperature,
                uniform=uniform,
            )

    def _drawn(self) -> int:
        state = self.device.download(self.state)
        assert state[9] == self.host_id[0]
        assert state[10] == 0
        return int(state[9])


def host_draws(logits: np.ndarray, params: SamplingParams, uniform: float) -> set[int]:
    """What the host draws at `uniform`, and at its neighbours that float32 cannot tell from a boundary."""
    near = (uniform, max(uniform - 1e-5, 0.0), min(uniform + 1e-5, 1 - 2**-53))
    return {choose(logits, DrawRequest(params, NOTHING, u)) for u in near}


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_greedy_is_the_argmax(device: Device, n_vocab: int) -> None:
    drawing = Drawing(device, n_vocab)
    for seed in range(3):
        logits = random_logits(n_vocab, seed)
        assert drawing.greedy(logits) == np.argmax(logits)


def test_of_equal_logits_the_lowest_id_wins(device: Device) -> None:
    drawing = Drawing(device, 5000)
    params = SamplingParams(top_k=1)
    for ids in ([4999, 1024], [0, 4999], [1023, 1024], [70, 37]):
        logits = random_logits(5000)
        logits[ids] = 20
        assert drawing.greedy(logits) == min(ids)
        assert drawing.sampled(logits, params, 0.9) == min(ids)
    zeros = np.zeros(5000, np.float32)
    zeros[:7] = -0.0
    assert drawing.greedy(zeros) == 0


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_k=64, top_p=1.0, min_p=0.0, temperature=1.0),
        SamplingParams(top_k=64, top_p=0.5, min_p=0.0, temperature=3.0),
        SamplingParams(top_k=33, top_p=1.0, min_p=0.2, temperature=1.5),
        SamplingParams(top_k=20, top_p=0.0, min_p=1.0, temperature=0.5),
        SamplingParams(top_k=7, top_p=1.0, min_p=1e-30, temperature=1e-6),
    ],
)
def test_draws_are_those_of_the_host(device: Device, n_vocab: int, params: SamplingParams) -> None:
    drawing = Drawing(device, n_vocab)
    random = np.random.default_rng(3)
    n_draws = 3 if n_vocab > 100_000 else 12
    for seed, uniform in enumerate([0.0, 1 - 2**-53, *random.random(n_draws)]):
        logits = random_logits(n_vocab, seed, spread=[0.2, 1.0, 3.0][seed % 3])
        # In the host's order, which is by id where top-k keeps all.
        logits = np.sort(logits)[::-1].copy() if n_vocab <= params.top_k else logits
        assert drawing.sampled(logits, params, uniform) in host_draws(logits, params, uniform)


@pytest.mark.parametrize("n_equal", [1, 63, 64, 65, 3000])
def test_candidates_that_tie_are_taken_by_id(device: Device, n_equal: int) -> None:
    drawing = Drawing(device, 3000)
    params = SamplingParams(top_k=64, top_p=1.0, min_p=0.0, temperature=1.0)
    logits = random_logits(3000)
    logits[-n_equal:] = 30
    for uniform in (0.0, 0.49, 0.995):
        assert drawing.sampled(logits, params, uniform) in host_draws(logits, params, uniform)


def test_the_best_may_all_be_in_one_place(device: Device) -> None:
    drawing = Drawing(device, 9000)
    params = SamplingParams(top_k=64, top_p=1.0, min_p=0.0, temperature=1.0)
    logits = random_logits(9000)
    logits[5000:5064] = np.linspace(20, 21, 64)
    for uniform in np.linspace(0, 0.999, 8):
        assert drawing.sampled(logits, params, uniform) in host_draws(logits, params, uniform)


@pytest.mark.parametrize("params", [None, SamplingParams()])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_logits_that_are_not_numbers_are_told(
    device: Device, params: SamplingParams | None, bad: float
) -> None:
    drawing = Drawing(device, 3000)
    for place in (0, 1500, 2999):
        logits = random_logits(3000)
        logits[place] = bad
        assert drawing.fails(logits, params)
    assert drawing.fails(np.full(3000, -np.inf, np.float32), params)
    assert not drawing.fails(random_logits(3000), params)


def test_hidden_ids_are_never_drawn(device: Device) -> None:
    drawing = Drawing(device, 3000)
    logits = np.full(3000, -np.inf, np.float32)
    logits[[5, 2000]] = 1
    params = SamplingParams(top_k=64, top_p=1.0, min_p=0.0, temperature=100.0)
    assert [drawing.sampled(logits, params, u) for u in (0.0, 0.49, 0.51, 1 - 2**-53)] == [5, 5, 2000, 2000]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repeat_penalty=1.7),
        SamplingParams(presence_penalty=0.3, frequency_penalty=-0.2),
        SamplingParams(repeat_penalty=0.9, presence_penalty=0.5, frequency_penalty=0.25, penalty_window=5),
    ],
)
@pytest.mark.parametrize("history", [[3], [5, 9, 5, 5], list(range(100))])
def test_penalties_are_those_of_the_host(
    device: Device, params: SamplingParams, history: Sequence[int]
) -> None:
    logits = random_logits(1000)
    lowered = penalties(history, params)
    ids_counts = np.zeros((2, sampling.MOST_PENALISED), np.int32)
    ids_counts[:, : len(lowered.ids)] = lowered
    on_device = device.upload(logits)
    sampling.penalize(
        device,
        on_device,
        device.upload(ids_counts),
        len(lowered.ids),
        repeat=params.repeat_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )
    np.testing.assert_allclose(
        device.download(on_device), penalize(logits, lowered, params), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("ids", [[3], [7, 6, 5], list(range(11, 19))])
def test_a_step_begins_with_its_position_and_ids(device: Device, ids: list[int]) -> None:
    state = device.upload(np.full(sampling.STATE_SIZE, 99, np.int32))
    sampling.begin_step(device, state, 41, ids)
    expected = np.full(sampling.STATE_SIZE, 99)
    expected[: 1 + len(ids)] = [41, *ids]
    np.testing.assert_array_equal(device.download(state), expected)


def test_a_step_goes_on_from_the_id_drawn(device: Device) -> None:
    drawing = Drawing(device, 1000)
    logits = random_logits(1000)
    sampling.begin_step(device, drawing.state, 4, [1, 2])
    drawn = drawing.greedy(logits)
    sampling.continue_step(device, drawing.state, 6)
    assert device.download(drawing.state)[:3].tolist() == [6, drawn, 2]


@pytest.mark.parametrize("ids", [[], list(range(9))])
def test_a_step_of_no_or_too_many_ids_is_refused(device: Device, ids: list[int]) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        sampling.begin_step(device, device.zeros(16, np.int32), 0, ids)

"""Passes over some blocks at a time, resident or in slots, against whole passes: equal to the last bit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.backends.cuda_model import LANDING
from engine.backends.cuda_weights import BlockMatrices, allocate_block, block_bytes, block_in, head_bytes
from engine.cancel import CancelToken
from engine.config import Precision
from kernels.cuda.device import Device
from kernels.cuda.sampling import begin_step
from kernels.errors import DeviceMemoryError
from kernels.quant_types import QuantType
from tests.engine.cuda_blocks import CHUNK, Built, wanted_of
from tests.tiny_gguf import write_tiny_model

IDS = np.random.default_rng(3).integers(3, 320, 20).astype(np.int32)
GO_ON = CancelToken()
MODELS: dict[str, dict[str, object]] = {
    "llama": {"quant_type": QuantType.Q4_K, "layers": 2},
    # Norms behind each block.
    "gemma3": {"architecture": "gemma3", "quant_type": QuantType.Q8_0, "layers": 2, "tied": True},
    "mixed": {"mixed_types": (QuantType.Q6_K, QuantType.F16, QuantType.Q5_0), "layers": 2},
}
SLOTS = 2

Build = Callable[..., Built]


@pytest.fixture(scope="module")
def build(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a model with slots, each only once."""
    folder = tmp_path_factory.mktemp("blocks")

    @cache
    def path_of(name: str) -> Path:
        return write_tiny_model(folder / f"{name}.gguf", **MODELS[name])  # type: ignore[arg-type]

    @cache
    def build(name: str, precision: Precision = Precision.FAST) -> Built:
        wanted = wanted_of(path_of(name), precision=precision)
        numbers = range(2 * wanted.config.n_layers)
        slot_bytes = max(block_bytes(wanted.weights, number) for number in numbers)
        return Built(device, wanted, slots=SLOTS, slot_bytes=slot_bytes, landing=True)

    return build


class Cut(NamedTuple):
    """How a pass is cut up."""

    ends: tuple[bool, ...]
    """After each block but the last one: whether a run ends there."""
    crosses: tuple[bool, ...]
    """Between runs: whether hidden states go to the host and come back."""
    slots: tuple[int | None, ...]
    """Of each block: the slot that it is taken from, None for its own memory."""


def cuts(n_blocks: int) -> st.SearchStrategy[Cut]:
    def of(elements: st.SearchStrategy, n: int) -> st.SearchStrategy:
        return st.tuples(*[elements] * n)

    slots = of(st.sampled_from([None, None, *range(SLOTS), LANDING]), n_blocks)
    return st.builds(Cut, of(st.booleans(), n_blocks - 1), of(st.booleans(), n_blocks - 1), slots)


EVERY_BLOCK = Cut((True,) * 3, (True,) * 3, (0, 1, 0, 1))
RESIDENT = Cut((False, True, False), (False,) * 3, (None,) * 4)


class Result(NamedTuple):
    """What passes leave behind."""

    states: tuple[np.ndarray, ...]
    logits: tuple[np.ndarray, ...]
    keys: np.ndarray
    values: np.ndarray


class Passes:
    """A prompt of 16, steps of 3 and of 1, and what they give."""

    def __init__(self, built: Built) -> None:
        self.built, self.model, self.device = built, built.model, built.device
        self.host = self.device.pinned(CHUNK * built.config.hidden_size * 4)
        self.address = self.device.host_address(self.host)
        self.states: list[np.ndarray] = []
        self.logits: list[np.ndarray] = []

    def whole(self) -> Result:
        model = self.model
        assert model.prompt is not None
        begin_step(self.device, model.state, 0, IDS[:1].tolist())
        states = model.prompt.run(IDS[:16], model.kv, GO_ON)
        self.states.append(self.device.download(states))
        model.step.head(states[8:])
        self._keep_logits(8)
        for first, last in ((16, 19), (19, 20)):
            begin_step(self.device, model.state, first, IDS[first:last].tolist())
            model.step.run(last - first, model.kv)
            self._keep_logits(last - first)
        return self._result()

    def in_pieces(self, cut: Cut) -> Result:
        model = self.model
        assert model.prompt is not None
        begin_step(self.device, model.state, 0, IDS[:1].tolist())
        model.prompt.embed(IDS[:16])
        self._prompt(cut)
        self.states.append(self.device.download(model.prompt.x[:16]))
        model.step.head(model.prompt.x[8:16])
        self._keep_logits(8)
        for first, last in ((16, 19), (19, 20)):
            begin_step(self.device, model.state, first, IDS[first:last].tolist())
            model.step.embed(last - first)
            self._step(cut, last - first)
            model.step.head(model.step.x[: last - first])
            self._keep_logits(last - first)
        return self._result()

    def _prompt(self, cut: Cut) -> None:
        prompt = self.model.prompt
        assert prompt is not None
        runs = self._runs(cut)
        crosses = cut.crosses[: len(runs) - 1]
        for run, arrives, leaves in zip(runs, (False, *crosses), (*crosses, False), strict=True):
            if arrives:
                prompt.arrive(self.address, 16)
            prompt.run_blocks(self._blocks(run, cut), 16, self.model.kv)
            if leaves:
                prompt.leave(self.address, 16)
                self._lose(prompt.x)

    def _step(self, cut: Cut, n_tokens: int) -> None:
        step = self.model.step
        runs = self._runs(cut)
        crosses = cut.crosses[: len(runs) - 1]
        for run, arrives, leaves in zip(runs, (False, *crosses), (*crosses, False), strict=True):
            step.run_blocks(
                self._blocks(run, cut),
                n_tokens,
                self.model.kv,
                arrives=self.address if arrives else None,
                leaves=self.address if leaves else None,
            )
            if leaves:
                self._lose(step.x)

    def _lose(self, x: object) -> None:
        """What has left is not there any more."""
        self.device.synchronize()
        lost = self.device.pinned(x.nbytes)  # type: ignore[attr-defined]
        lost.view(np.float32)[:] = np.nan
        self.device.copy_async(x, lost)  # type: ignore[arg-type]
        self.device.synchronize()

    def _runs(self, cut: Cut) -> list[list[int]]:
        """Numbers of blocks; a slot is used once in a run."""
        runs: list[list[int]] = [[]]
        for number, slot in enumerate(cut.slots):
            taken = [cut.slots[other] for other in runs[-1]]
            if number and (cut.ends[number - 1] or (slot is not None and slot in taken)):
                runs.append([])
            runs[-1].append(number)
        return runs

    def _blocks(self, run: Sequence[int], cut: Cut) -> list[BlockMatrices]:
        blocks = []
        for number in run:
            slot = cut.slots[number]
            resident = self.model.weights.blocks[number]
            blocks.append(resident if slot is None else self.built.in_slot(slot, number))
        return blocks

    def _keep_logits(self, n_rows: int) -> None:
        self.logits.append(self.device.download(self.model.step.logits[:n_rows]))

    def _result(self) -> Result:
        memory = self.model.kv.memory
        keys, values = self.device.download(memory.keys), self.device.download(memory.values)
        return Result(tuple(self.states), tuple(self.logits), keys, values)


def assert_same(ours: Result, expected: Result) -> None:
    for one, other in zip(ours.states + ours.logits, expected.states + expected.logits, strict=True):
        assert np.all(np.isfinite(one))
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(ours.keys, expected.keys)
    np.testing.assert_array_equal(ours.values, expected.values)


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("name", MODELS)
def test_a_pass_in_pieces_is_the_whole_pass(build: Build, name: str, precision: Precision) -> None:
    built = build(name, precision)
    expected = Passes(built).whole()
    assert_same(Passes(built).in_pieces(EVERY_BLOCK), expected)

    @settings(
        max_examples=3,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(cuts(2 * built.config.n_layers))
    def pieces(cut: Cut) -> None:
        assert_same(Passes(built).in_pieces(cut), expected)

    pieces()


def test_graphs_that_are_dropped_are_made_again(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build("gemma3")
    expected = Passes(built).whole()
    monkeypatch.setattr(built.model.step.graphs, "most_blocks", 2)
    for _ in range(2):
        assert_same(Passes(built).in_pieces(EVERY_BLOCK), expected)


def test_no_blocks_at_all_hand_hidden_states_on(build: Build) -> None:
    built = build("llama")
    step, device = built.model.step, built.device
    host = device.pinned(3 * 256 * 4)
    host.view(np.float32)[:] = np.arange(3 * 256)
    step.run_blocks((), 3, built.model.kv, arrives=device.host_address(host), leaves=None)
    np.testing.assert_array_equal(device.download(step.x[:3]).ravel(), host.view(np.float32))


# -- memory


def test_a_block_is_one_piece_of_memory_wherever_it_is(build: Build, device: Device) -> None:
    for name in MODELS:
        weights = build(name).wanted.weights
        for number in range(4):
            n_bytes = block_bytes(weights, number)
            assert n_bytes % 256 == 0
            own = allocate_block(device, weights, number)
            slot = device.empty(n_bytes + 512, np.uint8)
            for block in (own, block_in(slot, weights, number)):
                matrices = (*block.first.matrices, *block.second.matrices)
                assert sum(matrix.data.nbytes for matrix in matrices) == n_bytes
                assert {id(place.matrix) for place in block.places.values()} == set(map(id, matrices))
                layer, kind = divmod(number, 2)
                assert (block.layer, block.is_attention) == (layer, kind == 0)
                assert all(tensor.startswith(f"blk.{layer}.") for tensor in block.places)
                assert len(block.places) == (3 if kind else 4)


def test_blocks_come_and_go_and_their_memory_with_them(build: Build, device: Device) -> None:
    built = build("llama")
    model, used = built.model, lambda: device.used_bytes  # type: ignore[attr-defined]
    expected = Passes(built).whole()
    Passes(built).in_pieces(RESIDENT)
    before = used()
    for number in (0, 3):
        gone = weakref.ref(model.weights.blocks[number].first.matrices[0].data)
        model.drop_block(number)
        assert gone() is None
        assert number not in model.weights.blocks
    n_bytes = sum(block_bytes(built.wanted.weights, number) for number in (0, 3))
    assert used() == before - n_bytes
    in_their_place = [device.empty(block_bytes(built.wanted.weights, number), np.uint8) for number in (0, 3)]
    for number in (0, 3):
        built.put(model.add_block(number).places)
    assert used() == before + sum(array.nbytes for array in in_their_place)
    assert_same(Passes(built).whole(), expected)
    assert_same(Passes(built).in_pieces(RESIDENT), expected)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_head_and_embedding_come_and_go_too(build: Build, device: Device, name: str) -> None:
    built = build(name)
    model, used = built.model, lambda: device.used_bytes  # type: ignore[attr-defined]
    expected, before = Passes(built).whole(), used()
    model.drop_head()
    if not built.config.tied_head:
        assert model.weights.embedding is not None
        model.drop_embedding()
    assert model.weights.head is model.weights.embedding is None
    freed = before - used()
    assert freed > 0
    in_their_place = device.empty(head_bytes(built.wanted.weights, built.config), np.uint8)
    model.add_head()
    if not built.config.tied_head:
        model.add_embedding()
    assert used() == before + in_their_place.nbytes
    built.put(model.weights.places)
    assert_same(Passes(built).whole(), expected)


def test_a_ring_grows_and_what_is_large_enough_stays(build: Build, device: Device) -> None:
    wanted = build("llama").wanted
    built = Built(device, wanted, vram=frozenset())
    model, n_bytes = built.model, block_bytes(wanted.weights, 1)
    assert (model.slots, model.landing, model.weights.blocks) == ([], None, {})
    model.make_ring(1, n_bytes, False)
    first, block = model.slots[0], model.in_slot(0, 1)
    model.make_ring(3, n_bytes - 256, True)
    assert model.slots[0] is first
    assert [slot.nbytes for slot in model.slots] == [n_bytes, n_bytes - 256, n_bytes - 256]
    assert model.in_slot(0, 1) is block
    with pytest.raises(ValueError, match="bytes, not"):
        model.in_slot(1, 1)
    model.make_ring(2, n_bytes, True)
    assert model.in_slot(LANDING, 1) is model.in_slot(LANDING, 1)
    built.put(block.places)
    model.step.run_blocks([block], 1, model.kv, arrives=None, leaves=None)
    small = weakref.ref(first)
    del first, block
    model.make_ring(2, n_bytes + 256, True)
    assert small() is None  # no graph holds it
    assert [slot.nbytes for slot in model.slots] == [n_bytes + 256] * 2
    assert model.landing is not None
    assert model.landing.nbytes == n_bytes + 256


def test_memory_that_runs_out_is_told(build: Build, device: Device) -> None:
    model = build("llama").model
    with pytest.raises(DeviceMemoryError):
        model.make_ring(SLOTS + 1, 1 << 50, False)


@pytest.mark.parametrize("precision", list(Precision))
def test_attention_of_some_layers_is_theirs(device: Device, tmp_path: Path, precision: Precision) -> None:
    # The sixth layer sees everything and turns by another base, the others have a window of 16.
    options: dict[str, object] = {**MODELS["gemma3"], "layers": 6}
    wanted = wanted_of(write_tiny_model(tmp_path / "m.gguf", **options), precision=precision)  # type: ignore[arg-type]
    blocks = frozenset({8, 10})
    whole = Built(device, wanted, vram=blocks, head=False, embedding=False)
    part = Built(device, wanted, vram=blocks, head=False, embedding=False, kv_layers=(4, 5))
    assert (part.model.kv.memory.layout.n_layers, part.model.kv.rows) == (2, {4: 0, 5: 1})
    assert 3 * part.model.kv.n_bytes == whole.model.kv.n_bytes
    host = device.pinned(CHUNK * 256 * 4)
    host.view(np.float32)[:] = np.random.default_rng(1).standard_normal(CHUNK * 256)
    address, states = device.host_address(host), []
    for built in (whole, part):
        model = built.model
        assert model.prompt is not None
        begin_step(device, model.state, 0, [0])
        model.prompt.arrive(address, CHUNK)
        model.prompt.run_blocks(list(model.weights.blocks.values()), CHUNK, model.kv)
        states.append(device.download(model.prompt.x))
        begin_step(device, model.state, CHUNK, [0, 0])
        for block in model.weights.blocks.values():
            model.step.run_blocks([block], 2, model.kv, arrives=address, leaves=None)
            states.append(device.download(model.step.x[:2]))
    assert all(np.all(np.isfinite(each)) for each in states)
    for ours, expected in zip(states[3:], states[:3], strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_gpu_may_have_no_attention_at_all(build: Build, device: Device) -> None:
    whole = build("llama")
    expected = Passes(whole).whole()
    part = Built(device, whole.wanted, vram=frozenset({1}), kv_layers=())
    assert part.model.kv.n_bytes == 0
    states = []
    for built in (whole, part):
        begin_step(device, built.model.state, 0, [5])
        built.model.step.embed(1)
        blocks = [built.model.weights.blocks[1]]
        built.model.step.run_blocks(blocks, 1, built.model.kv, arrives=None, leaves=None)
        states.append(device.download(built.model.step.x[:1]))
    np.testing.assert_array_equal(*states)
    assert_same(Passes(whole).whole(), expected)

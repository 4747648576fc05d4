"""A model that GPU and processor share follows what its steps take: who computes what, told once, then quiet.

On the emulator, with clocks of the test's own: the processor's calls and the copies take what it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.config import ExecutorChoice
from engine.errors import CancelledError
from engine.events import Executor
from engine.gguf import open_gguf
from engine.model import Transformer
from engine.model_config import read_model_config
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.blocks import Block, BlockKind, weight_blocks
from engine.tiers.gpu_tiers import GpuTiers
from engine.tiers.rates import LinkRates, Rates
from engine.tiers.wishes import parse_place
from kernels.quant_types import QuantType
from tests.engine.cuda_models import opened_on
from tests.kernels.cuda import emulated_device
from tests.kernels.cuda.emulated_device import EmulatedDevice
from tests.tiny_gguf import write_tiny_model

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 320, 24)]
GO_ON = CancelToken()
FAST = 4e-2
"""Share of the largest logit that the processor's rounding of activations may cost."""
N_LAYERS = 8
PRODUCT_S, COPY_S = 0.05, 0.1
"""That the rates give a feed-forward block on the processor, and on its way to the GPU."""
WINDOW = 5
"""Steps of the shortest one here."""


class Machine:
    """What calls of the processor, and copies, take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.product_s, self.copy_s = PRODUCT_S, COPY_S

    def perf_counter(self) -> float:
        return self.now

    def seconds(self, span: Any) -> float:
        """As `staging` measures a copy, or a wait for one."""
        return self.copy_s


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := emulated_device.compiler_missing():
        pytest.skip(reason)
    pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
    file = tmp_path_factory.mktemp("pace") / "pace.gguf"
    return write_tiny_model(file, quant_type=QuantType.Q4_K, layers=N_LAYERS)


@pytest.fixture(scope="module")
def resident(path: Path) -> np.ndarray:
    """Logits of steps where all of the model is on the GPU: [T, V]."""
    with opened_on(EmulatedDevice(), path) as model:
        return Steps(model, Machine()).run(len(IDS))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr("engine.tiers.step_pace._LEAST_STEPS", WINDOW)
    monkeypatch.setattr("engine.tiers.step_pace._LEAST_S", 0.1)
    monkeypatch.setattr("engine.backends.cuda_mixed.perf_counter", machine.perf_counter)
    monkeypatch.setattr("engine.tiers.staging._seconds", machine.seconds)
    return machine


class Steps:
    """Steps of a model, one id after another and from the beginning again."""

    def __init__(self, model: Transformer, machine: Machine) -> None:
        self.model, self.machine = model, machine
        self.kv, self.position = model.backend.new_kv(64), 0
        self.tiers: GpuTiers[Any] = model.backend.tiers  # type: ignore[assignment]

    def run(self, n_steps: int = WINDOW) -> np.ndarray:
        """Their logits [T, V]."""
        return np.concatenate([self.one() for _ in range(n_steps)])

    def one(self, n_tokens: int = 1, skip: SkipSet = NOTHING, cancel: CancelToken = GO_ON) -> np.ndarray:
        first = self.position % len(IDS)
        ids = IDS[first : first + n_tokens]
        self.position += len(ids)
        began, machine = self.machine.now, self.machine
        logits = self.model.logits(self.model.hidden(ids, first, self.kv, cancel, skip), cancel)
        machine.now = max(machine.now, began + self.n_copied * machine.copy_s)
        return logits

    @property
    def n_copied(self) -> int:
        return sum(each is Executor.STREAM for each in self.tiers.where.plan.executors().values())

    def told(self) -> list[str]:
        return [event.text for event in self.tiers.snapshot().events if "for every token" in event.text]

    def promised_s(self) -> float:
        seconds = self.tiers.where.plan.predicted_decode_s
        assert seconds is not None
        return seconds


@contextmanager
def shared(path: Path, machine: Machine, **options: Any) -> Iterator[Steps]:
    """A model with all feed-forward blocks in memory, and a processor that takes what the machine says."""
    gguf = open_gguf(path)
    (n_bytes,) = feed_forward_bytes(weight_blocks(gguf, read_model_config(gguf)))
    rates = Rates(
        dram=n_bytes / PRODUCT_S,
        gemv={},
        disk=None,
        cpu_flops=1e15,
        link=LinkRates(
            vram=1e15,
            h2d=n_bytes / COPY_S,
            h2d_beside_cpu=n_bytes / COPY_S,
            cpu_beside_h2d=1.0,
            matrix_flops=1e18,
            crossing_s=0.0,
        ),
    )
    options = {"place": parse_place(f"blk.0-{N_LAYERS - 1}.ffn=ram"), **options}
    with opened_on(EmulatedDevice(), path, rates=rates, **options) as model:
        mixed: Any = model.backend._mixed  # type: ignore[attr-defined]
        compute = mixed._processor.run

        def run(first: int, last: int, *args: Any) -> None:
            compute(first, last, *args)
            machine.now += machine.product_s * (last - first)

        mixed._processor.run = run
        yield Steps(model, machine)


def feed_forward_bytes(blocks: Sequence[Block]) -> set[int]:
    """Of a block; all are alike here."""
    return {block.n_bytes for block in blocks if block.kind is BlockKind.FEED_FORWARD}


def close(ours: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.max(np.abs(ours - expected)) < FAST * np.max(np.abs(expected)))


def test_a_slower_processor_leaves_more_to_the_gpu_and_then_it_is_quiet(
    path: Path, machine: Machine, resident: np.ndarray
) -> None:
    with shared(path, machine) as steps:
        before, promised_s = steps.n_copied, steps.promised_s()
        assert close(steps.run(WINDOW + 2), resident[: WINDOW + 2])
        assert (steps.n_copied, steps.told()) == (before, [])

        machine.product_s *= 3
        rest = [steps.run() for _ in range(4)]
        assert steps.n_copied > before
        (text,) = steps.told()
        assert f"{steps.n_copied} instead of {before} blocks are copied to the GPU for every token" in text
        assert "the processor multiplies" in text and "were counted on" in text
        expected = np.concatenate([resident[WINDOW + 2 :], resident])
        ours = np.concatenate(rest)
        assert close(ours, expected[: len(ours)])
        assert steps.promised_s() == pytest.approx(
            max((N_LAYERS - steps.n_copied) * machine.product_s, steps.n_copied * COPY_S), rel=0.25
        )

        machine.product_s /= 3
        for _ in range(3):
            steps.run()
        assert steps.n_copied in (before, before + 1)  # which takes no longer
        assert 2 <= len(steps.told()) <= 3  # some steps of the window in which it changed were slow
        assert steps.promised_s() == pytest.approx(promised_s, rel=0.05)


def test_a_slower_link_leaves_more_to_the_processor(path: Path, machine: Machine) -> None:
    with shared(path, machine) as steps:
        before = steps.n_copied
        assert before > 1
        machine.copy_s *= 3
        for _ in range(6):
            steps.run()
        assert steps.n_copied < before
        (text,) = steps.told()
        assert "copies to the GPU reach" in text


@pytest.mark.parametrize("executor", [ExecutorChoice.CPU, ExecutorChoice.STREAM])
def test_what_was_asked_for_binds(path: Path, machine: Machine, executor: ExecutorChoice) -> None:
    with shared(path, machine, executor=executor) as steps:
        before, promised_s = steps.n_copied, steps.promised_s()
        machine.product_s *= 2
        machine.copy_s *= 2
        for _ in range(3):
            steps.run()
        assert (steps.n_copied, steps.told()) == (before, [])
        assert steps.promised_s() == pytest.approx(2 * promised_s, rel=0.05)


def test_other_passes_say_nothing(path: Path, machine: Machine) -> None:
    with shared(path, machine) as steps:
        promised_s = steps.promised_s()
        machine.product_s *= 3
        for _ in range(WINDOW + 1):
            steps.one(2)
            steps.one(skip=frozenset({1}))
            stopped = CancelToken()
            stopped.cancel()
            with suppress(CancelledError):
                steps.one(cancel=stopped)
        steps.tiers.leave_out(frozenset({1}))
        steps.run(WINDOW + 1)
        steps.tiers.leave_out(NOTHING)
        steps.run(WINDOW - 1)
        assert steps.promised_s() == promised_s
        steps.run(3)
        assert steps.promised_s() > promised_s


def test_what_is_copied_is_counted_with_the_time_that_it_takes(path: Path, machine: Machine) -> None:
    with shared(path, machine, executor=ExecutorChoice.STREAM) as steps:
        steps.run(3)
        stalls: Any = steps.tiers._one_use.stalls
        n_copies = stalls.copy_s / COPY_S
        assert 2 * N_LAYERS <= n_copies <= 4 * N_LAYERS
        (n_bytes,) = feed_forward_bytes(steps.tiers.where.blocks)
        assert stalls.copied_bytes == pytest.approx(n_bytes * n_copies)

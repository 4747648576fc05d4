"""Weights on their way from the file to a GPU: what arrives, what is shown, what a fault leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from engine.backends.cuda_weights import DeviceWeights, allocate_weights
from engine.cancel import CancelToken
from engine.errors import CancelledError, StreamError
from engine.events import Tier, TierSnapshot
from engine.gguf import open_gguf
from engine.model_config import read_model_config
from engine.tiers import vram
from engine.tiers.blocks import weight_blocks
from engine.tiers.direct_io import DirectFiles
from engine.tiers.streamer import StreamStats
from engine.tiers.vram import VramWeights
from engine.weights import ModelWeights
from kernels.cuda.device import Device
from kernels.cuda.matrices import dequantize
from kernels.quant_types import QuantType
from kernels.reference import dequantize as expected_rows
from tests.engine.cuda_models import GPU
from tests.engine.tiers.faulty_disk import nothing_leaks, refuse_direct_reads, spoil
from tests.tiny_gguf import write_tiny_model

MODELS: dict[str, dict[str, object]] = {
    "untied": {"quant_type": QuantType.Q4_K, "embedding_type": QuantType.Q6_K, "vocab_size": 4001},
    "tied": {"architecture": "gemma3", "quant_type": QuantType.Q4_0, "vocab_size": 3000, "tied": True},
    "split": {"quant_type": QuantType.Q8_0, "split_max_tensors": 7},
    "mixed": {"mixed_types": tuple(QuantType)},
}


class Opened:
    """A model whose matrices wait for their weights."""

    def __init__(self, device: Device, path: Path) -> None:
        gguf = open_gguf(path)
        config = read_model_config(gguf)
        self.weights = ModelWeights(gguf, config)
        self.blocks = weight_blocks(gguf, config)
        self.on_device: DeviceWeights = allocate_weights(device, self.weights, config)
        self.shown: list[TierSnapshot] = []
        self.store = VramWeights(
            device,
            self.blocks,
            self.on_device.places,
            gpu=GPU,
            used=11,
            budget=12,
            on_change=self.shown.append,
        )

    def load(self, cancel: CancelToken | None = None) -> list[int]:
        with closing(DirectFiles(self.weights.gguf.part_paths)) as files:
            return list(self.store.load(files, cancel or CancelToken()))


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, device: Device, tmp_path: Path) -> Opened:
    return Opened(device, write_tiny_model(tmp_path / "m.gguf", **MODELS[request.param]))  # type: ignore[arg-type]


@contextmanager
def slots_of(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(vram, "SLOT_BYTES", n_bytes)
        yield


@pytest.mark.parametrize("slot_bytes", [100, 3000, 16 << 20])
def test_every_row_arrives_in_its_place(
    model: Opened, device: Device, monkeypatch: pytest.MonkeyPatch, slot_bytes: int
) -> None:
    with slots_of(monkeypatch, slot_bytes):
        model.load()
    for name, place in model.on_device.places.items():
        data, shape, quant_type = model.weights[name]
        out = device.empty(shape, np.float32)
        dequantize(device, place.matrix, place.first_row, shape[0], out)
        np.testing.assert_allclose(
            device.download(out), expected_rows(data, quant_type).reshape(shape), rtol=1e-5, atol=1e-7
        )


def test_the_snapshots_show_blocks_as_they_come(model: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vram, "_SHOW_S", 0.0)
    total = sum(block.n_bytes for block in model.blocks)
    with slots_of(monkeypatch, 3000):
        done = model.load()
    assert done == sorted(done)
    assert done[-1] == total
    first, last = model.shown[0], model.shown[-1]
    assert {place.tier for place in first.blocks} == {Tier.NVME}
    assert (first.gpu, first.h2d_bytes, first.vram_bytes) == (GPU, 0, 0)
    assert any(0 < share < 1 for shown in model.shown for _, share in shown.in_flight)
    assert [shown.h2d_bytes for shown in model.shown] == sorted(shown.h2d_bytes for shown in model.shown)
    assert {place.tier for place in last.blocks} == {Tier.VRAM}
    assert (last.h2d_bytes, last.vram_bytes, last.in_flight) == (total, total, ())
    assert (last.vram_used_bytes, last.vram_budget_bytes) == (11, 12)
    assert (last.ram_bytes, last.budget_bytes, last.pass_read_bytes) == (0, 0, 0)
    assert last.events[-1].text == (
        f"all {len(model.blocks)} blocks, {total / 1e6:.0f} MB, are in the memory of the GPU"
    )


def test_passes_are_counted_and_nothing_else_is_told(model: Opened) -> None:
    model.load()
    before = model.store.snapshot().passes
    model.store.count_pass()
    assert model.store.snapshot().passes == before + 1
    assert model.store.stats == StreamStats()
    assert (model.store.notices, model.store.predicted_decode_tok_s) == ((), None)


def test_a_file_system_without_direct_reads_does_not_matter(
    model: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct_reads(monkeypatch)
    model.load()
    assert {place.tier for place in model.store.snapshot().blocks} == {Tier.VRAM}


@pytest.mark.parametrize("fault", ["EIO", "cut"])
@pytest.mark.parametrize("after", [0, 5])
def test_a_disk_that_fails_ends_the_load(
    model: Opened, monkeypatch: pytest.MonkeyPatch, fault: str, after: int
) -> None:
    with nothing_leaks(), slots_of(monkeypatch, 3000), monkeypatch.context() as patched:
        spoil(patched, fault, after)
        with pytest.raises(StreamError) as caught:
            model.load()
    assert "m" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cancelled_load_ends_at_once_and_leaves_no_threads(
    model: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = CancelToken()
    token.cancel()
    with nothing_leaks(), pytest.raises(CancelledError, match="loading was stopped"):
        model.load(token)
    # Left in the middle, as by an error of whoever follows it.
    monkeypatch.setattr(vram, "_SHOW_S", 0.0)
    with nothing_leaks(), slots_of(monkeypatch, 3000):
        files = DirectFiles(model.weights.gguf.part_paths)
        with closing(files), closing(model.store.load(files, CancelToken())) as loading:
            next(loading)

"""Real models over all three tiers: the reference logits' marks, for every executor and while blocks move."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from engine.backends.cuda import CudaBackend
from engine.cancel import CancelToken
from engine.config import ExecutorChoice
from engine.evaluate import compare_with_reference, read_reference
from engine.model import Transformer
from engine.tiers.wishes import parse_place
from kernels.cuda.device import Device
from tests.engine.cuda_models import opened_on
from tests.engine.test_cuda_golden import MARKS

pytestmark = [pytest.mark.model, pytest.mark.gpu]
GO_ON = CancelToken()
RESIDENT = 0.0002
"""What a model stays below that the GPU computes alone."""
PLACES = (
    "blk.0-99.ffn=ram",
    "blk.0-4.ffn=ram,blk.5-9=ram,blk.10-12.ffn=nvme,blk.13=nvme",
    "head=ram,blk.0-7.ffn=nvme",
)


@pytest.fixture(params=[key for key in MARKS if key[1].endswith("licence_en")], ids=lambda key: key[0])
def subject(request: pytest.FixtureRequest, device: Device, shared_data: Path) -> tuple[Path, Path, float]:
    """A model, its reference, and the mark."""
    if "emulated" in request.node.callspec.id:
        pytest.skip("too slow for the emulator")
    fixture, reference = request.param
    golden = shared_data / "golden" / f"{reference}.npz"
    return request.getfixturevalue(f"{fixture}_path"), golden, MARKS[request.param]


@pytest.mark.parametrize("chunk", [512, 1])
@pytest.mark.parametrize("place", PLACES, ids=["memory", "memory and disk", "head and disk"])
@pytest.mark.parametrize("executor", [ExecutorChoice.STREAM, ExecutorChoice.CPU, ExecutorChoice.HYBRID])
def test_every_executor_meets_the_marks(
    device: Device, subject: tuple[Path, Path, float], executor: ExecutorChoice, place: str, chunk: int
) -> None:
    path, golden, mark = subject
    reference = read_reference(golden)
    context = len(reference.token_ids)
    options = {"place": parse_place(place), "executor": executor}
    with opened_on(device, path, max_context=context, chunk=chunk, **options) as model:
        result = compare_with_reference(model, reference, model.backend.new_kv(context), GO_ON, chunk=chunk)
    by_gpu_alone = executor is ExecutorChoice.STREAM and "head" not in place
    assert result.kl_mean <= (RESIDENT if by_gpu_alone else mark)


def test_nothing_is_lost_while_blocks_move(
    device: Device, subject: tuple[Path, Path, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, golden, mark = subject
    reference = read_reference(golden)
    context = len(reference.token_ids)
    places, hidden = cycle([*PLACES[:2], "blk.3.attn=ram", ""]), Transformer.hidden
    n_passes = 0

    def moving(self: Transformer, token_ids, start_pos, kv, cancel):  # type: ignore[no-untyped-def]
        nonlocal n_passes
        n_passes += 1
        if n_passes % 7 == 0:
            assert isinstance(self.backend, CudaBackend)
            text = next(places)
            self.backend.tiers.change(self.backend.tiers.where.budgets, parse_place(text) if text else ())
        return hidden(self, token_ids, start_pos, kv, cancel)

    with opened_on(device, path, max_context=context, chunk=1, settled=False) as model:
        monkeypatch.setattr(Transformer, "hidden", moving)
        result = compare_with_reference(model, reference, model.backend.new_kv(context), GO_ON, chunk=1)
    assert n_passes > 50
    assert result.kl_mean <= mark

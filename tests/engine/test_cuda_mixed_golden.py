"""Real models over all three tiers: the reference logits' marks, for every executor and while blocks move.

Whole on a GPU. The emulator, which is slow, gets the first ids of one model.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.backends.cuda import CudaBackend
from engine.cancel import CancelToken
from engine.config import ExecutorChoice
from engine.measuring.evaluate import compare_with_reference
from engine.measuring.reference_file import Reference, read_reference
from engine.model import Transformer
from engine.tiers.wishes import parse_place
from kernels.cuda.device import Device
from tests.engine.cuda_models import opened_on
from tests.engine.test_cuda_golden import MARKS

pytestmark = pytest.mark.model
GO_ON = CancelToken()
RESIDENT = 0.0002
"""What a model stays below that the GPU computes alone."""
PLACES = {
    "memory": "blk.0-99.ffn=ram",
    "memory and disk": "blk.0-4.ffn=ram,blk.5-9=ram,blk.10-12.ffn=nvme,blk.13=nvme",
    "head and disk": "head=ram,blk.0-7.ffn=nvme",
}


class Subject(NamedTuple):
    """What is compared, and how far apart it may be."""

    model: Path
    reference: Reference
    mark: float
    emulated: bool


@pytest.fixture(params=[key for key in MARKS if key[1].endswith("licence_en")], ids=lambda key: key[0])
def subject(request: pytest.FixtureRequest, device: Device, shared_data: Path) -> Subject:
    fixture, name = request.param
    emulated = "emulated" in request.node.callspec.id
    if emulated and fixture != "smollm2":
        pytest.skip("too slow for the emulator")
    whole = read_reference(shared_data / "golden" / f"{name}.npz")
    first = slice(0, 4 if emulated else None)
    given = replace(
        whole,
        token_ids=whole.token_ids[first],
        top1=whole.top1[first],
        top_ids=whole.top_ids[first],
        top_logprobs=whole.top_logprobs[first],
    )
    return Subject(request.getfixturevalue(f"{fixture}_path"), given, MARKS[request.param], emulated)


@pytest.mark.parametrize("chunk", [512, 1])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("executor", [ExecutorChoice.STREAM, ExecutorChoice.CPU, ExecutorChoice.HYBRID])
def test_every_executor_meets_the_marks(
    device: Device, subject: Subject, executor: ExecutorChoice, place: str, chunk: int
) -> None:
    if subject.emulated and (place, chunk) != ("memory and disk", 512):
        pytest.skip("too slow for the emulator")
    context = len(subject.reference.token_ids)
    options = {"place": parse_place(PLACES[place]), "executor": executor}
    with opened_on(device, subject.model, max_context=context, chunk=chunk, **options) as model:
        kv = model.backend.new_kv(context)
        result = compare_with_reference(model, subject.reference, kv, GO_ON, chunk=chunk)
    by_gpu_alone = executor is ExecutorChoice.STREAM and "head" not in place
    assert result.kl_mean <= (RESIDENT if by_gpu_alone else subject.mark)


def test_nothing_is_lost_while_blocks_move(
    device: Device, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = len(subject.reference.token_ids)
    every = 2 if subject.emulated else 7
    places, hidden = cycle([*PLACES.values(), "blk.3.attn=ram", ""]), Transformer.hidden
    n_passes = 0

    def moving(self: Transformer, token_ids, start_pos, kv, cancel, *skip):  # type: ignore[no-untyped-def]
        nonlocal n_passes
        n_passes += 1
        if n_passes % every == 0:
            assert isinstance(self.backend, CudaBackend)
            tiers, text = self.backend.tiers, next(places)
            tiers.change(tiers.where.budgets, parse_place(text) if text else ())
        return hidden(self, token_ids, start_pos, kv, cancel, *skip)

    with opened_on(device, subject.model, max_context=context, chunk=1, settled=False) as model:
        monkeypatch.setattr(Transformer, "hidden", moving)
        kv = model.backend.new_kv(context)
        result = compare_with_reference(model, subject.reference, kv, GO_ON, chunk=1)
    assert n_passes == context
    assert result.kl_mean <= subject.mark

"""Real models on the CUDA backend: the reference logits' marks, and the CPU's choices.

Whole on a GPU. The emulator, which is slow, gets the first ids.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.config import KVType, LoadOptions, Precision
from engine.loading import load_model
from engine.measuring.evaluate import Comparison, compare_with_reference
from engine.measuring.reference_file import read_reference
from engine.model import Transformer
from kernels.cuda.device import Device
from tests.engine.cuda_models import opened_on

pytestmark = pytest.mark.model
GO_ON = CancelToken()
MARKS = {
    ("smollm2", "smollm2_135m_q4_1.licence_en"): 0.0034,
    ("smollm2", "smollm2_135m_q4_1.long_en"): 0.0020,
    ("gemma3", "gemma3_270m_q4_k_m.licence_en"): 0.0034,
    ("gemma3", "gemma3_270m_q4_k_m.long_en"): 0.0033,
}
"""Of the fast precision, from the table beside the references; of the float precision it is 0.0001."""


def distance(
    device: Device, path: Path, reference: Path, n_ids: int | None, chunk: int, **options: object
) -> Comparison:
    """From the first ids of a reference."""
    whole = read_reference(reference)
    first = slice(0, n_ids)
    given = replace(
        whole,
        token_ids=whole.token_ids[first],
        top1=whole.top1[first],
        top_ids=whole.top_ids[first],
        top_logprobs=whole.top_logprobs[first],
    )
    context = len(given.token_ids)
    with opened_on(device, path, max_context=context, chunk=chunk, **options) as model:
        return compare_with_reference(model, given, model.backend.new_kv(context), GO_ON, chunk=chunk)


@pytest.mark.parametrize("chunk", [512, 96, 1])
@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize(("fixture", "reference"), MARKS)
def test_the_marks_are_met_however_ids_are_fed(
    request: pytest.FixtureRequest,
    device: Device,
    shared_data: Path,
    fixture: str,
    reference: str,
    precision: Precision,
    chunk: int,
) -> None:
    n_ids = None
    if "emulated" in request.node.callspec.id:
        slow = fixture == "gemma3" and chunk == 1
        if slow or chunk == 96 or reference.endswith("long_en") or precision is Precision.FLOAT:
            pytest.skip("too slow for the emulator")
        n_ids = 6 if chunk > 1 else 2
    path = request.getfixturevalue(f"{fixture}_path")
    golden = shared_data / "golden" / f"{reference}.npz"
    result = distance(device, path, golden, n_ids, chunk, precision=precision)
    assert result.kl_mean <= (0.0001 if precision is Precision.FLOAT else MARKS[fixture, reference])
    # 15 bits of activations are more than the marks ask for.
    assert result.kl_mean <= 0.0002


@pytest.mark.gpu
@pytest.mark.parametrize(("fixture", "reference"), MARKS)
def test_a_cache_of_8_bits_meets_the_marks_too(
    request: pytest.FixtureRequest, device: Device, shared_data: Path, fixture: str, reference: str
) -> None:
    if "emulated" in request.node.callspec.id:
        pytest.skip("too slow for the emulator")
    path = request.getfixturevalue(f"{fixture}_path")
    golden = shared_data / "golden" / f"{reference}.npz"
    result = distance(device, path, golden, None, 512, kv_type=KVType.Q8_0)
    assert result.kl_mean <= MARKS[fixture, reference]


CLEAR = 0.2
"""Between the two best logits: twice what rounding may do to either (0.06 was seen on an H200)."""


@pytest.mark.gpu
@pytest.mark.parametrize("fixture", ["smollm2", "gemma3"])
def test_the_cpus_200_greedy_ids_are_the_gpus_best_ones(
    request: pytest.FixtureRequest, device: Device, fixture: str
) -> None:
    if "emulated" in request.node.callspec.id:
        pytest.skip("too slow for the emulator")
    path = request.getfixturevalue(f"{fixture}_path")
    options = LoadOptions(path, context=256, device="cpu", precision=Precision.FLOAT)
    cpu = load_model(options, lambda stage, progress: None, GO_ON)
    prompt = cpu.tokenizer.encode("The sea, in one sentence: ", add_bos=cpu.tokenizer.add_bos)

    def steps(model: Transformer, ids: list[int], n_steps: int) -> tuple[list[int], np.ndarray]:
        """Feed the prompt, then `ids` or the best ones, one by one: the ids and their logits."""
        kv, rows = model.backend.new_kv(256), []
        given, fed = list(ids), list(prompt)
        logits = model.logits(model.hidden(prompt, 0, kv, GO_ON)[-1:], GO_ON)[0]
        for step in range(n_steps):
            rows.append(logits)
            fed.append(given[step] if given else int(logits.argmax()))
            logits = model.logits(model.hidden(fed[-1:], len(fed) - 1, kv, GO_ON), GO_ON)[0]
        return fed[len(prompt) :], np.array(rows)

    ids, expected = steps(cpu.model, [], 200)
    cpu.close()
    with opened_on(device, path, max_context=256, chunk=64) as model:
        _, ours = steps(model, ids, 200)
    two = np.sort(expected, axis=1)[:, -2:]
    clear = two[:, 1] - two[:, 0] > CLEAR
    assert clear.mean() > 0.7
    assert np.abs(ours - expected).max() < CLEAR / 2
    np.testing.assert_array_equal(ours.argmax(axis=1)[clear], np.array(ids)[clear])

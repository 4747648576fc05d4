"""The model on the CUDA backend, emulated and on a GPU, against the same model on NumPy."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends.cuda_model import DeviceModel, Wanted, whole_layout
from engine.backends.cuda_plan import BESIDE_BYTES, plan_model
from engine.cancel import CancelToken
from engine.config import KVType, LoadOptions, Precision, SamplingParams
from engine.errors import BudgetError, CancelledError, DeviceError, KernelError
from engine.events import Tier
from engine.generate import decode_step, generate, prefill
from engine.gguf import open_gguf
from engine.logits import HostLogits
from engine.measuring.evaluate import cut_windows, measure_surprises, perplexity_of
from engine.model import Transformer
from engine.model_config import read_model_config
from engine.sampler import Sampler
from engine.session import Session
from engine.tiers.budget import Budget
from engine.weights import ModelWeights
from kernels import errors as kernel_errors
from kernels.cuda import launch_settings
from kernels.cuda.device import Device
from kernels.quant_types import QuantType
from tests.engine.conftest import open_numpy
from tests.engine.cuda_models import Borrowed, Granting, opened_on, plan_on
from tests.tiny_gguf import write_tiny_model

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 320, 40)]
GO_ON = CancelToken()
GREEDY = SamplingParams(temperature=0)
FAST, FLOAT = 3e-3, 1e-5
"""Tolerances: shares of the largest logit. Activations are rounded to 15 bits, in prompts to 11."""

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes a tiny model, each only once."""
    folder, written = tmp_path_factory.mktemp("cuda"), dict[str, Path]()

    def write(**options: object) -> Path:
        name = str(sorted(options.items()))
        if name not in written:
            written[name] = write_tiny_model(folder / f"{len(written)}.gguf", **options)  # type: ignore[arg-type]
        return written[name]

    return write


def close(ours: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    return bool(np.max(np.abs(ours - expected)) < tolerance * np.max(np.abs(expected)))


def all_logits(model: Transformer) -> np.ndarray:
    """Of a prompt in two chunks, of steps of several sizes, and of edits in the middle of both: [T, V]."""
    kv = model.backend.new_kv(64)

    def run(first: int, last: int) -> np.ndarray:
        return model.logits(model.hidden(IDS[first:last], first, kv, GO_ON), GO_ON)

    prompt = [run(0, 16), run(16, 26), run(26, 29)]
    steps = [run(position, position + 1) for position in range(29, 32)]
    edits = [run(12, 15), run(15, 16), run(16, 27), run(20, 21)]
    return np.concatenate([*prompt, *steps, *edits])


MODELS: dict[str, dict[str, object]] = {
    "llama": {"quant_type": QuantType.Q4_K},
    # Seven layers: a window, and the sixth layer sees everything.
    "gemma3": {"architecture": "gemma3", "quant_type": QuantType.Q8_0, "layers": 7, "tied": True},
    # Every quant type, so that query, key and value are several matrices, and gate and up.
    "mixed": {
        "mixed_types": tuple(QuantType),
        "embedding_type": QuantType.Q6_K,
        "tied": True,
    },
    "floats": {"architecture": "gemma3", "quant_type": QuantType.BF16, "layers": 1},
    # Four heads for each KV head, of 48 elements, rows that are no whole chunks.
    "odd": {
        "quant_type": QuantType.Q5_0,
        "hidden_size": 96,
        "heads": 4,
        "kv_heads": 1,
        "head_dim": 48,
        "ffn_size": 160,
        "rope_freqs": True,
        "layers": 1,
    },
}


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_numpy(device: Device, write: Write, name: str, precision: Precision) -> None:
    path = write(**MODELS[name])
    expected = all_logits(open_numpy(path, Precision.FLOAT))
    watched = Borrowed(device)
    with opened_on(watched, path, precision=precision) as model:
        ours = all_logits(model)
    assert close(ours, expected, FAST if precision is Precision.FAST else FLOAT)
    assert watched.kernels <= plan_on(device, path, precision=precision)[1]


def test_a_cache_of_8_bits_stays_close_and_takes_about_half(device: Device, write: Write) -> None:
    path = write(**MODELS["gemma3"])
    expected = all_logits(open_numpy(path, Precision.FLOAT))
    with opened_on(device, path) as model:
        n_bytes = model.backend.new_kv(64).n_bytes
    with opened_on(device, path, kv_type=KVType.Q8_0) as model:
        assert 0.5 < model.backend.new_kv(64).n_bytes / n_bytes < 0.6
        assert close(all_logits(model), expected, 0.03)


def test_a_chunk_of_a_few_tokens_needs_no_memory_for_prompts(device: Device, write: Write) -> None:
    path = write(**MODELS["llama"])
    expected = all_logits(open_numpy(path, Precision.FLOAT))[:16]
    with opened_on(device, path, chunk=4) as model:
        kv = model.backend.new_kv(64)
        parts = [model.logits(model.hidden(IDS[i : i + 4], i, kv, GO_ON), GO_ON) for i in range(0, 16, 4)]
    assert close(np.concatenate(parts), expected, FAST)


def test_texts_are_scored_as_by_numpy(device: Device, write: Write) -> None:
    path = write(**MODELS["llama"])

    def perplexity(model: Transformer, chunk: int) -> float:
        kv = model.backend.new_kv(20)
        windows = cut_windows(IDS, window=20, stride=10, bos_id=None)
        return perplexity_of(measure_surprises(model, windows, kv, GO_ON, chunk=chunk)).perplexity

    expected = perplexity(open_numpy(path), 16)
    with opened_on(device, path, max_context=20) as model:
        for chunk in (16, 3):
            assert perplexity(model, chunk) == pytest.approx(expected, rel=1e-3)


# -- replies


def reply(model: Transformer, prompt: list[int], params: SamplingParams, n_tokens: int = 12) -> list[int]:
    session = Session(model.backend.new_kv(64))
    drawn = generate(
        model,
        session,
        prompt,
        Sampler(params),
        max_tokens=n_tokens,
        stop_ids=frozenset(),
        chunk=16,
        cancel=GO_ON,
        on_prefill=lambda n_done: None,
    )
    return [token.token_id for token in drawn]


CHAINS = [
    GREEDY,
    SamplingParams(seed=5, temperature=1.2),
    SamplingParams(seed=6, temperature=0.8, top_k=7, top_p=0.8, min_p=0.01),
    SamplingParams(seed=7, temperature=1.0, repeat_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1),
    SamplingParams(temperature=0, repeat_penalty=1.5, penalty_window=8),
    SamplingParams(seed=8, temperature=1.0, top_k=0),  # only the host can
    SamplingParams(seed=9, temperature=1.0, typical_p=0.7),
]


@pytest.mark.parametrize("params", CHAINS, ids=range(len(CHAINS)))
def test_replies_are_those_of_draws_on_the_host(
    device: Device, write: Write, monkeypatch: pytest.MonkeyPatch, params: SamplingParams
) -> None:
    with opened_on(device, write(**MODELS["llama"])) as model:
        ours = reply(model, IDS[:20], params)
        with monkeypatch.context() as patched:
            patched.setattr(
                model,
                "next_logits",
                lambda hidden, cancel, ahead=None: HostLogits(model.logits(hidden[-1:], cancel)[0]),
            )
            assert reply(model, IDS[:20], params) == ours


def test_a_reply_up_to_the_end_of_the_context(device: Device, write: Write) -> None:
    with opened_on(device, write(**MODELS["llama"]), max_context=30) as model:
        session = Session(model.backend.new_kv(30))
        logits = prefill(model, session, IDS[:27], chunk=16, cancel=GO_ON, on_progress=lambda n_done: None)
        draw = Sampler(GREEDY)
        for _ in range(3):
            logits = decode_step(model, session, draw(logits, session.ids), GO_ON)
        draw(logits, session.ids)
        assert len(session.ids) == 30


def test_the_step_after_a_draw_is_under_way_when_it_is_asked_for(device: Device, write: Write) -> None:
    watched = Borrowed(device)
    with opened_on(watched, write(**MODELS["llama"])) as model:
        session, draw = Session(model.backend.new_kv(64)), Sampler(GREEDY)
        logits = decode_step(model, session, IDS[0], GO_ON)
        watched.launches.clear()
        token_id = draw(logits, session.ids)
        assert watched.launches == ["sample_greedy", "step", "graph"]
        decode_step(model, session, token_id, GO_ON)
        assert watched.launches == ["sample_greedy", "step", "graph"]
        draw(decode_step(model, session, IDS[1], GO_ON), session.ids)
        assert watched.launches[3:] == ["step", "graph", "sample_greedy", "step", "graph"]


@pytest.mark.parametrize("case", ["another id", "earlier", "several", "a prompt", "another cache"])
def test_a_step_that_was_begun_in_vain_leaves_no_trace(device: Device, write: Write, case: str) -> None:
    with opened_on(device, write(**MODELS["gemma3"])) as model:

        def run(ahead: bool) -> np.ndarray:
            kv = model.backend.new_kv(64)
            hidden = model.hidden(IDS[:16], 0, kv, GO_ON)
            if ahead:
                drawn = Sampler(GREEDY)(model.next_logits(hidden, GO_ON), IDS[:16])
                assert drawn != IDS[16]
            if case == "another cache":
                kv = model.backend.new_kv(64)
                model.hidden(IDS[:16], 0, kv, GO_ON)
            ids, start = {
                "another id": (IDS[16:17], 16),
                "earlier": (IDS[15:16], 15),
                "several": (IDS[16:19], 16),
                "a prompt": (IDS[6:18], 6),
                "another cache": (IDS[16:17], 16),
            }[case]
            return model.logits(model.hidden(ids, start, kv, GO_ON), GO_ON)

        np.testing.assert_array_equal(run(True), run(False))


def test_a_draw_in_the_middle_of_a_pass_leaves_the_rows_behind_it_alone(device: Device, write: Write) -> None:
    with opened_on(device, write(**MODELS["llama"])) as model:
        for n_ids in (5, 12):

            def run(n_ids: int, draws: bool) -> np.ndarray:
                kv = model.backend.new_kv(64)
                hidden = model.hidden(IDS[:n_ids], 0, kv, GO_ON)
                if draws:
                    Sampler(GREEDY)(model.next_logits(hidden[:2], GO_ON), IDS[:2])
                return model.logits(model.hidden(IDS[n_ids : n_ids + 1], n_ids, kv, GO_ON), GO_ON)

            np.testing.assert_array_equal(run(n_ids, draws=True), run(n_ids, draws=False))


def test_rows_of_an_earlier_pass_are_refused(device: Device, write: Write) -> None:
    with opened_on(device, write(**MODELS["llama"])) as model:
        kv = model.backend.new_kv(64)
        hidden = model.hidden(IDS[:3], 0, kv, GO_ON)
        logits = model.next_logits(hidden, GO_ON)
        assert logits.all().shape == (320,)
        model.hidden(IDS[3:5], 3, kv, GO_ON)
        with pytest.raises(RuntimeError, match="earlier pass"):
            logits.all()
        with pytest.raises(RuntimeError, match="earlier pass"):
            model.logits(hidden, GO_ON)


def test_logits_that_are_no_numbers_are_an_error_wherever_they_are_drawn(
    device: Device, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", quant_type=QuantType.Q8_0, layers=1, tied=True)
    data = path.read_bytes()
    scales = bytearray(data)
    # The last tensor is output_norm: one weight of it becomes a NaN.
    scales[-4:] = np.float32(np.nan).tobytes()
    path.write_bytes(scales)
    with opened_on(device, path) as model:
        kv = model.backend.new_kv(64)
        for params in (GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, top_k=0)):
            for ids in (IDS[:1], IDS[:12]):
                logits = model.next_logits(model.hidden(ids, 0, kv, GO_ON), GO_ON)
                with pytest.raises(KernelError, match="not numbers"):
                    Sampler(params)(logits, ids)


class After(CancelToken):
    """Is cancelled once it has been asked so many times."""

    def __init__(self, n_times: int) -> None:
        super().__init__()
        self.left = n_times

    @property
    def cancelled(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(("n_tokens", "n_times"), [(1, 0), (5, 0), (12, 0), (12, 3)])
def test_a_cancelled_pass_stops_and_the_next_one_is_right(
    device: Device, write: Write, n_tokens: int, n_times: int
) -> None:
    path = write(**MODELS["gemma3"])
    expected = all_logits(open_numpy(path, Precision.FLOAT))
    with opened_on(device, path) as model:
        with pytest.raises(CancelledError):
            model.hidden(IDS[:n_tokens], 0, model.backend.new_kv(64), After(n_times))
        assert close(all_logits(model), expected, FAST)


# -- loading


def refusal(device: Device, path: Path, free: int, **options: object) -> str:
    """What loading fails with on a GPU that has so many bytes free."""
    small = Borrowed(device, free=free)
    with pytest.raises(BudgetError) as caught, opened_on(small, path, **options):
        pass
    assert small.closed
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_does_not_fit_is_refused_with_figures_and_what_would_help(device: Device, write: Write) -> None:
    path = write(**MODELS["llama"])
    options: dict[str, Any] = {"max_context": 2000, "precision": Precision.FLOAT}
    text = refusal(device, path, 10**9, vram_budget=Budget(10**8), **options)
    assert "the GPU memory budget of 100 MB is too little" in text
    enough = re.search(r"give at least (\d+)M \(--vram-budget\)", text)
    assert enough
    budget = Budget(int(enough[1]) * 10**6)
    with opened_on(device, path, vram_budget=budget, **options) as model:
        assert model.backend.tiers is not None
        assert {place.tier for place in model.backend.tiers.snapshot().blocks} != {Tier.VRAM}
        assert close(all_logits(model), all_logits(open_numpy(path, Precision.FLOAT)), FLOAT)
    assert "10 MB" in refusal(device, path, 10 << 20, vram_budget=Budget(10**9))


def test_by_default_a_tenth_of_the_free_memory_is_left_alone(device: Device, write: Write) -> None:
    path = write(**MODELS["llama"])
    free = (plan_on(device, path)[0].n_bytes + (8 << 20)) * 10 // 9
    with opened_on(Borrowed(device, free=free), path) as model:
        assert model.backend.tiers is not None
        snapshot = model.backend.tiers.snapshot()
    assert snapshot.vram_budget_bytes == free * 9 // 10
    assert snapshot.vram_used_bytes <= snapshot.vram_budget_bytes
    assert {place.tier for place in snapshot.blocks} == {Tier.VRAM}


def test_a_plan_counts_what_is_reserved(device: Device, write: Write) -> None:
    for options in ({}, {"precision": Precision.FLOAT}, {"kv_type": KVType.Q8_0}, {"chunk": 4}):
        for name in ("mixed", "gemma3"):
            path = write(**MODELS[name])
            gc.collect()  # what tests before this one have left in tracebacks
            before = device.used_bytes  # type: ignore[attr-defined]
            plan, _ = plan_on(device, path, **options)
            with opened_on(device, path, **options):
                used = device.used_bytes - before  # type: ignore[attr-defined]
                # CUDA's own part, what weights pass through, and whole pages of allocations.
                assert used <= plan.n_bytes < used + (280 << 20)


@pytest.mark.parametrize(("max_context", "chunk"), [(1, 1), (2, 2), (17, 7), (17, 17), (65, 8), (600, 512)])
@pytest.mark.parametrize("name", ["llama", "gemma3", "floats"])
def test_a_plan_is_what_is_reserved_to_the_byte(
    device: Device, write: Write, name: str, max_context: int, chunk: int
) -> None:
    gguf = open_gguf(write(**MODELS[name]))
    config = read_model_config(gguf)
    weights, settings = ModelWeights(gguf, config), launch_settings.load(device)
    for options in ({}, {"precision": Precision.FLOAT}, {"kv_type": KVType.Q8_0}):
        loading = LoadOptions(gguf.path, chunk=chunk, **options)  # type: ignore[arg-type]
        wanted = Wanted(weights, config, loading, max_context, chunk)
        layout = whole_layout(config, chunk)
        plan = plan_model(device, wanted, settings, 1 << 40, layout)
        counting = Granting(device)
        model = DeviceModel(counting, wanted, settings, layout)  # type: ignore[arg-type]
        assert sum(counting.granted) == plan.n_bytes - BESIDE_BYTES
        assert model.kv.n_bytes == plan.kv


def test_a_plan_takes_no_memory_for_whatever_context(device: Device, write: Write) -> None:
    tracemalloc.start()
    plan, _ = plan_on(device, write(**MODELS["llama"]), max_context=1 << 28)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.kv > 1 << 37
    assert most < 4 << 20


def test_rotations_are_written_a_piece_at_a_time(
    device: Device, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {}
    for n_positions in (1 << 14, 7):
        monkeypatch.setattr("engine.backends.cuda_attention._ANGLES_FOR", n_positions)
        with opened_on(device, write(**MODELS["gemma3"]), max_context=30) as model:
            kv = model.backend.new_kv(30).device
            assert kv.rotation is not kv.local_rotation
            expected[n_positions] = [
                device.download(table)
                for rotation in (kv.rotation, kv.local_rotation)
                for table in (rotation.cosines, rotation.sines)
            ]
    np.testing.assert_array_equal(expected[7], expected[1 << 14])
    assert np.all(np.isfinite(expected[7]))


def test_shapes_that_no_kernel_takes_are_an_error_of_one_line(device: Device, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", head_dim=24, heads=4, hidden_size=96)
    with (
        pytest.raises(DeviceError, match="the GPU kernels do not take this model: heads of 24 elements"),
        opened_on(device, path),
    ):
        pass


def test_memory_that_runs_out_all_the_same_is_a_refusal_with_figures_and_leaves_nothing(
    device: Device, write: Write
) -> None:
    path, before = write(**MODELS["llama"]), device.used_bytes  # type: ignore[attr-defined]
    counting = Granting(device)
    with opened_on(counting, path) as model:
        expected = reply(model, IDS[:12], GREEDY, 3)
    del model
    assert len(counting.granted) > 40
    for n_granted in range(len(counting.granted)):
        small = Granting(device, n_granted)
        with pytest.raises(BudgetError) as caught, opened_on(small, path):
            pass
        assert re.fullmatch(
            f"the model does not fit the memory of {device.name} any more: it takes [0-9]+ MB, 3 MB of it "
            "could not be had, and 1 MB are free: another program has taken memory meanwhile; close it, or "
            "load the model again",
            str(caught.value),
        )
        assert small.closed
        del caught
        assert device.used_bytes == before  # type: ignore[attr-defined]
    with opened_on(device, path) as model:
        assert reply(model, IDS[:12], GREEDY, 3) == expected


def test_a_gpu_that_fails_is_an_error_of_the_engine(device: Device, write: Write) -> None:
    watched = Borrowed(device)
    with opened_on(watched, write(**MODELS["llama"])) as model:

        def fail(*arguments: object, **options: object) -> None:
            raise kernel_errors.DeviceError("an illegal address")

        watched.launch = fail  # type: ignore[method-assign]
        with pytest.raises(DeviceError, match="the GPU failed: an illegal address; start Tiercel again"):
            model.hidden(IDS[:2], 0, model.backend.new_kv(64), GO_ON)


def test_steps_and_draws_are_timed_where_somebody_asks(device: Device, write: Write) -> None:
    with opened_on(device, write(**MODELS["llama"])) as model:
        backend, session, draw = model.backend, Session(model.backend.new_kv(64)), Sampler(GREEDY)
        token_id = draw(decode_step(model, session, IDS[0], GO_ON), session.ids)
        with backend.timed() as times:
            for _ in range(3):
                token_id = draw(decode_step(model, session, token_id, GO_ON), session.ids)
        draw(decode_step(model, session, token_id, GO_ON), session.ids)
        # The first of these steps was under way before: a draw and the step after it, three times.
        assert len(times.spans) == 6
        assert all(end.since(start) > 0 for start, end in times.spans)


def test_a_steps_launches_can_be_run_one_by_one(device: Device, write: Write) -> None:
    with opened_on(device, write(**MODELS["llama"])) as model:
        kv, backend = model.backend.new_kv(64), model.backend
        model.hidden(IDS[:9], 0, kv, GO_ON)
        expected = Sampler(GREEDY)(model.next_logits(model.hidden([0], 9, kv, GO_ON), GO_ON), [])
        launches = backend.step_launches(kv, 9)
        for _, launch in launches:
            launch()
        assert int(device.download(backend._model.state)[9]) == expected
        names = [kernel.name for kernel, _ in launches]
        assert names[0] == "embedding"
        assert names[-1] == "sample_greedy"
        assert names.count("attention_step") == 2

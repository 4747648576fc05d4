"""Which device computes and what is said about it; the engine with a GPU, for which the emulator stands."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import (
    Budget,
    BudgetError,
    CancelToken,
    DecodingOptions,
    DeviceError,
    DraftKind,
    Engine,
    EngineState,
    ExecutorChoice,
    KVType,
    LoadOptions,
    Precision,
    Request,
    SamplingParams,
    StreamError,
    Tier,
    TierSnapshot,
    parse_skip,
    preview_model,
)
from engine.backends import gpus
from engine.errors import CancelledError
from engine.events import GpuFacts
from engine.loading import LoadedModel, load_model
from engine.tiers.wishes import parse_place
from kernels import errors as kernel_errors
from kernels.cuda.devices import DeviceFacts, NoDevice
from kernels.quant_types import QuantType
from tests.engine.asking import GREEDY, user, wait, wait_for
from tests.engine.cuda_models import GPU, Borrowed
from tests.engine.tiers.faulty_disk import nothing_leaks, spoil
from tests.kernels.cuda.emulated_device import EmulatedDevice, compiler_missing
from tests.tiny_gguf import CHATML, write_tiny_model

FACTS = DeviceFacts(0, GPU.name, 90, 4, GPU.total_bytes, GPU.free_bytes, GPU.driver)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "m.gguf"
    return write_tiny_model(path, quant_type=QuantType.Q8_0, chat_template=CHATML, layers=1)


class Emulated:
    """Devices as they are opened, one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[Borrowed] = []
        self.free: int | None = None
        self.found: list[DeviceFacts] | NoDevice = [FACTS]
        monkeypatch.setattr(gpus, "devices", lambda: self.found)
        monkeypatch.setattr("engine.backends.select.open_gpu", self._open)

    def _open(self, device: str | None, cache_dir: Path | None) -> tuple[Any, GpuFacts]:
        facts = gpus.gpu_facts(gpus.choose_gpu(device))
        # As much as an open GPU takes; what a test opens lives as long as its model.
        self.opened.append(Borrowed(EmulatedDevice(), free=self.free, name=GPU.name))
        return self.opened[-1], facts

    @property
    def used_bytes(self) -> list[int]:
        """Device memory in use, of each that was opened."""
        return [device._device.used_bytes for device in self.opened]  # type: ignore[attr-defined]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    if reason := compiler_missing():
        pytest.skip(reason)
    yield Emulated(monkeypatch)


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(
        LoadOptions(path, context=64, threads=1, **options), lambda stage, progress: None, CancelToken()
    )


def notices_of(path: Path, **options: Any) -> tuple[str, ...]:
    loaded = load(path, **options)
    loaded.close()
    return loaded.notices


# -- the choice


def test_a_gpu_that_holds_the_model_computes_it(emulated: Emulated, model: Path) -> None:
    for device in (None, "cuda", "cuda:0"):
        loaded = load(model, device=device)
        assert loaded.backend.name == "cuda sm_90"
        assert loaded.backend.reason == (
            "Testcard 9000, 1 GB, driver 580.1, compute capability 9.0: the model fits its memory"
        )
        assert loaded.notices == ()
        loaded.close()
        loaded.close()
        assert emulated.opened[-1].closed


def test_the_cpu_computes_where_it_is_asked_for(emulated: Emulated, model: Path) -> None:
    loaded = load(model, device="cpu")
    assert loaded.backend.name != "cuda sm_90"
    assert loaded.backend.reason.endswith("; as asked for")
    assert (loaded.notices, emulated.opened) == ((), [])
    loaded.close()


def test_a_machine_without_a_driver_is_not_warned(emulated: Emulated, model: Path) -> None:
    emulated.found = NoDevice("no NVIDIA driver is installed", has_driver=False)
    loaded = load(model)
    assert loaded.notices == ()
    assert loaded.backend.reason.endswith("no GPU can be used: no NVIDIA driver is installed")
    loaded.close()
    with pytest.raises(DeviceError, match="no NVIDIA driver is installed"):
        load(model, device="cuda")


def test_a_gpu_that_cannot_be_used_is_a_notice_or_an_error(emulated: Emulated, model: Path) -> None:
    emulated.found = NoDevice("CuPy is not installed: pip install 'tiercel[cuda13]'")
    (notice,) = notices_of(model)
    assert notice == (
        "the CPU computes: no GPU can be used: CuPy is not installed: pip install 'tiercel[cuda13]'"
    )
    with pytest.raises(DeviceError, match="CuPy is not installed"):
        load(model, device="cuda:0")


@pytest.mark.parametrize("fault", ["open", "prepare", "launch"])
def test_a_gpu_that_fails_while_loading_is_the_same(
    emulated: Emulated, model: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise kernel_errors.CompileError("NVRTC is too old")

    if fault == "open":
        monkeypatch.setattr("engine.backends.select.open_gpu", gpus.open_gpu)
        monkeypatch.setitem(sys.modules, "kernels.cuda.cuda_device", None)  # as without CuPy
        text = "Testcard 9000 cannot be used: "
    else:
        monkeypatch.setattr(Borrowed, fault, fail)
        text = "Testcard 9000 cannot be used: NVRTC is too old"
    with nothing_leaks():
        (notice,) = notices_of(model)
        assert notice.startswith(f"the CPU computes: {text}")
        with pytest.raises(DeviceError, match=text):
            load(model, device="cuda")
    assert all(device.closed for device in emulated.opened)
    assert not any(emulated.used_bytes)


@pytest.mark.parametrize("broken", ["imports", "numbers"])
def test_a_cupy_that_cannot_be_loaded_is_one_line_with_its_cause(
    emulated: Emulated, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: str
) -> None:
    # As CuPy words it, and as a module built for another NumPy does.
    content = {
        "imports": 'raise ImportError("\\n===\\nFailed to import CuPy.") from ImportError("no libnvrtc")',
        "numbers": 'raise ValueError("numpy.dtype size\\nchanged")',
    }
    (tmp_path / "cupy.py").write_text(content[broken])
    monkeypatch.setattr("engine.backends.select.open_gpu", gpus.open_gpu)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "kernels.cuda.cuda_device", raising=False)
    cause = {"imports": "no libnvrtc", "numbers": "numpy.dtype size changed"}[broken]
    (notice,) = notices_of(model)
    assert notice == (
        f"the CPU computes: Testcard 9000 cannot be used: CuPy cannot be loaded ({cause}); install it again: "
        "pip install --force-reinstall 'tiercel[cuda13]' or [cuda12]"
    )
    with pytest.raises(DeviceError, match="CuPy cannot be loaded"):
        load(model, device="cuda")


def test_a_model_that_does_not_fit_goes_to_the_cpu_with_figures(emulated: Emulated, model: Path) -> None:
    emulated.free = 100 << 20
    (notice,) = notices_of(model)
    assert notice.startswith("the CPU computes: the GPU memory budget of 94 MB is too little: ")
    assert "give at least" in notice
    with pytest.raises(BudgetError, match="GPU memory budget of 94 MB is too little"):
        load(model, device="cuda")
    emulated.free = None
    notice, unused = notices_of(model, vram_budget=Budget(50_000_000))
    assert "the GPU memory budget of 50 MB is too little" in notice
    assert "(--vram-budget)" in notice
    assert unused == "no GPU computes, so this has no effect: --vram-budget"
    assert not any(emulated.used_bytes)


def test_a_kv_type_that_changes_nothing_is_told(emulated: Emulated, model: Path) -> None:
    assert notices_of(model, kv_type=KVType.Q8_0) == ()
    (notice,) = notices_of(model, kv_type=KVType.Q8_0, precision=Precision.FLOAT)
    assert notice == "the cache is float32 in float precision: q8_0 changes nothing"
    (notice,) = notices_of(model, kv_type=KVType.Q8_0, device="cpu")
    assert notice == "no GPU computes, so this has no effect: --kv-type"


def test_wishes_for_a_gpu_that_does_not_compute_are_told(emulated: Emulated, model: Path) -> None:
    (notice,) = notices_of(model, vram_budget=Budget(50_000_000), gpu_layers=1, device="cpu")
    assert notice == "no GPU computes, so this has no effect: --vram-budget, --gpu-layers"
    (notice,) = notices_of(model, executor=ExecutorChoice.STREAM, device="cpu")
    assert notice == "no GPU computes, so this has no effect: a choice of executor"


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("gpu", "'gpu' is no device: give cpu, cuda, or cuda:1 for the second GPU"),
        ("cuda:", "is no device"),
        ("cuda:1", r"there is no cuda:1 that can be used, only cuda:0 \(Testcard 9000\), cuda:2 \(Other\)"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    emulated: Emulated, model: Path, device: str, text: str
) -> None:
    emulated.found = [FACTS, DeviceFacts(2, "Other", 80, 4, 10, 9, "1")]
    assert gpus.choose_gpu("cuda:2").name == "Other"
    with pytest.raises(DeviceError, match=text):
        load(model, device=device)


def test_stages_are_told_and_rise(emulated: Emulated, model: Path) -> None:
    stages: list[tuple[str, float]] = []
    loaded = load_model(
        LoadOptions(model, context=64),
        lambda stage, progress: stages.append((stage, progress)),
        CancelToken(),
    )
    loaded.close()
    assert [progress for _, progress in stages] == sorted(progress for _, progress in stages)
    assert list(dict.fromkeys(stage for stage, _ in stages)) == [
        "reading the header",
        "looking at the GPU",
        "compiling CUDA kernels",
        "preparing the backend",
        "building the tokenizer",
    ]


@pytest.mark.parametrize(
    "stage",
    ["looking at the GPU", "compiling CUDA kernels", "preparing the backend", "building the tokenizer"],
)
def test_a_load_that_is_stopped_gives_everything_back(emulated: Emulated, model: Path, stage: str) -> None:
    token = CancelToken()

    def stop(now: str, progress: float) -> None:
        if now == stage:
            token.cancel()

    def check(now: str, progress: float) -> None:
        stop(now, progress)
        if stage == "building the tokenizer" and token.cancelled:
            raise CancelledError("stopped")

    with nothing_leaks(), pytest.raises(CancelledError):
        load_model(LoadOptions(model, context=64), check, token)
    assert [device.closed for device in emulated.opened] == [True]
    assert not any(emulated.used_bytes)


def test_a_preview_says_what_loading_will(emulated: Emulated, model: Path) -> None:
    options = LoadOptions(model, context=64)
    preview = preview_model(model, options)
    loaded = load_model(options, lambda stage, progress: None, CancelToken())
    assert loaded.backend.tiers is not None
    used = loaded.backend.tiers.snapshot().vram_used_bytes
    loaded.close()
    assert (preview.device, preview.vram_bytes, preview.problem) == ("Testcard 9000", used, "")
    assert (preview.kv_bytes, preview.ram_bytes) == (loaded.info.kv_bytes, 0)
    emulated.found = [replace(FACTS, free_bytes=used)]
    small = preview_model(model, options)
    assert (small.device, small.vram_bytes, small.problem) == ("", 0, "")
    assert small.ram_bytes
    assert "is too little" in preview_model(model, replace(options, device="cuda")).problem
    assert preview_model(model, options, freed_vram_bytes=used).device == "Testcard 9000"
    emulated.found = NoDevice("no driver", has_driver=False)
    assert preview_model(model, options).ram_bytes == small.ram_bytes
    assert "no driver" in preview_model(model, replace(options, device="cuda")).problem


# -- the engine


def replies(engine: Engine, options: LoadOptions) -> list[list[int]]:
    engine.load(options)
    asked = [
        wait(engine.ask(Request(messages, sampling=params, max_tokens=8)))
        for messages in (user("hello"), user("hello", "yes", "and then?"), user("hello", "yes", "no?"))
        for params in (GREEDY, SamplingParams(seed=3, temperature=1.0))
    ]
    assert [reply.error for reply in asked] == [None] * len(asked)
    return [reply.token_ids for reply in asked]


def test_replies_are_those_of_the_cpu(emulated: Emulated, engine: Engine, model: Path) -> None:
    options: dict[str, Any] = {"context": 128, "threads": 1, "precision": Precision.FLOAT}
    ours = replies(engine, LoadOptions(model, **options))
    assert emulated.opened
    snapshot = engine.snapshot
    assert (snapshot.backend, snapshot.threads, snapshot.notices) == ("cuda sm_90", 1, ())
    tiers = snapshot.tiers
    assert tiers is not None
    assert tiers.gpu is not None
    assert tiers.gpu.name == "Testcard 9000"
    assert {place.tier for place in tiers.blocks} == {Tier.VRAM}
    assert tiers.passes == 6 * 8
    assert ours == replies(engine, LoadOptions(model, device="cpu", **options))


def settled(engine: Engine) -> TierSnapshot:
    """Where everything is once nothing moves any more."""

    def all_there() -> bool:
        tiers = engine.snapshot.tiers
        return tiers is not None and tiers.settled and engine.snapshot.load_progress == 1

    wait_for(all_there)
    tiers = engine.snapshot.tiers
    assert tiers is not None
    return tiers


def tiers_in(snapshot: TierSnapshot) -> set[Tier]:
    return {place.tier for place in snapshot.blocks}


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More blocks than a ring takes."""
    path = tmp_path_factory.mktemp("gpu") / "deep.gguf"
    return write_tiny_model(path, quant_type=QuantType.Q8_0, chat_template=CHATML, layers=6)


def refused(engine: Engine, what: str) -> str:
    """The notice that says so."""
    found: list[str] = []

    def told() -> bool:
        found[:] = [text for text in engine.snapshot.notices if f"the {what} was not changed" in text]
        return bool(found)

    wait_for(told)
    assert "\n" not in found[0]
    return found[0]


def test_a_model_answers_before_all_of_it_is_there(
    emulated: Emulated, engine: Engine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.tiers.direct_io import DirectFiles

    fill, go_on = DirectFiles.fill, threading.Event()

    def slow(self: DirectFiles, *arguments: Any) -> None:
        assert go_on.wait(30)
        fill(self, *arguments)

    monkeypatch.setattr(DirectFiles, "fill", slow)
    engine.load(LoadOptions(model, context=64, threads=1))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    now = engine.snapshot
    assert now.load_progress == 0
    assert now.tiers is not None
    assert not now.tiers.settled
    assert tiers_in(now.tiers) == {Tier.NVME}
    reply = engine.ask(Request(user("hello"), max_tokens=2))
    wait_for(lambda: engine.snapshot.state is EngineState.GENERATING)
    go_on.set()
    assert wait(reply).error is None
    assert tiers_in(settled(engine)) == {Tier.VRAM}


def test_budgets_and_places_change_while_the_model_is_loaded(
    emulated: Emulated, engine: Engine, deep: Path
) -> None:
    options: dict[str, Any] = {"context": 64, "precision": Precision.FLOAT}
    engine.load(LoadOptions(deep, threads=1, device="cuda", **options))
    request = Request(user("hello"), sampling=GREEDY, max_tokens=4)
    expected = wait(engine.ask(request)).token_ids
    assert tiers_in(settled(engine)) == {Tier.VRAM}

    engine.set_vram_budget(Budget(1000))
    least = refused(engine, "GPU memory budget").split("at least ")[1].split("M")[0]
    assert engine.snapshot.vram_budget is None
    engine.set_vram_budget(small := Budget(int(least) * 10**6))
    wait_for(lambda: engine.snapshot.vram_budget == small)
    shared = settled(engine)
    assert tiers_in(shared) == {Tier.VRAM, Tier.RAM}
    assert shared.vram_used_bytes <= shared.vram_budget_bytes == small.n_bytes
    assert any("do not fit the GPU's memory" in notice for notice in engine.snapshot.notices)
    assert wait(engine.ask(request)).token_ids == expected

    engine.set_ram_budget(Budget(1000))
    assert "--ram-budget" in refused(engine, "memory budget")
    assert engine.snapshot.ram_budget is None
    assert engine.snapshot.vram_budget == small
    assert settled(engine).blocks == shared.blocks
    assert wait(engine.ask(request)).token_ids == expected

    engine.set_vram_budget(None)
    wait_for(lambda: engine.snapshot.vram_budget is None)
    assert tiers_in(settled(engine)) == {Tier.VRAM}
    index = next(i for i, place in enumerate(shared.blocks) if place.kind == "feed_forward")
    for tier in (Tier.NVME, Tier.RAM):
        engine.pin_block(index, tier)
        wait_for(lambda: settled(engine).blocks[index].tier is tier)  # noqa: B023  called at once
        assert wait(engine.ask(request)).token_ids == expected
    engine.pin_block(index, None)
    wait_for(lambda: tiers_in(settled(engine)) == {Tier.VRAM})
    assert wait(engine.ask(request)).token_ids == expected


def test_without_the_c_kernels_a_gpu_computes_what_it_holds_whole(
    emulated: Emulated, engine: Engine, deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(user("hello"), sampling=GREEDY, max_tokens=4)
    options = LoadOptions(deep, context=64, threads=1, device="cuda")
    engine.load(options)
    expected = wait(engine.ask(request)).token_ids
    monkeypatch.setitem(sys.modules, "engine.backends.host_blocks", None)
    engine.load(options)
    assert wait(engine.ask(request)).token_ids == expected  # before all of it is there
    used = settled(engine).vram_used_bytes
    engine.set_vram_budget(Budget(used - (1 << 20)))
    assert "C kernels that would compute the rest are not installed" in refused(engine, "GPU memory budget")
    assert wait(engine.ask(request)).token_ids == expected
    engine.load(replace(options, vram_budget=Budget(used - (1 << 20))))
    wait_for(lambda: engine.snapshot.state is EngineState.FAILED)
    assert "the model does not fit the GPU, and the C kernels" in engine.snapshot.error


def test_the_backend_of_a_gpu_is_imported_without_the_c_kernels() -> None:
    program = "import sys; sys.modules['kernels.cpu'] = None; import engine.backends.cuda_open"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_a_gpu_its_budget_and_places_change_nothing_and_say_so(engine: Engine, model: Path) -> None:
    engine.load(LoadOptions(model, context=64, threads=1, device="cpu"))
    engine.set_vram_budget(Budget(900_000_000))
    wait_for(lambda: engine.snapshot.notices == ("no GPU computes: a budget for its memory changes nothing",))
    assert engine.snapshot.vram_budget is None
    engine.pin_block(0, Tier.VRAM)
    wait_for(lambda: any("placed by hand" in notice for notice in engine.snapshot.notices))
    assert wait(engine.ask(Request(user("hello"), max_tokens=2))).error is None


def test_a_file_that_cannot_be_read_any_more_fails_replies_until_it_can(
    emulated: Emulated, engine: Engine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(user("hello"), sampling=GREEDY, max_tokens=2)
    with monkeypatch.context() as patched:
        spoil(patched, "EIO")
        engine.load(LoadOptions(model, context=64, threads=1))
        for _ in range(2):
            assert isinstance(wait(engine.ask(request)).error, StreamError)
        tiers = engine.snapshot.tiers
        assert tiers is not None
        assert any("could not be read" in event.text for event in tiers.events)
    assert wait(engine.ask(request)).error is None
    assert tiers_in(settled(engine)) == {Tier.VRAM}


def test_who_waits_for_all_weights_is_told_when_they_cannot_be_read(
    emulated: Emulated, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nothing_leaks():
        with monkeypatch.context() as patched:
            spoil(patched, "EIO")
            loaded = load(model)
            with pytest.raises(StreamError):
                loaded.settle(CancelToken())
        loaded.settle(CancelToken())
        assert loaded.backend.tiers is not None
        assert tiers_in(loaded.backend.tiers.snapshot()) == {Tier.VRAM}
        loaded.close()
        del loaded


def test_a_gpu_that_fails_while_weights_move_is_told_in_one_line(
    emulated: Emulated, engine: Engine, deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.load(LoadOptions(deep, context=64, threads=1))
    settled(engine)

    def fail(*arguments: object) -> None:
        raise kernel_errors.DeviceError("an illegal address")

    monkeypatch.setattr(Borrowed, "synchronize", fail, raising=False)
    engine.pin_block(1, Tier.RAM)
    told = "the GPU failed: an illegal address; start Tiercel again, or let the CPU compute (--device cpu)"
    wait_for(lambda: told in engine.snapshot.notices)


def test_an_unloaded_model_leaves_nothing_on_the_gpu(emulated: Emulated, model: Path) -> None:
    with nothing_leaks():
        engine = Engine()
        for _ in range(2):
            engine.load(LoadOptions(model, context=64))
            assert wait(engine.ask(Request(user("hello"), max_tokens=3))).error is None
        engine.unload()
        wait_for(lambda: engine.snapshot.state is EngineState.EMPTY)
        assert engine.snapshot.tiers is None
        wait_for(lambda: not any(emulated.used_bytes))
        engine.close()
    assert [device.closed for device in emulated.opened] == [True, True]


def test_a_cancelled_reply_keeps_its_text_and_the_engine_goes_on(
    emulated: Emulated, engine: Engine, model: Path
) -> None:
    engine.load(LoadOptions(model, context=512, threads=1))
    reply = engine.ask(Request(user("hello"), sampling=SamplingParams(seed=1, temperature=3.0)))
    wait_for(lambda: len(reply.token_ids) > 3)
    reply.cancel()
    assert wait(reply).error is None
    assert reply.text
    first = wait(engine.ask(Request(user("hello"), sampling=GREEDY, max_tokens=4)))
    again = wait(engine.ask(Request(user("hello"), sampling=GREEDY, max_tokens=4)))
    assert first.token_ids == again.token_ids


@pytest.mark.gpu
def test_a_real_gpu_loads_and_answers(engine: Engine, model: Path) -> None:
    from kernels.cuda.devices import devices

    found = devices()
    if isinstance(found, NoDevice):
        pytest.skip(found.reason)
    options: dict[str, Any] = {"context": 128, "precision": Precision.FLOAT}
    ours = replies(engine, LoadOptions(model, device="cuda", **options))
    assert engine.snapshot.backend.startswith("cuda sm_")
    assert ours == replies(engine, LoadOptions(model, device="cpu", **options))


# -- less work for a token


def ids_of(engine: Engine, options: LoadOptions, *ways: DecodingOptions) -> list[list[int]]:
    """A reply computed in each of these ways; none of them fails."""
    engine.load(options)
    wait_for(lambda: engine.snapshot.state in (EngineState.READY, EngineState.FAILED))
    asked = [
        wait(engine.ask(Request(user("one two one two one"), sampling=GREEDY, max_tokens=10, decoding=way)))
        for way in ways
    ]
    assert [reply.error for reply in asked] == [None] * len(asked)
    return [reply.token_ids for reply in asked]


DRAFTS = [DecodingOptions(draft=kind, draft_k=3) for kind in (DraftKind.NGRAM, DraftKind.RESIDENT)]


def test_replies_with_drafts_are_those_of_the_cpu(emulated: Emulated, engine: Engine, deep: Path) -> None:
    options: dict[str, Any] = {"context": 64, "threads": 1, "precision": Precision.FLOAT}
    (expected,) = ids_of(engine, LoadOptions(deep, device="cpu", **options), DecodingOptions())
    on_gpu = {"place": parse_place("blk.2-5.ffn=ram"), "executor": ExecutorChoice.STREAM}
    assert ids_of(engine, LoadOptions(deep, **options, **on_gpu), *DRAFTS) == [expected] * len(DRAFTS)
    assert emulated.opened


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["", "blk.2-5.ffn=ram"])
def test_a_real_gpu_drafts_and_leaves_blocks_out(engine: Engine, deep: Path, place: str) -> None:
    from kernels.cuda.devices import devices

    found = devices()
    if isinstance(found, NoDevice):
        pytest.skip(found.reason)
    options: dict[str, Any] = {"context": 512, "precision": Precision.FLOAT}
    some = DecodingOptions(skip=parse_skip("blk.2.ffn,blk.4"))
    ways = [DecodingOptions(), *DRAFTS, some, replace(some, draft=DraftKind.NGRAM, draft_k=4), *DRAFTS]
    rules = parse_place(place) if place else ()
    ours = ids_of(engine, LoadOptions(deep, device="cuda", place=rules, **options), *ways)
    expected, skipped = ids_of(engine, LoadOptions(deep, device="cpu", **options), DecodingOptions(), some)
    assert ours == [expected, expected, expected, skipped, skipped, expected, expected]

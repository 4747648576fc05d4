"""A model that drafts is loaded beside the one that it drafts for: what is compared, counted and told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from engine.answer import answer
from engine.budgeting import change_ram_budget, change_vram_budget
from engine.cancel import CancelToken
from engine.config import DecodingOptions, DraftKind, LoadOptions, Request, SamplingParams
from engine.errors import BudgetError, CancelledError, EngineError, TokenizerError
from engine.events import Reply
from engine.loading import LoadedModel, load_model
from engine.tiers.budget import Budget, parse_budget
from engine.tiers.gpu_tiers import GpuTiers
from kernels.quant_types import QuantType
from tests.engine.budgets import least_for_weights, memory_beside_weights, room_for
from tests.engine.test_cuda_engine import Emulated, emulated
from tests.engine.tiers.faulty_disk import nothing_leaks
from tests.tiny_gguf import write_tiny_model, write_tiny_vocabulary

__all__ = ["emulated"]

CONTEXT = 64


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
    return write_tiny_model(tmp_path_factory.mktemp("t") / "big.gguf", quant_type=QuantType.Q4_K, layers=6)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("d") / "small.gguf"
    return write_tiny_model(path, quant_type=QuantType.Q4_K, layers=1, vocab_size=352, seed=1)


def load(path: Path, draft: Path, cancel: CancelToken | None = None, **options: Any) -> LoadedModel:
    options = {"context": CONTEXT, "threads": 1, "device": "cpu", **options}
    asked = LoadOptions(path, draft_model=draft, **options)
    return load_model(asked, lambda stage, progress: None, cancel or CancelToken())


def everything_in_memory(path: Path) -> int:
    """Bytes that the whole model takes."""
    return memory_beside_weights(path, CONTEXT) + room_for(path, 1)


@pytest.fixture
def loaded(target: Path, small: Path) -> Iterator[LoadedModel]:
    loaded = load(target, small)
    yield loaded
    loaded.close()


def test_both_models_are_there_with_caches_of_the_same_length(loaded: LoadedModel, small: Path) -> None:
    assert loaded.draft is not None
    assert loaded.draft.info.path == small
    assert (loaded.info.n_layers, loaded.draft.info.n_layers) == (6, 1)
    assert loaded.draft.session.kv.max_context == loaded.session.kv.max_context == CONTEXT
    assert loaded.draft.n_shared == 320
    assert loaded.notices == ()


def test_closing_closes_both(target: Path, small: Path) -> None:
    with nothing_leaks():
        load(target, small).close()


def fault_of(target: Path, draft: Path, **options: Any) -> tuple[type[EngineError], str]:
    """What loading fails with, without the frames that hold files open."""
    with pytest.raises(EngineError) as caught:
        load(target, draft, **options)
    assert "\n" not in str(caught.value)
    return caught.type, str(caught.value)


@pytest.mark.parametrize("fault", ["missing", "damaged", "another vocabulary", "no weights"])
def test_what_is_wrong_with_it_names_it_and_leaves_nothing(target: Path, tmp_path: Path, fault: str) -> None:
    path = tmp_path / "draft.gguf"
    if fault == "damaged":
        path.write_bytes(b"GGUF, it says")
    elif fault == "another vocabulary":
        write_tiny_model(path, layers=1)
        path.write_bytes(path.read_bytes().replace(b"hello", b"hullo"))
    elif fault == "no weights":
        write_tiny_vocabulary(path)
    with nothing_leaks():
        kind, message = fault_of(target, path)
    assert message.startswith("the draft model: ")
    assert "draft.gguf" in message
    assert (kind is TokenizerError) == (fault == "another vocabulary")


def test_when_the_model_itself_fails_its_draft_model_is_closed(target: Path, small: Path) -> None:
    least = memory_beside_weights(target, CONTEXT) + least_for_weights(target)
    budget = Budget(least - 1 + everything_in_memory(small))
    with nothing_leaks():
        kind, message = fault_of(target, small, ram_budget=budget)
    assert kind is BudgetError
    assert "MB beside the 18 MB of the draft model" in message
    enough = int(message.split("give at least ")[1].split("M (")[0])
    load(target, small, ram_budget=Budget(enough * 10**6)).close()


def test_loading_both_can_be_stopped(target: Path, small: Path) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with nothing_leaks(), pytest.raises(CancelledError):
        load(target, small, cancel)


def test_a_larger_draft_model_comes_with_a_notice(target: Path, small: Path) -> None:
    loaded = load(small, target)
    (notice,) = (notice for notice in loaded.notices if "larger" in notice)
    assert notice.startswith("the draft model is larger (")
    loaded.close()


def test_its_own_notices_say_whose_they_are(target: Path, tmp_path: Path) -> None:
    short = write_tiny_model(tmp_path / "short.gguf", quant_type=QuantType.Q4_K, layers=1, context=32)
    loaded = load(target, short)
    (notice,) = loaded.notices
    assert notice.startswith("draft model: the context of 64 tokens is longer than the 32")
    loaded.close()


def test_what_both_would_say_is_said_once(target: Path, small: Path) -> None:
    loaded = load(target, small, vram_budget=Budget(1 << 30))
    assert len([notice for notice in loaded.notices if "no GPU computes" in notice]) == 1
    loaded.close()


def test_a_memory_budget_is_for_both(target: Path, small: Path) -> None:
    """The draft model comes whole, and the other one streams what has no place left."""
    alone = memory_beside_weights(target, CONTEXT) + room_for(target, 0.5)
    loaded = load(target, small, ram_budget=Budget(alone + everything_in_memory(small)))
    assert loaded.draft is not None
    drafting, tiers = loaded.draft.model.backend.tiers, loaded.backend.tiers
    assert tiers is not None
    assert drafting is not None
    assert drafting.snapshot().pass_read_bytes == 0
    placed = tiers.snapshot()
    assert placed.pass_read_bytes > 0
    assert placed.ram_bytes + placed.ring_bytes <= room_for(target, 0.5) + room_for(small, 1)
    taken = loaded.draft.ram_bytes + placed.ram_bytes + placed.ring_bytes
    assert taken + memory_beside_weights(target, CONTEXT) <= alone + everything_in_memory(small)
    loaded.close()


def test_a_later_memory_budget_is_for_both_too(loaded: LoadedModel, target: Path) -> None:
    assert loaded.draft is not None
    tiers, budget = (
        loaded.backend.tiers,
        Budget(memory_beside_weights(target, CONTEXT) + least_for_weights(target) + loaded.draft.ram_bytes),
    )
    assert tiers is not None
    assert tiers.snapshot().pass_read_bytes == 0
    assert change_ram_budget(loaded, budget, lambda: False)
    assert loaded.options.ram_budget == budget
    assert tiers.snapshot().pass_read_bytes > 0
    assert tiers.snapshot().budget_bytes == least_for_weights(target)
    assert change_ram_budget(loaded, Budget(budget.n_bytes - 1), lambda: False)
    assert "was not changed" in loaded.notices[0]


@pytest.mark.parametrize(("budget", "left"), [("100", 70), ("50%", 470), ("100%", 970)])
def test_what_is_in_use_comes_off_a_budget_and_off_what_it_is_a_share_of(budget: str, left: int) -> None:
    assert replace(parse_budget(budget), taken=30).resolve(1000 - 30) == left


def test_beside_a_gpu_both_are_on_it_and_within_its_budget(
    target: Path, small: Path, emulated: Emulated
) -> None:
    free = 1 << 30
    loaded = load(target, small, device="cuda", vram_budget=Budget(800 << 20))
    draft, tiers = loaded.draft, loaded.backend.tiers
    assert draft is not None
    assert isinstance(tiers, GpuTiers)
    assert isinstance(draft.model.backend.tiers, GpuTiers)
    assert len(emulated.opened) == 2
    assert draft.model.backend.tiers.snapshot().settled
    assert draft.vram_bytes > 0
    assert tiers.where.budgets.vram == (800 << 20) - draft.vram_bytes
    change_vram_budget(loaded, Budget(900 << 20))
    assert tiers.where.budgets.vram == (900 << 20) - draft.vram_bytes
    assert free > tiers.where.budgets.vram
    loaded.close()
    assert all(device.closed for device in emulated.opened)


def test_what_places_blocks_by_hand_is_not_for_the_draft_model(
    target: Path, small: Path, emulated: Emulated
) -> None:
    loaded = load(target, small, device="cuda", gpu_layers=2)
    assert loaded.draft is not None
    assert isinstance(loaded.backend.tiers, GpuTiers)
    drafting = loaded.draft.model.backend.tiers
    assert isinstance(drafting, GpuTiers)
    assert not loaded.backend.tiers.where.wants_whole
    assert drafting.where.wants_whole
    loaded.close()


def replied(loaded: LoadedModel, draft: DraftKind) -> Reply:
    """Eight ids with a fixed seed."""
    decoding = DecodingOptions(draft=draft, draft_k=None if draft is DraftKind.OFF else 3)
    reply = Reply(
        Request(prompt="hello world", sampling=SamplingParams(seed=4), decoding=decoding, max_tokens=8)
    )
    answer(loaded, reply, perf_counter(), lambda: None)
    return reply


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_reply_is_the_same_with_its_drafts(
    target: Path, small: Path, device: str, request: pytest.FixtureRequest
) -> None:
    if device == "cuda":
        request.getfixturevalue("emulated")
    loaded = load(target, small, device=device)
    plain, fast = replied(loaded, DraftKind.OFF), replied(loaded, DraftKind.MODEL)
    assert fast.token_ids == plain.token_ids
    assert fast.stats.drafted_tokens > 0
    loaded.close()


def test_a_model_agrees_with_all_drafts_of_its_own_double(target: Path) -> None:
    """The same random numbers are used for peeks and draws."""
    loaded = load(target, target)
    stats = replied(loaded, DraftKind.MODEL).stats
    assert stats.accepted_tokens == stats.drafted_tokens >= 3
    loaded.close()


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_real_models_agree_with_their_doubles(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    loaded = load(path, path, threads=None)
    plain, fast = replied(loaded, DraftKind.OFF), replied(loaded, DraftKind.MODEL)
    assert fast.token_ids == plain.token_ids
    assert fast.stats.accepted_tokens == fast.stats.drafted_tokens >= 3
    loaded.close()

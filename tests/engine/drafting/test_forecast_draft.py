"""What is foretold of a model with a draft model is what loading both then does."""

from __future__ import annotations

from pathlib import Path

from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.preview import preview_model
from engine.reporting import plan_report
from engine.tiers.budget import Budget
from tests.engine.budgets import memory_beside_weights, room_for
from tests.engine.drafting.test_loading_draft import CONTEXT, everything_in_memory, load, small, target
from tests.engine.test_cuda_engine import Emulated, emulated
from tests.tiny_gguf import write_tiny_model

__all__ = ["emulated", "small", "target"]


def test_memory_for_both_is_foretold(target: Path, small: Path) -> None:
    budget = Budget(
        memory_beside_weights(target, CONTEXT) + room_for(target, 0.5) + everything_in_memory(small)
    )
    options = LoadOptions(
        target, context=CONTEXT, threads=1, device="cpu", draft_model=small, ram_budget=budget
    )
    foretold, alone = preview_model(target, options), preview_model(small, options)
    loaded = load(target, small, ram_budget=budget)
    assert loaded.draft is not None
    assert loaded.backend.tiers is not None
    placed = loaded.backend.tiers.snapshot()
    assert foretold.pass_read_bytes == placed.pass_read_bytes > 0
    beside = memory_beside_weights(target, CONTEXT)
    assert foretold.ram_bytes == placed.ram_bytes + placed.ring_bytes + beside + loaded.draft.ram_bytes
    assert alone.problem == ""
    loaded.close()
    (told,) = (line for line in plan_report(options, CancelToken()).lines if "draft" in line)
    assert told == "its draft model takes 18 MB of memory beside it"


def test_a_gpus_memory_for_both_is_foretold(target: Path, small: Path, emulated: Emulated) -> None:
    options = LoadOptions(
        target, context=CONTEXT, threads=1, vram_budget=Budget(800 << 20), draft_model=small
    )
    foretold = preview_model(target, options)
    loaded = load(target, small, device=None, vram_budget=Budget(800 << 20))
    assert loaded.draft is not None
    assert loaded.backend.tiers is not None
    assert foretold.vram_bytes == loaded.draft.vram_bytes + loaded.backend.tiers.snapshot().vram_used_bytes
    loaded.close()


def test_a_draft_model_that_cannot_be_loaded_is_the_problem(target: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", layers=1)
    other.write_bytes(other.read_bytes().replace(b"hello", b"hullo"))
    problem = preview_model(target, LoadOptions(target, device="cpu", draft_model=other)).problem
    assert problem.startswith("the draft model: ")
    assert "'hullo' there and 'hello' here" in problem

"""How a reply ended, in words that say what to do next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.bridge import Bridge, BudgetOf
from app.conversation import Conversation, TurnStatus
from app.decoding_words import changes_of
from app.live_reply import LiveReply
from app.request import ORDINARY
from app.store import Store
from engine import (
    Budget,
    ContextError,
    DecodingOptions,
    DraftKind,
    EngineSnapshot,
    EngineState,
    FinishReason,
    GenerationStats,
    LoadOptions,
    ModelInfo,
    Overflow,
    Reply,
    ReplyStatus,
    Request,
    SamplingParams,
    SkipChoice,
    SkipRule,
    Tier,
)
from tests.app.tiers.models import gpu_tiers, mixed_tiers
from tests.fakes import FakeEngine

PATH = Path("m.gguf")


class StillEngine:
    """An engine whose replies grow when the test says so."""

    def __init__(self, name: str) -> None:
        fake = FakeEngine()
        fake.close()
        model = replace(fake._model(PATH), name=name, max_context=100)
        self.snapshot = EngineSnapshot(seq=1, state=EngineState.READY, model=model)
        self.reply: Reply | None = None

        self.calls: list[str] = []

    def load(self, options: LoadOptions) -> None:
        self.calls.append("load")

    def stop_loading(self) -> None:
        self.calls.append("stop_loading")

    def unload(self) -> None:
        self.calls.append("unload")
        self.snapshot = EngineSnapshot(seq=self.snapshot.seq + 1)

    def set_ram_budget(self, budget: Budget | None) -> None:
        self.calls.append(f"budget {budget}")

    def set_vram_budget(self, budget: Budget | None) -> None:
        self.calls.append(f"vram budget {budget}")

    def pin_block(self, index: int, tier: Tier | None) -> None:
        self.calls.append(f"pin {index} {tier}")

    def count_tokens(self, text: str) -> int | None:
        return len(text)

    def ask(self, request: Request) -> Reply:
        self.reply = Reply(request)
        return self.reply

    def close(self) -> None:
        pass


class Nobody:
    """Listens to nothing, but notes budgets."""

    def __init__(self) -> None:
        self.budgets: list[tuple[BudgetOf, Budget | None]] = []

    def engine_changed(self, snapshot: EngineSnapshot) -> None:
        pass

    def budget_changed(self, model: ModelInfo, memory: BudgetOf, budget: Budget | None) -> None:
        self.budgets.append((memory, budget))

    def reply_grew(self, live: LiveReply) -> None:
        pass

    def reply_ended(self, live: LiveReply) -> None:
        pass


@pytest.mark.parametrize(
    ("reason", "completed", "error", "note"),
    [
        (FinishReason.STOP, 5, None, ""),
        (FinishReason.LENGTH, 5, None, "ended here: the limit of tokens was reached"),
        (
            FinishReason.LENGTH,
            90,
            None,
            "ended here: the context of 100 tokens is full; ^N begins a new conversation, F3 and then ^O "
            "choose a larger context",
        ),
        (
            FinishReason.ERROR,
            0,
            ContextError("too long: load the model with a larger context (-c)"),
            "too long: load the model with a larger context (F3, then ^O); ^N begins a new conversation, "
            "/overflow drops the oldest turns",
        ),
    ],
)
def test_a_reply_that_ended_says_what_to_do_next(
    tmp_path: Path, reason: FinishReason, completed: int, error: ContextError | None, note: str
) -> None:
    bridge, engine, live = _asked(tmp_path, overflow=Overflow.STOP)
    assert engine.reply is not None
    engine.reply.finish(reason, GenerationStats(prompt_tokens=10, completion_tokens=completed), error)
    engine.snapshot = EngineSnapshot(seq=2, state=EngineState.LOADING)  # the next model is on its way
    bridge.pull()
    assert live.turn.note == note
    assert not bridge.busy


def test_a_name_that_is_no_unicode_can_be_stored(tmp_path: Path) -> None:
    bridge, engine, live = _asked(tmp_path, "m\udcff")
    assert engine.reply is not None
    engine.reply.finish(FinishReason.ERROR, GenerationStats(), ContextError("in m\udcff.gguf"))
    bridge.pull()
    assert live.turn.status is TurnStatus.ERROR
    assert (live.turn.model + live.turn.note).encode()


def _asked(
    tmp_path: Path, name: str = "M", overflow: Overflow = Overflow.DROP_OLDEST
) -> tuple[Bridge, StillEngine, LiveReply]:
    bridge, engine = Bridge(Store(tmp_path / "c.db"), Nobody()), StillEngine(name)
    bridge.load(LoadOptions(PATH))
    bridge.attach(engine)
    conversation = Conversation()
    conversation.add("user", "hello")
    live = bridge.ask(conversation, "", SamplingParams(), overflow)
    bridge.pull()
    return bridge, engine, live


def test_a_model_nobody_speaks_to_is_let_go_and_comes_back_with_the_next_message(tmp_path: Path) -> None:
    bridge, engine, live = _asked(tmp_path)
    assert engine.reply is not None
    bridge.unload_after_s = 1e-9
    bridge.pull()
    assert "unload" not in engine.calls, "a reply still grows"
    engine.reply.finish(FinishReason.STOP, GenerationStats())
    bridge.pull()
    bridge.pull()
    assert engine.calls.count("unload") == 1
    bridge.pull()
    assert not bridge.active, "nothing is under way while it rests"
    bridge.ask(live.conversation, "", SamplingParams(), Overflow.STOP)
    assert engine.calls[-1] == "load"
    assert bridge.active


def test_escape_while_a_model_loads_stops_loading(tmp_path: Path) -> None:
    bridge, engine = Bridge(Store(tmp_path / "c.db"), Nobody()), StillEngine("M")
    engine.snapshot = EngineSnapshot(seq=2, state=EngineState.LOADING)
    bridge.load(LoadOptions(PATH))
    bridge.attach(engine)
    assert bridge.stop(Conversation())
    assert engine.calls[-1] == "stop_loading"
    assert not bridge.active


def test_what_was_left_out_and_what_changed_on_the_way_is_kept_with_the_reply(tmp_path: Path) -> None:
    bridge, engine, live = _asked(tmp_path)
    assert engine.reply is not None
    first = live.turn.made_by
    assert (first["backend"], first["context"]) == (engine.snapshot.backend, 100)
    assert "seen_from" not in first
    engine.reply.finish(FinishReason.STOP, GenerationStats(prompt_tokens=5))
    bridge.pull()
    live.conversation.add("user", "more")
    second = bridge.ask(live.conversation, "", SamplingParams(), Overflow.DROP_OLDEST)
    second.conversation.turns[1].text = "so"
    bridge.pull()
    bridge.steer(live.conversation, SamplingParams(temperature=0), ORDINARY)
    assert second.pending
    reply = engine.reply
    reply.update(ReplyStatus.PREFILL, GenerationStats(prompt_tokens=5, dropped_messages=2))
    bridge.pull()
    assert second.turn.made_by["seen_from"] == live.conversation.turns[2].id


def test_how_ids_are_computed_is_asked_for_acknowledged_and_kept_with_the_reply(tmp_path: Path) -> None:
    bridge, engine = Bridge(Store(tmp_path / "c.db"), Nobody()), StillEngine("M")
    assert engine.snapshot.model is not None
    small = replace(engine.snapshot.model, name="Small\x1b[2J")
    engine.snapshot = replace(engine.snapshot, draft_model=small)
    bridge.load(LoadOptions(PATH))
    bridge.attach(engine)
    conversation = Conversation()
    conversation.add("user", "hello")
    drafting = DecodingOptions(draft=DraftKind.MODEL, draft_k=3)
    live = bridge.ask(conversation, "", SamplingParams(), Overflow.STOP, drafting)
    bridge.pull()
    assert engine.reply is not None
    assert engine.reply.request.decoding == live.turn.decoding == drafting
    assert live.turn.made_by["draft_model"] == "Small␛[2J"
    assert not live.pending_decoding
    skipping = DecodingOptions(skip=SkipChoice(SkipRule.KL, 0.05))
    bridge.steer(conversation, SamplingParams(), skipping)
    assert live.pending_decoding
    assert engine.reply.take_decoding() == skipping
    assert not live.pending_decoding
    engine.reply.append("so", [5], GenerationStats(completion_tokens=1))
    bridge.pull()
    assert changes_of(live.turn) == [(0, skipping)]
    assert live.turn.decoding == drafting, "as it began"


def test_what_is_measured_first_says_how_far_it_is_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge, engine, live = _asked(tmp_path)
    assert engine.reply is not None
    now = [100.0]
    monkeypatch.setattr("app.live_reply.time.monotonic", lambda: now[0])
    phases = []
    for share in (0.0, 0.02, 0.25, 0.5):
        engine.reply.update(ReplyStatus.CALIBRATE, GenerationStats(calibrated_share=share))
        bridge.pull()
        phases.append(live.phase.removeprefix("measuring what leaving blocks out does: "))
        now[0] += 10.0
    assert phases == ["0%", "2%", "25% · 60 s left", "50% · 30 s left"]
    engine.reply.append("text", [5], GenerationStats(completion_tokens=1))
    bridge.pull()
    assert live.phase == ""
    engine.reply.update(ReplyStatus.CALIBRATE, GenerationStats(calibrated_share=0.5))
    bridge.pull()
    assert live.phase == "measuring what leaving blocks out does: 50% · 1 s left", "in the midst of the text"


def test_computing_again_in_the_midst_of_the_text_says_how_far_it_is(tmp_path: Path) -> None:
    bridge, engine, live = _asked(tmp_path)
    assert engine.reply is not None
    engine.reply.append("text", [5], GenerationStats(completion_tokens=1))
    engine.reply.update(ReplyStatus.RECOMPUTE, GenerationStats(completion_tokens=1, recomputed_share=0.5))
    bridge.pull()
    assert live.phase == "computing the text again with other blocks: 50%"
    engine.reply.append(" more", [6], GenerationStats(completion_tokens=2))
    bridge.pull()
    assert live.phase == ""


def test_what_was_asked_before_a_model_was_wanted_is_computed_as_chosen_for_that_model(
    tmp_path: Path,
) -> None:
    bridge, engine = Bridge(Store(tmp_path / "c.db"), Nobody()), StillEngine("M")
    early, late = Conversation(), Conversation()
    for conversation in (early, late):
        conversation.add("user", "hello")
    drafting, plainly = DecodingOptions(draft=DraftKind.NGRAM), DecodingOptions(draft=DraftKind.EXIT)
    live = bridge.ask(early, "", SamplingParams(), Overflow.STOP)
    bridge.decode_waiting(drafting)
    bridge.load(LoadOptions(PATH))
    other = bridge.ask(late, "", SamplingParams(), Overflow.STOP, plainly)
    bridge.decode_waiting(drafting)
    bridge.attach(engine)
    bridge.pull()
    assert live.reply is not None
    assert live.reply.request.decoding == live.turn.decoding == drafting
    assert other.decoding == plainly, "it was chosen for this reply"


def test_a_reply_that_waits_begins_as_chosen_meanwhile(tmp_path: Path) -> None:
    bridge, engine = Bridge(Store(tmp_path / "c.db"), Nobody()), StillEngine("M")
    bridge.load(LoadOptions(PATH))
    conversation = Conversation()
    conversation.add("user", "hello")
    live = bridge.ask(conversation, "", SamplingParams(), Overflow.STOP)
    drafting, greedy = DecodingOptions(draft=DraftKind.NGRAM), SamplingParams(temperature=0)
    bridge.steer(conversation, greedy, drafting)
    bridge.attach(engine)
    bridge.pull()
    assert engine.reply is not None
    assert engine.reply.request.decoding == live.turn.decoding == drafting
    assert engine.reply.request.sampling == live.turn.sampling == greedy


def test_a_reply_remembers_the_gpu_that_computed_it(tmp_path: Path) -> None:
    bridge, engine = Bridge(Store(tmp_path / "c.db"), Nobody()), StillEngine("M")
    engine.snapshot = replace(engine.snapshot, backend="cuda sm_86", tiers=gpu_tiers())
    bridge.load(LoadOptions(PATH))
    bridge.attach(engine)
    conversation = Conversation()
    conversation.add("user", "hello")
    live = bridge.ask(conversation, "", SamplingParams(), Overflow.STOP)
    bridge.pull()
    made_by = live.turn.made_by
    assert (made_by["backend"], made_by["gpu"]) == ("cuda sm_86", "NVIDIA RTX 0000")
    assert made_by["vram_budget"] == 20_000_000_000
    assert "ram_budget" not in made_by


def test_only_a_budget_that_the_engine_has_holds_from_then_on(tmp_path: Path) -> None:
    listener, engine = Nobody(), StillEngine("M")
    bridge = Bridge(Store(tmp_path / "c.db"), listener)
    assert not bridge.set_budget("ram_budget", Budget(1)), "no model is wanted"
    bridge.load(LoadOptions(PATH))
    bridge.attach(engine)
    assert bridge.set_budget("ram_budget", Budget(60))
    bridge.pull()
    assert listener.budgets == [], "it was refused, or is to come"
    assert bridge.set_budget("ram_budget", Budget(600))
    engine.snapshot = replace(engine.snapshot, seq=2, ram_budget=Budget(600))
    bridge.pull()
    bridge.pull()
    assert listener.budgets == [("ram_budget", Budget(600))]
    assert engine.calls == ["load", f"budget {Budget(60)}", f"budget {Budget(600)}"]


def test_each_memory_has_a_budget_of_its_own(tmp_path: Path) -> None:
    listener, engine = Nobody(), StillEngine("M")
    bridge = Bridge(Store(tmp_path / "c.db"), listener)
    bridge.load(LoadOptions(PATH))
    bridge.attach(engine)
    assert bridge.set_budget("ram_budget", Budget(60))
    assert bridge.set_budget("vram_budget", Budget(7))
    engine.snapshot = replace(engine.snapshot, seq=2, vram_budget=Budget(7))
    bridge.pull()
    assert listener.budgets == [("vram_budget", Budget(7))]
    engine.snapshot = replace(engine.snapshot, seq=3, ram_budget=Budget(60))
    bridge.pull()
    assert listener.budgets == [("vram_budget", Budget(7)), ("ram_budget", Budget(60))]
    assert engine.calls == ["load", f"budget {Budget(60)}", f"vram budget {Budget(7)}"]


def test_while_blocks_move_the_engine_is_followed_closely(tmp_path: Path) -> None:
    engine = StillEngine("M")
    bridge = Bridge(Store(tmp_path / "c.db"), Nobody())
    bridge.load(LoadOptions(PATH))
    engine.snapshot = replace(engine.snapshot, seq=2, tiers=mixed_tiers(settled=False))
    bridge.attach(engine)
    assert bridge.active
    bridge.pin_block(3, Tier.VRAM)
    assert engine.calls[-1] == "pin 3 vram"
    engine.snapshot = replace(engine.snapshot, seq=3, tiers=mixed_tiers())
    bridge.pull()
    assert not bridge.active
    engine.snapshot = replace(engine.snapshot, seq=4, tiers=None)
    bridge.pull()
    bridge.pin_block(3, None)
    assert engine.calls[-1] == "pin 3 vram", "there is no map"


def test_a_reply_of_gpu_and_processor_remembers_both_budgets(tmp_path: Path) -> None:
    bridge, engine = Bridge(Store(tmp_path / "c.db"), Nobody()), StillEngine("M")
    engine.snapshot = replace(engine.snapshot, tiers=mixed_tiers())
    bridge.load(LoadOptions(PATH))
    bridge.attach(engine)
    conversation = Conversation()
    conversation.add("user", "hello")
    live = bridge.ask(conversation, "", SamplingParams(), Overflow.STOP)
    bridge.pull()
    made_by = live.turn.made_by
    assert (made_by["vram_budget"], made_by["ram_budget"]) == (4_000_000_000, 4_000_000_000)


def test_a_model_that_did_not_load_is_tried_with_another_budget(tmp_path: Path) -> None:
    listener, engine = Nobody(), StillEngine("M")
    bridge = Bridge(Store(tmp_path / "c.db"), listener)
    bridge.load(LoadOptions(PATH, ram_budget=Budget(60)))
    bridge.attach(engine)
    engine.snapshot = replace(engine.snapshot, seq=2, state=EngineState.FAILED)
    bridge.pull()
    assert bridge.set_budget("ram_budget", Budget(600))
    assert engine.calls == ["load", "load"]
    engine.snapshot = replace(engine.snapshot, seq=3, state=EngineState.READY, ram_budget=Budget(600))
    bridge.pull()
    assert listener.budgets == [("ram_budget", Budget(600))]


def test_a_message_too_long_by_itself_is_not_told_to_drop_others(tmp_path: Path) -> None:
    bridge, engine, live = _asked(tmp_path)
    assert engine.reply is not None
    engine.reply.finish(FinishReason.ERROR, GenerationStats(), ContextError("too long: shorten it"))
    bridge.pull()
    assert live.turn.note == "too long: shorten it"

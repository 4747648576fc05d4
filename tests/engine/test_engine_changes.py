"""What may change while the engine works: loads are stopped, sampling and memory change between tokens."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from engine import (
    Budget,
    ContextError,
    Engine,
    EngineState,
    FinishReason,
    LoadOptions,
    Message,
    Overflow,
    Reply,
    Request,
    SamplingParams,
    Tier,
    TierSnapshot,
)
from engine.cancel import CancelToken
from engine.errors import CancelledError
from tests.engine.asking import GREEDY, streamed, user, wait, wait_for
from tests.engine.budgets import budget_for
from tests.engine.tiers.faulty_disk import nothing_leaks, spoil

HOT = SamplingParams(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
ENDLESS = Request(user("hello"), sampling=HOT, max_tokens=230)


def held(engine: Engine, request: Request) -> tuple[Reply, Callable[[int], None]]:
    """A reply whose tokens are drawn when a test allows so many more."""
    before, reply, allowed = engine.ask(ENDLESS), engine.ask(request), threading.Semaphore(0)
    take = reply.take_sampling

    def take_when_allowed() -> SamplingParams:
        assert allowed.acquire(timeout=30)
        return take()

    reply.take_sampling = take_when_allowed  # type: ignore[method-assign]
    before.cancel()
    return reply, allowed.release


# -- loads that are stopped


class SlowLoad:
    """In place of `load_model`: waits until it is stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = threading.Event()
        monkeypatch.setattr("engine.loading.load_model", self)

    def __call__(self, options: object, on_progress: object, cancel: CancelToken, on_tiers: object) -> None:
        self.began.set()
        wait_for(lambda: cancel.cancelled)
        raise CancelledError("loading was stopped")


def test_a_load_that_is_stopped_leaves_nothing_and_the_next_one_works(
    engine: Engine, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        slow = SlowLoad(patched)
        for _ in range(3):  # two of them wait
            engine.load(LoadOptions(chat_model))
        assert slow.began.wait(30)
        engine.stop_loading()
        wait_for(lambda: engine.snapshot.state is EngineState.EMPTY)
    assert engine.snapshot.error == ""
    assert engine.snapshot.model is None
    assert engine.snapshot.load_stage == ""
    assert "no model is loaded" in str(wait(engine.ask(Request(user("hello")))).error)
    engine.load(LoadOptions(chat_model))
    assert wait(engine.ask(Request(user("hello"), max_tokens=2))).error is None


def test_a_load_that_is_stopped_when_it_is_all_but_done_is_undone(
    engine: Engine, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.loading import load_model

    def stopped_too_late(options: LoadOptions, *others: object) -> object:
        loaded = load_model(options, *others)  # type: ignore[arg-type]
        engine.stop_loading()
        return loaded

    monkeypatch.setattr("engine.loading.load_model", stopped_too_late)
    with nothing_leaks():
        engine.load(LoadOptions(chat_model))
        wait_for(lambda: engine.snapshot.state is EngineState.EMPTY and engine.snapshot.seq > 4)
    assert (engine.snapshot.model, engine.snapshot.tiers) == (None, None)


def test_a_load_that_waits_behind_a_reply_is_dropped_and_the_reply_goes_on(
    engine: Engine, chat_model: Path
) -> None:
    engine.load(LoadOptions(chat_model))
    reply = engine.ask(ENDLESS)
    wait_for(lambda: len(reply.token_ids) > 2)
    engine.load(LoadOptions(Path("nowhere.gguf")))
    engine.stop_loading()
    assert wait(reply).finish_reason is not FinishReason.CANCELLED
    assert wait(engine.ask(Request(user("hello"), max_tokens=2))).error is None


def test_where_nothing_loads_there_is_nothing_to_stop(engine: Engine, chat_model: Path) -> None:
    engine.stop_loading()
    engine.load(LoadOptions(chat_model))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    engine.stop_loading()
    assert wait(engine.ask(Request(user("hello"), max_tokens=2))).error is None


# -- sampling


def test_a_change_holds_from_the_next_token_on_and_is_acknowledged(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model, context=256))
    plain = wait(engine.ask(ENDLESS))
    assert (plain.sampling, plain.sampling_changes) == (HOT, ())
    replies = []
    for _ in range(2):
        reply, go = held(engine, ENDLESS)
        go(3)
        wait_for(lambda: len(reply.token_ids) == 3)  # noqa: B023  called at once
        reply.change_sampling(GREEDY)
        assert reply.sampling == HOT, "nobody has taken note yet"
        go(1)
        wait_for(lambda: len(reply.token_ids) == 4)  # noqa: B023
        assert reply.sampling == GREEDY
        go(1000)
        assert wait(reply).sampling_changes == ((3, GREEDY),)
        replies.append(reply.token_ids)
    assert replies[0] == replies[1]
    assert replies[0][:3] == plain.token_ids[:3]
    assert replies[0] != plain.token_ids


def test_a_change_before_the_first_token_holds_for_all(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model, context=256))
    expected = wait(engine.ask(Request(user("hello"), sampling=GREEDY, max_tokens=9)))
    reply, go = held(engine, Request(user("hello"), sampling=HOT, max_tokens=9))
    reply.change_sampling(GREEDY)
    go(1000)
    assert wait(reply).token_ids == expected.token_ids
    assert reply.sampling_changes == ((0, GREEDY),)


def test_the_generator_goes_on_after_changes_and_keeps_its_seed(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model, context=256))
    plain = wait(engine.ask(ENDLESS))
    reply, go = held(engine, ENDLESS)
    for n_tokens, params in enumerate((replace(HOT, seed=99), replace(HOT, penalty_window=9), HOT), start=1):
        reply.change_sampling(params)
        go(1)
        wait_for(lambda: len(reply.token_ids) == n_tokens)  # noqa: B023  called at once
    reply.change_sampling(GREEDY)
    reply.change_sampling(HOT)  # nobody has seen the other one
    go(1000)
    assert wait(reply).token_ids == plain.token_ids, "none of these parameters makes a difference"
    assert reply.stats.seed == 5
    assert [at for at, _ in reply.sampling_changes] == [0, 1, 2]


# -- memory


def tiers_of(engine: Engine) -> TierSnapshot:
    tiers = engine.snapshot.tiers
    assert tiers is not None
    return tiers


def test_budgets_change_in_the_middle_of_a_reply_and_the_reply_does_not(
    engine: Engine, deep_model: Path
) -> None:
    request = Request(user("hello " * 5), sampling=GREEDY, max_tokens=30)
    engine.load(LoadOptions(deep_model, context=256, threads=1))
    expected = wait(engine.ask(request)).token_ids
    for start, shares in ((0.0, (1.0, 0.3)), (0.8, (0.0, 0.5, 1.0, 0.2))):
        engine.load(streamed(deep_model, start))
        reply, go = held(engine, request)
        for share in shares:
            budget = budget_for(deep_model, 256, share)
            engine.set_ram_budget(budget)
            go(2)
            wait_for(lambda: engine.snapshot.ram_budget == budget)  # noqa: B023  called at once
            tiers = tiers_of(engine)
            assert tiers.ram_bytes + tiers.ring_bytes <= tiers.budget_bytes < budget.n_bytes
            assert "the memory for weights is" in tiers.events[-1].text
            assert engine.snapshot.state is EngineState.GENERATING
        go(1000)
        assert wait(reply).token_ids == expected


def test_a_budget_changes_while_nothing_is_asked(engine: Engine, deep_model: Path) -> None:
    engine.load(streamed(deep_model, 0.2))
    engine.set_ram_budget(whole := budget_for(deep_model, 256, 1.0))  # while it is still being loaded
    wait_for(lambda: engine.snapshot.ram_budget == whole)
    assert {place.tier for place in tiers_of(engine).blocks} == {Tier.RAM}
    wait_for(lambda: not engine.snapshot.notices)  # nothing is read from disk any more
    engine.set_ram_budget(small := budget_for(deep_model, 256, 0.0))
    wait_for(lambda: engine.snapshot.ram_budget == small)
    assert any("from disk for every token" in notice for notice in engine.snapshot.notices)
    engine.set_ram_budget(None)
    wait_for(lambda: engine.snapshot.ram_budget is None)
    assert {place.tier for place in tiers_of(engine).blocks} == {Tier.RAM}
    assert engine.snapshot.state is EngineState.READY


def test_a_budget_that_is_too_small_is_told_with_one_that_works(engine: Engine, deep_model: Path) -> None:
    options = streamed(deep_model, 0.5)
    engine.load(options)
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    before = tiers_of(engine)
    engine.set_ram_budget(Budget(1000))
    wait_for(lambda: len(tiers_of(engine).events) > len(before.events))
    wait_for(lambda: any("not changed" in notice for notice in engine.snapshot.notices))
    notice: str = next(notice for notice in engine.snapshot.notices if "not changed" in notice)
    assert tiers_of(engine).events[-1].text == notice
    assert engine.snapshot.ram_budget == options.ram_budget
    assert tiers_of(engine).blocks == before.blocks
    smallest = Budget(int(notice.split("at least ")[1].split("M")[0]) * 10**6)
    engine.set_ram_budget(smallest)
    wait_for(lambda: engine.snapshot.ram_budget == smallest)
    assert not any("not changed" in notice for notice in engine.snapshot.notices)
    assert wait(engine.ask(Request(user("hello"), max_tokens=2))).error is None


def test_a_disk_that_fails_while_blocks_come_is_told(
    engine: Engine, deep_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.load(streamed(deep_model, 0.0))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    with monkeypatch.context() as patched:
        spoil(patched, "EIO")
        engine.set_ram_budget(budget_for(deep_model, 256, 1.0))
        wait_for(lambda: any("not all blocks" in notice for notice in engine.snapshot.notices))
    assert "Input/output error" in tiers_of(engine).events[-1].text
    assert wait(engine.ask(Request(user("hello"), max_tokens=2))).error is None


def test_a_budget_without_a_model_is_not_that_of_the_next_one(engine: Engine, deep_model: Path) -> None:
    engine.set_ram_budget(budget_for(deep_model, 256, 0.0))
    engine.load(options := streamed(deep_model, 0.5))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    wait(engine.ask(Request(user("hello"), max_tokens=2)))
    assert engine.snapshot.ram_budget == options.ram_budget
    engine.load(other := streamed(deep_model, 0.8))
    engine.set_ram_budget(wanted := budget_for(deep_model, 256, 0.3))  # of the model that comes
    wait_for(lambda: engine.snapshot.ram_budget == wanted)
    engine.load(other)
    wait(engine.ask(Request(user("hello"), max_tokens=2)))
    assert engine.snapshot.ram_budget == other.ram_budget
    engine.unload()
    wait_for(lambda: engine.snapshot.state is EngineState.EMPTY)
    assert engine.snapshot.ram_budget is None


def test_a_reply_that_is_stopped_while_blocks_come_ends_and_they_come_after_it(
    engine: Engine, deep_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.load(streamed(deep_model, 0.0))
    reply = engine.ask(ENDLESS)
    wait_for(lambda: len(reply.token_ids) > 2)
    from engine.tiers.store import TieredWeights

    change, stops = TieredWeights.change_budget, []

    def stop_first(self: TieredWeights, budget: int, stopped: object) -> bool:
        reply.cancel()
        stops.append(change(self, budget, stopped))  # type: ignore[arg-type]
        return stops[-1]

    monkeypatch.setattr(TieredWeights, "change_budget", stop_first)
    engine.set_ram_budget(whole := budget_for(deep_model, 256, 1.0))
    assert wait(reply).finish_reason is FinishReason.CANCELLED
    wait_for(lambda: engine.snapshot.ram_budget == whole)
    assert stops[0] is False
    assert stops[-1] is True
    assert {place.tier for place in tiers_of(engine).blocks} == {Tier.RAM}


def test_an_engine_is_closed_while_blocks_come(deep_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.load(streamed(deep_model, 0.0))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    came = threading.Event()

    def fill(*arguments: object) -> None:
        came.set()
        time.sleep(0.01)

    monkeypatch.setattr("engine.tiers.direct_io.DirectFiles.fill", fill)
    engine.set_ram_budget(budget_for(deep_model, 256, 1.0))
    assert came.wait(30)
    engine.close()
    assert engine.snapshot.state is EngineState.CLOSED


# -- what the snapshot tells


def test_the_snapshot_tells_speed_budget_time_and_passes(engine: Engine, deep_model: Path) -> None:
    assert (engine.snapshot.decode_tok_s, engine.snapshot.ram_budget) == (0.0, None)
    engine.load(options := streamed(deep_model))
    reply = wait(engine.ask(Request(user("hello"), sampling=GREEDY, max_tokens=8)))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    first = engine.snapshot
    assert first.decode_tok_s == reply.stats.decode_tok_s > 0
    assert first.ram_budget == options.ram_budget
    assert first.cores >= 1
    assert first.cpu_s > 0
    assert tiers_of(engine).passes == 8, "the prompt is one pass, and the last token needs none"
    wait(engine.ask(Request(user("hello"), sampling=GREEDY, max_tokens=1)))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    second = engine.snapshot
    assert second.decode_tok_s == first.decode_tok_s, "one token has no speed"
    assert second.at > first.at
    assert second.cpu_s > first.cpu_s
    assert tiers_of(engine).passes == 9


@pytest.fixture
def quick_turns() -> Iterator[None]:
    """Threads give way 50 times as often as always: those that count do not hold up the others."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 50)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_turns")
def test_tokens_are_counted_from_any_thread_while_models_come_and_go(
    engine: Engine, chat_model: Path
) -> None:
    assert engine.count_tokens("hello") is None
    engine.load(LoadOptions(chat_model))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    assert engine.count_tokens("") == 0
    n_tokens = engine.count_tokens(text := "hello world and the other one " * 5)
    assert n_tokens is not None
    assert 10 < n_tokens < len(text)
    counted: list[int | None] = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            counted.append(engine.count_tokens(text))

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        wait(engine.ask(Request(user("hello"), max_tokens=3)))
        engine.unload()
        engine.load(LoadOptions(chat_model))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    done.set()
    for thread in threads:
        thread.join(30)
    assert set(counted) <= {None, n_tokens}


# -- conversations that are too long


def long_conversation(n_turns: int) -> tuple[Message, ...]:
    texts = [f"{'hello world ' * 2}{i}" for i in range(2 * n_turns + 1)]
    return (Message("system", "be brief"), *user(*texts))


def test_the_oldest_turns_are_left_out_and_counted(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model, context=256))
    messages = long_conversation(20)
    refused = wait(engine.ask(Request(messages, sampling=GREEDY, max_tokens=5)))
    assert isinstance(refused.error, ContextError)
    assert refused.stats.dropped_messages == 0
    reply = wait(engine.ask(Request(messages, sampling=GREEDY, max_tokens=5, overflow=Overflow.DROP_OLDEST)))
    assert reply.error is None
    dropped = reply.stats.dropped_messages
    assert dropped > 0
    assert dropped % 2 == 0
    assert reply.stats.prompt_tokens <= 251 * 3 // 4
    same = (messages[0], *messages[1 + dropped :])
    alone = wait(engine.ask(Request(same, sampling=GREEDY, max_tokens=5)))
    assert (alone.token_ids, alone.stats.dropped_messages) == (reply.token_ids, 0)


def test_what_was_left_out_once_makes_room_for_turns_that_reuse_the_cache(
    engine: Engine, chat_model: Path
) -> None:
    engine.load(LoadOptions(chat_model, context=256))
    system, *messages = long_conversation(2)
    reused = []
    for turn in range(14):
        request = Request((system, *messages), sampling=GREEDY, max_tokens=6, overflow=Overflow.DROP_OLDEST)
        reply = wait(engine.ask(request))
        assert reply.error is None
        stats = reply.stats
        messages = messages[stats.dropped_messages :]  # as the application does
        messages += [Message("assistant", reply.text), Message("user", f"and then {turn}?")]
        reused.append((stats.dropped_messages > 0, stats.cached_tokens > stats.prompt_tokens // 2))
    drops = [number for number, (dropped, _) in enumerate(reused) if dropped]
    assert len(drops) >= 2
    assert all(later - earlier > 1 for earlier, later in pairwise(drops))
    assert all(cached for dropped, cached in reused[1:] if not dropped)


def test_a_last_message_that_is_too_long_alone_is_refused(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model, context=64))
    messages = user("hello", "yes", "hello " * 100)
    reply = wait(engine.ask(Request(messages, overflow=Overflow.DROP_OLDEST)))
    assert isinstance(reply.error, ContextError)
    assert "the context holds 64" in str(reply.error)
    assert reply.stats.dropped_messages == 0, "with a shorter message the turns before may fit"

"""The engine thread: replies grow, turns reuse the cache, nothing that goes wrong ends the thread."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from engine import (
    BudgetError,
    ContextError,
    DecodingOptions,
    DraftKind,
    Engine,
    EngineError,
    EngineState,
    FinishReason,
    GGUFError,
    LoadOptions,
    Message,
    Request,
    SamplingParams,
    StreamError,
    TemplateError,
    Tier,
    TierSnapshot,
    parse_skip,
)
from tests.engine.asking import GREEDY, streamed, user, wait, wait_for
from tests.engine.tiers.faulty_disk import nothing_leaks, refuse_direct_reads, spoil


def test_a_loaded_model_answers_and_the_snapshot_says_what_it_is(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model, context=64, threads=1))
    reply = wait(engine.ask(Request(user("Hi"), sampling=GREEDY, max_tokens=5)))
    assert reply.error is None
    assert (reply.finish_reason, len(reply.token_ids)) == (FinishReason.LENGTH, 5)
    stats = reply.stats
    assert (stats.cached_tokens, stats.completion_tokens) == (0, 5)
    assert stats.prefilled_tokens == stats.prompt_tokens > 5
    assert 0 < stats.prefill_s <= stats.ttft_s
    assert stats.decode_tok_s > 0
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    snapshot = engine.snapshot
    assert snapshot.model is not None
    assert (snapshot.model.name, snapshot.model.max_context) == ("tiny llama", 64)
    assert snapshot.model.has_template
    assert snapshot.context_used == stats.prompt_tokens + 4  # the last id drawn was not fed
    assert snapshot.backend
    assert snapshot.backend_reason
    assert snapshot.threads == 1


def test_each_turn_of_ten_computes_only_what_is_new(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model))
    messages = user("hello")
    known = 0
    for turn in range(10):
        reply = wait(engine.ask(Request(messages, sampling=SamplingParams(seed=turn), max_tokens=6)))
        assert reply.error is None
        assert reply.stats.cached_tokens == known
        # <|im_end|> \n <|im_start|> user \n ... <|im_end|> \n <|im_start|> assistant \n, some in bytes
        assert reply.stats.prefilled_tokens < 45
        wait_for(lambda: engine.snapshot.state is EngineState.READY)
        known = engine.snapshot.context_used
        messages = (*messages, Message("assistant", reply.text), Message("user", f"and {turn}?"))
    assert known > 250


def test_an_edited_turn_computes_from_the_edit_on(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model))
    first = wait(engine.ask(Request(user("hello"), sampling=GREEDY, max_tokens=6)))
    wait(engine.ask(Request(user("hello", first.text, "one"), sampling=GREEDY, max_tokens=6)))
    edited = wait(engine.ask(Request(user("hello", first.text, "two"), sampling=GREEDY, max_tokens=6)))
    assert edited.stats.cached_tokens > first.stats.prompt_tokens
    alone = Engine()
    alone.load(LoadOptions(chat_model))
    wait(alone.ask(Request(user("hello"), sampling=GREEDY, max_tokens=6)))
    expected = wait(alone.ask(Request(user("hello", first.text, "two"), sampling=GREEDY, max_tokens=6)))
    alone.close()
    assert edited.token_ids == expected.token_ids


def test_the_seed_used_is_reported_and_gives_the_same_reply_again(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model))
    hot = SamplingParams(temperature=2.0, top_k=0)
    first = wait(engine.ask(Request(user("hello"), sampling=hot, max_tokens=12)))
    again = SamplingParams(temperature=2.0, top_k=0, seed=first.stats.seed)
    assert (
        wait(engine.ask(Request(user("hello"), sampling=again, max_tokens=12))).token_ids == first.token_ids
    )


def test_a_stop_string_ends_the_reply_before_it(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model))
    free = wait(engine.ask(Request(user("hello"), sampling=GREEDY, max_tokens=12)))
    stop = free.text[len(free.text) // 2 :][:3]
    stopped = wait(engine.ask(Request(user("hello"), sampling=GREEDY, max_tokens=12, stop=(stop,))))
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.text == free.text[: free.text.index(stop)]
    following = wait(engine.ask(Request(user("hello", stopped.text, "on"), sampling=GREEDY, max_tokens=2)))
    assert following.error is None


def test_a_raw_prompt_is_continued_and_its_continuation_again(engine: Engine, base_model: Path) -> None:
    engine.load(LoadOptions(base_model))
    first = wait(engine.ask(Request(prompt="hello world", sampling=GREEDY, max_tokens=6)))
    longer = wait(
        engine.ask(Request(prompt="hello world" + first.text + " the", sampling=GREEDY, max_tokens=2))
    )
    assert longer.stats.cached_tokens == first.stats.prompt_tokens + 5


def test_a_prompt_without_a_reply_does_not_cut_the_words_of_the_next_one(
    engine: Engine, base_model: Path
) -> None:
    engine.load(LoadOptions(base_model))
    wait(engine.ask(Request(prompt="hello wor", max_tokens=0)))
    after_a_part = wait(engine.ask(Request(prompt="hello world", max_tokens=0)))
    engine.load(LoadOptions(base_model))
    alone = wait(engine.ask(Request(prompt="hello world", max_tokens=0)))
    assert after_a_part.stats.prompt_tokens == alone.stats.prompt_tokens


def test_a_base_model_refuses_a_conversation_and_says_what_to_do(engine: Engine, base_model: Path) -> None:
    engine.load(LoadOptions(base_model))
    reply = wait(engine.ask(Request(user("hello"))))
    assert reply.finish_reason is FinishReason.ERROR
    assert isinstance(reply.error, TemplateError)
    assert "--raw" in str(reply.error)


def test_an_empty_prompt_is_an_error_of_one_line(engine: Engine, base_model: Path) -> None:
    engine.load(LoadOptions(base_model))
    assert isinstance(wait(engine.ask(Request(prompt=""))).error, ContextError)


def test_a_cancelled_reply_keeps_its_text_and_the_engine_goes_on(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model))
    reply = engine.ask(Request(user("hello"), sampling=SamplingParams(seed=1, temperature=3.0, top_k=0)))
    wait_for(lambda: len(reply.token_ids) > 3)
    reply.cancel()
    cancelled_at = time.monotonic()
    wait(reply)
    assert time.monotonic() - cancelled_at < 1.0  # 0.1 s by contract; the machine may be busy
    assert reply.finish_reason is FinishReason.CANCELLED
    assert reply.error is None
    assert reply.text
    assert len(reply.token_ids) == reply.stats.completion_tokens
    assert wait(engine.ask(Request(user("hello"), max_tokens=2))).error is None


def test_a_reply_cancelled_before_its_turn_computes_nothing(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model))
    reply = engine.ask(Request(user("hello")))
    reply.cancel()
    assert wait(reply).finish_reason is FinishReason.CANCELLED
    assert reply.stats.prefilled_tokens == 0


def test_a_prompt_longer_than_the_context_names_both_counts(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model, context=16))
    reply = wait(engine.ask(Request(user("hello " * 20))))
    assert isinstance(reply.error, ContextError)
    assert f"{reply.stats.prompt_tokens} tokens" in str(reply.error)
    assert "holds 16" in str(reply.error)


def test_a_file_that_fails_to_load_fails_its_requests_with_the_same_error(
    engine: Engine, chat_model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(chat_model.read_bytes()[:2000])
    engine.load(LoadOptions(broken))
    reply = wait(engine.ask(Request(user("hello"))))
    assert isinstance(reply.error, GGUFError)
    assert engine.snapshot.state is EngineState.FAILED
    assert engine.snapshot.error == str(reply.error)
    assert reply.error.__traceback__ is reply.error.__context__ is None  # whose frames hold the file mapped
    engine.load(LoadOptions(chat_model))
    assert wait(engine.ask(Request(user("hello"), max_tokens=2))).error is None


def test_requests_without_a_model_say_so(engine: Engine, chat_model: Path) -> None:
    assert "no model" in str(wait(engine.ask(Request(user("hello")))).error)
    engine.load(LoadOptions(chat_model))
    engine.unload()
    assert "no model" in str(wait(engine.ask(Request(user("hello")))).error)
    assert engine.snapshot.model is None
    assert engine.snapshot.state is EngineState.EMPTY


def test_a_fault_of_ours_becomes_an_error_and_the_thread_lives(
    engine: Engine, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("two\nlines")

    engine.load(LoadOptions(chat_model))
    with monkeypatch.context() as patched:
        patched.setattr("engine.answer.answer", fail)
        error = wait(engine.ask(Request(user("hello")))).error
    assert isinstance(error, EngineError)
    assert "RuntimeError: two lines" in str(error)
    assert wait(engine.ask(Request(user("hello"), max_tokens=2))).error is None


def test_closing_ends_every_reply(chat_model: Path) -> None:
    engine = Engine()
    engine.load(LoadOptions(chat_model))
    replies = [engine.ask(Request(user("hello"))) for _ in range(3)]
    engine.close()
    replies.append(engine.ask(Request(user("hello"))))
    assert all(wait(reply).finish_reason is FinishReason.CANCELLED for reply in replies)
    assert engine.snapshot.state is EngineState.CLOSED
    engine.close()


def test_the_queue_is_counted(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model))
    replies = [engine.ask(Request(user("hello"), max_tokens=200)) for _ in range(3)]
    wait_for(lambda: engine.snapshot.state is EngineState.GENERATING)
    assert engine.snapshot.queued == 2
    for reply in replies:
        reply.cancel()
    for reply in replies:
        wait(reply)
    assert engine.snapshot.queued == 0


# -- weights that are read from disk


CONVERSATIONS = [user("hello"), user("hello", "yes", "and then?"), user("world"), user("hello", "yes", "no?")]


def replies(engine: Engine, options: LoadOptions, n_tokens: int = 8) -> list[list[int]]:
    """Ids of the replies to all conversations, one after another."""
    engine.load(options)
    asked = [
        wait(engine.ask(Request(messages, sampling=GREEDY, max_tokens=n_tokens)))
        for messages in CONVERSATIONS
    ]
    assert [reply.error for reply in asked] == [None] * len(asked)
    return [reply.token_ids for reply in asked]


@pytest.fixture(scope="session")
def resident_replies(deep_model: Path) -> list[list[int]]:
    engine = Engine()
    try:
        return replies(engine, LoadOptions(deep_model, context=256, threads=1))
    finally:
        engine.close()


def tiers_of(engine: Engine) -> TierSnapshot:
    tiers = engine.snapshot.tiers
    assert tiers is not None
    return tiers


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_a_model_that_is_streamed_gives_the_replies_of_one_in_memory(
    engine: Engine, deep_model: Path, resident_replies: list[list[int]], share: float
) -> None:
    assert replies(engine, streamed(deep_model, share)) == resident_replies
    tiers = tiers_of(engine)
    assert {place.tier for place in tiers.blocks} >= {Tier.NVME}
    assert tiers.ram_bytes + tiers.ring_bytes <= tiers.budget_bytes
    assert any("from disk for every token" in notice for notice in engine.snapshot.notices)


def test_statistics_say_what_was_read_and_how_long_it_was_waited_for(
    engine: Engine, deep_model: Path
) -> None:
    engine.load(streamed(deep_model))
    request = Request(user("hello"), sampling=GREEDY, max_tokens=8)
    first, second = (wait(engine.ask(request)).stats for _ in range(2))
    read = tiers_of(engine).pass_read_bytes
    for stats in (first, second):
        # Eight passes; the ring was full before, and at most it is filled again after them.
        assert 7 * read < stats.nvme_read_bytes < 11 * read
        assert 0 <= stats.stall_s <= stats.prefill_s + stats.decode_s
    assert first.nvme_read_bytes + second.nvme_read_bytes <= tiers_of(engine).read_bytes
    engine.load(LoadOptions(deep_model, context=256))
    stats = wait(engine.ask(request)).stats
    assert (stats.nvme_read_bytes, stats.stall_s) == (0, 0)


@pytest.mark.parametrize("fault", ["EIO", "cut"])
def test_a_disk_that_fails_ends_the_reply_and_the_next_one_is_right(
    engine: Engine,
    deep_model: Path,
    resident_replies: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    engine.load(streamed(deep_model))
    asked = Request(user("hello"), sampling=SamplingParams(seed=1, temperature=3.0, top_k=0))
    with monkeypatch.context() as patched:
        reply = engine.ask(asked)
        wait_for(lambda: len(reply.token_ids) > 2)
        spoil(patched, fault)
        wait(reply)
    assert reply.finish_reason is FinishReason.ERROR
    assert isinstance(reply.error, StreamError)
    assert deep_model.name in str(reply.error)
    assert "\n" not in str(reply.error)
    assert len(reply.token_ids) > 2
    assert reply.text
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    for messages, expected in zip(CONVERSATIONS, resident_replies, strict=True):
        again = wait(engine.ask(Request(messages, sampling=GREEDY, max_tokens=8)))
        assert (again.error, again.token_ids) == (None, expected)


def test_a_disk_that_fails_in_the_prompt_ends_the_reply_too(
    engine: Engine, deep_model: Path, resident_replies: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.load(streamed(deep_model, 0.0))
    request = Request(CONVERSATIONS[0], sampling=GREEDY, max_tokens=8)
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    with monkeypatch.context() as patched:
        spoil(patched, "EIO")
        failed = wait(engine.ask(request))
    assert isinstance(failed.error, StreamError)
    assert failed.token_ids == []
    assert wait(engine.ask(request)).token_ids == resident_replies[0]


def test_replies_that_are_cancelled_leave_the_next_ones_right(
    engine: Engine, deep_model: Path, resident_replies: list[list[int]]
) -> None:
    engine.load(streamed(deep_model))
    for n_tokens in range(3):
        reply = engine.ask(Request(user("hello " * 9), sampling=SamplingParams(temperature=3.0, seed=2)))
        wait_for(lambda: reply.done or len(reply.token_ids) >= n_tokens)  # noqa: B023  called at once
        reply.cancel()
        assert wait(reply).finish_reason is FinishReason.CANCELLED
        after = wait(engine.ask(Request(CONVERSATIONS[0], sampling=GREEDY, max_tokens=8)))
        assert after.token_ids == resident_replies[0]


def test_a_disk_without_direct_reads_is_noticed_and_serves(
    engine: Engine, deep_model: Path, resident_replies: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct_reads(monkeypatch)
    assert replies(engine, streamed(deep_model)) == resident_replies
    assert any("through the page cache" in notice for notice in engine.snapshot.notices)


def test_memory_that_runs_short_moves_blocks_out_while_a_reply_grows(
    engine: Engine, deep_model: Path, resident_replies: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = 0

    class Watch:
        def deficit(self) -> int:
            nonlocal passes
            passes += 1
            return 300_000 if passes % 2 == 0 else 0

    monkeypatch.setattr("engine.backends.select.MemoryWatch", Watch)
    assert replies(engine, LoadOptions(deep_model, context=256, threads=1)) == resident_replies
    texts = [event.text for event in tiers_of(engine).events]
    assert sum(text.endswith("are read from disk from now on") for text in texts) > 1
    assert texts[-1] == "memory is short, and nothing more can be given back"
    assert texts.count(texts[-1]) == 1
    assert {place.tier for place in tiers_of(engine).blocks} == {Tier.NVME}


def test_a_budget_that_is_too_small_fails_the_load_and_another_one_works(
    engine: Engine, deep_model: Path
) -> None:
    engine.load(streamed(deep_model, -0.01))
    assert isinstance(wait(engine.ask(Request(user("hello")))).error, BudgetError)
    assert engine.snapshot.state is EngineState.FAILED
    assert "--ram-budget" in engine.snapshot.error
    assert "\n" not in engine.snapshot.error
    assert engine.snapshot.tiers is None
    engine.load(streamed(deep_model))
    assert wait(engine.ask(Request(user("hello"), max_tokens=2))).error is None


def test_a_load_that_fails_late_shows_no_tiers(
    engine: Engine, deep_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr("engine.backends.cpu.CpuBackend.new_kv", fail)
    engine.load(streamed(deep_model))
    wait_for(lambda: engine.snapshot.state is EngineState.FAILED)
    assert engine.snapshot.tiers is None


def test_unloading_a_streamed_model_leaves_nothing(deep_model: Path) -> None:
    with nothing_leaks():
        engine = Engine()
        for _ in range(3):
            engine.load(streamed(deep_model))
            assert wait(engine.ask(Request(user("hello"), max_tokens=3))).error is None
        engine.unload()
        wait_for(lambda: engine.snapshot.state is EngineState.EMPTY)
        assert engine.snapshot.tiers is None
        engine.close()


@pytest.mark.model
def test_ten_turns_with_a_real_model_compute_only_their_new_ids(engine: Engine, smollm2_path: Path) -> None:
    engine.load(LoadOptions(smollm2_path, context=1024))
    messages = user("Tell me about the sea, in one sentence. 🌊")
    known = 0
    for turn in range(10):
        reply = wait(engine.ask(Request(messages, sampling=SamplingParams(seed=turn), max_tokens=12)))
        assert reply.error is None
        assert reply.stats.cached_tokens == known
        wait_for(lambda: engine.snapshot.state is EngineState.READY)
        known = engine.snapshot.context_used
        messages = (*messages, Message("assistant", reply.text), Message("user", f"And number {turn}? 再说"))


# -- less work for a token


def test_what_leaving_blocks_out_does_is_published_when_it_is_known(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model, context=512, threads=1))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    assert engine.snapshot.calibration is None
    decoding = DecodingOptions(skip=parse_skip("blk.1.ffn"))
    request = Request(messages=user("hello"), sampling=GREEDY, decoding=decoding, max_tokens=4)
    reply = wait(engine.ask(request))
    assert reply.error is None
    assert reply.stats.skipped_blocks == 1
    known = engine.snapshot.calibration
    assert known is not None
    assert known.effect(frozenset({3})) == reply.stats.skip_effect
    engine.unload()
    wait_for(lambda: engine.snapshot.state is EngineState.EMPTY)
    assert engine.snapshot.calibration is None


def test_a_draft_model_is_published_and_drafts(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model, context=512, threads=1, draft_model=chat_model))
    wait_for(lambda: engine.snapshot.state is EngineState.READY)
    drafting = engine.snapshot.draft_model
    assert drafting is not None
    assert drafting.path == chat_model
    plain = wait(engine.ask(Request(messages=user("hello"), sampling=GREEDY, max_tokens=20)))
    decoding = DecodingOptions(draft=DraftKind.MODEL, draft_k=3)
    request = Request(messages=user("hello"), sampling=GREEDY, decoding=decoding, max_tokens=20)
    drafted = wait(engine.ask(request))
    assert drafted.text == plain.text
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_tokens > 0


def test_a_choice_that_cannot_be_had_ends_the_reply_in_a_line(engine: Engine, chat_model: Path) -> None:
    engine.load(LoadOptions(chat_model, context=512, threads=1))
    decoding = DecodingOptions(skip=parse_skip("blk.99"))
    reply = wait(engine.ask(Request(messages=user("hello"), decoding=decoding)))
    assert reply.finish_reason is FinishReason.ERROR
    assert "blk.99" in str(reply.error)
    assert wait(engine.ask(Request(messages=user("hello"), max_tokens=2))).error is None


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no niceness of its own here")
def test_threads_of_the_engine_are_less_urgent_than_its_callers_when_asked(chat_model: Path) -> None:
    before = {task.name for task in Path("/proc/self/task").iterdir()}
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with closing(Engine(niceness=3)) as engine:
        engine.load(LoadOptions(chat_model, context=64, threads=1))
        wait(engine.ask(Request(user("Hi"), sampling=GREEDY, max_tokens=2)))
        new = {task.name for task in Path("/proc/self/task").iterdir()} - before
        assert {os.getpriority(os.PRIO_PROCESS, int(task)) for task in new} == {min(19, own + 3)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own

"""One request answered: prompt to ids, ids through the loop, ids to text, with counts and times as it goes.

The only place where text, ids and the session meet. Knows the model as loaded; does not know threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from engine.config import Message, Overflow, Request
from engine.decoding import Way, ways
from engine.errors import CancelledError, ContextError, TemplateError
from engine.events import FinishReason, GenerationStats, Reply, ReplyStatus
from engine.generate import generate
from engine.loading import LoadedModel
from engine.logits import Logits
from engine.overflow import drop_oldest, prompt_room
from engine.prompt import PromptEncoder
from engine.sampler import Sampler
from engine.skipping.skip_choice import NOTHING
from engine.speculative import Drawn, Speculation
from engine.stops import StopStrings
from engine.tiers.streamer import StreamStats
from engine.tokenizer import Detokenizer

_RAW = "\0"
"""Begins the remembered text of a raw prompt: the same characters in a conversation can be other ids."""


class Prompt(NamedTuple):
    """A prompt as the session remembers it, and its ids."""

    text: str
    ids: list[int]
    mark: Callable[[str], str]
    """How the text of a reply will stand in the prompt that follows it."""
    dropped: int = 0
    """Messages that did not fit and are not in it."""


def answer(loaded: LoadedModel, reply: Reply, asked_at: float, on_step: Callable[[], None]) -> None:
    """Fill `reply` until it ends; `on_step` is called whenever it or the session has grown.

    `asked_at` is `perf_counter()` at the time of asking. Raises the engine's errors and leaves the reply
    unfinished then; being cancelled is no error.
    """
    request, session = reply.request, loaded.session
    prompt = _encode(loaded, request)
    if not prompt.ids:
        raise ContextError("the prompt is empty: give at least one character to continue")
    draw, speculation = _Drawing(reply, len(prompt.ids)), Speculation(loaded.costs)
    counted = GenerationStats(
        prompt_tokens=len(prompt.ids), seed=draw.sampler.seed, dropped_messages=prompt.dropped
    )
    writer = _Writer(reply, loaded, asked_at, counted, speculation, on_step)
    next_way = ways(loaded, reply, prompt.ids, writer.calibrated)

    def way() -> Way:
        asked = perf_counter()
        writer.way = next_way()
        if reply.status is ReplyStatus.CALIBRATE:
            writer.waited(perf_counter() - asked)
        return writer.way

    try:
        n_known = min(session.common(prompt.ids), len(prompt.ids) - 1)
        n_cached = session.rewind(prompt.ids, way().skip)
        speculation.recomputed = n_known - n_cached
        writer.begin(n_cached)
        token_ids = generate(
            loaded.model,
            session,
            prompt.ids[n_cached:],
            draw,
            max_tokens=request.max_tokens,
            stop_ids=loaded.tokenizer.stop_ids,
            chunk=loaded.chunk,
            cancel=reply.cancel_token,
            on_prefill=writer.prefilled,
            on_recompute=writer.recomputed,
            ways=way,
            speculation=speculation,
        )
        reason = writer.write(token_ids)
    except CancelledError:
        reason = FinishReason.CANCELLED
    writer.finish(reason)
    if reply.token_ids and not writer.stopped_by_text:
        # After a stop string the ids say more than the text, and their text begins no later prompt. A prompt
        # alone need not be kept as it was cut: going on in the middle of a word it would be cut otherwise.
        session.remember(prompt.text + prompt.mark(reply.text), prompt.ids + reply.token_ids)


class _Drawing:
    """The sampler of one reply, with the parameters that are wanted by then."""

    def __init__(self, reply: Reply, n_prompt: int) -> None:
        """Seed it as the request says."""
        self.sampler = Sampler(reply.request.sampling)
        self._reply = reply
        self._n_prompt = n_prompt

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        """Draw the id that follows."""
        # Those of one pass are drawn alike: what is noted as changed counts from the ids that were written.
        if len(history) == self._n_prompt + len(self._reply.token_ids):
            self.sampler.params = self._reply.take_sampling()
        return self.sampler(logits, history)

    def peek(self, logits: Logits, history: Sequence[int], ahead: int) -> int:
        """See `Draw.peek`."""
        return self.sampler.peek(logits, history, ahead)


class _Writer:
    """Turns the ids of one reply into its text, and keeps its statistics."""

    def __init__(
        self,
        reply: Reply,
        loaded: LoadedModel,
        asked_at: float,
        stats: GenerationStats,
        speculation: Speculation,
        on_step: Callable[[], None],
    ) -> None:
        """Hold the counts in `stats`, and those of speculation; `begin` follows."""
        self.way = Way()
        """How the last pass was computed, or the next one is to be."""
        self._reply = reply
        self._loaded = loaded
        self._speculation = speculation
        self._detokenizer = Detokenizer(loaded.tokenizer)
        self._tiers = loaded.backend.tiers
        self._read_before = self._reads()
        self._stops = StopStrings(reply.request.stop)
        self._asked_at = asked_at
        self._began_at = perf_counter()
        self._stats = stats
        self._on_step = on_step

    @property
    def stopped_by_text(self) -> bool:
        """Whether a stop string ended the reply."""
        return self._stops.met

    def calibrated(self, share: float) -> None:
        """Note how far calibration is, which the reply waits for."""
        self._stats = replace(self._stats, calibrated_share=share)
        self._reply.update(ReplyStatus.CALIBRATE, self._stats)
        self._on_step()

    def waited(self, seconds: float) -> None:
        """Leave the time of a calibration out of the times of prompt and reply: it says nothing of either."""
        self._began_at += seconds

    def begin(self, n_cached: int) -> None:
        """Begin the prompt, of which so many ids need not be computed; times from now on."""
        self._began_at = perf_counter()
        self._stats = replace(self._stats, cached_tokens=n_cached)
        self._count_decoding()
        self._reply.update(ReplyStatus.PREFILL, self._stats)
        self._on_step()

    def prefilled(self, n_done: int) -> None:
        """Note how far the prompt is."""
        self._stats = replace(self._stats, prefilled_tokens=n_done, prefill_s=perf_counter() - self._began_at)
        self._reply.update(ReplyStatus.PREFILL, self._stats)
        self._on_step()

    def recomputed(self, n_done: int, n_all: int) -> None:
        """Note how far computing again is, which the rest of the reply waits for."""
        self._stats = replace(self._stats, recomputed_share=n_done / n_all)
        self._reply.update(ReplyStatus.RECOMPUTE, self._stats)
        self._on_step()

    def write(self, token_ids: Generator[Drawn, None, FinishReason]) -> FinishReason:
        """Write ids until they end or their text meets a stop string."""
        while not self._stops.met:
            try:
                token = next(token_ids)
            except StopIteration as end:
                reason: FinishReason = end.value
                return reason
            self._count_token()
            text = self._stops.push(self._detokenizer.push(token.token_id))
            self._reply.append(text, [token.token_id], self._stats, from_draft=token.from_draft)
            self._on_step()
        return FinishReason.STOP

    def finish(self, reason: FinishReason) -> None:
        """Write what was held back, and end the reply."""
        self._count_decoding()
        self._count_reads()
        text = self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        if text:
            self._reply.append(text, [], self._stats)
        self._reply.finish(reason, self._stats)

    def _count_token(self) -> None:
        now, stats = perf_counter(), self._stats
        if not stats.completion_tokens:
            # Prefill ends with the first id: its logits are part of it.
            stats = replace(stats, ttft_s=now - self._asked_at, prefill_s=now - self._began_at)
            n_pass = min(stats.prefilled_tokens, self._loaded.chunk)
            pass_s = stats.prefill_s * n_pass / max(1, stats.prefilled_tokens)
            self._loaded.costs.passes(self.way.skip).add_prompt(n_pass, pass_s)
        decode_s = now - self._began_at - stats.prefill_s
        self._stats = replace(stats, completion_tokens=stats.completion_tokens + 1, decode_s=decode_s)
        self._count_decoding()
        self._count_reads()

    def _count_decoding(self) -> None:
        way, counts, known = self.way, self._speculation, self._loaded.calibration
        self._stats = replace(
            self._stats,
            drafted_tokens=counts.drafted,
            accepted_tokens=counts.accepted,
            drafts_at_once=counts.at_once,
            expected_speed_up=way.expected_loss,
            skipped_blocks=len(way.skip),
            skip_effect=known.effect(way.skip) if known is not None and way.skip else None,
            recomputed_tokens=counts.recomputed,
            plain_step_s=self._loaded.costs.plain_step_s(NOTHING),
        )

    def _reads(self) -> StreamStats:
        return StreamStats() if self._tiers is None else self._tiers.stats

    def _count_reads(self) -> None:
        now, before = self._reads(), self._read_before
        self._stats = replace(
            self._stats,
            nvme_read_bytes=now.read_bytes - before.read_bytes,
            h2d_bytes=now.h2d_bytes - before.h2d_bytes,
            stall_s=now.stall_s - before.stall_s + now.copy_stall_s - before.copy_stall_s,
        )


def _encode(loaded: LoadedModel, request: Request) -> Prompt:
    """The prompt's ids, those of a beginning that is known taken as they were."""
    if request.prompt is not None:
        return _encode_raw(loaded, request.prompt)
    if loaded.encoder is None:
        raise TemplateError(f"{loaded.info.template_origin}; give the text as a raw prompt (--raw)")
    return _encode_chat(loaded, loaded.encoder, request)


def _encode_chat(loaded: LoadedModel, encoder: PromptEncoder, request: Request) -> Prompt:
    def encoded(messages: Sequence[Message]) -> Prompt:
        marked = encoder.render([{"role": m.role, "content": m.content} for m in messages])
        known = loaded.session.recall(marked)
        rest = encoder.encode(marked[len(known.text) :], starts_text=not known.ids)
        dropped = len(request.messages) - len(messages)
        return Prompt(marked, [*known.ids, *rest], encoder.mark, dropped)

    if request.overflow is Overflow.STOP:
        return encoded(request.messages)
    tried: dict[int, Prompt] = {}

    def count(messages: Sequence[Message]) -> int:
        tried[len(messages)] = encoded(messages)
        return len(tried[len(messages)].ids)

    room = prompt_room(loaded.info.max_context, request.max_tokens)
    told = drop_oldest(request.messages, room, count)
    prompt = tried[len(told)] if len(told) in tried else encoded(told)
    if len(prompt.ids) >= loaded.info.max_context:
        return prompt._replace(
            dropped=0
        )  # the last turn alone is too long: a shorter one may keep the others
    return prompt


def _encode_raw(loaded: LoadedModel, text: str) -> Prompt:
    known = loaded.session.recall(_RAW + text)
    rest = loaded.tokenizer.encode(
        (_RAW + text)[len(known.text or _RAW) :],
        add_bos=loaded.tokenizer.add_bos and not known.ids,
        starts_text=not known.ids,
    )
    return Prompt(_RAW + text, [*known.ids, *rest], str)

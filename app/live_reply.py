"""A reply that was asked for and has not ended: what it waits for, what made it, and how it ended, in words.

Knows turns and the engine's replies; does not know who pulls them or shows them.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Final

from app.conversation import Conversation, Turn, TurnStatus
from app.i18n import _
from app.request import ORDINARY
from app.store.decoding_json import decoding_facts
from engine import (
    ContextError,
    DecodingOptions,
    FinishReason,
    ModelInfo,
    Overflow,
    Reply,
    ReplyStatus,
    SamplingParams,
)

_ENOUGH_TO_TELL: Final = 0.03
"""Share of a measurement from which on its end can be told."""


@dataclass(slots=True)
class LiveReply:
    """A reply that was asked for and has not ended."""

    conversation: Conversation
    turn: Turn
    system: str
    """System prompt; empty for none."""
    sampling: SamplingParams
    """How to draw tokens, as wanted last; the reply says what is in effect."""
    overflow: Overflow
    """What happens when the conversation does not fit the context."""
    decoding: DecodingOptions = ORDINARY
    """How to compute ids, as wanted last; the reply says what is in effect."""
    told: list[Turn] = field(default_factory=list)
    """The turns that were sent to the model."""
    reply: Reply | None = None
    """None while no model is loaded."""
    model: ModelInfo | None = None
    """The model that was asked."""
    offset: int = 0
    """How far the reply has been read."""
    saved_at: float = 0.0
    """When the text was saved last, on the monotonic clock."""
    refused: str = ""
    """Why the last change of `decoding` is not in effect; whoever has told a person empties it."""
    before_a_model: bool = False
    """Whether no model was wanted when it was asked for, and so nothing chosen of how to compute it."""
    calibrating_at: float = 0.0
    """Monotonic clock when it began to be measured what leaving blocks out does; 0 while it is not."""

    @property
    def phase(self) -> str:
        """What the reply waits for, in words; empty once it has text and grows."""
        if self.reply is not None and self.reply.status is ReplyStatus.CALIBRATE:
            return self._calibrating(self.reply.stats.calibrated_share)
        if self.reply is not None and self.reply.status is ReplyStatus.RECOMPUTE:
            share = f"{self.reply.stats.recomputed_share:.0%}"
            return _("computing the text again with other blocks: {share}").format(share=share)
        if self.turn.text:
            return ""
        if self.reply is None:
            return _("waiting for a model")
        if self.reply.status is ReplyStatus.QUEUED:
            return _("waiting for its turn")
        stats = self.reply.stats
        total, done = stats.prompt_tokens - stats.cached_tokens, stats.prefilled_tokens
        words = _("reading {done:,} of {total:,} tokens").format(done=done, total=total)
        if 0 < done < total and stats.prefill_s > 0:
            left = (total - done) * stats.prefill_s / done
            words += " · " + _("{seconds:.0f} s left").format(seconds=max(1.0, left))
        return words

    def _calibrating(self, share: float) -> str:
        words = _("measuring what leaving blocks out does: {share}").format(share=f"{share:.0%}")
        elapsed = time.monotonic() - self.calibrating_at
        if self.calibrating_at and share >= _ENOUGH_TO_TELL:
            left = elapsed * (1 - share) / share
            words += " · " + _("{seconds:.0f} s left").format(seconds=max(1.0, left))
        return words

    @property
    def pending(self) -> bool:
        """Whether the engine has yet to acknowledge how tokens are to be drawn."""
        return self.reply is not None and not self.reply.done and self.reply.sampling != self.sampling

    @property
    def pending_decoding(self) -> bool:
        """Whether the engine has yet to acknowledge how ids are to be computed."""
        return self.reply is not None and not self.reply.done and self.reply.decoding != self.decoding

    def note_phase(self, reply: Reply) -> None:
        """Take note of when measuring begins and ends."""
        if reply.status is not ReplyStatus.CALIBRATE:
            self.calibrating_at = 0.0
        elif not self.calibrating_at:
            self.calibrating_at = time.monotonic()

    def note_settings(self, reply: Reply) -> None:
        """Keep with the turn what was left out of its prompt, and what was changed while it grew."""
        made_by, n_dropped = self.turn.made_by, reply.stats.dropped_messages
        if 0 < n_dropped < len(self.told):
            made_by["seen_from"] = self.told[n_dropped].id
        if reply.sampling_changes:
            made_by["changes"] = [[at, asdict(sampling)] for at, sampling in reply.sampling_changes]
        if reply.decoding_changes:
            made_by["decoding_changes"] = [
                [at, decoding_facts(decoding)] for at, decoding in reply.decoding_changes
            ]

    def outcome(self, reply: Reply) -> tuple[TurnStatus, str]:
        """Return how `reply` ended and what to say about it."""
        model = self.model
        match reply.finish_reason:
            case FinishReason.CANCELLED:
                return TurnStatus.CANCELLED, _("stopped")
            case FinishReason.ERROR:
                next_step = ""
                # Where the oldest turns are left out already, it is the last message that is too long.
                if isinstance(reply.error, ContextError) and self.overflow is Overflow.STOP:
                    next_step = "; " + _("^N begins a new conversation, /overflow drops the oldest turns")
                return TurnStatus.ERROR, in_our_words(str(reply.error or "the engine failed")) + next_step
            case FinishReason.LENGTH:
                used = reply.stats.prompt_tokens + reply.stats.completion_tokens
                if model is None or used < model.max_context:
                    return TurnStatus.DONE, _("ended here: the limit of tokens was reached")
                return TurnStatus.DONE, _(
                    "ended here: the context of {tokens:,} tokens is full; ^N begins a new conversation, F3 "
                    "and then ^O choose a larger context"
                ).format(tokens=model.max_context)
            case _:
                return TurnStatus.DONE, ""


def in_our_words(error: str) -> str:
    """Return an error of the engine with the options of the command line in the words of the interface."""
    for option, words in (
        ("(-c)", _("(F3, then ^O)")),
        ("(-t)", _("(F12)")),
        ("(--ram-budget)", _("(/budget)")),
        ("--ram-budget", "/budget"),
        ("(--vram-budget)", "(/vram)"),
        ("--vram-budget", "/vram"),
        ("(--kv-type q8_0)", _("(F3, then ^O)")),
        ("(--device cpu)", _("(F3, then ^O)")),
    ):
        error = error.replace(option, words)
    return error

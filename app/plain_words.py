"""What the plain chat says of a reply that has ended, and of errors. Knows replies; writes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from app.decoding_words import draft_words, gain_words, quality_words
from app.i18n import _
from app.live_reply import LiveReply
from engine import FinishReason


def ending_words(live: LiveReply) -> Iterator[str]:
    """Yield why a reply ended early, what it took, and what drafts and blocks left out did to it."""
    reply, stats = live.reply, live.turn.stats
    if reply is not None and reply.finish_reason is FinishReason.CANCELLED:
        yield _("stopped")
    elif reply is not None and reply.finish_reason is FinishReason.LENGTH:
        yield _("ended here: no more tokens fit; /new begins a new conversation")
    if stats.dropped_messages:
        yield _("{n} messages did not fit and were left out").format(n=stats.dropped_messages)
    if stats.completion_tokens:
        yield _("{prompt} prompt tokens, {cached} of them known; {n} tokens, {speed:.1f} per second").format(
            prompt=stats.prompt_tokens,
            cached=stats.cached_tokens,
            n=stats.completion_tokens,
            speed=stats.decode_tok_s,
        )
    if reply is not None and (drafts := draft_words(reply.decoding, stats)):
        yield " · ".join([drafts, *gain_words(stats)])
    if stats.skipped_blocks:
        yield quality_words(stats)


def plain_words(text: str) -> str:
    """Return an engine's text with the options of the command line in the words of this mode."""
    for option, words in (
        ("(-c)", _("(`context` in settings.toml)")),
        ("(-t)", _("(`threads` in settings.toml)")),
        ("(--ram-budget)", "(/budget)"),
        ("--ram-budget", "/budget"),
        ("(--vram-budget)", "(/vram)"),
        ("--vram-budget", "/vram"),
        ("(--draft-model)", "(/draft)"),
        ("(--kv-type q8_0)", _("(`kv_type` in settings.toml)")),
        ("(--device cpu)", _("(`device` in settings.toml)")),
    ):
        text = text.replace(option, words)
    return text

"""What a reply took and what it is worth: in a line, as a table, or as one object. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterator

from engine import DraftKind, FinishReason, Reply, TierSnapshot


def summary(reply: Reply) -> str:
    """Return one line of counts and rates."""
    s = reply.stats
    ended = "interrupted; " if reply.finish_reason is FinishReason.CANCELLED else ""
    parts = [
        f"{ended}{s.prompt_tokens} prompt tokens, {s.cached_tokens} cached, {s.prefill_tok_s:.1f} tok/s",
        f"first token after {s.ttft_s * 1000:.0f} ms",
        f"{s.completion_tokens} tokens, {s.decode_tok_s:.1f} tok/s",
        *filter(None, (_drafts(reply), _left_out(reply))),
        f"seed {s.seed}",
    ]
    return f"[{'; '.join(parts)}]"


def table(reply: Reply, tiers: TierSnapshot | None) -> str:
    """Return the rates of a reply, a line for each thing."""
    return "\n".join(f"{name:<12} {words}" for name, words in _rows(reply, tiers))


def _rows(reply: Reply, tiers: TierSnapshot | None) -> Iterator[tuple[str, str]]:
    s = reply.stats
    cached = f", {s.cached_tokens} more were cached" if s.cached_tokens else ""
    yield "prompt", f"{_rate(s.prefilled_tokens, s.prefill_tok_s, s.prefill_s)}{cached}"
    yield "reply", f"{_rate(s.completion_tokens, s.decode_tok_s, s.decode_s)}, {len(reply.text)} characters"
    yield "first token", f"after {s.ttft_s:.3f} s"
    yield "total", f"{s.ttft_s + s.decode_s:.3f} s"
    if tiers is not None and tiers.predicted_decode_tok_s:
        limited_by = f", limited by {tiers.limited_by}" if tiers.limited_by else ""
        yield "predicted", f"{tiers.predicted_decode_tok_s:.1f} tok/s{limited_by}"
    if s.nvme_read_bytes or s.h2d_bytes:
        moved = f"{s.nvme_read_bytes / 1e9:.2f} GB from disk, {s.h2d_bytes / 1e9:.2f} GB to the GPU"
        yield "moved", f"{moved}, waited {s.stall_s:.3f} s"
    if drafts := _drafts(reply):
        at_once = f", {s.drafts_at_once} at a time now" if s.drafts_at_once else ""
        factor = f", {s.speed_up:.2f} times plain steps" if s.speed_up else ""
        yield "drafts", f"{drafts}{at_once}{factor}"
    if left_out := _left_out(reply):
        yield "quality", left_out
    yield "seed", str(s.seed)


def _rate(tokens: int, tok_s: float, seconds: float) -> str:
    return f"{tokens} tokens, {tok_s:.1f} tok/s, {seconds:.3f} s"


def _drafts(reply: Reply) -> str:
    s = reply.stats
    if s.drafted_tokens:
        return f"{s.accepted_tokens} of {s.drafted_tokens} drafts taken ({s.acceptance_rate:.0%})"
    if s.expected_speed_up:
        return f"nothing was drafted: {s.expected_speed_up:.2f} times plain steps were expected"
    return "nothing was drafted" if reply.decoding.draft is not DraftKind.OFF and reply.token_ids else ""


def _left_out(reply: Reply) -> str:
    s = reply.stats
    if s.skipped_blocks:
        from app.decoding_words import quality_words  # brings in the store, which most runs do without

        blocks = "1 block" if s.skipped_blocks == 1 else f"{s.skipped_blocks} blocks"
        return f"{blocks} left out: {quality_words(s)}"
    skip = reply.decoding.skip
    return f"nothing left out: no block meets {skip}" if skip is not None and reply.token_ids else ""


def as_json(reply: Reply, tiers: TierSnapshot | None) -> dict[str, object]:
    """Return the reply and its counts; null where nothing was measured."""
    s = reply.stats
    decode, prefill = (tiers.predicted_decode_tok_s, tiers.predicted_prefill_tok_s) if tiers else (None, None)
    return {
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "prompt_tokens": s.prompt_tokens,
        "cached_tokens": s.cached_tokens,
        "completion_tokens": s.completion_tokens,
        "ttft_ms": round(s.ttft_s * 1000, 3),
        "prefill_tok_s": round(s.prefill_tok_s, 3),
        "decode_tok_s": round(s.decode_tok_s, 3),
        "predicted_prefill_tok_s": prefill and round(prefill, 3),
        "predicted_decode_tok_s": decode and round(decode, 3),
        "nvme_read_bytes": s.nvme_read_bytes,
        "h2d_bytes": s.h2d_bytes,
        "stall_ms": round(s.stall_s * 1000, 3),
        "drafted_tokens": s.drafted_tokens,
        "accepted_tokens": s.accepted_tokens,
        "acceptance_rate": round(s.acceptance_rate, 4) if s.drafted_tokens else None,
        "drafts_at_once": s.drafts_at_once,
        "expected_speed_up": round(s.expected_speed_up, 4) if s.expected_speed_up else None,
        "from_draft": [number for number, drafted in enumerate(reply.from_draft) if drafted],
        "skipped_blocks": s.skipped_blocks,
        "perplexity_change": round(s.skip_effect.perplexity_change, 6) if s.skip_effect else None,
        "seed": s.seed,
    }

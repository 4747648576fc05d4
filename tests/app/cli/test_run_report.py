"""How `tiercel run` tells what a reply took, what drafts gave and what leaving blocks out costs."""

from __future__ import annotations

from dataclasses import replace

from app.cli.run_report import as_json, summary, table
from app.request import ORDINARY
from engine import (
    DecodingOptions,
    DraftKind,
    FinishReason,
    GenerationStats,
    Reply,
    ReplyStatus,
    Request,
    SkipEffect,
    parse_skip,
)
from tests.app.tiers.models import gpu_tiers

STATS = GenerationStats(
    prompt_tokens=12,
    cached_tokens=2,
    prefilled_tokens=10,
    completion_tokens=65,
    prefill_s=0.1,
    decode_s=1.28,
    ttft_s=0.14,
    seed=7,
)
DRAFTED = replace(STATS, drafted_tokens=31, accepted_tokens=24, drafts_at_once=4, plain_step_s=0.03)
EFFECT = SkipEffect(frozenset({3, 8}), 0.02, 0.0123, 0.008, 0.016, 0.97)
SKIPPED = replace(STATS, skipped_blocks=2, skip_effect=EFFECT)
NGRAM, SKIP = DecodingOptions(draft=DraftKind.NGRAM), DecodingOptions(skip=parse_skip("kl=0.05"))


def ended(stats: GenerationStats, decoding: DecodingOptions = ORDINARY) -> Reply:
    reply = Reply(Request(prompt="x", decoding=decoding))
    reply.append("Some text.", [1, 2], stats)
    reply.finish(FinishReason.STOP, stats)
    assert reply.status is ReplyStatus.DONE
    return reply


def test_an_ordinary_reply_says_nothing_of_drafts_and_approximation() -> None:
    assert summary(ended(STATS)) == (
        "[12 prompt tokens, 2 cached, 100.0 tok/s; first token after 140 ms; 65 tokens, 50.0 tok/s; seed 7]"
    )


def test_drafts_and_what_is_left_out_are_told() -> None:
    assert "; 24 of 31 drafts taken (77%); seed" in summary(ended(DRAFTED, NGRAM))
    assert "; nothing was drafted; seed" in summary(ended(STATS, NGRAM))
    hopeless = replace(STATS, expected_speed_up=0.9559)
    assert "; nothing was drafted: 0.96 times plain steps were expected; seed" in summary(
        ended(hopeless, DecodingOptions(draft=DraftKind.SELF))
    )
    assert "; 2 blocks left out: approximate, +1.2 % perplexity [+0.8, +1.6]; seed" in summary(
        ended(SKIPPED, SKIP)
    )
    assert "; nothing left out: no block meets kl=0.05; seed" in summary(ended(STATS, SKIP))


def test_a_reply_that_was_stopped_before_its_first_token_claims_nothing() -> None:
    reply = Reply(Request(prompt="x", decoding=replace(SKIP, draft=DraftKind.NGRAM)))
    reply.finish(FinishReason.CANCELLED, GenerationStats(seed=7))
    assert summary(reply).endswith("; 0 tokens, 0.0 tok/s; seed 7]")


def test_the_table_of_a_benchmark_has_a_line_for_each_thing() -> None:
    tiers = replace(gpu_tiers(), predicted_decode_tok_s=52.0, limited_by="video memory")
    moved = replace(DRAFTED, nvme_read_bytes=2 * 10**9, stall_s=0.5, skipped_blocks=2, skip_effect=EFFECT)
    shown = dict(line.split(maxsplit=1) for line in table(ended(moved, NGRAM), tiers).splitlines())
    assert shown["prompt"] == "10 tokens, 100.0 tok/s, 0.100 s, 2 more were cached"
    assert shown["reply"] == "65 tokens, 50.0 tok/s, 1.280 s, 10 characters"
    assert shown["total"] == "1.420 s"
    assert shown["moved"] == "2.00 GB from disk, 0.00 GB to the GPU, waited 0.500 s"
    assert shown["drafts"] == "24 of 31 drafts taken (77%), 4 at a time now, 1.50 times plain steps"
    assert shown["quality"] == "2 blocks left out: approximate, +1.2 % perplexity [+0.8, +1.6]"
    assert shown["predicted"] == "52.0 tok/s, limited by video memory"


def test_json_says_null_where_nothing_was_measured() -> None:
    plain, drafted, skipped = (
        as_json(ended(stats), None) for stats in (STATS, DRAFTED, replace(SKIPPED, skip_effect=None))
    )
    assert (plain["acceptance_rate"], plain["perplexity_change"], plain["skipped_blocks"]) == (None, None, 0)
    assert (drafted["drafted_tokens"], drafted["accepted_tokens"], drafted["acceptance_rate"]) == (
        31,
        24,
        0.7742,
    )
    assert drafted["drafts_at_once"] == 4
    assert drafted["expected_speed_up"] is None
    assert as_json(ended(replace(STATS, expected_speed_up=0.95587)), None)["expected_speed_up"] == 0.9559
    assert plain["from_draft"] == []
    assert (skipped["skipped_blocks"], skipped["perplexity_change"]) == (2, None)
    assert as_json(ended(SKIPPED), None)["perplexity_change"] == 0.0123

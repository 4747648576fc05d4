"""Layer skip and drafts in words: only what was measured is claimed, and 'exact' only where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.conversation import Conversation, Turn
from app.decoding_words import (
    changes_of,
    decoding_line,
    draft_words,
    final_decoding,
    gain_words,
    quality_words,
    skip_words,
    turn_quality,
    way_words,
)
from app.request import ORDINARY
from app.store.decoding_json import decoding_facts
from engine import DecodingOptions, DraftKind, GenerationStats, SkipChoice, SkipEffect, SkipRule

EFFECT = SkipEffect(
    frozenset({3, 5}),
    kl=0.04,
    perplexity_change=0.021,
    perplexity_low=-0.004,
    perplexity_high=0.027,
    top1=0.93,
)
SKIPPING = GenerationStats(skipped_blocks=2, skip_effect=EFFECT)
SKIP = DecodingOptions(skip=SkipChoice(SkipRule.KL, 0.05))
NGRAM = DecodingOptions(draft=DraftKind.NGRAM)
SELF = DecodingOptions(draft=DraftKind.SELF)


def reply(decoding: DecodingOptions | None, stats: GenerationStats, *changes: DecodingOptions) -> Turn:
    turn = Conversation().add("assistant", "text")
    turn.decoding, turn.stats = decoding, stats
    if changes:
        turn.made_by["decoding_changes"] = [[7 + at, decoding_facts(each)] for at, each in enumerate(changes)]
    return turn


def test_what_is_left_out_is_told_with_its_interval() -> None:
    assert quality_words(GenerationStats()) == "exact"
    assert quality_words(SKIPPING) == "approximate, +2.1 % perplexity [-0.4, +2.7]"
    assert quality_words(replace(SKIPPING, skip_effect=None)) == "approximate"


def test_the_rule_and_how_many_blocks_it_means() -> None:
    assert skip_words(ORDINARY, SKIPPING) == ""
    assert skip_words(SKIP, GenerationStats()) == "kl=0.05"
    assert skip_words(SKIP, SKIPPING) == "kl=0.05 · 2 blocks"


@pytest.mark.parametrize(
    ("options", "stats", "words"),
    [
        (ORDINARY, GenerationStats(drafts_at_once=4), ""),
        (NGRAM, GenerationStats(), "n-gram"),
        (NGRAM, GenerationStats(drafts_at_once=5, drafted_tokens=5), "n-gram k=5"),
        (NGRAM, GenerationStats(drafted_tokens=5), "n-gram, which does not pay now"),
        (replace(NGRAM, draft_k=3), GenerationStats(drafted_tokens=5), "n-gram k=3"),
        (SELF, GenerationStats(expected_speed_up=0.956), "self, not tried: 0.96x plain expected"),
    ],
)
def test_who_drafts_and_how_many_at_a_time(
    options: DecodingOptions, stats: GenerationStats, words: str
) -> None:
    assert draft_words(options, stats) == words


def test_a_gain_is_claimed_only_where_it_was_measured() -> None:
    assert gain_words(GenerationStats()) == []
    stats = GenerationStats(
        drafted_tokens=8, accepted_tokens=6, completion_tokens=11, decode_s=1.0, plain_step_s=0.18
    )
    assert gain_words(stats) == ["75% taken", "1.80x plain"]
    assert gain_words(replace(stats, plain_step_s=0.0)) == ["75% taken"]
    assert gain_words(replace(stats, drafted_tokens=0)) == [], "a plain reply is no faster than itself"
    assert gain_words(replace(stats, drafted_tokens=0, skipped_blocks=3)) == ["1.80x plain"]


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (reply(None, GenerationStats()), ""),
        (reply(ORDINARY, GenerationStats()), ""),
        (reply(NGRAM, GenerationStats()), "exact"),
        (reply(SKIP, SKIPPING), "approximate, +2.1 % perplexity [-0.4, +2.7]"),
        (reply(SKIP, GenerationStats()), "exact"),
        (reply(SKIP, GenerationStats(), ORDINARY), "approximate in part"),
        (reply(ORDINARY, SKIPPING, SKIP), "approximate, +2.1 % perplexity [-0.4, +2.7]"),
    ],
)
def test_a_reply_is_exact_only_where_no_part_of_it_had_blocks_left_out(turn: Turn, words: str) -> None:
    assert turn_quality(turn) == words


def test_what_was_changed_on_the_way_is_read_back_and_nonsense_is_not() -> None:
    turn = reply(ORDINARY, GenerationStats(), NGRAM, SKIP)
    assert changes_of(turn) == [(7, NGRAM), (8, SKIP)]
    assert final_decoding(turn) == SKIP
    assert final_decoding(reply(NGRAM, GenerationStats())) == NGRAM
    assert final_decoding(reply(None, GenerationStats())) == ORDINARY
    for nonsense in (5, [1, [2]], [["x", {}]], [[1, {"skip": "much"}]], [[1, 2]], {"a": 1}):
        turn.made_by["decoding_changes"] = nonsense
        assert changes_of(turn) == []


def test_the_head_names_what_was_not_as_usual() -> None:
    assert way_words(reply(None, GenerationStats())) == []
    assert way_words(reply(replace(SKIP, draft=DraftKind.SELF), SKIPPING)) == ["skip 2", "self"]
    assert way_words(reply(SKIP, GenerationStats())) == ["skip kl=0.05"]


def test_what_was_chosen_is_one_line() -> None:
    assert decoding_line(ORDINARY) == "all blocks, no drafts"
    assert (
        decoding_line(replace(SKIP, draft=DraftKind.MODEL, draft_k=2))
        == "skip kl=0.05, drafts: draft model k=2"
    )

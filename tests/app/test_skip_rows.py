"""The table of what can be left out: rows are asked for by what they say, and say what was measured."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.skip_rows import block_names, cells_of, choice_of, chosen_set, saved_share, skip_rows
from engine import Calibration, SkipChoice, SkipEffect, SkipRule, parse_skip
from tests.app.calibrations import calibration
from tests.app.tiers.models import blocks, tiers

KLS = st.lists(st.floats(0.0, 12.0, allow_nan=False) | st.just(float("inf")), min_size=1, max_size=12)


def grown_by(kls: list[float]) -> Calibration:
    """A calibration whose sets have these effects, in any order."""
    base = calibration(30, len(kls))
    effects = (replace(effect, kl=kl) for effect, kl in zip(base.effects, kls, strict=True))
    return replace(base, effects=tuple(effects))


@given(KLS)
def test_every_row_gets_the_set_that_it_shows(kls: list[float]) -> None:
    known = grown_by(kls)
    for skipped in known.grown:
        choice = choice_of(known, skipped)
        assert known.choose(choice) == skipped
        assert known.choose(parse_skip(str(choice)) or choice) == skipped


def test_before_anything_was_measured_there_are_all_blocks_only() -> None:
    (row,) = skip_rows(None, None, SkipChoice(SkipRule.KL, 0.05))
    assert (row.rule, row.skipped, row.effect) == ("off", frozenset(), None)


def test_grown_sets_the_cosine_rule_and_what_is_chosen_have_rows() -> None:
    known = calibration(30, 3)
    named = parse_skip("blk.3.attn")
    rows = skip_rows(known, None, named)
    assert [row.rule for row in rows] == ["off", "kl=0.004", "kl=0.008", "kl=0.016", "blk.3.attn", "cos=0.98"]
    assert [len(row.skipped) for row in rows] == [0, 1, 2, 3, 1, 2]
    assert [row.effect is not None for row in rows] == [False, True, True, True, False, False]
    assert len(skip_rows(known, None, parse_skip("kl=0.009"))) == 5, "it means a set that has a row"
    without = replace(known, cosines=())
    assert [row.rule for row in skip_rows(without, None, None)][-1] == "kl=0.016"


def test_what_only_measuring_can_tell_is_not_known() -> None:
    known = calibration(30, 3)
    assert chosen_set(known, None) == frozenset()
    assert chosen_set(None, parse_skip("blk.2")) == frozenset({4, 5})
    assert chosen_set(None, parse_skip("kl=0.05")) is None
    assert chosen_set(replace(known, grown=()), parse_skip("kl=0.05")) is None
    assert chosen_set(replace(known, cosines=()), parse_skip("cos=0.9")) is None
    assert chosen_set(known, parse_skip("kl=0.005")) == known.grown[0]


def test_a_model_that_can_spare_nothing_was_measured_all_the_same() -> None:
    known = calibration(30, 3)
    alone = tuple(replace(known.effects[0], skipped=frozenset({block}), kl=2.0) for block in range(60))
    spares_nothing = replace(known, effects=alone, grown=())
    assert chosen_set(spares_nothing, parse_skip("kl=0.05")) == frozenset()
    assert chosen_set(replace(spares_nothing, effects=alone[1:]), parse_skip("kl=0.05")) is None


def test_the_share_that_is_saved_is_of_the_bytes_that_a_pass_needs() -> None:
    placed = tiers(blocks(4, heads=1))
    layers = [block for block in placed.blocks if block.layer is not None]
    needed = sum(block.n_bytes for block in placed.blocks if block.kind != "embedding")
    share = saved_share(frozenset({1, 2}), placed, 8)
    assert share == (layers[1].n_bytes + layers[2].n_bytes) / needed
    assert saved_share(frozenset({1, 2}), None, 8) == 0.25
    assert saved_share(frozenset({99}), placed, 8) == 0.0, "of another model"


def test_a_row_says_what_was_measured_and_no_more() -> None:
    off, first, *_others, cosine = skip_rows(calibration(30, 2), None, None)
    assert cells_of(off, 60) == ("0", "", "0", "exact", "100%")
    assert cells_of(first, 60) == ("1/60", "2%", "0.004", "+0.4 [+0.3, +0.5]", "100%")
    assert cells_of(cosine, 60) == ("2/60", "3%", "?", "not measured", "?")
    endless = SkipEffect(frozenset({1}), float("inf"), float("inf"), float("inf"), float("inf"), 0.0)
    assert "inf" in cells_of(replace(first, effect=endless), 60)[3]


def test_blocks_are_named_as_they_are_typed() -> None:
    assert block_names(frozenset({4, 5, 9})) == "blk.2 blk.4.ffn"

"""Rules for places: read as typed, written back alike, and about the blocks that they name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import BudgetError
from engine.events import Tier
from engine.tiers.blocks import BlockKind
from engine.tiers.wishes import PlaceRule, parse_place, wanted_tiers
from tests.engine.tiers.shapes import LLAMA_8B, TIED

tiers = st.sampled_from(["vram", "ram", "nvme"])
layer_rules = st.builds(
    lambda ends, kind, tier: PlaceRule("blk", min(ends), max(ends), kind, tier),
    st.tuples(st.integers(0, 9999), st.integers(0, 9999)),
    st.sampled_from(["", "attention", "feed_forward"]),
    tiers,
)
rules = layer_rules | st.builds(
    lambda name, tier: PlaceRule(name, tier=tier), st.sampled_from(["head", "embedding"]), tiers
)


@given(st.lists(rules, min_size=1, max_size=5))
def test_rules_are_read_back_as_written(written: list[PlaceRule]) -> None:
    assert parse_place(",".join(map(str, written))) == tuple(written)


def test_rules_are_read_as_people_type_them() -> None:
    assert parse_place("blk.0-9.attn=vram, BLK.70-79 = nvme,blk.3.ffn=RAM,head=ram,embedding=ram") == (
        PlaceRule("blk", 0, 9, "attention", "vram"),
        PlaceRule("blk", 70, 79, "", "nvme"),
        PlaceRule("blk", 3, 3, "feed_forward", "ram"),
        PlaceRule("head", tier="ram"),
        PlaceRule("embedding", tier="ram"),
    )


@pytest.mark.parametrize(
    "text",
    ["", "blk=vram", "blk.1", "blk.9-3=ram", "blk.1.norm=ram", "head=disk", "blk.1=ram,", "blk.-1=ram"],
)
def test_what_is_no_rule_is_refused_in_a_line_that_says_what_is_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no rule for a place: give layers \(blk.3.*vram, ram or nvme"):
        parse_place(text)


def test_rules_are_about_the_blocks_that_they_name_and_later_ones_win() -> None:
    wanted = wanted_tiers(parse_place("blk.0-2=ram,blk.1.ffn=nvme,blk.1-2.attn=vram,head=ram"), LLAMA_8B)
    layers = {block.index: block for block in LLAMA_8B if block.layer in (0, 1, 2)}
    assert {(layers[i].layer, str(layers[i].kind), tier) for i, tier in wanted.items() if i in layers} == {
        (0, "attention", Tier.RAM),
        (0, "feed_forward", Tier.RAM),
        (1, "attention", Tier.VRAM),
        (1, "feed_forward", Tier.NVME),
        (2, "attention", Tier.VRAM),
        (2, "feed_forward", Tier.RAM),
    }
    heads = {block.index for block in LLAMA_8B if block.kind is BlockKind.HEAD}
    assert wanted.keys() - layers.keys() == heads


def test_a_rule_about_no_block_is_named() -> None:
    with pytest.raises(BudgetError, match=r"blk\.32-40\.ffn=ram \(--place\).*its layers are 0 to 31"):
        wanted_tiers(parse_place("blk.32-40.ffn=ram"), LLAMA_8B)
    with pytest.raises(BudgetError, match=r"embedding=ram.*say head=ram"):
        wanted_tiers(parse_place("embedding=ram"), TIED)

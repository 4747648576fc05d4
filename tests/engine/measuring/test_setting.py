"""Settings as typed, and how a model is opened with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import KVType, LoadOptions, Precision, SkipChoice, SkipRule, parse_setting

OPTIONS = LoadOptions(Path("m.gguf"))


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("skip=0.98", SkipChoice(SkipRule.COSINE, 0.98)),
        ("skip = cos=.9", SkipChoice(SkipRule.COSINE, 0.9)),
        ("skip=kl=0.05", SkipChoice(SkipRule.KL, 0.05)),
        ("skip=blk.3-4,blk.6.ffn", SkipChoice(SkipRule.BLOCKS, blocks=frozenset({6, 7, 8, 9, 13}))),
    ],
)
def test_blocks_to_skip_are_read_as_elsewhere_and_a_number_is_a_cosine(text: str, choice: SkipChoice) -> None:
    setting = parse_setting(text)
    assert (setting.skip, setting.text) == (choice, text)
    assert setting.applied(OPTIONS) == OPTIONS


def test_what_opens_the_model_otherwise_is_applied_to_its_options() -> None:
    assert parse_setting("kv=q8_0").applied(OPTIONS).kv_type is KVType.Q8_0
    assert parse_setting("precision=float").applied(OPTIONS).precision is Precision.FLOAT
    assert parse_setting("precision=fast").applied(OPTIONS) == OPTIONS


@pytest.mark.parametrize("text", ["", "skip", "skip=", "skip=off", "kv=q4", "precision=", "top_k=3"])
def test_anything_else_is_told_what_there_is(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_setting(text)
    assert "give " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cosine_that_is_none_is_told_its_range() -> None:
    with pytest.raises(ValueError, match="give a number from -1 to 1"):
        parse_setting("skip=1.5")

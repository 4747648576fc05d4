"""Ranges, steps and words of the sampling parameters."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sampling_fields import FIELDS, SEED, SamplingField, checked_overrides, has_effect, shown_value
from engine import SamplingParams

BY_NAME = {field.name: field for field in FIELDS}


def test_every_parameter_has_a_row() -> None:
    assert [field.name for field in FIELDS] == [field.name for field in fields(SamplingParams)]


@given(st.sampled_from(FIELDS), st.floats(0, 1), st.integers(-1, 1), st.booleans())
def test_whatever_a_slider_gives_the_engine_takes(
    field: SamplingField, fraction: float, direction: int, large: bool
) -> None:
    value = field.low if field is SEED else field.value_at(fraction)
    stepped = field.stepped(value, direction, large=large)
    for number in (value, stepped):
        assert field.low <= number <= field.high
        params = replace(SamplingParams(), **{field.name: number})
        assert field.parse(field.shown(number)) == getattr(params, field.name)


@given(st.sampled_from([field for field in FIELDS if field is not SEED]), st.floats(0, 1), st.floats(0, 1))
def test_sliders_rise(field: SamplingField, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert field.value_at(low) <= field.value_at(high)
    assert abs(field.fraction(field.value_at(one)) - one) <= 0.12


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("temperature", "59", "59 is not between 0 and 5"),
        ("temperature", "-", "- is not between 0 and 5"),
        ("top_k", "1.5", "1.5 is no whole number between 0 and 1000"),
        ("top_p", "1.2.3", "1.2.3 is not between 0 and 1"),
        ("seed", "99999999999999999999", "is no whole number"),
    ],
)
def test_what_does_not_do_is_refused_in_a_sentence(name: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BY_NAME[name].parse(text)


def test_large_seeds_keep_every_digit() -> None:
    assert SEED.parse("9007199254740993") == 9007199254740993
    assert SEED.shown(9007199254740993) == "9007199254740993"


def test_values_are_words_where_words_say_more() -> None:
    greedy = SamplingParams(temperature=0, top_p=1, seed=None)
    shown = [shown_value(BY_NAME[name], greedy) for name in ("temperature", "top_p", "seed", "top_k")]
    assert shown == ["greedy", "off", "random", "40"]
    assert shown_value(BY_NAME["min_p"], SamplingParams(min_p=0.0625)) == "0.0625"


def test_greedy_leaves_only_the_penalties_with_an_effect() -> None:
    greedy = SamplingParams(temperature=0, repeat_penalty=1.1, seed=3)
    effective = {field.name for field in FIELDS if has_effect(field, greedy)}
    assert effective == {"temperature", "repeat_penalty", "penalty_window"}
    assert not has_effect(BY_NAME["repeat_penalty"], replace(greedy, penalty_window=0))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"temprature": 1}, "unknown key 'temprature'"),
        ({"top_k": "many"}, "top_k must be a number"),
        ({"top_p": True}, "top_p must be a number"),
        ({"top_p": 3}, "top_p is 3"),
        ({"top_k": 1.5}, "top_k is 1.5: it must be a whole number"),
    ],
)
def test_tables_of_files_are_checked(table: dict[str, object], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        checked_overrides(table)

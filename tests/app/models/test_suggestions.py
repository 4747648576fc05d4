"""The list of what could be fetched: complete, in a form that can be read, and suited to the memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.models.hub_file import HubFile
from app.models.suggestions import Suggestion, load_suggestions, suitable


def _model(size: int) -> Suggestion:
    return Suggestion(HubFile("a/b", f"{size}.gguf"), size, size, "mit", False, "")


def test_ours_is_complete_sorted_by_size_and_without_doubles(tmp_path: Path) -> None:
    suggestions, problems = load_suggestions(tmp_path)
    assert problems == []
    assert 8 <= len(suggestions) <= 12
    sizes = [suggestion.size for suggestion in suggestions]
    assert sizes == sorted(sizes)
    assert len({suggestion.source for suggestion in suggestions}) == len(suggestions)
    for suggestion in suggestions:
        assert suggestion.license and suggestion.note and not suggestion.gated
        # Files of 4 to 8 bits for each parameter, or the figures do not belong together.
        assert 4 <= 8 * suggestion.size / suggestion.parameters <= 9


@given(st.lists(st.integers(1, 10**11), unique=True), st.integers(0, 10**11))
def test_the_largest_that_fit_come_first_and_then_the_smallest_that_do_not(
    sizes: list[int], budget: int
) -> None:
    chosen = suitable([_model(size) for size in sizes], budget)
    fitting = [s for s in chosen if s.fits(budget)]
    streamed = [s for s in chosen if not s.fits(budget)]
    assert chosen == fitting + streamed
    assert len(fitting) == min(4, sum(_model(size).fits(budget) for size in sizes))
    assert len(streamed) == min(2, sum(not _model(size).fits(budget) for size in sizes))
    assert fitting == sorted(fitting, key=lambda s: -s.size)
    assert streamed == sorted(streamed, key=lambda s: s.size)
    others = {size for size in sizes} - {s.size for s in chosen}
    assert all(not _model(size).fits(budget) or size < fitting[-1].size for size in others)


_GOOD = '[[model]]\nrepo="a/b"\nfile="c.gguf"\nbytes=1\nparameters=2\nlicense="mit"\nnote="n"\n'


def test_the_persons_own_list_takes_the_place_of_ours(tmp_path: Path) -> None:
    (tmp_path / "suggestions.toml").write_text(_GOOD + _GOOD.replace("c.gguf", "d.gguf"))
    suggestions, problems = load_suggestions(tmp_path)
    assert [suggestion.name for suggestion in suggestions] == ["c", "d"]
    assert problems == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no [toml", "cannot be read"),
        ("model = 3", "must be a list"),
        (_GOOD.replace('note="n"\n', ""), "'note' is missing"),
        (_GOOD.replace("bytes=1", 'bytes="1"'), "bytes must be a whole number"),
        (_GOOD.replace("parameters=2", "parameters=0"), "parameters must be a whole number"),
        (_GOOD.replace('"mit"', "7"), "license must be text"),
        (_GOOD.replace("c.gguf", "../c.gguf"), "no path of a file"),
        ("model = [1]", "left out"),
    ],
)
def test_what_is_wrong_in_it_is_told_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "suggestions.toml").write_text(text)
    suggestions, problems = load_suggestions(tmp_path)
    assert suggestions == []
    assert len(problems) == 1 and words in problems[0] and "\n" not in problems[0]


def test_one_that_is_wrong_does_not_cost_the_others(tmp_path: Path) -> None:
    (tmp_path / "suggestions.toml").write_text("[[model]]\n" + _GOOD)
    suggestions, problems = load_suggestions(tmp_path)
    assert [suggestion.name for suggestion in suggestions] == ["c"]
    assert len(problems) == 1


def test_a_list_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "suggestions.toml").mkdir()
    assert "cannot be read" in load_suggestions(tmp_path)[1][0]

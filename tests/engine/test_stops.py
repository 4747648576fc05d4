"""Stop strings, however the text is cut into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.stops import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    watch = StopStrings(stops)
    text = "".join(watch.push(piece) for piece in pieces)
    return text + watch.flush(), watch.met


def test_a_stop_string_across_three_pieces_ends_the_text_before_it() -> None:
    assert run(["###"], ["a#", "#", "# b"]) == ("a", True)


def test_text_that_might_begin_a_stop_string_is_held_back_and_then_passed_on() -> None:
    watch = StopStrings(["User:"])
    assert watch.push("The Us") == "The "
    assert watch.push("e of it") == "Use of it"


def test_a_held_back_beginning_is_passed_on_at_the_end() -> None:
    assert run(["</s>"], ["a <", "/s"]) == ("a </s", False)


def test_the_first_of_several_stop_strings_counts() -> None:
    assert run(["bb", "ab"], ["aabb"]) == ("a", True)


def test_nothing_passes_after_a_stop_string() -> None:
    assert run(["x"], ["axb", "c"]) == ("a", True)


def test_no_stop_strings_pass_everything_at_once() -> None:
    assert StopStrings(["", ""]).push("abc") == "abc"


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_any_cut_gives_the_text_before_the_earliest_stop(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    # A stop string is met as soon as it is complete: the one that ends first, and of those the longest.
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    shown, met = run(stops, list(text))
    assert met == bool(ends)
    assert shown == (text[: min(ends)[1]] if ends else text)
    in_pieces, met_in_pieces = run(stops, pieces)
    assert met_in_pieces == met
    assert text.startswith(in_pieces)
    assert not any(stop in in_pieces for stop in stops)

"""What a session reuses: ids by comparison, texts only to find ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import KVCache
from engine.session import Session
from engine.skipping.skip_choice import NOTHING, SkipSet

KV: KVCache = None  # type: ignore[assignment]  # ids only: the cache itself is not touched


def test_the_longest_common_beginning_is_kept() -> None:
    session = Session(KV, [1, 2, 3, 4])
    assert session.rewind([1, 2, 9, 4]) == 2
    assert session.ids == [1, 2]


def test_the_last_id_of_a_prompt_is_always_computed_again() -> None:
    session = Session(KV, [1, 2, 3, 4])
    assert session.rewind([1, 2, 3]) == 2
    assert session.rewind([1]) == 0


def test_an_empty_session_keeps_nothing() -> None:
    assert Session(KV).rewind([1, 2]) == 0


def test_the_longest_known_beginning_is_recalled() -> None:
    session = Session(KV)
    session.remember("a", [1])
    session.remember("a b", [1, 2])
    session.remember("a c", [1, 3])
    assert session.recall("a b d").ids == (1, 2)
    assert session.recall("x") == ("", ())


SOME, MORE = frozenset({1}), frozenset({1, 4})


def test_what_was_computed_without_blocks_serves_only_passes_that_leave_them_out_too() -> None:
    session = Session(KV)
    session.extend([1, 2, 3])
    session.extend([4, 5], SOME)
    session.extend([6], MORE)
    session.extend([7])
    assert [session.serving(skip) for skip in (NOTHING, SOME, MORE, frozenset({4}))] == [3, 5, 7, 3]
    assert session.rewind([1, 2, 3, 4, 5, 6, 7, 8], SOME) == 5
    assert session.rewind([1, 2, 3, 4, 5, 6, 7, 8]) == 3
    session.extend([4])
    assert session.serving(NOTHING) == 4


def test_how_much_is_known_of_a_prompt_changes_nothing() -> None:
    session = Session(KV)
    session.extend([1, 2, 3], SOME)
    assert [session.common(ids) for ids in ([1, 2, 3, 4], [1, 9], [])] == [3, 1, 0]
    assert session.ids == [1, 2, 3]


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from([NOTHING, SOME, MORE]), st.booleans())))
def test_sets_are_known_position_by_position(changes: list[tuple[int, SkipSet, bool]]) -> None:
    session, expected = Session(KV), list[SkipSet]()
    for n, skip, cuts in changes:
        if cuts:
            session.cut(len(expected) - n if n < len(expected) else 0)
            expected = expected[: len(session.ids)]
        else:
            session.extend([0] * n, skip)
            expected += [skip] * n
        assert len(session.ids) == len(expected)
        for wanted in (NOTHING, SOME, MORE):
            wrong = (i for i, skipped in enumerate(expected) if not skipped <= wanted)
            assert session.serving(wanted) == next(wrong, len(expected))

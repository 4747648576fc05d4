"""What a session reuses: ids by comparison, texts only to find ids."""

from __future__ import annotations

from engine.kv_cache import KVCache
from engine.session import Session

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

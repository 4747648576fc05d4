"""Text that arrives in tokens: whole characters only, nothing lost, wherever the bytes are cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tokenizer import Detokenizer


class Pieces:
    """Stands in for a tokenizer: id i is the i-th piece, special if it begins with two spaces; -1 is BOS."""

    bos_id = -1

    def __init__(self, pieces: Sequence[bytes], space_prefix: bool = False) -> None:
        self.pieces = pieces
        self.space_prefix = space_prefix

    def is_special(self, token_id: int) -> bool:
        return self.pieces[token_id].startswith(b"  ")

    def token_bytes(self, token_id: int) -> bytes:
        return b"<s>" if token_id == self.bos_id else self.pieces[token_id]


@st.composite
def _cut(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> list[bytes]:
    whole = draw(data)
    places = sorted(draw(st.lists(st.integers(0, len(whole)))))
    return [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]


TEXT = st.text().map(lambda text: text.encode("utf-8"))
ALMOST_TEXT = st.lists(st.one_of(TEXT, st.binary(max_size=3))).map(b"".join)


def _written(pieces: Sequence[bytes]) -> list[str]:
    detokenizer = Detokenizer(Pieces(pieces))
    return [*(detokenizer.push(token_id) for token_id in range(len(pieces))), detokenizer.flush()]


@given(_cut(TEXT))
def test_any_cut_of_a_text_comes_back_whole_and_never_half_a_character(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    written = _written(pieces)
    assert "".join(written).encode("utf-8") == whole
    assert written[-1] == ""
    received = sent = b""
    for piece, text in zip(pieces, written, strict=False):
        received, sent = received + piece, sent + text.encode("utf-8")
        # What is held back is shorter than a character: nothing waits that could have been written.
        assert received.startswith(sent)
        assert len(received) - len(sent) < 4
        assert sent.decode("utf-8") == received.decode("utf-8", "ignore")


@given(_cut(ALMOST_TEXT))
def test_bytes_that_are_no_text_become_replacement_characters_wherever_they_are_cut(
    pieces: list[bytes],
) -> None:
    assert "".join(_written(pieces)) == b"".join(pieces).decode("utf-8", "replace")


def test_a_byte_that_cannot_continue_a_character_is_shown_at_once() -> None:
    assert _written([b"\xe4\xb8", b"a", b"\xe4"]) == ["", "\ufffda", "", "\ufffd"]


def test_after_the_end_a_new_text_can_begin() -> None:
    detokenizer = Detokenizer(Pieces([b"\xe4", b"a"]))
    assert [detokenizer.push(0), detokenizer.flush(), detokenizer.push(1)] == ["", "\ufffd", "a"]


@pytest.mark.parametrize(
    ("space_prefix", "starts_text", "expected"),
    [(True, True, "Hi there"), (True, False, " Hi there"), (False, True, " Hi there")],
)
def test_only_a_text_of_its_own_loses_the_one_space_put_before_it(
    space_prefix: bool, starts_text: bool, expected: str
) -> None:
    detokenizer = Detokenizer(Pieces([b" Hi", b" there"], space_prefix), starts_text=starts_text)
    assert detokenizer.push(0) + detokenizer.push(1) == expected


@pytest.mark.parametrize(
    ("ids", "expected"),
    [((-1, 0), "<s>Hi"), ((1, 2), "no space"), ((3, 0), "   Hi"), ((-1, 3, 0), "<s>   Hi")],
)
def test_the_space_is_looked_for_behind_bos_but_not_in_or_behind_other_tokens(
    ids: tuple[int, ...], expected: str
) -> None:
    pieces = Pieces([b" Hi", b"no", b" space", b"  "], space_prefix=True)
    assert "".join(map(Detokenizer(pieces, starts_text=True).push, ids)) == expected

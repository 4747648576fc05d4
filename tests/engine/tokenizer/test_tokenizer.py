"""Which tokens are read out of a text, where the space in front goes, and that nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import TokenizerError
from engine.tokenizer import Tokenizer
from tests.engine.tokenizer.vocabularies import CONTROL, UNKNOWN, UNUSED, USER_DEFINED, bpe, load, spm

SPECIALS = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "[UNK]": UNKNOWN, "<tag>": USER_DEFINED}
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ hello")
WORDS = {
    "▁": -5.0,
    "h": -6.0,
    "e": -7.0,
    "l": -8.0,
    "o": -9.0,
    "he": -1.0,
    "ll": -2.0,
    "hello": -3.0,
    "hell": -2.5,
}
SURROGATES = st.characters(categories=["Cs"])


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    fields = bpe(MERGES, SPECIALS, bos_token_id=261, eos_token_id=262)
    return load(tmp_path_factory.mktemp("bpe") / "bpe.gguf", fields)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    fields = spm(WORDS, SPECIALS | {"  ": USER_DEFINED, "": UNUSED})
    return load(tmp_path_factory.mktemp("spm") / "spm.gguf", fields)


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


def _texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in ids]


@given(text=st.text())
def test_decoding_gives_back_every_text(tokenizer: Tokenizer, text: str) -> None:
    # SentencePiece cannot tell its own sign for a space from a space.
    text = text.replace("▁", "_")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.lists(st.sampled_from([*SPECIALS, "hello", " ", "<", "é", "\0"])).map("".join))
def test_no_text_produces_a_control_token_unless_asked(tokenizer: Tokenizer, text: str) -> None:
    assert not set(tokenizer.encode(text)) & set(tokenizer.control_tokens.values())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    parsed = tokenizer.encode(text, parse_special=True)
    expected = [
        tokenizer.control_tokens[name]
        for name in SPECIALS
        if name != "<tag>"
        for _ in range(text.count(name))
    ]
    assert sorted(set(parsed) & set(tokenizer.control_tokens.values())) == sorted(set(expected))


@given(text=st.text(alphabet=st.one_of(SURROGATES, st.characters())))
def test_surrogates_that_make_no_character_become_replacement_characters(
    tokenizer: Tokenizer, text: str
) -> None:
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("▁", " ")
    assert tokenizer.decode(tokenizer.encode(text)) == expected


def test_user_defined_tokens_are_found_in_any_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("he<tag>ll", starts_text=False)
    assert _texts(tokenizer, ids) == ["he", "<tag>", "ll"]


def test_control_tokens_are_kinds_2_and_3_and_the_roles(tokenizer: Tokenizer) -> None:
    names = {"<|im_start|>", "<|im_end|>", "[UNK]"}
    if tokenizer.space_prefix:
        names |= {"<unk>", "<s>", "</s>"}
    assert set(tokenizer.control_tokens) == names


def test_a_turn_end_known_by_name_is_eot_and_stops(tokenizer: Tokenizer) -> None:
    assert tokenizer.eot_id == tokenizer.id_of("<|im_end|>")
    assert {tokenizer.eos_id, tokenizer.eot_id} == tokenizer.stop_ids


def test_a_named_turn_end_comes_before_a_known_name(tmp_path: Path) -> None:
    tokenizer = load(
        tmp_path / "v.gguf", bpe(MERGES, {"<|im_end|>": CONTROL, "<stop>": USER_DEFINED}, eot_token_id=262)
    )
    assert tokenizer.eot_id == tokenizer.id_of("<stop>") == 262
    assert tokenizer.stop_ids == {261, 262}
    assert "<stop>" in tokenizer.control_tokens
    assert 262 not in tokenizer.encode("<stop>")


def test_a_word_that_is_typed_like_a_control_token_stays_text_when_merges_are_ignored(tmp_path: Path) -> None:
    fields = bpe(MERGES, {"END": CONTROL, "hello!": USER_DEFINED}, pre="llama-bpe")
    tokenizer = load(tmp_path / "v.gguf", fields)
    assert _texts(tokenizer, tokenizer.encode("END")) == ["E", "N", "D"]
    assert tokenizer.encode("END", parse_special=True) == [261]


def test_the_space_in_front_is_put_once_and_taken_back(sentencepiece: Tokenizer) -> None:
    assert _texts(sentencepiece, sentencepiece.encode("hello")) == ["▁", "hello"]
    assert _texts(sentencepiece, sentencepiece.encode("hello", starts_text=False)) == ["hello"]
    ids = sentencepiece.encode("hello<|im_end|>hello", parse_special=True)
    assert _texts(sentencepiece, ids) == ["▁", "hello", "<|im_end|>", "hello"]
    assert sentencepiece.decode(ids) == "hello<|im_end|>hello"
    assert sentencepiece.encode("") == []


def test_bos_comes_before_the_space_in_front(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("hello", add_bos=True)
    assert _texts(sentencepiece, ids) == ["<s>", "▁", "hello"]
    assert sentencepiece.decode(ids) == "<s>hello"


def test_no_space_is_put_in_front_where_the_file_says_so(tmp_path: Path) -> None:
    tokenizer = load(tmp_path / "v.gguf", spm(WORDS, add_space_prefix=False))
    assert _texts(tokenizer, tokenizer.encode("hello")) == ["hello"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_characters_without_a_token_are_spelled_in_bytes(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("é\n", starts_text=False)
    assert _texts(sentencepiece, ids) == ["<0xC3>", "<0xA9>", "<0x0A>"]
    assert [sentencepiece.token_bytes(token_id) for token_id in ids] == [b"\xc3", b"\xa9", b"\n"]


def test_without_byte_tokens_an_unknown_character_becomes_unk(tmp_path: Path) -> None:
    fields = spm(WORDS) | {
        "tokens": ["<unk>", "<s>", "</s>", "▁", "h"],
        "scores": [0.0] * 5,
        "token_type": [2, 3, 3, 1, 1],
    }
    tokenizer = load(tmp_path / "v.gguf", fields)
    assert tokenizer.encode("hé", starts_text=False) == [4, 0]


def test_normal_tokens_are_byte_mapped_and_special_ones_are_plain_text(tmp_path: Path) -> None:
    tokenizer = load(tmp_path / "v.gguf", bpe(["Ġ a"], {"<Ġ>": USER_DEFINED}))
    assert tokenizer.token_bytes(tokenizer.id_of("Ġa") or -1) == b" a"
    assert tokenizer.token_bytes(tokenizer.id_of("<Ġ>") or -1) == "<Ġ>".encode()


@pytest.mark.parametrize("token_id", [-1, 1_000])
def test_an_id_outside_the_vocabulary_is_refused_by_number(tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(TokenizerError, match=f"token id {token_id} does not exist"):
        tokenizer.decode([token_id])


def test_bos_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    tokenizer = load(tmp_path / "v.gguf", bpe(MERGES, add_bos_token=True))
    assert not tokenizer.add_bos
    with pytest.raises(TokenizerError, match="names no BOS token"):
        tokenizer.encode("hello", add_bos=True)


@pytest.mark.parametrize("absent", [-1, 0xFFFF_FFFF])
def test_the_number_for_no_token_means_no_token(absent: int, tmp_path: Path) -> None:
    assert load(tmp_path / "v.gguf", bpe(MERGES, bos_token_id=absent)).bos_id is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (bpe(MERGES, {"<s>": CONTROL}, bos_token_id=261), False),
        (bpe(MERGES, {"<s>": CONTROL}, bos_token_id=261, pre="llama-bpe"), True),
        (bpe(MERGES, {"<s>": CONTROL}, bos_token_id=261, pre="llama-bpe", add_bos_token=False), False),
        (spm(WORDS), True),
        (spm(WORDS, add_bos_token=False), False),
    ],
)
def test_bos_is_added_as_the_file_or_the_kind_of_vocabulary_says(
    fields: dict[str, str], expected: bool, tmp_path: Path
) -> None:
    assert load(tmp_path / "v.gguf", fields).add_bos is expected


def test_kinds_may_be_missing(tmp_path: Path) -> None:
    fields = bpe(MERGES, {"<|im_end|>": CONTROL})
    del fields["token_type"]
    tokenizer = load(tmp_path / "v.gguf", fields)
    assert tokenizer.control_tokens == {"<|im_end|>": 261}
    assert tokenizer.decode(tokenizer.encode("hello <|im_end|>")) == "hello <|im_end|>"

"""Merges give the ids that the `tokenizers` library gives for the same merges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from engine.tokenizer import Tokenizer
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from tests.engine.tokenizer.vocabularies import ALPHABET, bpe, load

MERGES = ["a b", "b a", "ab ab", "b c", "a bc", "Ġ a", "a a", "aa aa", "abab a", "c c", "ab c", "Ġa b", "b a"]
"""Of overlapping pairs, with two that make the same token and one that is there twice."""


def library(merges: Sequence[str], pre: str) -> Library:
    tokens = dict.fromkeys([*ALPHABET, *(merge.replace(" ", "") for merge in merges)])
    ids = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    made = Library(models.BPE(ids, pairs, ignore_merges=PRE_TOKENIZERS[pre].ignore_merges))
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in PRE_TOKENIZERS[pre].patterns]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_of])
    return made


@pytest.fixture(scope="module", params=["gpt-2", "llama-bpe"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Library]:
    fields = bpe(MERGES, pre=request.param)
    fields["tokens"] = list(dict.fromkeys(fields["tokens"]))  # type: ignore[arg-type]
    fields["token_type"] = [1] * len(fields["tokens"])  # type: ignore[arg-type]
    ours = load(tmp_path_factory.mktemp("bpe") / "v.gguf", fields)
    return ours, library(MERGES, request.param)


@given(text=st.text("abc  xé文\n", max_size=60) | st.text(max_size=30))
def test_any_text_has_the_ids_of_the_library(pair: tuple[Tokenizer, Library], text: str) -> None:
    ours, theirs = pair
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_a_long_word_and_many_words_have_the_ids_of_the_library(
    pair: tuple[Tokenizer, Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.tokenizer.bpe._REMEMBERED", 500)  # fewer than there are words
    ours, theirs = pair
    words = [f"{'abcab'[: 1 + n % 5]}{'a' * (n // 5 % 7)}{'bc' * (n // 35)}" for n in range(1200)]
    for text in ("abcaab" * 2000, "a" * 5001, " ".join(words), " ".join(words[:100])):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_without_its_bytes_a_character_is_left_out_and_its_neighbours_merge(tmp_path: Path) -> None:
    fields = bpe(["a b"])
    fields["tokens"] = [*(letter for letter in ALPHABET if letter != "x"), "ab"]
    fields["token_type"] = [1] * len(fields["tokens"])
    tokenizer = load(tmp_path / "v.gguf", fields)
    assert tokenizer.encode("axb") == tokenizer.encode("ab") == [tokenizer.id_of("ab")]

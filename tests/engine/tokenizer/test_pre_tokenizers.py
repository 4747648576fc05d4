"""The table of expressions by name: known names cut as they should and lose nothing, others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import UnsupportedModelError
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from tests.engine.tokenizer.vocabularies import bpe, load, spm

TEXT = "It's WE'LL fooBar 12345 3.14\r\n\n  x=1; \t中文かな한글 naïve ÉCOLE ²ⅷ😀 (a|b) `c`\u3000。 \n"

LETTER_CASE = "fooBar12345"


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_known_name_builds_a_tokenizer_that_keeps_the_text(name: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path / "v.gguf", bpe(["a b"], pre=name))
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["fooBar", "12345"]),
        ("smollm", ["fooBar", "1", "2", "3", "4", "5"]),
        ("llama-bpe", ["fooBar", "123", "45"]),
        ("qwen2", ["fooBar", "1", "2", "3", "4", "5"]),
        ("tekken", ["foo", "Bar", "1", "2", "3", "4", "5"]),
        ("gpt-4o", ["foo", "Bar", "123", "45"]),
        ("deepseek-v3", ["fooBar", "123", "45"]),
    ],
)
def test_words_and_numbers_are_cut_as_the_name_says(name: str, expected: list[str], tmp_path: Path) -> None:
    # Merges that would join everything: only the expressions keep the pieces apart.
    text, merges = LETTER_CASE, [f"{LETTER_CASE[:i]} {LETTER_CASE[i]}" for i in range(1, len(LETTER_CASE))]
    for start in range(1, len(text) - 1):
        merges += [f"{text[start:end]} {text[end]}" for end in range(start + 1, len(text))]
    tokenizer = load(tmp_path / "v.gguf", bpe(merges, pre=name))
    assert [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text)] == expected


def test_a_missing_name_means_the_default(tmp_path: Path) -> None:
    fields = bpe(["1 2"])
    del fields["pre"]
    assert load(tmp_path / "v.gguf", fields).encode("12") == [256]


@pytest.mark.parametrize("name", ["no-such-name", "", "\x1b[2J"])
def test_an_unknown_name_is_refused_and_shown(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre is '") as caught:
        load(tmp_path / "v.gguf", bpe(["a b"], pre=name))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "no_vocab", ""])
def test_an_unknown_kind_of_vocabulary_is_refused_and_shown(model: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"tokenizer\.ggml\.model is '{model}'"):
        load(tmp_path / "v.gguf", spm({"a": 0.0}, model=model))

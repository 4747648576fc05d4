"""Which models may draft for which: the same ids must mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from gguf import GGUFWriter
from gguf.constants import TokenType

from engine.drafting.vocabulary import n_shared_ids
from engine.errors import TokenizerError
from engine.gguf import GGUFFile, open_gguf

WORDS = ["<s>", "a", "b", "c"]


def vocabulary(path: Path, tokens: Sequence[str], unused: Sequence[int] = ()) -> GGUFFile:
    """A file with nothing but these tokens, those of the ids given typed as unused."""
    writer = GGUFWriter(path, "llama")
    writer.add_token_list(list(tokens))
    writer.add_token_types(
        [TokenType.UNUSED if token_id in unused else TokenType.NORMAL for token_id in range(len(tokens))]
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return open_gguf(path)


def shared(tmp_path: Path, target: Sequence[str], draft: Sequence[str], unused: Sequence[int] = ()) -> int:
    return n_shared_ids(
        vocabulary(tmp_path / "target.gguf", target, unused),
        vocabulary(tmp_path / "draft.gguf", draft, unused),
    )


def test_the_same_tokens_are_shared(tmp_path: Path) -> None:
    assert shared(tmp_path, WORDS, WORDS) == 4


@pytest.mark.parametrize("padding", ["[PAD4]", "<unused4>", "[UNUSED4]", "<|reserved_special_token_4|>", ""])
def test_padding_may_be_longer_on_either_side(tmp_path: Path, padding: str) -> None:
    assert shared(tmp_path, [*WORDS, padding], WORDS) == 4
    assert shared(tmp_path, WORDS, [*WORDS, padding]) == 4


def test_what_the_file_calls_unused_is_padding(tmp_path: Path) -> None:
    assert shared(tmp_path, [*WORDS, "whatever"], WORDS, unused=[4]) == 4


def test_a_new_token_in_the_place_of_padding_is_no_difference(tmp_path: Path) -> None:
    assert shared(tmp_path, [*WORDS, "<think>", "[PAD5]"], [*WORDS, "[PAD4]", "<unused5>"]) == 6


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        shared(tmp_path, WORDS, ["<s>", "a", "x\x1b[2J", "d"])
    message = str(caught.value)
    assert "draft.gguf: it has another vocabulary than target.gguf" in message
    assert r"token 2 is 'x\x1b[2J' there and 'b' here" in message
    assert "\n" not in message
    assert "\x1b" not in message


@pytest.mark.parametrize("longer", ["target", "draft"])
def test_a_token_that_only_one_has_is_a_difference(tmp_path: Path, longer: str) -> None:
    target, draft = ([*WORDS, "d"], WORDS) if longer == "target" else (WORDS, [*WORDS, "d"])
    with pytest.raises(TokenizerError, match=r"token 4 is .*'d' .*none of its 4 tokens|none of its 4 .*'d'"):
        shared(tmp_path, target, draft)


@pytest.mark.model
def test_real_models_of_two_families_differ(smollm2_path: Path, gemma3_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"token 1 is '<eos>' there and '<.im_start.>'"):
        n_shared_ids(open_gguf(smollm2_path), open_gguf(gemma3_path))

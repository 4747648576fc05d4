"""Real vocabularies give exactly the ids of their makers' tokenizers, and back the text they came from."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest

from engine.gguf import open_gguf
from engine.tokenizer import Tokenizer, load_tokenizer

DATA = Path(__file__).parent / "data"
NAMES = ("llama-bpe", "llama-spm", "qwen2", "phi-3", "gpt-2", "deepseek-llm", "falcon", "starcoder")


def _cases(shared_data: Path) -> list[str]:
    # Bytes, not text: reading as text would turn \r\n into \n.
    data = (shared_data / "vocab" / "ggml-vocab-llama-bpe.gguf.inp").read_bytes()
    return data.decode("utf-8").split("\n__ggml_vocab_test__\n")


def _open(path: Path) -> Tokenizer:
    with open_gguf(path) as gguf:
        return load_tokenizer(gguf)


def _unpacked(shared_data: Path, name: str, folder: Path) -> Path:
    path = folder / f"{name}.gguf"
    with lzma.open(shared_data / "vocab" / f"ggml-vocab-{name}.gguf.xz") as packed, path.open("wb") as out:
        shutil.copyfileobj(packed, out)
    return path


def _check(tokenizer: Tokenizer, cases: list[str], expected: list[list[int]]) -> None:
    assert len(cases) == len(expected) == 47
    for text, ids in zip(cases, expected, strict=True):
        assert tokenizer.encode(text) == ids, repr(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", NAMES)
def test_a_known_vocabulary_gives_the_expected_ids_and_the_text_back(
    name: str, shared_data: Path, tmp_path: Path
) -> None:
    tokenizer = _open(_unpacked(shared_data, name, tmp_path))
    lines = (shared_data / "vocab" / f"ggml-vocab-{name}.gguf.out").read_text().split("\n")
    _check(tokenizer, _cases(shared_data), [[int(number) for number in line.split()] for line in lines])


@pytest.mark.model
def test_smollm2_gives_the_ids_of_llama_cpp(shared_data: Path, smollm2_path: Path) -> None:
    expected = json.loads((DATA / "smollm2.json").read_text())["ids"]
    _check(_open(smollm2_path), _cases(shared_data), expected)


@pytest.mark.model
def test_gemma3_gives_the_ids_of_llama_cpp(shared_data: Path, gemma3_path: Path) -> None:
    expected = json.loads((DATA / "gemma3.json").read_text())["ids"]
    _check(_open(gemma3_path), _cases(shared_data), expected)


@pytest.mark.model
def test_smollm2_reads_its_turn_markers_only_when_asked(smollm2_path: Path) -> None:
    tokenizer = _open(smollm2_path)
    marked = "<|im_start|>user\nHi<|im_end|>\n"
    assert tokenizer.encode(marked, parse_special=True) == [1, 4093, 198, 26843, 2, 198]
    assert not set(tokenizer.encode(marked)) & set(tokenizer.control_tokens.values())
    assert tokenizer.stop_ids == {0, 2}
    assert not tokenizer.add_bos


@pytest.mark.model
def test_gemma3_knows_its_roles_and_keeps_html_tags_for_text(gemma3_path: Path) -> None:
    tokenizer = _open(gemma3_path)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eot_id) == (2, 1, 106)
    assert tokenizer.stop_ids == {1, 106}
    assert tokenizer.add_bos
    # Not an end of text here, but the tag for struck-out text, which the model reads and writes as one token.
    assert tokenizer.encode("</s>") == [tokenizer.id_of("</s>")]
    assert tokenizer.encode("<end_of_turn>", parse_special=True) == [106]
    assert tokenizer.encode("<end_of_turn>") != [106]


def test_phi3_takes_no_end_of_text_from_what_was_typed(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = _open(_unpacked(shared_data, "phi-3", tmp_path))
    typed = tokenizer.encode("a</s>b<|end|>c<|endoftext|>")
    assert not set(typed) & tokenizer.stop_ids
    assert tokenizer.decode(typed) == "a</s>b<|end|>c<|endoftext|>"


def test_deepseek_finds_the_letters_that_it_defines_as_tokens(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = _open(_unpacked(shared_data, "deepseek-llm", tmp_path))
    ids = tokenizer.encode("søster")
    assert tokenizer.id_of("ø") in ids
    assert tokenizer.decode(ids) == "søster"

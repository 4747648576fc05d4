"""A damaged vocabulary is refused in one line, or works; nothing else ever comes out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError, GGUFError, TokenizerError
from tests.engine.tokenizer.vocabularies import CONTROL, USER_DEFINED, Fields, bpe, load, spm

BPE = bpe(["h e", "l l", "he ll"], {"<|im_end|>": CONTROL, "<tag>": USER_DEFINED}, bos_token_id=259)
SPM = spm({"▁": -1.0, "h": -2.0, "e": -3.0, "he": -0.5}, {"<tag>": USER_DEFINED})


def _without(fields: Fields, key: str) -> Fields:
    return {name: value for name, value in fields.items() if name != key}


def _set(fields: Fields, key: str, index: int, value: object) -> Fields:
    items = list(fields[key])  # type: ignore[arg-type]
    items[index] = value
    return fields | {key: items}


FAULTS = {
    "no kind of vocabulary": (_without(BPE, "model"), GGUFError, "model' is missing"),
    "no tokens": (_without(BPE, "tokens"), GGUFError, "tokens' is missing"),
    "tokens empty": (BPE | {"tokens": []}, TokenizerError, "tokens is empty"),
    "tokens are numbers": (BPE | {"tokens": [1, 2, 3]}, GGUFError, "INT32 items, not strings"),
    "tokens are one string": (BPE | {"tokens": "abc"}, GGUFError, "an array was expected"),
    "a token is not UTF-8": (_set(BPE, "tokens", 7, "\udcff"), GGUFError, "item 7"),
    "a token twice": (_set(BPE, "tokens", 9, "<tag>"), TokenizerError, "'<tag>' twice, as 9 and as 260"),
    "too few kinds": (BPE | {"token_type": [1, 2]}, TokenizerError, "token_type has 2 items for 261 tokens"),
    "kinds are numbers with a point": (BPE | {"token_type": [1.0] * 261}, TokenizerError, "FLOAT32 items"),
    "kinds are strings": (BPE | {"token_type": ["1"] * 261}, GGUFError, "STRING items, not numbers"),
    "an unknown kind": (_set(BPE, "token_type", 3, 7), TokenizerError, "token_type is 7 for token 3"),
    "a byte that is none": (_set(SPM, "tokens", 20, "<0xZZ>"), TokenizerError, "token 20 is typed as a byte"),
    "an id too large": (BPE | {"eos_token_id": 261}, TokenizerError, "eos_token_id is 261, but"),
    "a negative id": (BPE | {"bos_token_id": -7}, TokenizerError, "bos_token_id is -7"),
    "an id that is text": (BPE | {"eos_token_id": "2"}, GGUFError, "an integer was expected"),
    "no merges": (_without(BPE, "merges"), GGUFError, "merges' is missing"),
    "merges are numbers": (BPE | {"merges": [1]}, GGUFError, "INT32 items, not strings"),
    "a merge of an unknown token": (_set(BPE, "merges", 1, "l zz"), TokenizerError, "item 1 of"),
    "a merge to an unknown token": (_set(BPE, "merges", 1, "l h"), TokenizerError, "'l h'"),
    "a merge of one": (_set(BPE, "merges", 0, "he"), TokenizerError, "'he'"),
    "a merge with control characters": (_set(BPE, "merges", 0, "\x1b[2J\n"), TokenizerError, r"'\x1b[2J\n'"),
    "a merge that makes a control token": (
        BPE | {"tokens": [*BPE["tokens"], "hh"], "token_type": [*BPE["token_type"], 3], "merges": ["h h"]},
        TokenizerError,
        "'h h'",
    ),
    "no scores": (_without(SPM, "scores"), GGUFError, "scores' is missing"),
    "too few scores": (SPM | {"scores": [1.0]}, TokenizerError, "scores has 1 items for 264 tokens"),
    "scores are strings": (SPM | {"scores": ["a"] * 264}, GGUFError, "STRING items, not numbers"),
    "a score that is no number": (_set(SPM, "scores", 5, float("nan")), TokenizerError, "nan for token 5"),
    "no unknown token": (SPM | {"unknown_token_id": -1}, TokenizerError, "unknown_token_id is missing"),
    "a flag that is a number": (SPM | {"add_space_prefix": 1}, GGUFError, "a boolean was expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_that_names_file_place_and_value(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fields, error, message = FAULTS[name]
    with pytest.raises(error) as caught:
        load(tmp_path / "damaged.gguf", fields)
    assert message in str(caught.value)
    assert "damaged.gguf: " in str(caught.value)
    assert "; the file is damaged" in str(caught.value)
    assert str(caught.value).isprintable()
    assert capfd.readouterr() == ("", "")


WORD = st.one_of(
    st.text(max_size=4), st.sampled_from(["", "▁", "h e", "a  b", "<0x41>", "<0xG1>", "\0", "Ġ", "<tag>"])
)
NUMBER = st.one_of(st.integers(-3, 300), st.integers(-(2**31), 2**31 - 1))
VALUE = st.one_of(
    WORD,
    st.booleans(),
    NUMBER,
    st.lists(WORD, max_size=5),
    st.lists(NUMBER, max_size=5),
    st.lists(st.floats(width=32)),
)
KEYS = (
    "bos_token_id",
    "eos_token_id",
    "eot_token_id",
    "unknown_token_id",
    "add_bos_token",
    "add_space_prefix",
    "pre",
)


@st.composite
def _damaged(draw: st.DrawFn) -> Fields:
    fields = dict(draw(st.sampled_from([BPE, SPM])))
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from([*fields, *KEYS]))
        old = fields.get(key)
        if not isinstance(old, list | tuple) or draw(st.booleans()) or not old:
            fields[key] = draw(VALUE)
            continue
        items = list(old)
        index = draw(st.integers(0, len(items) - 1))
        damage = draw(st.sampled_from(["drop", "cut", "again", "replace"]))
        if damage == "drop":
            del items[index]
        elif damage == "cut":
            del items[index:]
        elif damage == "again":
            items.append(items[index])
        elif isinstance(items[index], str):
            items[index] = draw(WORD)
        elif isinstance(items[index], float):
            items[index] = draw(st.floats(width=32))
        else:
            items[index] = draw(st.one_of(st.integers(1, 6), NUMBER))
        fields[key] = items
    return fields


@settings(max_examples=300, deadline=None)
@given(_damaged())
def test_whatever_the_damage_loading_refuses_in_one_line_or_gives_a_working_tokenizer(
    tmp_path_factory: pytest.TempPathFactory, fields: Fields
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.gguf"
    try:
        tokenizer = load(path, fields)
    except EngineError as error:
        assert str(error).isprintable()
        return
    for special in (False, True):
        ids = tokenizer.encode("hell <tag> é\n<|im_end|>", parse_special=special)
        assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
        tokenizer.decode(ids)
    tokenizer.decode(range(tokenizer.vocab_size))

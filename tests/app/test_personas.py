"""Persona files: read, written in one step, and left alone where they are faulty."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import app.personas as personas
from app.personas import (
    Persona,
    delete_persona,
    find_persona,
    load_personas,
    model_problem,
    personas_dir,
    read_persona,
    save_persona,
)
from app.sampling_fields import checked_overrides
from engine import SamplingParams

OVERRIDES = st.fixed_dictionaries(
    {},
    optional={"temperature": st.floats(0, 5), "top_k": st.integers(0, 1000), "seed": st.integers(0, 2**60)},
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def own(folder: Path) -> list[Persona]:
    return [persona for persona in load_personas(folder)[0] if persona.path is not None]


def test_examples_come_along_and_are_sound() -> None:
    found, problems = load_personas(Path("no such folder"))
    assert len(found) == 3
    assert not problems
    for persona in found:
        assert persona.system and persona.note and checked_overrides(persona.sampling)
        assert "\n" not in persona.note


def test_what_is_left_out_is_left_to_others(tmp_path: Path) -> None:
    (tmp_path / "plain one.toml").write_text("[sampling]\ntemperature = 1\n")
    (persona,) = own(tmp_path)
    assert persona == Persona("plain one", sampling={"temperature": 1}, path=tmp_path / "plain one.toml")
    assert persona.drawn(SamplingParams(top_k=7)) == SamplingParams(temperature=1, top_k=7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("systm = 'x'", "unknown key 'systm'"),
        ("system = 3", "system must be text in quotes"),
        ("sampling = 3", "sampling must be a table"),
        ("[sampling]\ntop_p = 9", "sampling: top_p is 9"),
        ("[sampling]\ntopp = 9", "sampling: unknown key 'topp'"),
        ("[sampling]\ntop_k = true", "sampling: top_k must be a number"),
        ("name = 'good'", "name = 'good' is that of another file"),
        ("= broken", "Invalid"),
        ("note = '" + "x" * (1 << 20) + "'", "longer than 1 MB"),
    ],
)
def test_a_faulty_file_is_one_line_and_the_others_work(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "good.toml").write_text("system = 'fine'")
    (tmp_path / "wrong.toml").write_text(text)
    (persona,) = own(tmp_path)
    problems = load_personas(tmp_path)[1]
    assert persona.name == "good"
    assert len(problems) == 1
    assert problems[0].startswith("persona wrong.toml: ") and words in problems[0]
    assert (tmp_path / "wrong.toml").read_text() == text


def test_a_folder_in_place_of_a_file_is_a_problem_too(tmp_path: Path) -> None:
    (tmp_path / "odd.toml").mkdir()
    assert load_personas(tmp_path)[1][0].startswith("persona odd.toml: ")


@given(TEXT, TEXT, TEXT, TEXT, OVERRIDES)
def test_what_is_saved_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    system: str,
    note: str,
    model: str,
    sampling: dict[str, float],
) -> None:
    folder = tmp_path_factory.mktemp("personas")
    persona = Persona(name, system, sampling, model, note)
    try:
        saved = save_persona(folder, persona)
    except ValueError:
        assert not list(folder.iterdir())
        return
    assert saved.path is not None and saved.path.parent == folder
    assert read_persona(saved.path) == saved
    system, note, model = (text.replace("\r\n", "\n").replace("\r", "\n") for text in (system, note, model))
    assert saved == Persona(saved.name, system, sampling, model, note, saved.path)
    assert [file.name for file in folder.iterdir()] == [saved.path.name]


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("Rust: ../../etc/passwd", "rust-etc-passwd"),
        ("CON", "persona-con"),
        ("...", "persona"),
        ("日本語の先生", "日本語の先生"),
        ("x" * 300, "x" * 80),
        ("語" * 300, "語" * 26),
    ],
)
def test_names_make_safe_file_names(tmp_path: Path, name: str, stem: str) -> None:
    assert save_persona(tmp_path, Persona(name)).path == tmp_path / f"{stem}.toml"


def test_two_names_may_make_the_same_file_name(tmp_path: Path) -> None:
    one = save_persona(tmp_path, Persona("a b"))
    other = save_persona(tmp_path, Persona("a-b"))
    assert [one.path, other.path] == [tmp_path / "a-b.toml", tmp_path / "a-b-2.toml"]
    assert save_persona(tmp_path, replace(other, note="n")).path == other.path
    assert {persona.name for persona in own(tmp_path)} == {"a b", "a-b"}


def test_a_renamed_persona_has_one_file(tmp_path: Path) -> None:
    saved = save_persona(tmp_path, Persona("before", "text"))
    renamed = save_persona(tmp_path, replace(saved, name="after"))
    assert renamed.path == tmp_path / "after.toml"
    assert own(tmp_path) == [renamed]


def test_a_crash_while_renaming_leaves_one_whole_persona(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save_persona(tmp_path, Persona("before", "text"))

    def crash(*_: object) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(personas.os, "rename", crash)
    with pytest.raises(OSError, match="power cut"):
        save_persona(tmp_path, replace(saved, name="after"))
    (left,) = own(tmp_path)
    assert (left.name, left.system) == ("after", "text")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = save_persona(tmp_path, Persona("keep", "old"))

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(personas.os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        save_persona(tmp_path, replace(saved, system="new"))
    assert own(tmp_path) == [saved]
    assert len(list(tmp_path.iterdir())) == 1


def test_names_are_neither_empty_nor_taken(tmp_path: Path) -> None:
    save_persona(tmp_path, Persona("Taken"))
    for name in ("", "  ", "\n", "taken"):
        with pytest.raises(ValueError, match=r"name|called taken"):
            save_persona(tmp_path, Persona(name))
    assert len(own(tmp_path)) == 1


def test_an_own_persona_stands_in_for_an_example_until_it_is_deleted(tmp_path: Path) -> None:
    example = load_personas(tmp_path)[0][0]
    saved = save_persona(tmp_path, replace(example, system="mine"))
    assert load_personas(tmp_path)[0][0] == saved
    delete_persona(saved)
    delete_persona(saved)
    assert load_personas(tmp_path)[0][0] == example


def test_a_path_that_is_no_utf_8_survives(tmp_path: Path) -> None:
    model = os.fsdecode(b"/models/\xff.gguf")
    saved = save_persona(tmp_path, Persona("p", model=model))
    assert saved.path is not None
    assert read_persona(saved.path).model == model


@pytest.mark.parametrize("model", ["", "Qwen/qwen3-8b", "qwen3-8b", "QWEN3", " qwen/ "])
def test_a_model_that_is_found_is_no_problem(model: str) -> None:
    assert model_problem(Persona("p", model=model), ["Qwen/qwen3-8b"]) == ""


def test_a_missing_model_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    persona = Persona("Re\x1b[31mviewer", model=str(file))
    line = model_problem(persona, ["qwen"])
    assert "there is no model" in line and str(file) in line
    assert "\x1b" not in line and "\n" not in line
    file.touch()
    assert model_problem(persona, []) == ""


def test_personas_are_found_by_the_start_of_a_name() -> None:
    some = [Persona("Rust"), Persona("Rust reviewer"), Persona("Poet")]
    assert find_persona(some, "rust") == some[0]
    assert find_persona(some, "PO") == some[2]
    assert find_persona(some, "rus") is None
    assert find_persona(some, "") is None


def test_they_lie_in_the_settings_folder(home: Path) -> None:
    assert personas_dir() == home / "tiercel" / "config" / "personas"

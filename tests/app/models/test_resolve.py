from __future__ import annotations

from pathlib import Path

import pytest

from app.models import resolve_model
from engine import ModelNotFoundError


@pytest.fixture
def models(home: Path) -> Path:
    folder = home / "tiercel" / "data" / "models"
    for name in (
        "smollm2.gguf",
        "smollm3.gguf",
        "acme/Tiny-Q4.gguf",
        "acme/Tiny-Q8.gguf",
        "acme/smollm2.gguf",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"G")
    return folder


def test_a_path_is_taken_as_it_is(models: Path) -> None:
    path = models / "smollm3.gguf"
    assert resolve_model(str(path)) == path


def test_a_tilde_means_the_home_folder(models: Path) -> None:
    assert resolve_model("~/tiercel/data/models/smollm3.gguf") == models / "smollm3.gguf"


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("smollm2", "smollm2.gguf"),
        ("smollm3", "smollm3.gguf"),
        ("SMOLLM3", "smollm3.gguf"),
        ("acme/smollm2", "acme/smollm2.gguf"),
        ("acme/s", "acme/smollm2.gguf"),
        ("tiny-q4", "acme/Tiny-Q4.gguf"),
        ("tiny-q8", "acme/Tiny-Q8.gguf"),
    ],
)
def test_a_name_or_the_start_of_one_is_enough(models: Path, text: str, file: str) -> None:
    assert resolve_model(text) == models / file


@pytest.mark.parametrize("text", ["tiny", "smol", "acme/"])
def test_the_start_of_several_names_is_refused_with_the_names(models: Path, text: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"means \d models: '.*type more of the name"):
        resolve_model(text)


def test_equal_names_are_told_apart_by_their_paths(models: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "smollm3.gguf").write_bytes(b"G")
    with pytest.raises(ModelNotFoundError, match=r"other/smollm3\.gguf"):
        resolve_model("smollm3", [tmp_path / "other"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no model called ''"),
        ("nothing", "tiercel pull smollm2"),
        ("nothing.gguf", "no file 'nothing.gguf'"),
        ("./nothing", "no file"),
        ("a\x00b", "no model called"),
        ("\x1b[31mred\n", "no model called"),
        ("~no such account/x.gguf", "no file"),
    ],
)
def test_what_is_not_there_is_named_in_one_clear_line(models: Path, text: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message) as error:
        resolve_model(text)
    assert str(error.value).isprintable()


def test_a_folder_is_refused_as_one(models: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is a folder"):
        resolve_model(str(models))

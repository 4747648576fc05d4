"""Settings survive the round trip; a faulty file costs its faulty keys and no more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.settings import Settings, SettingsFile, load_settings, save_settings
from engine import SamplingParams


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    settings = Settings(
        theme="chalk",
        last_model=Path(os.fsdecode(b"/m/\xff.gguf")),  # a name that is not UTF-8
        model_folders=(Path("/a"), Path("/b")),
        context=2048,
        system="Be brief.\nAlways.",
        sampling=SamplingParams(temperature=0.0, seed=7),
    )
    save_settings(settings, tmp_path / "new" / "settings.toml")
    assert load_settings(tmp_path / "new" / "settings.toml") == (settings, [])


def test_a_missing_file_means_defaults(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "none.toml") == (Settings(), [])


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("theme = 3", "theme"),
        ("context = 0", "context"),
        ("context = true", "context"),
        ("model_folders = 'x'", "model_folders"),
        ("colour = 'red'", "colour"),
        ("[sampling]\ntemperature = -1", "temperature"),
        ("[sampling]\nheat = 1", "heat"),
        ("[sampling]\ntop_k = 'many'", "top_k"),
        ("[sampling]\ntop_k = 4.5", "top_k"),
        ("[sampling]\nseed = 4.5", "seed"),
    ],
)
def test_a_bad_key_is_named_and_the_others_hold(tmp_path: Path, line: str, named: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f"system = 'kept'\n{line}\n")
    settings, problems = load_settings(path)
    assert settings == Settings(system="kept")
    assert len(problems) == 1
    assert named in problems[0]


def test_a_home_folder_that_is_unknown_stays_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("last_model = '~no such account/x.gguf'")
    assert load_settings(path) == (Settings(last_model=Path("~no such account/x.gguf")), [])


def test_a_file_that_cannot_be_read_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("theme = ")
    file = SettingsFile(path)
    assert "cannot be read" in file.problems[0]
    file.change(theme="fjord")
    file.save()
    assert (tmp_path / "settings.toml.bak").read_text() == "theme = "
    assert load_settings(path)[0].theme == "fjord"


def test_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "settings.toml")
    file.change(theme=file.values.theme)
    file.save()
    assert not file.path.exists()


def test_a_failed_write_leaves_the_old_file_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settings.toml"
    save_settings(Settings(theme="old"), path)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_settings(Settings(theme="new"), path)
    assert load_settings(path)[0].theme == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["settings.toml"]

"""Settings survive the round trip; a faulty file costs its faulty keys and no more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.model_settings import ModelSettings
from app.setting_kinds import Choice, Folders, Memory, Number, Text
from app.settings import (
    ENTRIES,
    Settings,
    SettingsFile,
    load_settings,
    save_settings,
    words,
)
from engine import DraftKind, KVType, Overflow, SamplingParams, parse_budget, parse_skip


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    settings = Settings(
        theme="chalk",
        last_model=Path(os.fsdecode(b"/m/\xff.gguf")),  # a name that is not UTF-8
        model_folders=(Path("/a"), Path("/b")),
        context=2048,
        system="Be brief.\nAlways.",
        sampling=SamplingParams(temperature=0.0, seed=7),
        language="zh",
        overflow=Overflow.STOP,
        unload_after_min=30,
        tiers="strip",
        reduced_motion=True,
        welcomed=True,
        greedy=True,
        persona="engineer",
        copy="osc52",
        ram_budget=parse_budget("50%"),
        device="cuda:1",
        vram_budget=parse_budget("20G"),
        kv_type=KVType.Q8_0,
        models={
            os.fsdecode(b"/m/\xff.gguf"): ModelSettings(4096, parse_budget("8G"), False),
            "/m/c.gguf": ModelSettings(device="auto", vram_budget=parse_budget("80%"), kv_type=KVType.F16),
            "/m/b.gguf": ModelSettings(greedy=True),
            "/m/d.gguf": ModelSettings(
                skip=parse_skip("blk.10-12,blk.20.attn"),
                draft=DraftKind.MODEL,
                draft_k=4,
                exit_layer=8,
                draft_model=Path(os.fsdecode(b"/m/\xff.gguf")),
            ),
        },
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
        ("language = 'fr'", "language"),
        ("overflow = 'explode'", "overflow"),
        ("tiers = true", "tiers"),
        ("greedy = 1", "greedy"),
        ("unload_after_min = -1", "unload_after_min"),
        ("copy = 'xclip'", "copy"),
        ("models = 3", "models"),
        ("ram_budget = 'much'", "ram_budget"),
        ("device = 'gpu'", "device"),
        ("device = 1", "device"),
        ("vram_budget = 20", "vram_budget"),
        ("kv_type = 'q4_0'", "kv_type"),
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


def test_what_could_not_be_saved_is_saved_by_the_next_try(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.write_text("in the way")
    file = SettingsFile(folder / "settings.toml")
    file.change(greedy=True)
    with pytest.raises(OSError):
        file.save()
    folder.unlink()
    file.save()
    assert load_settings(folder / "settings.toml")[0].greedy


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


def test_a_bad_key_of_one_model_is_named_and_all_others_hold(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(
        "[models.'/m/a.gguf']\ncontext = 0\ngreedy = true\nheat = 3\n[models.'/m/b.gguf']\ncontext = 512\n"
    )
    settings, problems = load_settings(path)
    assert settings.models == {"/m/a.gguf": ModelSettings(greedy=True), "/m/b.gguf": ModelSettings(512)}
    assert len(problems) == 2
    assert all("/m/a.gguf" in problem for problem in problems)
    assert "context" in problems[0]
    assert "heat" in problems[1]


def test_a_model_without_choices_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    save_settings(Settings(models={"/m/a.gguf": ModelSettings()}), path)
    assert "models." not in path.read_text()
    assert load_settings(path) == (Settings(), [])


def test_every_default_can_be_written_and_read(tmp_path: Path) -> None:
    save_settings(Settings(), tmp_path / "settings.toml")
    assert load_settings(tmp_path / "settings.toml") == (Settings(), [])


def test_every_shown_setting_has_words_and_the_translator_gets_all() -> None:
    shown = [entry for entry in ENTRIES.values() if entry.label]
    assert {"theme", "language", "overflow", "copy"} <= {name for name in ENTRIES if ENTRIES[name].label}
    assert all(entry.help and entry.group for entry in shown)
    everything = words()
    assert len(set(everything)) == len(everything)
    assert all(entry.label in everything and entry.help in everything for entry in shown)
    assert {"drop the oldest turns", "minutes", "automatic"} <= set(everything)


@given(st.text())
def test_a_text_survives_being_shown_on_one_line(text: str) -> None:
    kind = Text()
    assert kind.parse(kind.shown(text)) == text
    assert "\n" not in kind.shown(text)


@given(st.integers(1, 1 << 24) | st.none())
def test_a_number_survives_being_shown(number: int | None) -> None:
    kind = Number(1, 1 << 24, "", "automatic")
    assert kind.parse(kind.shown(number)) == number


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "9" * 5000, "٣x", "²", "16777217"])
def test_a_number_outside_its_limits_says_what_they_are(text: str) -> None:
    with pytest.raises(TypeError, match="16,777,216"):
        Number(1, 1 << 24, "", "automatic").parse(text)


def test_a_number_without_a_meaning_of_nothing_must_be_given() -> None:
    with pytest.raises(TypeError, match="10"):
        Number(0, 10).parse("")
    assert Number(0, 1 << 24).parse(" 2,048 ") == 2048


def test_folders_must_be_there(tmp_path: Path) -> None:
    kind = Folders()
    folders = (tmp_path, Path("/"))
    assert kind.parse(kind.shown(folders)) == folders
    assert kind.parse(" ") == ()
    with pytest.raises(ValueError, match="no such place"):
        kind.parse("/no such place")


def test_memory_is_read_as_everywhere() -> None:
    assert Memory().parse("8G") == parse_budget("8G")
    assert Memory().parse("") is None


def test_a_choice_tells_true_from_one() -> None:
    with pytest.raises(TypeError, match="must be one of"):
        Choice({False: "off", True: "on"}).read(1)

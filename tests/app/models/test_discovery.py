from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.models import Origin, discover
from engine import EngineError


def _write(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"G" * size)
    return path


def _write_ollama(root: Path, manifest: str, layers: object, blob: str | None = None) -> None:
    path = root / "manifests" / manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"layers": layers}))
    if blob:
        _write(root / "blobs" / f"sha256-{blob}", 7)


def _layer(digest: str) -> dict[str, str]:
    return {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}


def test_an_empty_machine_has_no_models() -> None:
    assert discover() == []


def test_our_own_folder_is_found_with_names_below_it(home: Path) -> None:
    own = home / "tiercel" / "data" / "models"
    _write(own / "a.gguf", 3)
    _write(own / "sub" / "B.GGUF", 4)
    _write(own / "notes.txt")
    assert [(m.name, m.size, m.origin) for m in discover()] == [
        ("a", 3, Origin.OWN),
        ("sub/B", 4, Origin.OWN),
    ]


def test_tiercel_models_replaces_our_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERCEL_MODELS", str(tmp_path / "elsewhere"))
    _write(tmp_path / "elsewhere" / "x.gguf")
    assert [m.name for m in discover()] == ["x"]


def test_an_account_without_a_home_folder_needs_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert discover() == []
    monkeypatch.delenv("TIERCEL_HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with pytest.raises(EngineError, match="no home folder: set TIERCEL_HOME"):
        discover()


def test_folders_from_the_settings_and_the_environment_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "one" / "a.gguf")
    _write(tmp_path / "two" / "b.gguf")
    monkeypatch.setenv("TIERCEL_MODEL_FOLDERS", f"{tmp_path / 'two'}:{tmp_path / 'missing'}")
    assert [(m.name, m.origin) for m in discover([tmp_path / "one"])] == [
        ("a", Origin.FOLDER),
        ("b", Origin.FOLDER),
    ]


def test_folders_in_the_settings_file_are_searched_unless_others_are_given(
    home: Path, tmp_path: Path
) -> None:
    _write(tmp_path / "f" / "a.gguf")
    settings = home / "tiercel" / "config" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"model_folders = ['{tmp_path / 'f'}']")
    assert [m.name for m in discover()] == ["a"]
    assert discover([]) == []


def test_hugging_face_snapshots_are_named_by_repository_and_file(home: Path) -> None:
    hub = home / ".cache" / "huggingface" / "hub"
    blob = _write(hub / "models--acme--tiny-GGUF" / "blobs" / "abc", 5)
    link = hub / "models--acme--tiny-GGUF" / "snapshots" / "0123" / "q4" / "tiny.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    (link.parent / "dangling.gguf").symlink_to(hub / "nowhere")
    assert [(m.name, m.path, m.size) for m in discover()] == [("acme/tiny-GGUF/q4/tiny", link, 5)]


def test_a_blob_shared_by_two_snapshots_is_listed_once(home: Path) -> None:
    hub = home / ".cache" / "huggingface" / "hub" / "models--acme--tiny"
    blob = _write(hub / "blobs" / "abc")
    for revision in ("1", "2"):
        link = hub / "snapshots" / revision / "tiny.gguf"
        link.parent.mkdir(parents=True)
        link.symlink_to(blob)
    assert len(discover()) == 1


def test_ollama_blobs_are_named_by_their_manifests(home: Path) -> None:
    root = home / ".ollama" / "models"
    _write_ollama(root, "registry.ollama.ai/library/llama3/8b", [_layer("a" * 64)], "a" * 64)
    _write_ollama(root, "registry.ollama.ai/jo/llama3/latest", [_layer("b" * 64)], "b" * 64)
    _write_ollama(root, "hf.co/jo/tiny/q4", [_layer("c" * 64)], "c" * 64)
    names = {m.name: m.path.name for m in discover()}
    assert names == {
        "llama3:8b": f"sha256-{'a' * 64}",
        "jo/llama3:latest": f"sha256-{'b' * 64}",
        "hf.co/jo/tiny:q4": f"sha256-{'c' * 64}",
    }


@pytest.mark.parametrize(
    "layers",
    [None, 3, [], [{}], [3], [_layer("../../../etc/passwd")], [_layer("d" * 64)]],
)
def test_a_broken_or_hostile_ollama_manifest_is_passed_over(home: Path, layers: object) -> None:
    _write_ollama(home / ".ollama" / "models", "registry.ollama.ai/library/m/latest", layers)
    assert discover() == []


def test_lm_studio_folder_is_found(home: Path) -> None:
    _write(home / ".lmstudio" / "models" / "acme" / "tiny" / "tiny.gguf")
    assert [(m.name, m.origin) for m in discover()] == [("acme/tiny/tiny", Origin.LM_STUDIO)]


def test_a_split_model_is_listed_once_with_the_size_of_all_parts(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        _write(tmp_path / "split" / f"big-0000{number}-of-00003.gguf", number)
    _write(tmp_path / "split" / "big-00001-of-00002.gguf", 100)
    found = discover([tmp_path / "split"])
    assert [(m.name, m.path.name, m.size) for m in found] == [
        ("big", "big-00001-of-00002.gguf", 100),
        ("big", "big-00001-of-00003.gguf", 6),
    ]


def test_image_projectors_are_not_models(tmp_path: Path) -> None:
    _write(tmp_path / "f" / "mmproj-model-f16.gguf")
    assert discover([tmp_path / "f"]) == []


def test_very_deep_folders_are_not_walked(tmp_path: Path) -> None:
    deep = tmp_path / "f" / "/".join("abcdefghij")
    _write(deep / "m.gguf")
    assert discover([tmp_path / "f"]) == []

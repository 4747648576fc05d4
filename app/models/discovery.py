"""Find GGUF files in the usual places: ours, the person's folders, Hugging Face, Ollama, LM Studio.

Knows folder layouts and names; opens no model file and does not know what is inside one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app import locations
from app.settings import load_settings

_MAX_DEPTH = 6
_MAX_MANIFEST_BYTES = 1 << 20
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OLLAMA_MODEL_LAYER = "application/vnd.ollama.image.model"


class Origin(StrEnum):
    """Which place a model file was found in."""

    OWN = "tiercel"
    FOLDER = "folder"
    HUGGING_FACE = "hugging face"
    OLLAMA = "ollama"
    LM_STUDIO = "lm studio"


@dataclass(frozen=True, slots=True)
class FoundModel:
    """One GGUF file on this machine; the name and the path are untrusted text."""

    name: str
    """What a person types: the path below its folder without `.gguf`, or Ollama's `model:tag`."""
    path: Path
    """The file; for a split model the first part."""
    size: int
    """Bytes, all parts of a split model included."""
    origin: Origin
    """Where it was found."""


def discover(folders: Sequence[Path] | None = None) -> list[FoundModel]:
    """Return every model file found, our own first; a file reached in two ways is listed once.

    `folders` are the person's own, None takes them from the settings file; TIERCEL_MODEL_FOLDERS (separated
    like PATH) adds more. Folders that are missing or unreadable are passed over.
    """
    if folders is None:
        folders = load_settings(locations.settings_file())[0].model_folders
    found: list[FoundModel] = []
    seen: set[str] = set()
    for model in _everywhere(folders):
        real = os.path.realpath(model.path)
        if real not in seen:
            seen.add(real)
            found.append(model)
    return found


def _everywhere(folders: Sequence[Path]) -> Iterator[FoundModel]:
    yield from _in_folder(locations.models_dir(), Origin.OWN)
    for folder in (*folders, *_folders_from_environment()):
        yield from _in_folder(folder, Origin.FOLDER)
    yield from _in_hugging_face_cache(_hugging_face_hub())
    for root in _ollama_roots():
        yield from _in_ollama_store(root)
    for place in ("~/.lmstudio/models", "~/.cache/lm-studio/models"):
        yield from _in_folder(locations.expanded(place), Origin.LM_STUDIO)


def _folders_from_environment() -> list[Path]:
    value = os.environ.get("TIERCEL_MODEL_FOLDERS", "")
    return [locations.expanded(part) for part in value.split(os.pathsep) if part]


def _in_folder(folder: Path, origin: Origin) -> Iterator[FoundModel]:
    for path in _gguf_files(folder):
        yield from _model(path.relative_to(folder).as_posix(), path, origin)


def _gguf_files(folder: Path) -> Iterator[Path]:
    """Walk `folder` in name order, links to folders not followed, at most `_MAX_DEPTH` levels deep."""
    base = len(folder.parts)
    for where, subfolders, names in os.walk(folder):
        here = Path(where)
        subfolders[:] = sorted(subfolders) if len(here.parts) - base < _MAX_DEPTH else []
        yield from (here / name for name in sorted(names) if name.lower().endswith(".gguf"))


def _model(name: str, path: Path, origin: Origin) -> Iterator[FoundModel]:
    """Yield the model at `path`, unless it is a later part of a split model or an image projector."""
    stem = name[:-5] if name.lower().endswith(".gguf") else name
    split = _SPLIT.search(stem)
    if path.name.lower().startswith("mmproj") or (split and int(split[1]) != 1):
        return
    parts = [path]
    if split:
        stem = stem[: split.start()]
        first = len(path.name) - len("00001-of-00001.gguf")
        parts = [
            path.with_name(f"{path.name[:first]}{number:05}-of-{split[2]}{path.name[-5:]}")
            for number in range(1, int(split[2]) + 1)
        ]
    try:
        size = sum(part.stat().st_size for part in parts if part == path or part.exists())
    except OSError:  # a dangling link, or removed while we looked
        return
    yield FoundModel(stem, path, size, origin)


def _hugging_face_hub() -> Path:
    """Folder of downloaded repositories, by huggingface_hub's documented variables."""
    environment = os.environ
    if hub := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return locations.expanded(hub)
    if home := environment.get("HF_HOME"):
        return locations.expanded(home) / "hub"
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return locations.expanded(cache) / "huggingface" / "hub"


def _in_hugging_face_cache(hub: Path) -> Iterator[FoundModel]:
    """Read `models--OWNER--NAME/snapshots/REVISION/...`; names become OWNER/NAME/file."""
    for snapshots in sorted(hub.glob("models--*/snapshots")):
        repository = snapshots.parent.name.removeprefix("models--").replace("--", "/")
        for path in _gguf_files(snapshots):
            inside = path.relative_to(snapshots).as_posix().partition("/")[2]
            yield from _model(f"{repository}/{inside}", path, Origin.HUGGING_FACE)


def _ollama_roots() -> list[Path]:
    if root := os.environ.get("OLLAMA_MODELS"):
        return [locations.expanded(root)]
    # The second is where the Linux service, which runs under an account of its own, keeps them.
    return [locations.expanded("~/.ollama/models"), Path("/usr/share/ollama/.ollama/models")]


def _in_ollama_store(root: Path) -> Iterator[FoundModel]:
    """Read `manifests/HOST/OWNER/MODEL/TAG`, each of which names the blob that holds the weights."""
    manifests = root / "manifests"
    for manifest in sorted(manifests.glob("*/*/*/*")):
        digest = _ollama_digest(manifest)
        if digest is None:
            continue
        host, owner, model, tag = manifest.relative_to(manifests).parts
        # Ollama itself leaves out its own host, and `library`, its own account there.
        own = host == "registry.ollama.ai"
        shown = [] if own and owner == "library" else [owner] if own else [host, owner]
        name = "/".join([*shown, f"{model}:{tag}"])
        yield from _model(name, root / "blobs" / digest.replace(":", "-"), Origin.OLLAMA)


def _ollama_digest(manifest: Path) -> str | None:
    """Return the digest of the weights, or None where the manifest has none or cannot be read."""
    try:
        if manifest.stat().st_size > _MAX_MANIFEST_BYTES:
            return None
        layers = json.loads(manifest.read_bytes())["layers"]
        digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == _OLLAMA_MODEL_LAYER]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return next((digest for digest in digests if _DIGEST.fullmatch(digest)), None)

"""How a model file of the Hugging Face Hub is named, and where it is kept. Opens nothing and asks nobody."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from app.sanitize import sanitize_line
from engine import ModelNotFoundError

_FORM = "hf:owner/repository/file.gguf"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_FILE = re.compile(r"(?P<file>.+?\.gguf)(?:@(?P<revision>[^@\s]+))?", re.IGNORECASE)
_PAGE = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/]+/[^/]+)/(?:blob|resolve)/([^/]+)/([^?#]+).*"
)
_SPLIT = re.compile(r"(?P<stem>.*-)(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.gguf)", re.IGNORECASE)
_MOST_PARTS = 1000


@dataclass(frozen=True, slots=True)
class HubFile:
    """A GGUF file in a repository of the Hub; of a split model its first part."""

    repository: str
    """owner/name."""
    file: str
    """Path inside the repository."""
    revision: str = ""
    """Branch, tag or commit; empty for the main branch."""

    def __str__(self) -> str:
        """As `parse_hub_file` reads it."""
        return f"hf:{self.repository}/{self.file}" + (f"@{self.revision}" if self.revision else "")

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all parts, the first one first."""
        split = _SPLIT.fullmatch(self.file)
        if split is None:
            return (self.file,)
        count = int(split["count"])
        return tuple(
            f"{split['stem']}{number:05}-of-{count:05}{split['end']}" for number in range(1, count + 1)
        )

    def target(self, folder: Path, file: str) -> Path:
        """Where `file` is saved below `folder`: under the names of owner, repository and file."""
        place = self.repository + (f"@{self.revision.replace('/', '-')}" if self.revision else "")
        return folder / place / file


def parse_hub_file(text: str) -> HubFile:
    """Read "hf:owner/repository/file.gguf", with @revision behind it if need be, or a file's address there.

    Raises ModelNotFoundError saying what is accepted.
    """
    text = text.strip()
    page = _PAGE.fullmatch(text)
    if page:
        revision = "" if page[2] == "main" else f"@{page[2]}"
        text = f"hf:{page[1]}/{unquote(page[3])}{revision}"
    owner, _, rest = text.removeprefix("hf:").partition("/")
    name, _, path = rest.partition("/")
    found = _FILE.fullmatch(path)
    if not (text.startswith("hf:") and _NAME.fullmatch(owner) and _NAME.fullmatch(name) and found):
        raise ModelNotFoundError(f"{sanitize_line(text)!r} names no file of the Hub: write {_FORM}")
    steps = found["file"].split("/")
    if any(not step or step.startswith(".") or not step.isprintable() or "\\" in step for step in steps):
        raise ModelNotFoundError(f"{sanitize_line(text)!r} is no path of a file: write {_FORM}")
    file = HubFile(f"{owner}/{name}", found["file"], found["revision"] or "")
    split = _SPLIT.fullmatch(file.file)
    if split and not 1 <= int(split["number"]) <= int(split["count"]) <= _MOST_PARTS:
        raise ModelNotFoundError(f"{sanitize_line(text)!r} is no part of a split model: name its first part")
    # Whichever part was named, the model is all of them.
    return HubFile(file.repository, file.files[0], file.revision)

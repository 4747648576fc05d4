"""Fetch a GGUF file from the Hugging Face Hub, whole or split, and go on where an earlier try stopped.

The library huggingface_hub finds the file, the person's token and the right errors; the bytes are read here,
because it keeps nothing of a download that broke off. It is imported when something is fetched, which takes
half a second. What has come so far lies beside the model as NAME.xxxxxxxx.partial. Draws nothing.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from app.models.hub_file import HubFile
from app.models.pip import PullError
from app.models.pulling import (
    OnProgress,
    Progress,
    Pulled,
    Stage,
    alone,
    check_space,
    explain_os_error,
    sync_folder,
)
from app.sanitize import sanitize_line

if TYPE_CHECKING:
    from hashlib import _Hash

_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 18
_READ_BYTES = 1 << 22
_ATTEMPTS = 5
"""Times that a connection may break in a row without a byte in between."""
_PAUSE_S = 1.0
"""After a broken connection, and as much again after each that follows."""
_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class _Part:
    """One file to fetch."""

    target: Path
    partial: Path
    """What has come so far; named after the version of the file that it is the beginning of."""
    size: int
    sha256: str
    """Empty where the Hub does not tell."""
    url: str


def pull_hub_file(source: HubFile, folder: Path, on_progress: OnProgress) -> Pulled:
    """Save `source` below `folder`; needs no network when it is there already.

    What `on_progress` raises ends it; what came so far stays for the next time. Raises PullError.
    """
    targets = [source.target(folder, file) for file in source.files]
    try:
        if all(target.exists() for target in targets):
            return Pulled(targets[0], fetched=False)
        targets[0].parent.mkdir(parents=True, exist_ok=True)
        with alone(targets[0].with_name(f".{targets[0].name}.lock"), f"download of {source}"):
            on_progress(Progress(Stage.CHECK, 0, 0))
            _fetch(source, targets, on_progress)
    except OSError as error:
        raise PullError(explain_os_error(error, folder)) from error
    return Pulled(targets[0], fetched=True)


def _fetch(source: HubFile, targets: Sequence[Path], on_progress: OnProgress) -> None:
    hub = _Hub(source)
    parts = [hub.find(file, target) for file, target in zip(source.files, targets, strict=True)]
    missing = [part for part in parts if not part.target.exists()]
    for part in missing:
        _drop_other_versions(part)
    left = sum(part.size - _size(part.partial) for part in missing)
    check_space(targets[0].parent, targets[0].name, left)
    total = sum(part.size for part in parts)
    done = sum(part.size for part in parts if part.target.exists())
    for part in missing:

        def report(came: int, stage: Stage = Stage.DOWNLOAD, before: int = done) -> None:
            on_progress(Progress(stage, before + came, total))

        hub.download(part, report)
        done += part.size
    # The first part last: while it is missing nobody takes the others for a model.
    for part in reversed(missing):
        os.replace(part.partial, part.target)
    sync_folder(targets[0].parent)


class _Hub:
    """The Hub, or what HF_ENDPOINT names in its place, as far as one source goes."""

    def __init__(self, source: HubFile) -> None:
        """Import what it takes. Raises PullError."""
        # Read when the library is imported. Its own way to another host (Xet) is never taken here.
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
        try:
            import huggingface_hub
            from huggingface_hub import errors, utils
        except ImportError as error:
            raise PullError(
                f"huggingface_hub is missing ({error}): install Tiercel again, then fetch"
            ) from None
        self._library, self._errors, self._utils = huggingface_hub, errors, utils
        self._network_error: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
        self._source = source
        self._endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        self._commit = ""
        """The version that all parts are taken from."""

    def find(self, file: str, target: Path) -> _Part:
        """Ask for the size and version of a file. Raises PullError."""
        revision = self._commit or self._source.revision or "main"
        try:
            url = self._url(file, revision)
            found = self._library.get_hf_file_metadata(
                url, timeout=_TIMEOUT_S, endpoint=self._endpoint, library_name="tiercel"
            )
        except (self._network_error, self._errors.OfflineModeIsEnabled, ValueError) as error:
            raise PullError(self._explain(error, file)) from error
        if not (found.size and found.etag and found.commit_hash):
            raise PullError(
                f"{self._endpoint} does not answer as the Hugging Face Hub does: check HF_ENDPOINT and "
                "the proxy"
            )
        self._commit = found.commit_hash
        etag = re.sub(r"[^A-Za-z0-9]", "", found.etag)
        return _Part(
            target,
            target.with_name(f"{target.name}.{etag[:8]}.partial"),
            found.size,
            etag if _SHA256.fullmatch(etag) else "",
            self._url(file, found.commit_hash),
        )

    def _url(self, file: str, revision: str) -> str:
        url: str = self._library.hf_hub_url(
            self._source.repository, file, revision=revision, endpoint=self._endpoint
        )
        return url

    def download(self, part: _Part, report: _Report) -> None:
        """Bring `part.partial` to its full size and check it. Raises PullError, and what `report` raises."""
        checksum = hashlib.sha256()
        with part.partial.open("a+b") as output:
            output.seek(0)
            while chunk := output.read(_READ_BYTES):
                checksum.update(chunk)
                report(output.tell(), Stage.CHECK)
            failures = 0
            while output.tell() < part.size:
                before = output.tell()
                try:
                    checksum = self._read_on(part, output, checksum, report)
                    problem: Exception | None = None
                except self._network_error as error:
                    problem = error
                failures = 0 if output.tell() > before else failures + 1
                if failures > _ATTEMPTS or isinstance(problem, self._errors.HfHubHTTPError):
                    raise PullError(self._explain(problem, part.target.name)) from problem
                if problem is not None:
                    _pause(failures, lambda: report(output.tell()))
            output.flush()
            os.fsync(output.fileno())
            size = output.tell()
        if size != part.size or (part.sha256 and checksum.hexdigest() != part.sha256):
            part.partial.unlink()
            raise PullError(f"what came of {self._source} is not what the Hub has: fetch it again")

    def _read_on(self, part: _Part, output: BinaryIO, checksum: _Hash, report: _Report) -> _Hash:
        """Read from where `output` ends as far as the connection holds; return the checksum of all of it."""
        headers = self._utils.build_hf_headers(library_name="tiercel")  # type: ignore[attr-defined]
        headers |= {"Range": f"bytes={output.tell()}-", "Accept-Encoding": "identity"}
        # The address of the Hub itself each time: the one that it sends us on to is valid for an hour only.
        with self._library.get_session().stream(
            "GET", part.url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True
        ) as response:
            self._utils.hf_raise_for_status(response)  # type: ignore[attr-defined]
            if response.status_code != 206 and output.tell():  # all of it, from the start
                output.seek(0)
                output.truncate()
                checksum = hashlib.sha256()
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                output.write(chunk)
                checksum.update(chunk)
                report(output.tell())
                if output.tell() > part.size:
                    break
        return checksum

    def _explain(self, error: Exception | None, file: str) -> str:
        """Return one line for a person."""
        errors, source = self._errors, self._source
        page = f"{self._endpoint}/{source.repository}"
        login = "log in with `hf auth login` or set HF_TOKEN"
        if isinstance(error, errors.GatedRepoError):
            return (
                f"{source.repository} is gated: accept its terms at {page}, then {login}, and fetch it again"
            )
        if isinstance(error, errors.RepositoryNotFoundError):
            return (
                f"there is no {source.repository}, or it is private: check the name; if it is yours, {login}"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return f"{source.repository} has no revision {source.revision!r}: see {page}"
        if isinstance(error, errors.EntryNotFoundError):
            return f"{source.repository} has no file {file!r}: see {page}/tree/main"
        if isinstance(error, errors.OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE is set: nothing is fetched; unset it, then fetch again"
        if isinstance(error, errors.HfHubHTTPError):
            status = error.response.status_code
            if status in (401, 403):
                return f"{page} refuses access ({status}): {login}, then fetch again"
            return f"{self._endpoint} answers {status}: try again later"
        if isinstance(error, ValueError):
            return f"{source} cannot be fetched: {sanitize_line(str(error))[:200]}"
        return (
            f"no network: {self._endpoint} was not reached, or the download broke off; check the connection, "
            "then fetch again: it goes on from there"
        )


class _Report(Protocol):
    """Told how many bytes of a part there are; what it raises ends the download."""

    def __call__(self, came: int, stage: Stage = Stage.DOWNLOAD) -> None:
        """Show it."""


def _pause(failures: int, report: Callable[[], None]) -> None:
    """Wait before the next try, in steps short enough to be stopped in between."""
    end = time.monotonic() + _PAUSE_S * (failures + 1)
    while time.monotonic() < end:
        report()
        time.sleep(min(0.1, _PAUSE_S))


def _drop_other_versions(part: _Part) -> None:
    """Remove the beginning of a version that the Hub no longer has, and one that cannot be right."""
    for path in part.target.parent.glob(f"{glob.escape(part.target.name)}.*.partial"):
        if path != part.partial or path.stat().st_size > part.size:
            path.unlink()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

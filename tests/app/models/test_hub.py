"""Fetching from a hub on the loopback device: whole, split, broken off, refused, without room."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.models import hub as module
from app.models.hub import pull_hub_file
from app.models.hub_file import HubFile, parse_hub_file
from app.models.pip import PullError
from app.models.pulling import Progress
from engine import ModelNotFoundError
from tests.app.models.hub_server import COMMIT, HubServer, hub_server

MODEL = bytes(range(256)) * 8000
NAME = "owner/tiny-GGUF/tiny-Q4_K_M.gguf"
SOURCE = parse_hub_file(f"hf:{NAME}")


class Stop(Exception):
    pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[HubServer]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(module, "_PAUSE_S", 0.001)
    with hub_server() as server:
        server.files[NAME] = MODEL
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def _silent(progress: Progress) -> None:
    pass


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _problem(folder: Path, source: HubFile = SOURCE) -> str:
    with pytest.raises(PullError) as caught:
        pull_hub_file(source, folder, _silent)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_is_saved_under_its_names_and_a_second_pull_asks_nobody(
    hub: HubServer, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    result = pull_hub_file(SOURCE, tmp_path / "models", seen.append)
    assert (result.path, result.fetched) == (tmp_path / "models" / NAME, True)
    assert result.path.read_bytes() == MODEL
    assert _names(tmp_path / "models") == [NAME]
    done = [progress.done for progress in seen]
    assert done == sorted(done) and done[-1] == seen[-1].total == len(MODEL)
    hub.requests.clear()
    assert not pull_hub_file(SOURCE, tmp_path / "models", _silent).fetched
    assert hub.requests == []


def test_no_token_is_sent_unless_the_person_has_one(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull_hub_file(SOURCE, tmp_path / "a", _silent)
    assert not any("authorization" in headers for _, _, headers in hub.requests)
    assert not any("torch" in headers["user-agent"] for _, _, headers in hub.requests)
    hub.requests.clear()
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    pull_hub_file(SOURCE, tmp_path / "b", _silent)
    assert {headers["authorization"] for _, _, headers in hub.requests} == {"Bearer hf_mine"}


def test_every_byte_comes_from_the_commit_that_was_asked_about_first(hub: HubServer, tmp_path: Path) -> None:
    pull_hub_file(SOURCE, tmp_path, _silent)
    assert [path for method, path, _ in hub.requests if method == "GET"] == [
        f"/owner/tiny-GGUF/resolve/{COMMIT}/tiny-Q4_K_M.gguf"
    ]


def test_a_broken_connection_is_gone_on_with(hub: HubServer, tmp_path: Path) -> None:
    hub.break_after = [700_000, 300_000]
    assert pull_hub_file(SOURCE, tmp_path, _silent).path.read_bytes() == MODEL
    starts = [int(headers["range"].removeprefix("bytes=").rstrip("-")) for headers in hub.asked("GET")]
    assert len(starts) == 3 and starts == sorted(set(starts))


def test_a_server_without_ranges_sends_it_all_again(hub: HubServer, tmp_path: Path) -> None:
    hub.break_after, hub.ignore_ranges = [700_000], True
    assert pull_hub_file(SOURCE, tmp_path, _silent).path.read_bytes() == MODEL


def test_a_connection_that_only_breaks_ends_in_one_line_and_the_beginning_stays(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.break_after = [500_000] + [0] * 20
    assert "no network" in _problem(tmp_path)
    (partial,) = _names(tmp_path)
    assert partial.endswith(".partial")
    hub.break_after = []
    hub.requests.clear()
    assert pull_hub_file(SOURCE, tmp_path, _silent).path.read_bytes() == MODEL
    assert hub.asked("GET")[0]["range"] != "bytes=0-"
    assert _names(tmp_path) == [NAME]


def test_stopped_in_the_middle_it_goes_on_from_there(hub: HubServer, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done > 1_000_000:
            raise Stop

    with pytest.raises(Stop):
        pull_hub_file(SOURCE, tmp_path, stop)
    seen: list[Progress] = []
    assert pull_hub_file(SOURCE, tmp_path, seen.append).path.read_bytes() == MODEL
    start = int(hub.asked("GET")[-1]["range"].removeprefix("bytes=").rstrip("-"))
    assert start > 1_000_000


def test_a_beginning_of_another_version_is_not_gone_on_with(hub: HubServer, tmp_path: Path) -> None:
    hub.break_after = [500_000] + [0] * 20
    _problem(tmp_path)
    hub.break_after = []
    hub.files[NAME] = MODEL[::-1]
    assert pull_hub_file(SOURCE, tmp_path, _silent).path.read_bytes() == MODEL[::-1]
    assert _names(tmp_path) == [NAME]


def test_a_beginning_that_was_damaged_is_found_out_and_removed(hub: HubServer, tmp_path: Path) -> None:
    hub.break_after = [500_000] + [0] * 20
    _problem(tmp_path)
    hub.break_after = []
    partial = tmp_path / _names(tmp_path)[0]
    partial.write_bytes(b"x" * partial.stat().st_size)
    assert "fetch it again" in _problem(tmp_path)
    assert _names(tmp_path) == []
    assert pull_hub_file(SOURCE, tmp_path, _silent).path.read_bytes() == MODEL


@pytest.mark.parametrize("named", [1, 2, 3])
def test_a_split_model_is_fetched_whole_whichever_part_was_named(
    hub: HubServer, tmp_path: Path, named: int
) -> None:
    parts = [f"owner/big/Q8/big-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for number, part in enumerate(parts):
        hub.files[part] = MODEL[number:]
    seen: list[Progress] = []
    result = pull_hub_file(parse_hub_file(f"hf:{parts[named - 1]}"), tmp_path, seen.append)
    assert result.path == tmp_path / parts[0]
    assert _names(tmp_path) == parts
    assert all((tmp_path / part).read_bytes() == hub.files[part] for part in parts)
    assert seen[-1].done == seen[-1].total == 3 * len(MODEL) - 3


def test_a_split_model_appears_only_when_all_of_it_is_there(hub: HubServer, tmp_path: Path) -> None:
    parts = [f"owner/big/big-{number:05}-of-00002.gguf" for number in (1, 2)]
    hub.files |= {parts[0]: MODEL, parts[1]: MODEL[1:]}
    hub.break_after = [len(MODEL)] + [0] * 20
    source = parse_hub_file(f"hf:{parts[0]}")
    _problem(tmp_path, source)
    assert not any(name.endswith(".gguf") for name in _names(tmp_path))
    hub.break_after = []
    pull_hub_file(source, tmp_path, _silent)
    assert _names(tmp_path) == parts


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ((403, "GatedRepo"), ["gated", "accept its terms", "HF_TOKEN"]),
        ((401, "GatedRepo"), ["gated", "accept its terms", "HF_TOKEN"]),
        ((401, "RepoNotFound"), ["no owner/tiny-GGUF", "private", "HF_TOKEN"]),
        ((404, "RepoNotFound"), ["no owner/tiny-GGUF"]),
        ((404, "EntryNotFound"), ["no file 'tiny-Q4_K_M.gguf'", "/tree/main"]),
        ((404, "RevisionNotFound"), ["no revision"]),
        ((503, ""), ["answers 503", "try again later"]),
        ((403, ""), ["refuses access (403)"]),
    ],
)
def test_what_the_hub_refuses_is_told_plainly(
    hub: HubServer, tmp_path: Path, error: tuple[int, str], words: list[str]
) -> None:
    hub.error = error
    problem = _problem(tmp_path)
    assert all(word in problem for word in words), problem
    assert _names(tmp_path) == []


def test_a_gate_that_closes_only_at_the_download_is_told_as_well(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gate(progress: Progress) -> None:
        if hub.asked("HEAD"):
            hub.error = (403, "GatedRepo")

    monkeypatch.setattr(module, "check_space", lambda *arguments: gate(Progress(module.Stage.CHECK, 0, 0)))
    assert "gated" in _problem(tmp_path)


def test_without_a_network_it_says_so(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "no network: http://127.0.0.1:9 was not reached" in _problem(tmp_path)


def test_what_is_no_hub_is_said_to_be_none(hub: HubServer, tmp_path: Path) -> None:
    hub.bare = True
    assert "check HF_ENDPOINT" in _problem(tmp_path)


def test_a_disk_too_small_is_refused_before_the_download(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=len(MODEL) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert "free some space" in _problem(tmp_path)
    assert hub.asked("GET") == []


def test_the_space_of_what_came_already_is_not_asked_for_again(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.break_after = [1_500_000] + [0] * 20
    _problem(tmp_path)
    hub.break_after = []
    usage = shutil.disk_usage(tmp_path)._replace(free=len(MODEL) - 1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert pull_hub_file(SOURCE, tmp_path, _silent).fetched


def test_a_folder_that_cannot_be_written_is_one_clear_line(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "set TIERCEL_MODELS" in _problem(tmp_path / "file")


def test_two_at_once_do_not_disturb_each_other(hub: HubServer, tmp_path: Path) -> None:
    target = tmp_path / NAME
    target.parent.mkdir(parents=True)
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "at work" in _problem(tmp_path)


def test_a_revision_has_a_folder_of_its_own(hub: HubServer, tmp_path: Path) -> None:
    source = parse_hub_file(f"hf:{NAME}@v1")
    assert pull_hub_file(source, tmp_path, _silent).path == tmp_path / "owner/tiny-GGUF@v1/tiny-Q4_K_M.gguf"
    assert "no revision 'v2'" in _problem(tmp_path, parse_hub_file(f"hf:{NAME}@v2"))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("hf:a/b/c.gguf", HubFile("a/b", "c.gguf")),
        (" hf:a/b/Q4/c.GGUF@refs/pr/1 ", HubFile("a/b", "Q4/c.GGUF", "refs/pr/1")),
        ("hf:a/b/c-00002-of-00003.gguf", HubFile("a/b", "c-00001-of-00003.gguf")),
        ("https://huggingface.co/a/b/blob/main/c.gguf", HubFile("a/b", "c.gguf")),
        ("https://hf.co/a/b/resolve/dev/d/c%20d.gguf?download=true", HubFile("a/b", "d/c d.gguf", "dev")),
    ],
)
def test_a_file_of_the_hub_is_named_in_these_ways(text: str, meant: HubFile) -> None:
    assert parse_hub_file(text) == meant
    assert parse_hub_file(str(meant)) == meant


@pytest.mark.parametrize(
    "text",
    [
        *(
            "hf:",
            "hf:a",
            "hf:a/b",
            "hf:a/b/",
            "hf:a/b/c.bin",
            "a/b/c.gguf",
            "hf:../b/c.gguf",
            "hf:a/../c.gguf",
        ),
        *(
            "hf:a/b/../../c.gguf",
            "hf:a/b//c.gguf",
            "hf:a/b/.c.gguf",
            "hf:a/b/x\x1b[2J.gguf",
            "hf:a/b/x\\y.gguf",
        ),
        *("hf:a/b/c-00004-of-00003.gguf", "hf:a/b/c-00001-of-99999.gguf", "hf:a/b/c-00000-of-00000.gguf"),
    ],
)
def test_what_names_no_file_is_refused_in_one_printable_line(text: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        parse_hub_file(text)
    assert str(caught.value).isprintable()


@given(st.text(max_size=40), st.text(max_size=20))
def test_no_name_leads_out_of_the_models_folder(path: str, revision: str) -> None:
    try:
        source = parse_hub_file(f"hf:a/b/{path}.gguf@{revision}")
    except ModelNotFoundError:
        return
    folder = Path("/models")
    for file in source.files:
        target = source.target(folder, file)
        assert ".." not in target.parts and target.is_relative_to(folder / "a")


def test_nothing_of_the_library_is_imported_before_something_is_fetched() -> None:
    code = "import sys, app.models.hub, app.fetch, app.cli.pull\nprint('huggingface_hub' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"

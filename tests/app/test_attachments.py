"""Files named in a message, folded pastes, drafts: what is taken, what is refused and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.attachments import (
    MAX_BYTES,
    MAX_LISTED,
    complete_path,
    is_large,
    mention_of,
    mentions,
    names_file,
    pack_draft,
    paste_name,
    read_attachments,
    unpack_draft,
)
from app.conversation import Attachment
from app.sanitize import sanitize


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("see @notes.txt", ["@notes.txt"]),
        ("@a.txt and @b/c.md", ["@a.txt", "@b/c.md"]),
        ('read @"my file.txt" now', ["@my file.txt"]),
        ("mail a@b.org", []),
        ("`@code` and\n```py\n@dataclass\n```\n@real.py", ["@real.py"]),
        ("```\n@never closed.py", []),
        ("@a.txt @a.txt", ["@a.txt"]),
        ("@", []),
    ],
)
def test_mentions_are_words_that_begin_with_at_outside_of_code(text: str, names: list[str]) -> None:
    assert ["@" + path for _name, path in mentions(text)] == names


def test_text_files_are_read_with_their_names_as_written(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r")
    (tmp_path / "my file.md").write_text("中文")
    found, problems = read_attachments('Look at @notes.txt, then (@"my file.md").', tmp_path)
    assert found == [Attachment("file", "@notes.txt", "one\ntwo\n")]
    assert problems == []
    found, problems = read_attachments('@"my file.md"', tmp_path)
    assert found == [Attachment("file", '@"my file.md"', "中文")]


def test_each_file_that_cannot_go_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "latin1").write_bytes(b"caf\xe9")
    (tmp_path / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    (tmp_path / "fits").write_bytes(b"x" * MAX_BYTES)
    os.mkfifo(tmp_path / "pipe")
    names = ["folder", "binary", "latin1", "large", "pipe", "missing.txt"]
    found, problems = read_attachments(" ".join(f"@{name}" for name in [*names, "fits"]), tmp_path)
    assert [part.name for part in found] == ["@fits"]
    assert [problem.partition(": ")[0] for problem in problems] == [f"@{name}" for name in names]
    told = dict(zip(names, problems, strict=True))
    assert "folder" in told["folder"]
    assert "not a text file" in told["binary"]
    assert "byte 3" in told["latin1"]
    assert "1 MB" in told["large"]
    assert "regular" in told["pipe"]
    assert "no such file" in told["missing.txt"]


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.txt").write_text("x")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert read_attachments("@secret.txt", tmp_path) == ([], ["@secret.txt: Permission denied"])


@pytest.mark.parametrize("text", ["@everyone hello", "@property", "@nobody, you?", "@~nobody-of-that-name"])
def test_a_word_that_looks_like_no_file_is_a_word(tmp_path: Path, text: str) -> None:
    found, problems = read_attachments(text, tmp_path)
    assert found == []
    assert bool(problems) == ("~" in text)


def test_kept_names_are_not_read_again(tmp_path: Path) -> None:
    assert read_attachments("@gone.txt, @gone.txt.", tmp_path, {"@gone.txt"}) == ([], [])
    assert names_file("see @gone.txt.", "@gone.txt")
    assert not names_file("see @gone.txt.bak", "@gone.txt")


def test_paths_are_completed_by_name_those_close_by_first(tmp_path: Path) -> None:
    for name in ("readme.md", "src/reader.py", "src/deep/other.py", ".hidden/read.txt", "spread.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert complete_path("read", tmp_path) == ["readme.md", "src/reader.py", "spread.csv"]
    assert complete_path("src/", tmp_path) == ["src/deep/", "src/reader.py", "src/deep/other.py"]
    assert complete_path("sdo", tmp_path) == ["src/deep/other.py"]
    assert complete_path(".hid", tmp_path)[0] == ".hidden/"
    assert complete_path("nothing-like-it", tmp_path) == []
    assert complete_path("gone/x", tmp_path) == []


def test_completion_looks_at_a_bounded_number_of_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []

    class Entry:
        def __init__(self, number: int) -> None:
            self.name, self.path = f"d{number}", f"/d{number}"

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            looked_at.append(self.name)
            return True

    monkeypatch.setattr(os, "scandir", lambda _: iter(Entry(number) for number in range(100_000)))
    assert len(complete_path("d", tmp_path)) == 8
    assert len(looked_at) <= MAX_LISTED


def test_names_that_cannot_be_typed_are_not_offered(tmp_path: Path) -> None:
    (tmp_path / "a\x1b]52.txt").write_text("")
    (tmp_path / "a.txt").write_text("")
    assert complete_path("a", tmp_path) == ["a.txt"]
    assert mention_of("a b.txt") == '@"a b.txt"'


def test_pastes_are_large_by_lines_or_characters_and_have_names_of_their_own() -> None:
    assert not is_large("x" * 2000)
    assert is_large("x" * 2001)
    assert not is_large("x\n" * 19)
    assert is_large("x\n" * 20)
    assert paste_name("x\n" * 214, []) == "[paste 214 lines]"
    assert paste_name("x" * 5000, []) == "[paste 5,000 characters]"
    assert paste_name("x\n" * 214, ["[paste 214 lines]"]) == "[paste 214 lines #2]"


parts = st.builds(Attachment, st.sampled_from(["file", "paste"]), st.text(), st.text())


@given(st.text().map(sanitize), st.lists(parts))
def test_drafts_come_back_as_they_were(text: str, attachments: list[Attachment]) -> None:
    assert unpack_draft(pack_draft(text, attachments)) == (text, attachments)


@pytest.mark.parametrize("draft", ["\x1e", "\x1e{", '\x1e["text"]', '\x1e["text", [["file"]]]', "\x1e3"])
def test_a_damaged_draft_is_text(draft: str) -> None:
    assert unpack_draft(draft) == (draft, [])


def test_a_file_may_be_named_in_the_middle_of_chinese(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("content")
    found, problems = read_attachments("请看@notes.txt，谢谢", tmp_path)
    assert [(part.name, part.text) for part in found] == [("@notes.txt", "content")]
    assert problems == []
    assert mentions("write to me@example.org") == []

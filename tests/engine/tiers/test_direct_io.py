"""Reads around the page cache: right bytes whatever the disk does, or an error that names the place."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import StreamError
from engine.tiers.direct_io import ALIGNMENT, DirectFiles
from tests.engine.tiers.faulty_disk import PREADV, page_buffer, write_noise

PAGES = 9
SIZE = PAGES * ALIGNMENT + 1234


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("direct") / "model.gguf"
    write_noise(path, SIZE)
    return path


@pytest.fixture(scope="module")
def content(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture(scope="module")
def shared(path: Path) -> Iterator[DirectFiles]:
    files = DirectFiles([path])
    yield files
    files.close()


def read_all(files: DirectFiles, needed: int = SIZE) -> bytes:
    buffer = page_buffer(PAGES + 1)
    return bytes(buffer[: files.read(0, 0, buffer, needed)])


def refuse_direct_open(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    real = os.open

    def refuse(path: str | Path, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(code, os.strerror(code), str(path))
        return real(path, flags, *rest)

    monkeypatch.setattr("engine.tiers.direct_io.os.open", refuse)


def refuse_direct_reads(monkeypatch: pytest.MonkeyPatch, files: DirectFiles) -> list[int]:
    """Returns a list that grows with every refusal."""
    refused: list[int] = []
    direct = set(files._direct) or pytest.skip("this disk has no direct reads to refuse")

    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        if descriptor in direct:
            refused.append(position)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, buffers, position)

    monkeypatch.setattr(PREADV, preadv)
    return refused


def shorten_reads(monkeypatch: pytest.MonkeyPatch, content: bytes, limit: int, aligned: bool) -> None:
    """Every read gives at most `limit` bytes and leaves the rest of the buffer alone."""

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        if aligned:
            assert position % ALIGNMENT == 0 and len(buffers[0]) % ALIGNMENT == 0
        data = content[position : position + min(limit, len(buffers[0]))]
        buffers[0][: len(data)] = data
        return len(data)

    monkeypatch.setattr(PREADV, preadv)


@settings(deadline=None, max_examples=50)
@given(first=st.integers(0, PAGES + 2), n_pages=st.integers(1, PAGES + 3))
def test_any_pages_are_the_files(shared: DirectFiles, content: bytes, first: int, n_pages: int) -> None:
    buffer = page_buffer(n_pages)
    expected = content[first * ALIGNMENT : (first + n_pages) * ALIGNMENT]
    assert shared.read(0, first * ALIGNMENT, buffer) == len(expected)
    assert bytes(buffer[: len(expected)]) == expected


def filled(files: DirectFiles, part: int, offset: int, n_bytes: int) -> bytes:
    into = bytearray(b"\xee" * n_bytes)
    files.fill(part, offset, memoryview(into))
    return bytes(into)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_any_bytes_are_the_files(shared: DirectFiles, content: bytes, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, SIZE))
    n_bytes = data.draw(st.integers(0, SIZE - offset))
    assert filled(shared, 0, offset, n_bytes) == content[offset : offset + n_bytes]


def test_every_part_is_read_from_its_own_file(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    contents = [write_noise(path, ALIGNMENT, seed) for seed, path in enumerate(paths)]
    files = DirectFiles(paths)
    for part, expected in enumerate(contents):
        buffer = page_buffer(1)
        files.read(part, 0, buffer)
        assert bytes(buffer) == filled(files, part, 0, ALIGNMENT) == expected
    files.close()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_refusal_at_open_is_announced_and_costs_nothing_but_speed(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_direct_open(monkeypatch, code)
    files = DirectFiles([path])
    assert "model.gguf" in files.notice and "page cache" in files.notice
    assert read_all(files) == content
    files.close()


def test_another_fault_at_open_is_no_reason_for_the_page_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct_open(monkeypatch, errno.EACCES)
    before = open_descriptors()
    with pytest.raises(StreamError, match=r"model\.gguf: cannot be opened \(Permission denied\)"):
        DirectFiles([path])
    assert open_descriptors() == before


def test_a_refusal_at_the_first_read_ends_direct_reads_for_good(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DirectFiles([path])
    refused = refuse_direct_reads(monkeypatch, files)
    assert files.notice == ""
    assert read_all(files) == content
    notice = files.notice
    assert "page cache" in notice
    assert read_all(files) == content
    assert (len(refused), files.notice) == (1, notice)
    files.close()


def test_threads_that_are_refused_together_all_get_their_bytes(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DirectFiles([path])
    if not files._direct:
        pytest.skip("this disk has no direct reads to refuse")
    direct, together, results = set(files._direct), threading.Barrier(4), []

    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        if descriptor in direct:
            together.wait(10)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, buffers, position)

    monkeypatch.setattr(PREADV, preadv)
    threads = [threading.Thread(target=lambda: results.append(read_all(files))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [content] * 4
    files.close()


def test_a_system_without_direct_reads_says_so(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("engine.tiers.direct_io.os.O_DIRECT", raising=False)
    files = DirectFiles([path])
    assert "page cache" in files.notice
    assert read_all(files) == content
    files.close()


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="no posix_fadvise here")
def test_what_went_through_the_page_cache_is_dropped_from_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct_open(monkeypatch, errno.EINVAL)
    files = DirectFiles([path])
    dropped = []
    monkeypatch.setattr(
        "engine.tiers.direct_io.os.posix_fadvise",
        lambda _, *range_and_advice: dropped.append(range_and_advice),
    )
    files.read(0, ALIGNMENT, page_buffer(2))
    assert dropped == [(ALIGNMENT, 2 * ALIGNMENT, os.POSIX_FADV_DONTNEED)]
    files.close()


@pytest.mark.parametrize("limit", [ALIGNMENT, ALIGNMENT + 1, 5000, 3 * ALIGNMENT - 1, SIZE - 1])
def test_short_direct_reads_go_on_at_a_page(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    files = DirectFiles([path])
    if not files._direct:
        pytest.skip("this disk has no direct reads")
    shorten_reads(monkeypatch, content, limit, aligned=True)
    assert read_all(files) == content
    files.close()


@pytest.mark.parametrize("limit", [100, ALIGNMENT, 5000])
def test_short_reads_through_the_page_cache_go_on_where_they_stopped(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    refuse_direct_open(monkeypatch, errno.EINVAL)
    files = DirectFiles([path])
    shorten_reads(monkeypatch, content, limit, aligned=False)
    assert read_all(files) == content
    files.close()


def test_a_refusal_in_the_middle_of_a_page_goes_on_there(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DirectFiles([path])
    if not files._direct:
        pytest.skip("this disk has no direct reads")
    direct = set(files._direct)

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        if descriptor in direct and position:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        data = content[position : position + 5000]
        buffers[0][: len(data)] = data
        return len(data)

    monkeypatch.setattr(PREADV, preadv)
    assert read_all(files) == content
    files.close()


@pytest.mark.parametrize("refused", [False, True])
def test_a_file_that_ends_too_early_is_named_with_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    path = tmp_path / "short.gguf"
    content = write_noise(path, ALIGNMENT + 100)
    if refused:
        refuse_direct_open(monkeypatch, errno.EINVAL)
    files = DirectFiles([path])
    buffer = page_buffer(2)
    assert files.read(0, 0, buffer, needed=ALIGNMENT + 100) == ALIGNMENT + 100
    assert bytes(buffer[: ALIGNMENT + 100]) == content
    with pytest.raises(StreamError, match=r"short\.gguf was cut short .* byte 4196 is missing; get"):
        files.read(0, 0, buffer, needed=ALIGNMENT + 101)
    with pytest.raises(StreamError, match=r"short\.gguf was cut short .* byte 4196 is missing; get"):
        filled(files, 0, 4000, 197)
    files.close()


def test_a_failing_disk_is_named_with_position_and_reason_and_may_recover(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DirectFiles([path])
    with monkeypatch.context() as patched:

        def fail(*_: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patched.setattr(PREADV, fail)
        expected = r"model\.gguf: reading at byte 8192 failed \(Input/output error\)"
        with pytest.raises(StreamError, match=expected):
            files.read(0, 8192, page_buffer(1))
        with pytest.raises(StreamError, match=expected):
            filled(files, 0, 8192, 1)
    assert read_all(files) == content
    files.close()


def test_what_is_not_aligned_is_refused_and_not_taken_for_the_disks_fault(shared: DirectFiles) -> None:
    notice = shared.notice
    buffer = page_buffer(3)
    for offset, into in ((1, buffer), (0, buffer[:100]), (0, buffer[64 : 64 + ALIGNMENT])):
        with pytest.raises(ValueError, match="multiples of 4096"):
            shared.read(0, offset, into)
    assert shared.notice == notice


def open_descriptors() -> set[str]:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc here to count descriptors")
    return {entry.name for entry in Path("/proc/self/fd").iterdir() if entry.exists()}


def test_closing_leaves_no_descriptor_and_may_be_done_twice(path: Path) -> None:
    before = open_descriptors()
    files = DirectFiles([path, path])
    assert len(open_descriptors()) > len(before)
    files.close()
    files.close()
    assert open_descriptors() == before


def test_a_missing_part_is_named_and_leaves_no_descriptor(path: Path, tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(StreamError, match=r"gone\.gguf: cannot be opened \(No such file or directory\)"):
        DirectFiles([path, tmp_path / "gone.gguf"])
    assert open_descriptors() == before

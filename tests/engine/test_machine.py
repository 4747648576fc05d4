"""What the machine is said to have is sane, and limits of control groups count."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

from engine import machine


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    return tmp_path


def test_there_is_memory_and_a_core_and_a_name() -> None:
    assert machine.available_memory() > 1 << 20
    assert 1 <= machine.physical_cores() <= (os.cpu_count() or 1)
    assert machine.processor_name()
    assert machine.total_memory() >= machine.available_memory()
    assert 0 <= machine.cache_bytes() < machine.total_memory()


def test_a_memory_limit_counts_page_cache_as_free(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text("1000000\n")
    (cgroup / "memory.current").write_text("700000\n")
    (cgroup / "memory.stat").write_text("anon 600000\nfile 50000\n")
    assert machine.available_memory() == 350000


def test_a_memory_limit_of_version_1_counts_too(cgroup: Path) -> None:
    (cgroup / "memory").mkdir()
    (cgroup / "memory/memory.limit_in_bytes").write_text("1000000\n")
    (cgroup / "memory/memory.usage_in_bytes").write_text("1000001\n")
    assert machine.available_memory() == 0


def test_no_limit_is_no_limit(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("700000\n")
    assert machine.available_memory() > 1 << 20


@pytest.mark.parametrize(
    ("quota", "most"), [("50000 100000", 1), ("100000 100000", 1), ("max 100000", 1 << 20)]
)
def test_a_processor_quota_bounds_the_cores(cgroup: Path, quota: str, most: int) -> None:
    (cgroup / "cpu.max").write_text(quota + "\n")
    assert 1 <= machine.physical_cores() <= most


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_memory_limit_is_the_total(cgroup: Path, name: str) -> None:
    installed = machine.total_memory()
    (cgroup / name).parent.mkdir(exist_ok=True)
    (cgroup / name).write_text(f"{installed + 1}\n")
    assert machine.total_memory() == installed
    (cgroup / name).write_text("1000000\n")
    assert machine.total_memory() == 1_000_000
    (cgroup / name).write_text("max\n")
    assert machine.total_memory() == installed


def _pretend(monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """Let files of these names hold what is given, wherever they lie, and the others nothing."""
    monkeypatch.setattr(machine, "_read", lambda path: files.get(path.name, ""))


def test_threads_leave_the_second_hardware_thread_of_a_core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one processor")
    _pretend(monkeypatch, thread_siblings_list="all of them\n")
    seen: list[set[int]] = []
    with machine.spread_over_cores(1):
        started = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        started.start()
        started.join()
    assert seen == [{min(allowed)}]
    assert os.sched_getaffinity(0) == allowed


def test_more_threads_than_cores_go_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, thread_siblings_list="all of them\n")
    with machine.spread_over_cores(2):
        inside = os.sched_getaffinity(0)
    assert inside == os.sched_getaffinity(0)


def test_pages_are_spread_over_all_nodes_with_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Library:
        def __init__(self, name: None) -> None: ...

        def syscall(self, *arguments: object) -> int:
            calls.append(arguments)
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    _pretend(monkeypatch, has_memory="0-1,65\n")
    assert machine.interleave(8192, 4096)
    ((number, address, size, policy, mask, n_bits, flags),) = calls
    assert (number, address.value, size.value, policy, flags) == (237, 8192, 4096, 3, 0)
    assert (list(mask), n_bits.value) == ([0b11, 0b10], 129)


@pytest.mark.parametrize("nodes", ["0\n", ""])
def test_one_node_needs_no_spreading(nodes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, has_memory=nodes)
    assert not machine.interleave(0, 4096)


def test_the_limits_of_our_own_control_group_and_of_those_around_it_count(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own_groups = tmp_path_factory.mktemp("proc") / "cgroup"
    own_groups.write_text("3:memory:/job/step\n0::/job/step\n")
    monkeypatch.setattr(machine, "_OWN_GROUPS", own_groups)
    for folder, limit in (("memory/job", 900_000), ("memory/job/step", 1 << 62)):
        (cgroup / folder).mkdir(parents=True)
        (cgroup / folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (cgroup / folder / "memory.usage_in_bytes").write_text("100000\n")
    assert machine.available_memory() == 800_000
    assert machine.total_memory() == 900_000
    (cgroup / "job").mkdir()
    (cgroup / "job" / "cpu.max").write_text("100000 100000\n")
    assert machine.physical_cores() == 1


def test_a_group_that_cannot_be_seen_from_here_is_the_root(
    cgroup: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_groups = tmp_path_factory.mktemp("proc") / "cgroup"
    own_groups.write_text("0::/elsewhere\n")
    monkeypatch.setattr(machine, "_OWN_GROUPS", own_groups)
    (cgroup / "memory.max").write_text("1000000\n")
    (cgroup / "memory.current").write_text("700000\n")
    assert machine.available_memory() == 300_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc gives memory back when told"
)
def test_what_was_freed_below_something_that_stays_is_given_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    taken = [libc.malloc(4000) for _ in range(20_000)]
    for address in taken:
        ctypes.memset(address, 1, 4000)
    for address in taken[:-1]:
        libc.free(address)
    kept = resident_bytes()
    machine.return_freed_memory()
    assert kept - resident_bytes() > 60_000_000
    libc.free(taken[-1])

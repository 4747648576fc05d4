"""What this machine has for us: memory, caches and cores.

Reads /proc and cgroup files, and falls back to what POSIX tells. Knows nothing of models.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def let_others_go_first(niceness: int) -> None:
    """Make the calling thread, and those that it starts from now on, less urgent by `niceness` than it is.

    Only on Linux, where each thread has a niceness of its own (sched(7)); elsewhere that is the process's.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + niceness))


def return_freed_memory() -> None:
    """Let the system have what the C library keeps of memory that was freed (malloc_trim(3); glibc alone)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def available_memory() -> int:
    """Bytes that can be taken without swapping, within the limit of our control group."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    free = int(match[1]) * 1024 if match else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # Version 2 of control groups, then version 1; page cache counts as used there, though it can be dropped.
    for controller, limit_file, used_file, cache_key in (
        ("", "memory.max", "memory.current", "file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    ):
        for group in _control_groups(controller):
            limit, used = _read(group / limit_file).strip(), _read(group / used_file).strip()
            if limit.isdigit() and used.isdigit():
                cache = re.search(rf"^{cache_key} (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
                free = min(free, int(limit) - int(used) + (int(cache[1]) if cache else 0))
    return max(0, free)


def _control_groups(controller: str) -> list[Path]:
    """Our control group of this controller ("" is version 2) and those around it: the limits of all count.

    A container may see its own group as the root, and a path that does not exist from there.
    """
    root = _CGROUP / controller
    match = re.search(rf"^\d+:{controller}:/(.+)$", _read(_OWN_GROUPS), re.MULTILINE)
    own = root / match[1] if match else root
    return [own, *(parent for parent in own.parents if parent.is_relative_to(root))]


def total_memory() -> int:
    """Bytes of memory of this machine, or the limit of our control group where that is lower."""
    files = [group / "memory.max" for group in _control_groups("")]
    files += [group / "memory.limit_in_bytes" for group in _control_groups("memory")]
    limits = (_read(file).strip() for file in files)
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([installed, *(int(limit) for limit in limits if limit.isdigit())])


def cache_bytes() -> int:
    """Bytes of all level 3 caches, 0 where the system does not tell."""
    domains = {}
    for cache in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index3"):
        size = _read(cache / "size").strip()
        if size.endswith("K") and size[:-1].isdigit():
            domains[_read(cache / "shared_cpu_list")] = int(size[:-1]) * 1024
    return sum(domains.values())


def physical_cores() -> int:
    """Cores that this process may use; two hardware threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = _first_of_each_core()
    n_cores = len(cores)
    for group in _control_groups(""):
        quota, _, period = _read(group / "cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            n_cores = min(n_cores, int(quota) // int(period))
    return max(1, n_cores)


def cores_beside_gpu() -> int:
    """Cores that compute beside a GPU: of eight, one is left to copies, the driver and whoever watches.

    With all of 16 cores products were 5 to 10 % slower than with 14: every phase waits for the last thread.
    """
    n_cores = physical_cores()
    return n_cores - n_cores // 8


@contextmanager
def spread_over_cores(threads: int) -> Iterator[None]:
    """Threads that are started meanwhile stay on one hardware thread of each core, if there are enough.

    Two of them on the same core would share its vector units. Among the cores the system moves them freely:
    pinned to one core each they would wait behind whatever else runs there.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    cores = _first_of_each_core() if allowed else set()
    if not threads <= len(cores) < len(allowed):
        yield
        return
    os.sched_setaffinity(0, cores)  # of this thread; those that it starts inherit it
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _first_of_each_core() -> set[int]:
    """One hardware thread, by its number, of every core that this process may use."""
    first: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        first.setdefault(_read(topology / "thread_siblings_list").strip() or str(cpu), cpu)
    return set(first.values())


def interleave(address: int, n_bytes: int) -> bool:
    """Spread the pages of a mapping over all memory nodes, so that threads on every node read at full speed.

    False where there is one node or the system refuses (mbind(2), MPOL_INTERLEAVE). `address` is a page's.
    """
    nodes = _numbers(_read(Path("/sys/devices/system/node/has_memory")))
    call = {"x86_64": 237, "aarch64": 235}.get(platform.machine())
    if len(nodes) < 2 or call is None:
        return False
    import ctypes  # only machines of several nodes need it, and the interface starts without it

    mask = (ctypes.c_ulong * (max(nodes) // 64 + 1))()
    for node in nodes:
        mask[node // 64] |= 1 << node % 64
    size, n_bits = ctypes.c_size_t(n_bytes), ctypes.c_ulong(len(mask) * 64 + 1)
    done = ctypes.CDLL(None).syscall(call, ctypes.c_void_p(address), size, 3, mask, n_bits, 0)
    return bool(done == 0)


def _numbers(text: str) -> set[int]:
    """The numbers of a list as the kernel writes it, such as "0-1,3"."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def processor_name() -> str:
    """The processor's name as the system tells it."""
    match = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _read(path: Path) -> str:
    """The file's text, empty where there is no such file or it may not be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""

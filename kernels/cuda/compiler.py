"""From a kernel to machine code: inlined headers, NVRTC in a few threads, a cache on disk.

Knows files and NVRTC; needs neither a GPU nor CuPy. Called by cuda_device.py and instances.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from kernels.cuda import nvrtc
from kernels.cuda.device import Kernel
from kernels.errors import CompileError

_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"\s*')
_ONCE = re.compile(r"\s*#\s*pragma\s+once\s*")
_MOST_THREADS = 8


class Resources(NamedTuple):
    """What the assembler gave one kernel."""

    registers: int
    """A thread's."""
    spilled_bytes: int
    """Stored to and loaded from local memory for want of registers, counted in the code, by a thread."""
    stack_bytes: int
    """A thread's local memory: spills, and arrays that are indexed at run time."""
    shared_bytes: int
    """A block's, without SHARED_MEMORY."""
    warnings: tuple[str, ...]
    """What the compiler said besides."""


def read_source(name: str) -> str:
    """The text of a `.cu` or `.cuh` of this package. Raises CompileError when there is none of that name."""
    try:
        return files("kernels.cuda").joinpath(name).read_text("utf-8")
    except FileNotFoundError:
        raise CompileError(f"kernels/cuda has no file {name}") from None


def inlined_source(source: str) -> str:
    """The text of `source` (a file name) with every `#include "x.cuh"` replaced by that file, once each.

    `#line` directives keep the file and line of whatever a compiler complains about.
    """
    return "\n".join(_inlined(source, set())) + "\n"


def _inlined(name: str, seen: set[str]) -> list[str]:
    seen.add(name)
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate(read_source(name).splitlines(), start=1):
        include = _INCLUDE.fullmatch(line)
        if include and include[1] not in seen:
            lines += [*_inlined(include[1], seen), f'#line {number + 1} "{name}"']
        else:
            # An empty line for what was included already, so that the numbers stay right.
            lines.append("" if include or _ONCE.fullmatch(line) else line)
    return lines


class Compiler:
    """Compiles kernels for one architecture, each once. Threads may share it."""

    def __init__(
        self, compute_capability: int, folder: Path | None = None, *, newest_major: int | None = None
    ) -> None:
        """For devices of `compute_capability` (90 for 9.0), with machine code kept in `folder` if given.

        `newest_major` is the driver's version of CUDA. Raises CompileError when NVRTC is missing or too old.
        """
        self._nvrtc = nvrtc.load() if newest_major is None else nvrtc.load(newest_major)
        self.architecture = self._nvrtc.architecture_for(compute_capability)
        """What is compiled for: 90 for sm_90."""
        self._folder = folder
        self._compiled: dict[Kernel, bytes] = {}

    def compile(self, kernel: Kernel) -> bytes:
        """Machine code of `kernel`: kept from before, or compiled now. Raises CompileError."""
        if kernel not in self._compiled:
            source, options = inlined_source(kernel.source), self._options(kernel)
            place = self._folder and self._folder / f"{self._key(source, options)}.cubin"
            code = _kept(place) if place else None
            if code is None:
                code, _ = self._nvrtc.compile(source, kernel.source, options)
                if place:
                    _keep(place, code)
            self._compiled[kernel] = code
        return self._compiled[kernel]

    def prepare(
        self, kernels: Iterable[Kernel], on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Compile many in a few threads; this one calls `on_progress(done, total)`. Raises CompileError."""
        wanted = list(dict.fromkeys(kernels))
        with ThreadPoolExecutor(min(_MOST_THREADS, usable_cores()), "nvrtc") as pool:
            compiling = [pool.submit(self.compile, kernel) for kernel in wanted]
            try:
                for done, future in enumerate(as_completed(compiling), start=1):
                    future.result()
                    if on_progress:
                        on_progress(done, len(wanted))
            finally:
                for future in compiling:
                    future.cancel()

    def resources(self, kernel: Kernel) -> Resources:
        """What a fresh compilation of `kernel` needs of a processor. Raises CompileError."""
        options = [*self._options(kernel), "--ptxas-options=-v"]
        _, log = self._nvrtc.compile(inlined_source(kernel.source), kernel.source, options)
        return resources_in(log, kernel.name)

    def _options(self, kernel: Kernel) -> list[str]:
        defines = [f"-D{name}={value}" for name, value in kernel.defines]
        return ["--std=c++17", f"--gpu-architecture=sm_{self.architecture}", *defines]

    def _key(self, source: str, options: list[str]) -> str:
        """Names everything that the machine code depends on."""
        version = "{}.{}".format(*self._nvrtc.version)
        return hashlib.sha256("\0".join([version, *options, source]).encode()).hexdigest()


def resources_in(log: str, name: str) -> Resources:
    """What the assembler's log says of entry point `name`. Raises CompileError if there is no such entry."""
    _, found, section = log.partition(f"Compiling entry function '{name}'")
    if not found:
        raise CompileError(f"there is no entry point {name}: the assembler said {log!r}")
    section = section.partition("Compiling entry function")[0]
    warnings = tuple(line.strip() for line in log.splitlines() if re.search(r"\bwarning\b", line))
    spilled = (_count(rf"(\d+) bytes spill {what}", section) for what in ("stores", "loads"))
    return Resources(
        registers=_count(r"Used (\d+) registers", section),
        spilled_bytes=sum(spilled),
        stack_bytes=_count(r"(\d+) bytes stack frame", section),
        shared_bytes=_count(r"(\d+) bytes smem", section),
        warnings=warnings,
    )


def _count(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _kept(place: Path) -> bytes | None:
    """The machine code in a file of the cache; None when it is not there or not whole."""
    try:
        content = place.read_bytes()
    except OSError:
        return None
    digest, code = content[:32], content[32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _keep(place: Path, code: bytes) -> None:
    """Write a file of the cache whole or not at all. Where that fails, the next start compiles again."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=place.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(draft, place)
        except OSError:
            os.unlink(draft)
            raise


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

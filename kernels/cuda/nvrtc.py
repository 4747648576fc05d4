"""NVIDIA's run-time compiler: finding the library, and turning one source string into machine code.

Called through ctypes: these functions have not changed since CUDA 11.2, so that one code serves the libraries
of CUDA 12 and 13, and no package of bindings has to match them. Compiling releases the GIL and needs no GPU.
Knows no kernel and no cache; called by compiler.py.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernels.errors import CompileError

_MAJORS = (13, 12)
"""Of CUDA, newest first."""
_COMPILATION_FAILED = 6
"""NVRTC_ERROR_COMPILATION: the log says why."""
_AGAIN = "install it again: pip install --force-reinstall 'tiercel[cuda13]' or [cuda12]"
_ERROR = re.compile(r"\berror\b", re.IGNORECASE)


class Nvrtc:
    """A loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Read what `library` (libnvrtc) can do. Raises CompileError when it is none."""
        self._library = library
        major, minor, n_architectures = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        """Of CUDA: (13, 0)."""
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(n_architectures))
        architectures = (ctypes.c_int * n_architectures.value)()
        self._call("nvrtcGetSupportedArchs", architectures)
        self.architectures: tuple[int, ...] = tuple(architectures)
        """Compute capabilities times ten that it compiles for."""

    def architecture_for(self, compute_capability: int) -> int:
        """The best architecture whose machine code runs there: of the same major version, not newer.

        Raises CompileError when this NVRTC has none.
        """
        major = compute_capability // 10
        usable = [a for a in self.architectures if a // 10 == major and a <= compute_capability]
        if not usable:
            raise CompileError(
                f"NVRTC {self.version[0]}.{self.version[1]} does not compile for compute capability "
                f"{major}.{compute_capability % 10}: install a newer one (pip install -U 'tiercel[cuda13]')"
            )
        return max(usable)

    def compile(self, source: str, name: str, options: Sequence[str]) -> tuple[bytes, str]:
        """Machine code (a cubin) of `source`, and the log. Raises CompileError with the first error."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        try:
            listed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), listed)
            log = self._bytes("ProgramLog", program).rstrip(b"\0").decode("utf-8", "replace").strip()
            if status == _COMPILATION_FAILED:
                raise CompileError(f"{name} does not compile: {_first_error(log)}")
            self._check("nvrtcCompileProgram", status)
            return self._bytes("CUBIN", program), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            entry = getattr(self._library, function)
        except AttributeError:
            raise CompileError(f"{self._library._name} is no NVRTC: it has no {function}; {_AGAIN}") from None
        self._check(function, entry(*arguments))

    def _check(self, function: str, status: int) -> None:
        if status:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            words = self._library.nvrtcGetErrorString(status).decode()
            raise CompileError(f"NVRTC has failed ({function}: {words}): {_AGAIN}")


def _first_error(log: str) -> str:
    errors = (line.strip() for line in log.splitlines() if _ERROR.search(line))
    return next(errors, log or "NVRTC says nothing about it")


@functools.cache
def load(newest_major: int = _MAJORS[0]) -> Nvrtc:
    """The newest NVRTC here whose machine code a driver of CUDA `newest_major` loads.

    Raises CompileError when there is none, with what to install.
    """
    majors = [major for major in _MAJORS if major <= newest_major]
    for major in majors:
        for path in _places(major):
            try:
                library = ctypes.CDLL(path)
            except OSError:
                continue
            return Nvrtc(library)
    extra = f"cuda{majors[0]}" if majors else "cuda12"
    raise CompileError(
        f"NVRTC, which compiles the kernels, is not installed, or broken: pip install 'tiercel[{extra}]'"
    )


def _places(major: int) -> Iterator[str]:
    """Where libnvrtc may lie: NVIDIA's wheels, the environment, where the loader looks, a toolkit."""
    file = f"libnvrtc.so.{major}"
    wheels = importlib.util.find_spec("nvidia")
    for folder in (wheels and wheels.submodule_search_locations) or ():
        yield from (str(path) for path in sorted(Path(folder).glob(f"*/lib/{file}")))
    yield str(Path(sys.prefix) / "lib" / file)
    yield file
    for toolkit in (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if toolkit:
            yield str(Path(toolkit) / "lib64" / file)

"""Every CUDA source compiles for every architecture, without a GPU; machine code is kept and found again."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from kernels.cuda import compiler, instances, nvrtc
from kernels.cuda.compiler import Compiler, inlined_source
from kernels.cuda.device import Kernel
from kernels.cuda.instances import CARDS, Card
from kernels.errors import CompileError

NEW = 90
"""The compute capability from which sources differ."""
SCALE = Kernel.of("scale.cu", "scale", FACTOR=2)
SOURCES = {
    "scale.cu": '#include "ptx.cuh"\n#include "part.cuh"\n#ifndef FACTOR\n#error "FACTOR: a number"\n#endif\n'
    "KERNEL scale(float *x) { wait_for_previous(); x[threadIdx.x] *= PART * FACTOR; }\n",
    "part.cuh": '#pragma once\n#include "ptx.cuh"\n#define PART 3\n',
    "wrong.cu": '#include "ptx.cuh"\n\nKERNEL wrong(float *x) { *x = missing; }\n',
    "cuh_is_wrong.cu": '#include "wrong.cuh"\n\nKERNEL cuh_is_wrong(float *x) { *x = one(); }\n',
    "wrong.cuh": "#pragma once\n// one\nstatic __device__ float one() { return missing; }\n",
}


@pytest.fixture(scope="module", autouse=True)
def nvrtc_is_there() -> None:
    try:
        nvrtc.load()
    except CompileError as error:
        pytest.skip(str(error))


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Sources that are not in the package; a test may change them."""
    sources = dict(SOURCES)
    real = compiler.read_source
    monkeypatch.setattr(
        compiler, "read_source", lambda name: sources[name] if name in sources else real(name)
    )
    return sources


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the sources that NVRTC was asked to compile."""
    names: list[str] = []
    real = nvrtc.Nvrtc.compile

    def compile(library: nvrtc.Nvrtc, source: str, name: str, options: list[str]) -> tuple[bytes, str]:
        names.append(name)
        return real(library, source, name, options)

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", compile)
    yield names


def share_of(card: Card) -> list[Kernel]:
    """Instances of every entry point; cards on one side of `NEW` share those that there are several of."""
    alike = [each for each in CARDS if (each.compute_capability >= NEW) == (card.compute_capability >= NEW)]
    place, instances_of = alike.index(card), dict[str, list[Kernel]]()
    for kernel in instances.representative(card):
        instances_of.setdefault(kernel.name, []).append(kernel)
    share = []
    for kernels in instances_of.values():
        share += kernels[place :: len(alike)] or [kernels[-1]]
    return share


@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"sm_{card.compute_capability}")
def test_every_source_compiles(card: Card) -> None:
    kernel_compiler = Compiler(card.compute_capability)
    assert kernel_compiler.architecture == card.compute_capability
    kernel_compiler.prepare(share_of(card))


def test_no_source_asks_for_another_architecture_than_the_one_that_shares_go_by() -> None:
    texts = [path.read_text() for path in files("kernels.cuda").iterdir() if ".cu" in path.name]
    asked = {line.strip() for text in texts for line in text.splitlines() if "__CUDA_ARCH__" in line}
    assert asked == {f"#if __CUDA_ARCH__ >= {NEW}0"}


def test_every_source_has_instances() -> None:
    sources = {path.name for path in files("kernels.cuda").iterdir() if path.name.endswith(".cu")}
    assert {kernel.source for kernel in instances.representative(CARDS[0])} == sources


def test_every_header_is_inlined_once_and_keeps_its_lines(sources: dict[str, str]) -> None:
    text = inlined_source("scale.cu")
    assert text.count("#define PART 3") == 1
    assert text.count("typedef unsigned char u8;") == 1
    assert "#include" not in text and "#pragma once" not in text
    assert '#line 3 "scale.cu"' in text.splitlines()


def test_an_error_names_file_and_line(sources: dict[str, str]) -> None:
    with pytest.raises(CompileError, match=r"wrong\.cu does not compile: wrong\.cu\(3\): error.*missing"):
        Compiler(90).compile(Kernel.of("wrong.cu", "wrong"))
    with pytest.raises(CompileError, match=r"cuh_is_wrong\.cu does not compile: wrong\.cuh\(3\): error"):
        Compiler(90).compile(Kernel.of("cuh_is_wrong.cu", "cuh_is_wrong"))


def test_a_missing_macro_is_an_error_with_its_meaning(sources: dict[str, str]) -> None:
    with pytest.raises(CompileError, match="FACTOR: a number"):
        Compiler(90).compile(Kernel.of("scale.cu", "scale"))


def test_a_missing_source_is_an_error() -> None:
    with pytest.raises(CompileError, match=r"no file nothing\.cu"):
        Compiler(90).compile(Kernel.of("nothing.cu", "nothing"))


def test_machine_code_is_kept(sources: dict[str, str], compilations: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "cubins"
    code = Compiler(90, folder).compile(SCALE)
    assert Compiler(90, folder).compile(SCALE) == code
    assert compilations == ["scale.cu"]


def test_whatever_changes_the_code_is_compiled_again(
    sources: dict[str, str], compilations: list[str], tmp_path: Path
) -> None:
    codes = [Compiler(90, tmp_path).compile(SCALE)]
    codes.append(Compiler(90, tmp_path).compile(Kernel.of("scale.cu", "scale", FACTOR=5)))
    codes.append(Compiler(80, tmp_path).compile(SCALE))
    sources["part.cuh"] = sources["part.cuh"].replace("3", "4")
    codes.append(Compiler(90, tmp_path).compile(SCALE))
    assert len(compilations) == len(set(codes)) == len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 4000], ids=["empty", "short", "zeros"])
def test_a_damaged_file_is_compiled_again_and_replaced(
    sources: dict[str, str], compilations: list[str], tmp_path: Path, damage: bytes
) -> None:
    code = Compiler(90, tmp_path).compile(SCALE)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage)
    assert Compiler(90, tmp_path).compile(SCALE) == code
    assert kept.read_bytes() == whole
    assert len(compilations) == 2


def test_a_full_disk_costs_time_only(
    sources: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(compiler.os, "replace", refuse)
    assert Compiler(90, tmp_path).compile(SCALE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["libm.so.6", "missing parts"])
def test_a_broken_nvrtc_is_said_with_what_helps(
    sources: dict[str, str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "libm.so.6":
        with pytest.raises(
            CompileError, match=r"is no NVRTC: it has no nvrtcVersion; install it again: pip "
        ):
            nvrtc.Nvrtc(ctypes.CDLL(what))
        return
    library = nvrtc.load()
    monkeypatch.setattr(library._library, "nvrtcCompileProgram", lambda *arguments: 7)
    failure = r"NVRTC has failed \(nvrtcCompileProgram: NVRTC_ERROR_BUILTIN.*\): install it again: pip "
    with pytest.raises(CompileError, match=failure):
        Compiler(90).compile(SCALE)


def test_a_folder_that_cannot_be_written_costs_time_only(sources: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert Compiler(90, tmp_path / "file").compile(SCALE) == Compiler(90).compile(SCALE)


def test_many_are_compiled_at_once_with_progress(
    sources: dict[str, str], compilations: list[str], tmp_path: Path
) -> None:
    kernels = [Kernel.of("scale.cu", "scale", FACTOR=factor) for factor in (1, 2, 3, 4, 2)]
    progress: list[tuple[int, int]] = []
    kernel_compiler = Compiler(90, tmp_path)
    kernel_compiler.prepare(kernels, lambda done, total: progress.append((done, total)))
    assert progress == [(done, 4) for done in range(1, 5)]
    for kernel in kernels:
        assert kernel_compiler.compile(kernel) == Compiler(90).compile(kernel)
    assert len(compilations) == 4 + len(kernels)


def test_one_wrong_kernel_stops_the_rest(sources: dict[str, str]) -> None:
    with pytest.raises(CompileError, match=r"wrong\.cu"):
        Compiler(90).prepare([SCALE, Kernel.of("wrong.cu", "wrong"), SCALE])


def test_resources_are_read_from_the_assembler(sources: dict[str, str]) -> None:
    sources["shared.cu"] = (
        '#include "ptx.cuh"\nKERNEL other(int *x) { *x = 1; }\n'
        "KERNEL shared(int *x) { __shared__ int all[1000]; all[threadIdx.x] = x[threadIdx.x];"
        " __syncthreads(); x[threadIdx.x] = all[x[threadIdx.x]]; int unused; }\n"
    )
    used = Compiler(80).resources(Kernel.of("shared.cu", "shared"))
    assert used.registers >= 4 and used.shared_bytes == 4000
    assert used.spilled_bytes == used.stack_bytes == 0
    assert any("unused" in warning for warning in used.warnings)
    with pytest.raises(CompileError, match="no entry point missing"):
        Compiler(80).resources(Kernel.of("shared.cu", "missing"))


def test_spills_are_counted() -> None:
    log = (
        "ptxas info    : Compiling entry function 'a' for 'sm_90'\n"
        "ptxas         .    32 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 640 bytes smem\n"
    )
    assert compiler.resources_in(log, "a") == (255, 32, 32, 640, ())


def test_the_newest_architecture_that_runs_on_a_card_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    library = nvrtc.load()
    assert {80, 86, 89, 90, 120} <= set(library.architectures)
    monkeypatch.setattr(library, "architectures", (75, 80, 86, 90))
    assert [library.architecture_for(each) for each in (80, 86, 87, 89, 90)] == [80, 86, 86, 86, 90]
    with pytest.raises(CompileError, match=r"does not compile for compute capability 12\.0: install a newer"):
        library.architecture_for(120)


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_places", lambda major: iter(["/nowhere/libnvrtc.so"]))
    with pytest.raises(CompileError, match=r"pip install 'tiercel\[cuda12\]'"):
        nvrtc.load.__wrapped__(12)


def test_a_limit_on_spills_makes_nvrtc_all_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["90", "--few", "--source", "step.cu"]
    assert instances.main(arguments) == 0
    assert "sm_90: 1 kernels, as H200 launches them" in capsys.readouterr().out
    monkeypatch.setitem(instances.MOST_SPILLED_BYTES, "step.cu", -1)
    assert instances.main(arguments) == 1
    assert "sm_90 step: 0 bytes spilled, -1 allowed" in capsys.readouterr().err

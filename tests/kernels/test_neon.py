"""The kernels built for AArch64 and run under QEMU, whose processor decides which instruction set is chosen.

The sources and compiler flags of the extension, but -O1, which compiles six times faster; see cpu_harness/.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.kernels.cpu_harness.vectors import write_cases

REPO = Path(__file__).resolve().parents[2]
HARNESS = Path(__file__).parent / "cpu_harness" / "harness.c"
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "cases.bin"
    write_cases(path)
    return path


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in (COMPILER, EMULATOR):
        if not shutil.which(tool):
            pytest.skip(f"no {tool}: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user")
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    extension = project["tool"]["setuptools"]["ext-modules"][0]
    sources = [source for source in extension["sources"] if not source.endswith("module.c")]
    program = tmp_path_factory.mktemp("harness") / "harness"
    command = [
        COMPILER,
        *extension["extra-compile-args"],
        "-O1",
        "-static",
        "-Ikernels/cpu",
        *sources,
        str(HARNESS),
    ]
    subprocess.run([*command, "-o", str(program), *extension["extra-link-args"]], cwd=REPO, check=True)
    return program


@pytest.mark.parametrize(
    ("processor", "instruction_set"), [("cortex-a53", "neon"), ("max", "neon-dotprod")], ids=["a53", "max"]
)
def test_neon_is_near_the_oracle_and_the_same_bits_for_any_columns_and_threads(
    harness: Path, cases: Path, processor: str, instruction_set: str
) -> None:
    command = [EMULATOR, "-cpu", processor, str(harness), str(cases)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, instruction_set), done.stdout + done.stderr

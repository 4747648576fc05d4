"""The house's rules, read from the source: imports point one way, and the light things stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "app": {"app", "engine", "themes"},
    "engine": {"engine", "kernels"},
    "kernels": {"kernels"},
    "themes": {"themes"},
}
"""themes <- app -> engine -> kernels."""


def sources() -> Iterator[Path]:
    for folder in MAY_IMPORT:
        yield from sorted((REPO / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the package"
            yield node.module or ""


@pytest.mark.parametrize("path", list(sources()), ids=lambda path: str(path.relative_to(REPO)))
def test_imports_point_one_way(path: Path) -> None:
    folder = path.relative_to(REPO).parts[0]
    for module in imports(path):
        package = module.partition(".")[0]
        assert package not in MAY_IMPORT.keys() - MAY_IMPORT[folder], f"{folder} must not import {module}"
        if folder == "app" and package == "engine":
            assert module == "engine", f"app comes in through the engine's door, not through {module}"


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [("engine", {"textual", "rich"}), ("kernels", {"textual", "jinja2", "tokenizers"})],
)
def test_what_computes_knows_no_terminal(folder: str, forbidden: set[str]) -> None:
    for path in (REPO / folder).rglob("*.py"):
        assert not {module.partition(".")[0] for module in imports(path)} & forbidden, path


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported after running `code`."""
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import engine",
        "from app.__main__ import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass",
        "from app.__main__ import main\ntry:\n    main(['run', '--help'])\nexcept SystemExit:\n    pass",
        "from engine import Engine\nEngine().close()",
    ],
    ids=["engine", "--help", "run --help", "an engine that was not used"],
)
def test_no_arrays_and_no_widgets_before_they_are_needed(code: str) -> None:
    assert not modules_after(code) & {"numpy", "textual", "jinja2", "tokenizers", "sentencepiece", "cupy"}


def test_a_run_imports_no_textual(tmp_path: Path) -> None:
    from tests.tiny_gguf import write_tiny_model

    path = write_tiny_model(tmp_path / "m.gguf")
    code = (
        f"from app.__main__ import main\nmain(['run', '-m', {str(path)!r}, '--raw', '-p', 'hi', '-n', '2'])"
    )
    modules = modules_after(code)
    assert "numpy" in modules
    assert "textual" not in modules

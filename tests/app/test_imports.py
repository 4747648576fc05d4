"""What starts quickly stays so: commands without Textual, the first frame without numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
COMMANDS = sorted(path.stem for path in (REPO / "app" / "cli").glob("*.py") if path.stem != "__init__")


def _loaded(statements: str) -> set[str]:
    code = f"import sys\n{statements}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_no_command_imports_textual() -> None:
    modules = ", ".join(f"app.cli.{name}" for name in COMMANDS)
    loaded = _loaded(f"import app.__main__, app.store, app.settings, app.models, {modules}")
    assert not loaded & {"textual", "rich"}


def test_the_first_frame_needs_no_arrays() -> None:
    loaded = _loaded("import app.__main__, app.app, engine\napp.app.TiercelApp(engine.Engine)")
    assert "textual" in loaded
    assert not loaded & {"numpy", "tokenizers", "sentencepiece", "jinja2", "cupy", "gguf"}

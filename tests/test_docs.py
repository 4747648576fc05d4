"""The pages people read first, held to the code: commands, keys, files, functions, both languages alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.actions import ACTIONS
from app.cli import exit_codes
from app.keymap import load_keymap
from app.models.suggestions import load_suggestions
from app.personas import read_persona
from app.settings import load_settings
from app.themes import read_theme

REPO = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "README.zh-CN.md")
FOLDERS = ("app", "engine", "kernels", "themes", "docs")
SUFFIXES = {".py", ".pyi", ".c", ".h", ".cu", ".cuh", ".tcss", ".toml"}
_PATH = rf"`((?:{'|'.join(FOLDERS)}|tests)/[\w./-]+)`"
_SYMBOL = re.compile(_PATH + r"[,，]?\s+`([A-Za-z_][\w.]*)`")


def read(name: str) -> str:
    return (REPO / name).read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and content of every code block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", read(page), re.MULTILINE | re.DOTALL)


def headings(page: str) -> list[str]:
    """Levels of the headings outside code blocks."""
    prose = re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^(#+) ", prose, re.MULTILINE)


def tree(page: str) -> Iterator[Path]:
    """Every path of the annotated tree."""
    (text,) = (content for language, content in blocks(page) if language == "text")
    above: list[str] = []
    for line in text.splitlines():
        indent, names = re.fullmatch(r"( *)(\S+(?:, \S+)*)  +\S.*", line).groups()  # type: ignore[union-attr]
        above = above[: len(indent) // 2]
        for name in names.split(", "):
            yield Path(*above, name)
        above.append(names)


def commands() -> list[str]:
    sources = (path.read_text(encoding="utf-8") for path in sorted((REPO / "app" / "cli").glob("*.py")))
    return [match[1] for source in sources if (match := re.search(r'^NAME = "(\w+)"$', source, re.MULTILINE))]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("command", commands())
def test_every_command_is_shown_at_work(page: str, command: str) -> None:
    shown = "".join(content for language, content in blocks(page) if language == "console")
    assert re.search(rf"^\$ (.* )?tiercel {command}\b.*\n(?!\$).*\S", shown, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_key_and_exit_code_is_listed(page: str) -> None:
    rows = re.findall(r"^\| `?([^|`]+)`? \|", read(page), re.MULTILINE)
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    keys = {action.shown for action in ACTIONS if action.shown}
    assert keys | {str(code) for code in codes} <= set(rows)


@pytest.mark.parametrize("page", PAGES)
def test_every_slash_command_and_every_name_for_the_key_map_is_listed(page: str) -> None:
    cells = set(re.findall(r"(?<=\| )`([^`|]+)`(?= \|)", read(page)))
    slashes = {f"/{action.slash} {action.argument.upper()}".strip() for action in ACTIONS if action.slash}
    assert slashes | {action.id for action in ACTIONS if action.method} <= cells


def test_the_examples_of_files_that_people_edit_can_be_used(tmp_path: Path) -> None:
    names = ("settings.toml", "keymap.toml", "persona.toml", "theme.toml", "suggestions.toml")
    examples = (content for language, content in blocks("README.md") if language == "toml")
    for name, content in zip(names, examples, strict=True):
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert load_settings(tmp_path / "settings.toml")[1] == []
    assert load_keymap(tmp_path / "keymap.toml").problems == ()
    assert read_persona(tmp_path / "persona.toml").system
    assert read_theme(tmp_path / "theme.toml").primary
    suggestions, problems = load_suggestions(tmp_path)
    assert len(suggestions) == 1
    assert problems == []


@pytest.mark.parametrize("page", PAGES)
def test_the_tree_names_what_exists_and_all_of_it(page: str) -> None:
    named = set(tree(page))
    assert [path for path in sorted(named) if not (REPO / path).exists()] == []
    sources = {
        path.relative_to(REPO)
        for folder in FOLDERS
        for path in (REPO / folder).rglob("*")
        if path.suffix in SUFFIXES and path.name != "__init__.py"
    }
    assert sorted(sources - named) == []


@pytest.mark.parametrize("page", [*PAGES, "docs/ARCHITECTURE.md"])
def test_files_and_functions_that_are_named_exist(page: str) -> None:
    text = read(page)
    paths = re.findall(_PATH, text)
    assert len(paths) > 20
    assert [path for path in paths if not (REPO / path).exists()] == []
    for path, symbol in _SYMBOL.findall(text):
        for part in symbol.split("."):
            defined = rf"^\s*(async )?(def|class) {part}\b|^[\w *]+[ *]{part}\("
            assert re.search(defined, read(path), re.MULTILINE), f"{page}: {path} has no {symbol}"


def test_both_languages_say_the_same() -> None:
    english, chinese = PAGES
    assert headings(english) == headings(chinese)
    assert [language for language, _ in blocks(english)] == [language for language, _ in blocks(chinese)]
    for ours, theirs in zip(blocks(english), blocks(chinese), strict=True):
        assert ours == theirs or ours[0] == "text"
    assert set(tree(english)) == set(tree(chinese))
    assert _SYMBOL.findall(read(english)) == _SYMBOL.findall(read(chinese))
    numbers = re.compile(r"\d+\.\d{4}|FIGURE:\w+|\d+\.\d %")
    assert numbers.findall(read(english)) == numbers.findall(read(chinese))


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_has_been_measured(page: str) -> None:
    assert re.findall(r"FIGURE:\w+", read(page)) == []

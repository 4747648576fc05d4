"""Every word of the interface has its translation with the same placeholders, and none is left over."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.actions import ACTIONS
from app.i18n import LANGUAGES, _, language_of_locale, read_catalogue, use_language
from app.settings import words
from tests.app.driving import running

APP = Path(__file__).resolve().parents[2] / "app"
TRANSLATED = [name for name in LANGUAGES if name != "en"]


def shown_words() -> set[str]:
    """Every English text that is passed through `_`, or that a table hands to it."""
    found = {text for path in APP.rglob("*.py") for text in literals(path)}
    for action in ACTIONS:
        found |= {action.label, action.help, action.group, action.argument}
    return (found | set(words())) - {""}


def literals(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_":
            (argument,) = node.args
            if isinstance(argument, ast.Constant):
                yield str(argument.value)


def placeholders(text: str) -> list[str]:
    return sorted(
        name for _text, name, _spec, _conversion in string.Formatter().parse(text) if name is not None
    )


@pytest.mark.parametrize("language", TRANSLATED)
def test_the_catalogue_has_every_word_and_no_other(language: str) -> None:
    catalogue = read_catalogue(language)
    assert sorted(shown_words() - catalogue.keys()) == []
    assert sorted(catalogue.keys() - shown_words()) == []


@pytest.mark.parametrize("language", TRANSLATED)
def test_translations_take_the_same_values(language: str) -> None:
    for english, translation in read_catalogue(language).items():
        assert translation.strip()
        assert placeholders(english) == placeholders(translation), english
        assert (english[0].isspace(), english[-1].isspace()) == (
            translation[0].isspace(),
            translation[-1].isspace(),
        ), f"{english!r} has spaces at its ends"


def test_what_is_not_translated_stays_english(monkeypatch: pytest.MonkeyPatch) -> None:
    use_language("zh")
    try:
        assert _("no such words") == "no such words"
        assert _("send") != "send"
    finally:
        use_language("en")
    assert _("send") == "send"


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({}, "en"),
    ],
)
def test_the_locale_chooses(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], language: str
) -> None:
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert language_of_locale() == language


async def test_the_chat_speaks_chinese(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    try:
        async with running(size=(120, 40)) as driver:
            await driver.ready()
            text = driver.screen_text()
            assert "发送" in text
            assert "Enter send" not in text
    finally:
        use_language("en")

"""Every shipped theme is readable; a faulty one is named and passed over."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from textual.color import Color

from app.settings import DEFAULT_THEME
from app.themes import TOKENS, ThemeError, load_themes, read_theme

SHIPPED, _ = load_themes(Path("/nowhere"))


def test_there_is_a_dark_default_and_a_light_theme() -> None:
    by_name = {theme.name: theme for theme in SHIPPED}
    assert by_name[DEFAULT_THEME].dark
    assert not all(theme.dark for theme in SHIPPED)


@pytest.mark.parametrize("theme", SHIPPED, ids=lambda theme: theme.name)
def test_text_stands_out_from_every_ground_at_least_4_5_to_1(theme: object) -> None:
    variables = theme.variables  # type: ignore[attr-defined]
    colours = {name: getattr(theme, name) for name in ("foreground", "primary", "secondary", "accent")}
    colours |= {name: getattr(theme, name) for name in ("success", "warning", "error")}
    colours["muted"] = variables["muted"]
    colours |= {name: variables[f"tier-{name}"] for name in ("vram", "ram", "nvme", "active", "move")}
    grounds = {name: getattr(theme, name) for name in ("background", "surface")}
    for (text, colour), (ground, behind) in product(colours.items(), grounds.items()):
        ratio = _contrast(Color.parse(colour), Color.parse(behind))
        assert ratio >= 4.5, f"{text} on {ground}: {ratio:.2f}"


@pytest.mark.parametrize("theme", SHIPPED, ids=lambda theme: theme.name)
def test_every_theme_has_every_token(theme: object) -> None:
    assert theme.variables.keys() == TOKENS.keys()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("primary = 'nocolour'", "nocolour"),
        ("primary = 12", "12"),
        ("primary = '#fff'\nbackgruond = '#000'", "backgruond"),
        ("dark = 'yes'\nprimary = '#fff'", "dark"),
        ("primary = '#fff'\n[variables]\ntier-ram = 'x'", "tier-ram"),
        ("background = '#000'", "primary"),
        ("primary =", "cannot be read"),
    ],
)
def test_a_faulty_theme_is_refused_naming_file_and_key(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ThemeError, match=named):
        read_theme(tmp_path / "mine.toml")


def test_a_theme_of_ones_own_comes_last_and_a_faulty_one_does_not_stop_it(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("primary = 'x'")
    (tmp_path / "mine.toml").write_text("primary = '#ff0000'")
    themes, problems = load_themes(tmp_path)
    assert themes[-1].name == "mine"
    assert themes[-1].variables == TOKENS
    assert len(problems) == 1


def _contrast(one: Color, other: Color) -> float:
    """WCAG 2 contrast ratio."""

    def luminance(colour: Color) -> float:
        parts = (part / 255 for part in colour.rgb)
        red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)

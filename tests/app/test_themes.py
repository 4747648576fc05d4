"""Every shipped theme is readable; a faulty one is named and passed over."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest
from textual.app import App
from textual.color import Color
from textual.theme import Theme

from app.settings import DEFAULT_THEME
from app.themes import TOKENS, ThemeError, ThemeWatch, apply_theme, load_themes, read_theme

SHIPPED, _ = load_themes(Path("/nowhere"))
COLOURED = [theme for theme in SHIPPED if not theme.ansi]
"""Those whose colours are known: not the terminal's own."""
TIERS = [name for name in TOKENS if name.startswith("tier-")]


def test_six_themes_are_shipped_and_one_has_the_terminals_colours() -> None:
    assert len(COLOURED) >= 6
    assert [theme.name for theme in SHIPPED if theme.ansi] == ["terminal"]


def test_there_is_a_dark_default_and_a_light_theme() -> None:
    by_name = {theme.name: theme for theme in SHIPPED}
    assert by_name[DEFAULT_THEME].dark
    assert not all(theme.dark for theme in SHIPPED)


@pytest.mark.parametrize("theme", COLOURED, ids=lambda theme: theme.name)
def test_text_stands_out_from_every_ground_at_least_4_5_to_1(theme: object) -> None:
    variables = theme.variables  # type: ignore[attr-defined]
    colours = {name: getattr(theme, name) for name in ("foreground", "primary", "secondary", "accent")}
    colours |= {name: getattr(theme, name) for name in ("success", "warning", "error")}
    colours["muted"] = variables["muted"]
    colours |= {name: variables[name] for name in TIERS}
    grounds = {name: getattr(theme, name) for name in ("background", "surface")}
    for (text, colour), (ground, behind) in product(colours.items(), grounds.items()):
        ratio = _contrast(Color.parse(colour), Color.parse(behind))
        assert ratio >= 4.5, f"{text} on {ground}: {ratio:.2f}"


@pytest.mark.parametrize("theme", SHIPPED, ids=lambda theme: theme.name)
def test_every_theme_has_every_token(theme: object) -> None:
    table = theme.variables.keys()  # type: ignore[attr-defined]
    assert TOKENS.keys() <= table
    assert theme.ansi or TOKENS.keys() == table  # type: ignore[attr-defined]


@pytest.mark.parametrize("theme", COLOURED, ids=lambda theme: theme.name)
def test_tiers_are_told_apart_by_colour_too(theme: object) -> None:
    for one, other in combinations(TIERS, 2):
        pair = [_lab(Color.parse(theme.variables[name])) for name in (one, other)]  # type: ignore[attr-defined]
        distance = sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) ** 0.5
        assert distance >= 20, f"{one} and {other}: {distance:.0f}"


def test_a_theme_of_the_terminals_colours_has_every_variable_that_textual_has() -> None:
    by_name = {theme.name: theme.to_color_system().generate().keys() for theme in SHIPPED}
    assert by_name[DEFAULT_THEME] <= by_name["terminal"]


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
        ("primary = 'ansi_blue'", "ansi = true"),
        ("ansi = true\nprimary = 'ansi_blu'", "ansi_blu"),
        ("ansi = 1\nprimary = '#fff'", "ansi"),
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


def test_an_edited_theme_is_noticed_once(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("primary = '#ff0000'")
    watch = ThemeWatch(tmp_path)
    assert watch.changed() == ([], [])
    mine.write_text("primary = '#00ff00' # now green")
    (tmp_path / "new.toml").write_text("primary = '#0000ff'")
    themes, problems = watch.changed()
    assert [(theme.name, theme.primary) for theme in themes] == [("mine", "#00ff00"), ("new", "#0000ff")]
    assert problems == []
    assert watch.changed() == ([], [])


def test_a_faulty_edit_is_one_line_and_a_removed_file_none(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("primary = '#ff0000'")
    watch = ThemeWatch(tmp_path)
    mine.write_text("primary = 'no colour'")
    themes, problems = watch.changed()
    assert themes == []
    assert len(problems) == 1
    assert "mine.toml" in problems[0]
    assert watch.changed() == ([], [])
    mine.unlink()
    assert watch.changed() == ([], [])


def test_a_folder_that_comes_later_is_watched_too(tmp_path: Path) -> None:
    watch = ThemeWatch(tmp_path / "themes")
    assert watch.changed() == ([], [])
    (tmp_path / "themes").mkdir()
    (tmp_path / "themes" / "mine.toml").write_text("primary = '#ff0000'")
    assert [theme.name for theme in watch.changed()[0]] == ["mine"]


@pytest.mark.parametrize("used", ["mine", "other"])
async def test_an_edited_theme_is_shown_at_once_where_it_is_in_use(used: str) -> None:
    app: App[None] = App()
    app.register_theme(Theme("mine", primary="#ff0000", background="#111111"))
    app.register_theme(Theme("other", primary="#00ff00", background="#222222"))
    app.theme = used
    async with app.run_test() as pilot:
        apply_theme(app, Theme("mine", primary="#ff0000", background="#333333"))
        await pilot.pause()
        shown = {"mine": "#333333", "other": "#222222"}[used]
        assert app.screen.styles.background == Color.parse(shown)
        assert app.theme == used


@pytest.mark.parametrize("theme", SHIPPED, ids=lambda theme: theme.name)
async def test_every_theme_can_be_painted(theme: Theme) -> None:
    app: App[None] = App()
    app.register_theme(theme)
    async with app.run_test() as pilot:
        app.theme = theme.name
        await pilot.pause()
        assert app.get_css_variables()["tier-ram"]


def _lab(colour: Color) -> tuple[float, float, float]:
    """CIE Lab under D65: distances in it are about as large as they look."""
    red, green, blue = (
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4
        for p in (part / 255 for part in colour.rgb)
    )
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (
            (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
            0.2126 * red + 0.7152 * green + 0.0722 * blue,
            (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.0888,
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _contrast(one: Color, other: Color) -> float:
    """WCAG 2 contrast ratio."""

    def luminance(colour: Color) -> float:
        parts = (part / 255 for part in colour.rgb)
        red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)

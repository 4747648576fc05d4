"""The personas dialog: choosing, making, changing, deleting, at every size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from app.personas import Persona, load_personas, save_persona
from app.screens.personas import PersonasScreen
from app.widgets.sampling_table import SamplingTable
from engine import SamplingParams
from tests.app.bare_host import Host


class PersonasHost(Host):
    """Opens the dialog and keeps what it closes with."""

    def __init__(self, folder: Path, current: str = "") -> None:
        super().__init__()
        self.folder = folder
        self.result: Persona | str | None = "open"
        self._current = current

    def on_mount(self) -> None:
        self.push_screen(PersonasScreen(self.folder, SamplingParams(), (), self._current), self._keep)

    def _keep(self, persona: Persona | None) -> None:
        self.result = persona

    def field(self, name: str) -> Input:
        return self.screen.query_one(f"#persona-{name}", Input)

    @property
    def own(self) -> list[Persona]:
        return [persona for persona in load_personas(self.folder)[0] if persona.path is not None]


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    for _ in range(500):
        if condition():
            await pilot.pause()
            return
        await asyncio.sleep(0.01)
    raise AssertionError(pilot.app.shown())  # type: ignore[attr-defined]


@asynccontextmanager
async def dialog(
    folder: Path, *, size: tuple[int, int] = (100, 40), current: str = ""
) -> AsyncIterator[tuple[PersonasHost, Pilot[None]]]:
    host = PersonasHost(folder, current)
    async with host.run_test(size=size) as pilot:
        await until(pilot, lambda: "Storyteller" in host.shown())
        yield host, pilot


async def test_enter_uses_the_chosen_one_and_escape_none(home: Path, tmp_path: Path) -> None:
    saved = save_persona(tmp_path, Persona("Mine", "be mine", {"temperature": 0.2}))
    async with dialog(tmp_path, current="Mine") as (host, pilot):
        assert "● Mine" in host.shown()
        assert "temperature 0.20" in host.shown()
        await pilot.press("enter")
        await until(pilot, lambda: host.result == saved)
    async with dialog(tmp_path) as (host, pilot):
        await pilot.press("escape")
        await until(pilot, lambda: host.result is None)


async def test_a_new_one_is_filled_in_and_saved_by_escape(home: Path, tmp_path: Path) -> None:
    async with dialog(tmp_path) as (host, pilot):
        await pilot.press("n", *"Rust", "tab", *"why", "tab", "tab", *"Be", "enter", *"exact")
        await pilot.press("tab", "right", "down", "3", "enter", "escape")
        await until(pilot, lambda: host.own)
        assert host.own == [
            Persona("Rust", "Be\nexact", {"temperature": 0.75, "top_k": 3}, "", "why", tmp_path / "rust.toml")
        ]
        await until(pilot, lambda: "Enter use" in host.shown())
        await pilot.press("enter")
        await until(pilot, lambda: host.result == host.own[0])


async def test_editing_renames_the_file_and_r_gives_a_parameter_back(home: Path, tmp_path: Path) -> None:
    save_persona(tmp_path, Persona("Old", "text", {"temperature": 0.2, "top_k": 5}))
    async with dialog(tmp_path, current="Old") as (host, pilot):
        await pilot.press("e")
        await pilot.pause()
        host.field("name").value = "New"
        host.screen.query_one(SamplingTable).focus()
        await pilot.press("r", "escape")
        await until(pilot, lambda: [persona.name for persona in host.own] == ["New"])
        assert host.own == [Persona("New", "text", {"top_k": 5}, path=tmp_path / "new.toml")]


async def test_what_cannot_be_saved_is_said_once_and_then_left(home: Path, tmp_path: Path) -> None:
    save_persona(tmp_path, Persona("Taken"))
    async with dialog(tmp_path, current="Taken") as (host, pilot):
        await pilot.press("n", *"taken", "escape")
        await until(pilot, lambda: "not saved: there is another one called taken; Esc again" in host.shown())
        await pilot.press("escape")
        await until(pilot, lambda: "Enter use" in host.shown())
        assert len(host.own) == 1
        assert host.result == "open"


async def test_untouched_fields_write_nothing(home: Path, tmp_path: Path) -> None:
    async with dialog(tmp_path) as (host, pilot):
        await pilot.press("e")
        await pilot.pause()
        assert host.field("name").has_focus
        await pilot.press("escape")
        await until(pilot, lambda: "Enter use" in host.shown())
        assert not list(tmp_path.glob("*.toml"))


async def test_a_changed_example_becomes_the_persons_own(home: Path, tmp_path: Path) -> None:
    async with dialog(tmp_path, current="Concise") as (host, pilot):
        await pilot.press("e")
        await pilot.pause()
        host.screen.query_one("#persona-system", TextArea).text = "mine"
        await pilot.press("escape")
        await until(pilot, lambda: host.own)
        assert (host.own[0].name, host.own[0].system) == ("Concise", "mine")


async def test_a_copy_gets_a_free_name(home: Path, tmp_path: Path) -> None:
    async with dialog(tmp_path, current="Concise") as (host, pilot):
        await pilot.press("c")
        await until(pilot, lambda: host.screen.has_class("-editing"))
        await pilot.press("escape")
        await until(pilot, lambda: not host.screen.has_class("-editing"))
        assert [persona.name for persona in host.own] == ["Concise 2"]
        await pilot.press("c")
        await until(pilot, lambda: len(host.own) == 2)
        assert [persona.name for persona in host.own] == ["Concise 2", "Concise 2 2"]


async def test_a_deleted_one_comes_back(home: Path, tmp_path: Path) -> None:
    saved = save_persona(tmp_path, Persona("Mine", "be mine", {"seed": 3}))
    async with dialog(tmp_path, current="Mine") as (host, pilot):
        await pilot.press("d")
        await until(pilot, lambda: "Mine is deleted; u brings it back" in host.shown())
        assert not host.own
        await pilot.press("u")
        await until(pilot, lambda: host.own)
        assert host.own == [saved]


async def test_an_example_is_not_deleted(home: Path, tmp_path: Path) -> None:
    async with dialog(tmp_path, current="Concise") as (host, pilot):
        await pilot.press("d")
        await until(pilot, lambda: "comes with Tiercel and takes no room" in host.shown())
        assert "Concise" in host.shown()


async def test_a_missing_model_and_a_faulty_file_are_lines(home: Path, tmp_path: Path) -> None:
    save_persona(tmp_path, Persona("Mine", model="gone-7b"))
    (tmp_path / "wrong.toml").write_text("systm = 1")
    async with dialog(tmp_path, current="Mine") as (host, pilot):
        await until(pilot, lambda: "there is no model gone-7b" in " ".join(host.shown().split()))
        assert "! persona wrong.toml: unknown key 'systm'" in host.shown()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(host.result, Persona))


async def test_found_models_are_suggested(home: Path, tmp_path: Path) -> None:
    models = home / "tiercel" / "data" / "models"
    models.mkdir(parents=True)
    (models / "qwen3-8b.gguf").write_bytes(b"GGUF")
    async with dialog(tmp_path) as (host, pilot):
        screen = host.screen
        assert isinstance(screen, PersonasScreen)
        await until(pilot, lambda: screen._models)
        await pilot.press("n", "tab", "tab", *"qwe")
        await until(pilot, lambda: host.field("model")._suggestion)
        await pilot.press("right")
        assert host.field("model").value == "qwen3-8b"


async def test_no_control_byte_of_a_file_is_shown(home: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.toml").write_text(
        'name = "E\\u001b[2Jvil"\nsystem = "a\\u001b]52;c;x\\u0007b"\nmodel = "\\u202em"\nnote = "[bold]x[/]"'
    )
    async with dialog(tmp_path) as (host, pilot):
        await pilot.press("down")
        await until(pilot, lambda: "]52;c;x" in host.shown())
        await pilot.press("e")
        await pilot.pause()
        assert "[bold]x[/]" in host.shown()
        assert not set(host.shown()) & {"\x1b", "\x07", "\u202e"}
        await pilot.press("escape")
        await until(pilot, lambda: not host.screen.has_class("-editing"))
        assert "\\u001b" in (tmp_path / "evil.toml").read_text(), "what was not touched is as it was"


@pytest.mark.parametrize("size", [(40, 15), (80, 24), (120, 40), (200, 60)])
async def test_it_works_at_every_size(home: Path, tmp_path: Path, size: tuple[int, int]) -> None:
    async with dialog(tmp_path, size=size) as (host, pilot):
        assert "Enter use" in host.shown()
        await pilot.press("n", "x")
        await pilot.pause()
        assert "NAME" in host.shown() and "Esc" in host.shown()
        await pilot.press("tab", "tab", "tab", "tab", "end", "up")
        await pilot.pause()
        assert "▌looks back" in host.shown(), host.shown()
        await pilot.press("2", "5", "6", "enter", "escape")
        await until(pilot, lambda: host.own)
        assert host.own[0].sampling == {"penalty_window": 256}

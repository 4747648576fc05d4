"""The model picker: what it lists, filters, tells and fetches, in an application of its own."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input

import app.fetch as fetch
from app.fetch import Fetches
from app.model_settings import ModelSettings
from app.models import hub as hub_module
from app.models.catalog import Starter
from app.models.hub_file import HubFile
from app.models.pip import PullError
from app.models.pulling import OnProgress, Progress, Pulled, Stage
from app.screens.model_list import ModelList
from app.screens.model_options import ModelOptionsScreen
from app.screens.models import Load, ModelsScreen, Unload
from app.settings import SettingsFile
from app.themes import TOKENS, load_themes
from engine import Budget, GpuSearch, KVType, ModelPreview
from kernels.quant_types import QuantType
from tests.app.models.hub_server import HubServer, hub_server
from tests.app.tiers.models import GPU
from tests.tiny_gguf import CHATML, write_tiny_model

WAIT_S = 10.0
ON_GPU = ModelPreview(
    path=Path("chatty.gguf"),
    name="chatty",
    architecture="llama",
    max_context=512,
    kv_bytes=500_000_000,
    vram_bytes=2_000_000_000,
    device="NVIDIA RTX 0000",
)


class Host(App[None]):
    """Opens the picker, and keeps what it closes with."""

    def __init__(self, settings: SettingsFile, fetches: Fetches, loaded: Path | None, wanted: str) -> None:
        super().__init__()
        self.settings, self.fetches, self.loaded, self.wanted = settings, fetches, loaded, wanted
        self.results: list[object] = []
        themes, _ = load_themes(Path("/nowhere"))
        for theme in themes:
            self.register_theme(theme)
        self.theme = "kestrel"

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return TOKENS

    def on_mount(self) -> None:
        self.open()

    def open(self) -> None:
        screen = ModelsScreen(self.settings, self.loaded, self.wanted, fetches=self.fetches)
        self.push_screen(screen, self.results.append)


class Driver:
    """The running host and short names for what tests do with it."""

    def __init__(self, pilot: Pilot[None], host: Host) -> None:
        self.pilot, self.host = pilot, host

    def text(self) -> str:
        height = self.host.screen.size.height
        strips = self.host.screen._compositor.render_strips()[:height]
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    @property
    def list(self) -> ModelList:
        return self.host.screen.query_one(ModelList)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"never happened: {what}\n{self.text()}"
            await asyncio.sleep(0.02)

    async def shows(self, *words: str) -> None:
        for word in words:
            await self.until(lambda word=word: word in self.text(), f"{word!r} is shown")


@pytest.fixture
def models(home: Path) -> Path:
    """Our models folder with a model that chats."""
    folder = home / "tiercel" / "data" / "models"
    folder.mkdir(parents=True)
    write_tiny_model(folder / "chatty.gguf", quant_type=QuantType.Q4_K, chat_template=CHATML)
    return folder


@pytest.fixture
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub_module, "_PAUSE_S", 0.001)
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@asynccontextmanager
async def picker(
    home: Path,
    *,
    size: tuple[int, int] = (100, 30),
    loaded: Path | None = None,
    wanted: str = "",
    fetches: Fetches | None = None,
) -> AsyncIterator[Driver]:
    fetches = fetches or Fetches()
    host = Host(SettingsFile(home / "tiercel" / "config" / "settings.toml"), fetches, loaded, wanted)
    try:
        async with host.run_test(size=size) as pilot:
            yield Driver(pilot, host)
    finally:
        fetches.close()


async def test_a_model_shows_what_its_header_says_and_loads_on_enter(home: Path, models: Path) -> None:
    async with picker(home, size=(120, 40)) as driver:
        await driver.shows("chatty", "✓ fits", "Q4_K", "512", "chat", "tiercel")
        await driver.shows("llama, 2 layers", "from disk   nothing", "measured when it is loaded")
        await driver.press("enter")
        await driver.until(lambda: driver.host.results, "closed")
        assert driver.host.results == [Load(models / "chatty.gguf")]


async def test_a_model_too_large_for_the_budget_says_what_is_read_for_each_token(
    home: Path, models: Path
) -> None:
    write_tiny_model(models / "deep.gguf", quant_type=QuantType.Q4_K, layers=6)
    settings = SettingsFile(home / "tiercel" / "config" / "settings.toml")
    from tests.engine.budgets import budget_for

    settings.change(ram_budget=budget_for(models / "deep.gguf", 512, 0.0))
    settings.save()
    async with picker(home) as driver:
        await driver.shows("streams", "a token")


async def test_what_cannot_be_loaded_says_why_and_does_not_close(home: Path, models: Path) -> None:
    (models / "broken.gguf").write_bytes(b"no model" * 20)
    async with picker(home) as driver:
        await driver.shows("✗ cannot be loaded", "is not a GGUF file", "✓ fits")
        await driver.press("enter")
        await driver.shows("✗ broken: is not a GGUF file")
        assert driver.host.results == []
        (models / "broken.gguf").unlink()
        shutil.copy(models / "chatty.gguf", models / "broken.gguf")  # put right meanwhile
        await driver.press("enter")
        await driver.until(lambda: driver.host.results, "closed")


async def test_a_file_deleted_while_it_is_shown_is_said_to_be_gone(home: Path, models: Path) -> None:
    async with picker(home) as driver:
        await driver.shows("✓ fits")
        (models / "chatty.gguf").unlink()
        await driver.press("enter")
        await driver.shows("✗ chatty: no such file")
        await driver.press("ctrl+r")
        await driver.shows("No model found")


async def test_typing_filters_and_the_highlight_stays_on_what_is_left(home: Path, models: Path) -> None:
    for name in ("alpha", "beta", "gamma"):
        shutil.copy(models / "chatty.gguf", models / f"{name}.gguf")
    async with picker(home) as driver:
        await driver.until(lambda: driver.text().count("✓ fits") == 4, "all are looked into")
        await driver.press("down", "down", "down")
        await driver.press(*"amm")
        await driver.until(lambda: "alpha" not in driver.text(), "filtered")
        assert "gamma" in driver.text()
        await driver.press("backspace", "backspace")
        await driver.shows("alpha")
        await driver.press("enter")
        await driver.until(lambda: driver.host.results, "closed")
        assert driver.host.results == [Load(models / "gamma.gguf")]


async def test_a_filter_also_finds_what_files_hold_and_everything_that_is_suggested(
    home: Path, models: Path
) -> None:
    async with picker(home) as driver:
        await driver.shows("✓ fits")
        await driver.press(*"q4_k tiercel")
        await driver.shows("chatty")
        driver.host.screen.query_one(Input).value = "70b"
        await driver.shows("Llama-3.3-70B-Instruct", "42.5 GB", "llama3.3")
        driver.host.screen.query_one(Input).value = "no such words"
        await driver.shows("nothing has these words")
        await driver.press("enter")  # which does nothing
        assert driver.host.results == []


async def test_previews_that_arrive_move_no_row(
    home: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alpha", "beta"):
        shutil.copy(models / "chatty.gguf", models / f"{name}.gguf")
    go_on = threading.Event()
    real = __import__("app.screens.models", fromlist=["preview_model"]).preview_model

    def slow(*arguments: object) -> object:
        assert go_on.wait(WAIT_S)
        return real(*arguments)

    monkeypatch.setattr("app.screens.models.preview_model", slow)

    def rows() -> list[int]:
        lines = driver.text().splitlines()
        return [
            next(i for i, line in enumerate(lines) if name in line) for name in ("alpha", "beta", "chatty")
        ]

    async with picker(home) as driver:
        await driver.shows("alpha", "chatty", "…")
        await driver.press("down")
        before = rows()
        go_on.set()
        await driver.until(lambda: driver.text().count("✓ fits") == 3, "all are looked into")
        assert rows() == before
        await driver.press("enter")
        await driver.until(lambda: driver.host.results, "closed")
        assert driver.host.results == [Load(models / "beta.gguf")]


async def test_two_models_of_one_name_can_be_told_apart(home: Path, models: Path) -> None:
    other = home / "cache" / "huggingface" / "hub" / "models--x--y" / "snapshots" / "abc"
    other.mkdir(parents=True)
    own = models / "x" / "y"
    own.mkdir(parents=True)
    shutil.copy(models / "chatty.gguf", other / "m.gguf")
    shutil.copy(models / "chatty.gguf", own / "m.gguf")
    async with picker(home, size=(160, 40)) as driver:
        await driver.shows(str(own)[:40], str(other)[:40])


async def test_names_and_metadata_cannot_send_escape_sequences(home: Path, models: Path) -> None:
    data = (models / "chatty.gguf").read_bytes()
    (models / "chatty.gguf").unlink()
    (models / "ev\x1b[2Jil[red].gguf").write_bytes(data.replace(b"tiny llama", b"\x1b]0;ownedX"))
    async with picker(home, size=(120, 40)) as driver:
        await driver.shows("ev␛[2Jil[red]", "␛]0;owned")
        assert "\x1b" not in driver.text()


async def test_unload_needs_something_loaded(home: Path, models: Path) -> None:
    async with picker(home) as driver:
        await driver.shows("chatty")
        await driver.press("ctrl+u")
        await driver.shows("no model is loaded")
    async with picker(home, loaded=models / "chatty.gguf") as driver:
        await driver.shows("● chatty")
        await driver.press("ctrl+u")
        await driver.until(lambda: driver.host.results == [Unload()], "closed")


async def test_a_wanted_name_filters_from_the_start_and_escape_closes(home: Path, models: Path) -> None:
    shutil.copy(models / "chatty.gguf", models / "other.gguf")
    async with picker(home, wanted="oth") as driver:
        await driver.shows("other", "✓ fits")
        assert "chatty" not in driver.text()
        await driver.press("escape")
        await driver.until(lambda: driver.host.results == [None], "closed")


async def test_options_of_a_model_are_kept_and_change_what_is_predicted(home: Path, models: Path) -> None:
    async with picker(home, size=(120, 40)) as driver:
        await driver.shows("✓ fits")
        await driver.press("ctrl+o")
        await driver.until(lambda: isinstance(driver.host.screen, ModelOptionsScreen), "the form")
        await driver.press(*"many")
        await driver.shows("✗ the context must be a whole number")
        await driver.press("enter")
        assert isinstance(driver.host.screen, ModelOptionsScreen)
        await driver.press(*["backspace"] * 4, *"128", "tab", *"2g")
        await driver.shows("context 128")
        await driver.press("enter")
        await driver.shows("context 128, memory 2.0 GB")
    own = SettingsFile(home / "tiercel" / "config" / "settings.toml").values.models
    assert own == {str(models / "chatty.gguf"): ModelSettings(128, Budget(2_000_000_000))}


async def test_without_a_gpu_nobody_is_asked_about_one(
    home: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.screens.model_options.find_gpus", lambda: GpuSearch((), "no driver", False))
    async with picker(home, size=(120, 40)) as driver:
        await driver.shows("✓ fits")
        await driver.press("ctrl+o")
        await driver.shows("Memory, such as 8G or 50%", "context 512")
        await driver.pilot.pause()
        assert "Device" not in driver.text()


async def test_with_a_gpu_device_memory_and_cache_are_chosen_for_one_model(
    home: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.screens.model_options.find_gpus", lambda: GpuSearch((GPU,), "", True))
    monkeypatch.setattr("app.screens.model_options.preview_model", lambda *_: ON_GPU)
    monkeypatch.setattr("app.screens.models.preview_model", lambda *_: ON_GPU)
    async with picker(home, size=(120, 40)) as driver:
        await driver.shows(
            "✓ fits the GPU", "VRAM        2.0 GB, cache 500 MB", "computed by NVIDIA RTX 0000"
        )
        await driver.press("ctrl+o")
        await driver.shows("Device: auto, cpu, cuda or cuda:1", "Keys and values: f16 or q8_0")
        await driver.shows("context 512, video memory 2.0 GB, of it 500 MB for")
        await driver.press("tab", "tab", *"gpu")
        await driver.shows("✗ must be auto, cpu, cuda or cuda:N")
        await driver.press(*["backspace"] * 3, *"cuda:1", "tab", *"20g", "tab", *"q4")
        await driver.shows("✗ keys and values must be f16 or q8_0")
        await driver.press("backspace", *"8_0", "enter")
        await driver.shows("cuda:1, video memory 20.0 GB,", "keys and values q8_0")
    own = SettingsFile(home / "tiercel" / "config" / "settings.toml").values.models
    assert own == {
        str(models / "chatty.gguf"): ModelSettings(
            device="cuda:1", vram_budget=Budget(20_000_000_000), kv_type=KVType.Q8_0
        )
    }


@pytest.mark.parametrize(
    ("read", "row", "facts"),
    [
        (0, "✓ GPU + CPU · ~6.2 tok/s", ("from disk   nothing",)),
        (
            9_000_000_000,
            "≋ GPU + CPU, streams 9.0 GB a token · ~6.2 tok/s",
            ("from disk   9.0 GB for every token",),
        ),
    ],
)
async def test_a_model_larger_than_the_card_says_where_it_would_be(
    home: Path, models: Path, monkeypatch: pytest.MonkeyPatch, read: int, row: str, facts: tuple[str, ...]
) -> None:
    mixed = replace(
        ON_GPU,
        vram_bytes=23_000_000_000,
        ram_bytes=19_400_000_000,
        pass_read_bytes=read,
        predicted_decode_tok_s=6.2,
        limited_by="memory bandwidth",
    )
    monkeypatch.setattr("app.screens.model_options.find_gpus", lambda: GpuSearch((GPU,), "", True))
    monkeypatch.setattr("app.screens.model_options.preview_model", lambda *_: mixed)
    monkeypatch.setattr("app.screens.models.preview_model", lambda *_: mixed)
    async with picker(home, size=(160, 40)) as driver:
        await driver.shows(row, "VRAM        23.0 GB, cache 500 MB", "memory      19.4 GB", *facts)
        await driver.shows("waits for   memory bandwidth", "computed by NVIDIA RTX 0000")
        await driver.press("ctrl+o")
        await driver.shows("video memory 23.0 GB, memory 19.4 GB; 500 MB")


async def test_options_that_cannot_be_saved_say_so(
    home: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: SettingsFile) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(SettingsFile, "save", fail)
    async with picker(home) as driver:
        await driver.shows("✓ fits")
        await driver.press("ctrl+o", *"128", "enter")
        await driver.shows("settings were not saved: read-only")


# -- downloads


def _slow_pull(monkeypatch: pytest.MonkeyPatch, go_on: threading.Event) -> list[str]:
    """Make fetching the starter take until `go_on`; return the names of those that ended otherwise."""
    cleaned: list[str] = []

    def pull(starter: Starter, folder: Path, on_progress: OnProgress) -> Pulled:
        try:
            while not go_on.wait(0.01):
                on_progress(Progress(Stage.DOWNLOAD, 46_000_000, 92_000_000))
        except BaseException:
            cleaned.append(starter.name)
            raise
        path = folder / f"{starter.name}.gguf"
        folder.mkdir(parents=True, exist_ok=True)
        return Pulled(write_tiny_model(path, quant_type=QuantType.Q4_K), fetched=True)

    monkeypatch.setattr(fetch, "pull", pull)
    return cleaned


async def test_on_an_empty_machine_p_fetches_the_starter_and_loads_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    _slow_pull(monkeypatch, go_on)
    async with picker(home, size=(80, 24)) as driver:
        await driver.shows("No model found", "Press p to fetch SmolLM2")
        await driver.press("p")
        await driver.shows("downloading 46 of 92 MB", "^X stops")
        go_on.set()
        await driver.until(lambda: driver.host.results, "closed")
        assert driver.host.results == [Load(home / "tiercel" / "data" / "models" / "smollm2.gguf")]


async def test_p_is_a_letter_where_there_are_models(home: Path, models: Path) -> None:
    async with picker(home) as driver:
        await driver.shows("chatty")
        await driver.press("p")
        assert driver.host.screen.query_one(Input).value == "p"
        assert driver.host.fetches.current is None


async def test_a_download_goes_on_while_the_screen_is_closed_and_is_there_when_it_opens(
    home: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    _slow_pull(monkeypatch, go_on)
    async with picker(home, loaded=models / "chatty.gguf") as driver:
        await driver.shows("smollm2")
        await driver.press("down", "enter")
        await driver.shows("^X stops")
        await driver.press("down", "enter")
        await driver.shows("one download at a time")
        await driver.press("escape")
        await driver.until(lambda: driver.host.results == [None], "closed")
        driver.host.open()
        await driver.shows("downloading 46 of 92 MB")
        go_on.set()
        await driver.shows("✓ smollm2 is here")
        await driver.press("enter")  # the new one is highlighted
        await driver.until(lambda: len(driver.host.results) == 2, "closed again")
        assert driver.host.results[1] == Load(models / "smollm2.gguf")


async def test_what_ended_while_the_screen_was_closed_is_told_and_not_loaded(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    _slow_pull(monkeypatch, go_on)
    fetches = Fetches()
    assert fetches.start(fetch.STARTER)
    go_on.set()
    assert fetches.current is not None
    fetches.current.wait()
    async with picker(home, fetches=fetches) as driver:
        await driver.shows("✓ smollm2 is here", "fits")
        assert driver.host.results == []


async def test_a_download_is_stopped_by_its_key_and_by_quitting(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned = _slow_pull(monkeypatch, threading.Event())
    async with picker(home, size=(80, 24)) as driver:
        await driver.shows("No model found")
        await driver.press("p")
        await driver.shows("^X stops")
        await driver.press("ctrl+x")
        await driver.shows("nothing was kept")
        await driver.press("p")
        await driver.shows("^X stops")
    assert cleaned == ["smollm2", "smollm2"]


async def test_a_failed_download_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(starter: Starter, folder: Path, on_progress: OnProgress) -> Pulled:
        raise PullError("no network to fetch [bold]x: check the connection, then pull again")

    monkeypatch.setattr(fetch, "pull", pull)
    async with picker(home, size=(80, 24)) as driver:
        await driver.shows("No model found")
        await driver.press("p")
        await driver.shows("✗ no network to fetch [bold]x")


async def test_a_file_of_the_hub_is_fetched_by_its_name(home: Path, hub: HubServer, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", quant_type=QuantType.Q4_K, chat_template=CHATML)
    hub.files["owner/repo/m.gguf"] = path.read_bytes()
    async with picker(home) as driver:
        await driver.shows("No model found")
        await driver.press(*"hf:owner")
        await driver.shows("go on: hf:owner/repository/file.gguf")
        await driver.press(*"/repo/m.gguf")
        await driver.shows("Enter fetches it")
        await driver.press("enter")
        await driver.until(lambda: driver.host.results, "fetched and closed")
        target = home / "tiercel" / "data" / "models" / "owner" / "repo" / "m.gguf"
        assert driver.host.results == [Load(target)]
        assert target.read_bytes() == path.read_bytes()


async def test_a_suggestion_that_is_gated_is_told_plainly(home: Path, hub: HubServer) -> None:
    hub.error = (403, "GatedRepo")
    async with picker(home) as driver:
        await driver.shows("No model found")
        driver.host.screen.query_one(Input).value = "llama-3.2-1b"
        await driver.shows("Llama-3.2-1B-Instruct-Q4_K_M")
        await driver.press("enter")
        await driver.shows("is gated: accept its terms")


async def test_the_list_of_suggestions_is_the_persons_own_if_there_is_one(home: Path) -> None:
    config = home / "tiercel" / "config"
    config.mkdir(parents=True)
    (config / "suggestions.toml").write_text(
        '[[model]]\nrepo="me/mine"\nfile="mine.gguf"\nbytes=1_000_000\nparameters=1_000_000\n'
        'license="mit"\ngated=true\nnote="my own"\n[[model]]\nrepo="me/mine"\n'
    )
    async with picker(home) as driver:
        await driver.shows("mine", "terms to accept", "my own", "✓ would fit")
        await driver.shows("model 2 is left out: 'file' is missing")


@pytest.mark.parametrize("size", [(40, 15), (120, 40)])
async def test_however_many_models_there_are_everything_stays_on_the_screen(
    home: Path, models: Path, size: tuple[int, int]
) -> None:
    for number in range(30):
        shutil.copy(models / "chatty.gguf", models / f"model-{number:02}.gguf")
    (models / "chatty.gguf").unlink()
    async with picker(home, size=size) as driver:
        await driver.shows("model-00", "Enter load", "✓ fits")
        assert "Esc back" in " ".join(driver.text().replace("│", "").split())
        for _ in range(30):
            await driver.press("pagedown")
        await driver.shows("would run from disk")
        await driver.press("home")
        await driver.shows("model-00")


async def test_a_stopped_download_of_the_hub_says_that_what_came_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(source: HubFile, folder: Path, on_progress: OnProgress) -> Pulled:
        while True:
            on_progress(Progress(Stage.DOWNLOAD, 1, 2))
            time.sleep(0.01)

    monkeypatch.setattr(fetch, "pull_hub_file", pull)
    async with picker(home, wanted="hf:a/b/c.gguf") as driver:
        await driver.shows("Enter fetches it")
        await driver.press("enter")
        await driver.shows("^X stops")
        await driver.press("ctrl+x")
        await driver.shows("what came is kept")

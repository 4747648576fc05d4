"""Choose a model: those found on this machine, or one that is fetched on the spot.

Knows keys, messages and downloads; the list is `model_list`, loading is left to whoever opened the screen.
Files are looked into beside the screen, and a download goes on after it has closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList, Static

from app import locations
from app.background import in_thread
from app.fetch import STARTER, Fetch, Fetches
from app.i18n import _
from app.models import FoundModel, discover
from app.models.catalog import Starter
from app.models.hub_file import HubFile
from app.models.options import load_options
from app.models.suggestions import Suggestion, load_suggestions
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog
from app.screens.model_list import ModelList
from app.settings import SettingsFile
from app.widgets.download import download_line
from engine import ModelPreview, memory_for_model, preview_model

_WATCH_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """The person wants this file loaded."""

    path: Path


@dataclass(frozen=True, slots=True)
class Unload:
    """The person wants the memory of the loaded model back."""


class _Filter(Input):
    """What is typed. While it is empty, p is offered to somebody else first."""

    def __init__(self, value: str, take_p: Callable[[], bool]) -> None:
        placeholder = _("type to filter, or hf:owner/repository/file.gguf")
        super().__init__(value, placeholder, id="models-filter", compact=True, select_on_focus=False)
        self._take_p = take_p

    def on_key(self, event: events.Key) -> None:
        """See to p before it becomes a letter."""
        if event.key == "p" and not self.value and self._take_p():
            event.prevent_default().stop()


class ModelsScreen(Dialog[Load | Unload | None]):
    """Closes with what to do, or None."""

    CSS_PATH = "models.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (108, "-beside")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-short"), (34, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f3", "leave", "Back"),
        *(
            Binding(keys, f"move('{move}')", show=False, priority=True)
            for keys, move in (
                ("up", "cursor_up"),
                ("down", "cursor_down"),
                ("pageup", "page_up"),
                ("pagedown", "page_down"),
                ("home", "first"),
                ("end", "last"),
            )
        ),
        Binding("ctrl+o", "options", "Options", priority=True),
        Binding("ctrl+u", "unload", "Unload", priority=True),
        Binding("ctrl+r", "look", "Look again", priority=True),
        Binding("ctrl+x", "stop", "Stop the download", priority=True),
    ]

    def __init__(
        self,
        settings: SettingsFile,
        loaded: Path | None,
        wanted: str = "",
        *,
        fetches: Fetches,
        freed_bytes: int = 0,
        freed_vram_bytes: int = 0,
    ) -> None:
        """Mark `loaded`, which gives memory back when another is loaded; filter by `wanted`."""
        super().__init__()
        self._settings = settings
        self._loaded = loaded
        self._wanted = wanted
        self._fetches = fetches
        self._freed_bytes, self._freed_vram_bytes = freed_bytes, freed_vram_bytes
        self._message = _("looking for models…")

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with Vertical(id="models-panel") as panel:
            panel.border_title = _("Models")
            yield _Filter(self._wanted, self._fetch_starter)
            with Horizontal(id="models-columns"):
                yield ModelList(self._loaded)
                with VerticalScroll(id="models-side", can_focus=False):
                    yield Static(id="models-details")
            yield Static(self._message, id="models-message", markup=False)
            yield Static(id="models-fetch")
            yield Static(Content(_keys()), id="models-keys")

    def on_mount(self) -> None:
        """Look for models."""
        self._models.filter(self._wanted)
        self._look()
        if (ended := self._fetches.take_ended()) is not None:
            self._tell_end(ended)
        self._watch_fetch()
        self.set_interval(_WATCH_S, self._watch_fetch)

    @property
    def _models(self) -> ModelList:
        return self.query_one(ModelList)

    @property
    def _is_closed(self) -> bool:
        """Whether the list is gone: somebody has closed the screen while a thread was at work."""
        return not self.query(ModelList)

    # -- what is listed

    def action_look(self) -> None:
        """Look for models again."""
        self._say(Content(_("looking for models…")))
        self._look()

    @work(exclusive=True, group="look")
    async def _look(self, news: Content | None = None) -> None:
        """List what there is at once and tell the news of it, then look into one file after the other."""
        settings = self._settings.values

        def find() -> tuple[list[FoundModel], list[Suggestion], list[str], int]:
            budget = memory_for_model(settings.ram_budget, self._freed_bytes)
            return discover(settings.model_folders), *load_suggestions(locations.config_dir()), budget

        found, suggestions, problems, budget = await in_thread(find)
        if self._is_closed:
            return
        self._models.fill(found, suggestions, budget)
        self._show_details()
        if news is not None:
            self._say(news)
        elif self._message == _("looking for models…"):  # and nothing that somebody must read
            self._say(_summary(found, problems))
        for model in found:
            await self._look_into(model)

    async def _look_into(self, model: FoundModel) -> ModelPreview:
        """Find out what loading this file would give, and show it."""
        options = load_options(self._settings.values, model.path)
        freed = self._freed_bytes, self._freed_vram_bytes
        preview = await in_thread(lambda: preview_model(model.path, options, *freed))
        if self._is_closed:
            return preview
        self._models.learn(model, preview)
        if self._models.item is model:
            self._show_details()
        return preview

    @on(Input.Changed, "#models-filter")
    def _filter(self, event: Input.Changed) -> None:
        self._models.filter(event.value)
        self._show_details()

    @on(OptionList.OptionHighlighted)
    def _show_details(self) -> None:
        item = self._models.item
        own = self._settings.values.models.get(str(item.path)) if isinstance(item, FoundModel) else None
        self.query_one("#models-details", Static).update(self._models.details(own))

    def _say(self, content: Content) -> None:
        self._message = content.plain
        message = self.query_one("#models-message", Static)
        message.display = bool(content.plain)
        message.update(content)

    # -- what a person does

    def action_move(self, move: str) -> None:
        """Move the highlight."""
        getattr(self._models, f"action_{move}")()

    def action_leave(self) -> None:
        """Close the screen; a download goes on."""
        self.dismiss(None)

    def _fetch_starter(self) -> bool:
        """Fetch the starter model if no model is here; False where p is a letter."""
        if self._models.found != []:
            return False
        self._start(STARTER)
        return True

    def action_stop(self) -> None:
        """Stop the download."""
        if self._fetches.current is not None:
            self._fetches.current.stop()

    def action_unload(self) -> None:
        """Give the memory of the loaded model back."""
        if self._loaded is not None:
            self.dismiss(Unload())
        else:
            self._say(Content(_("no model is loaded")))

    @on(OptionList.OptionSelected)
    @on(Input.Submitted, "#models-filter")
    def _choose(self) -> None:
        item = self._models.item
        if isinstance(item, FoundModel):
            self._load(item)
        elif item is not None:
            self._start(item.source if isinstance(item, Suggestion) else item)

    @work(exclusive=True, group="load")
    async def _load(self, model: FoundModel) -> None:
        """Close with this model, unless it is known or found out now that it cannot be loaded."""
        known = self._models.previews.get(model.path)
        if known is None or known.problem or not await in_thread(model.path.is_file):
            known = await self._look_into(model)
        if known.problem:
            name, problem = sanitize_line(model.name), sanitize_line(known.problem)
            self._say(Content.assemble(("✗ ", "$error"), f"{name}: {problem}"))
        else:
            self.dismiss(Load(model.path))

    def action_options(self) -> None:
        """Choose context and memory of the highlighted model."""
        item = self._models.item
        if not isinstance(item, FoundModel):
            self._say(Content(_("options belong to a model that is here")))
            return
        from app.screens.model_options import ModelOptionsScreen

        model = item
        screen = ModelOptionsScreen(model, self._settings, self._freed_bytes, self._freed_vram_bytes)
        self.app.push_screen(screen, lambda saved: self._options_closed(model, saved))

    def _options_closed(self, model: FoundModel, problem: str | None) -> None:
        """Tell what could not be saved, and show what the new choice gives."""
        self._say(Content.styled(sanitize_line(problem), "$error") if problem else Content(""))
        self._refresh(model)
        self._show_details()

    @work
    async def _refresh(self, model: FoundModel) -> None:
        await self._look_into(model)

    # -- downloads

    def _start(self, source: Starter | HubFile) -> None:
        if self._fetches.start(source):
            self._say(Content(""))
            self._watch_fetch()
        elif (current := self._fetches.current) is not None:
            words = _("one download at a time: ^X stops {name}")
            self._say(Content(words.format(name=sanitize_line(current.name))))

    def _watch_fetch(self) -> None:
        """Show how far the download is; take up what it brought when it has ended."""
        ended = self._fetches.take_ended()
        current = self._fetches.current
        line = self.query_one("#models-fetch", Static)
        line.display = current is not None
        if current is not None:
            line.update(download_line(current, line.size.width))
        if ended is None:
            return
        if ended.path is not None and self._loaded is None and self.is_current:
            self.dismiss(Load(ended.path))
        else:
            self._tell_end(ended)

    def _tell_end(self, ended: Fetch) -> None:
        name = sanitize_line(ended.name)
        if ended.path is not None:
            self._models.highlight_file(ended.path)
            # Told once it is listed and highlighted: Enter loads what is highlighted.
            self._look(Content.assemble(("✓ ", "$success"), _("{name} is here").format(name=name)))
        elif ended.error:
            self._say(Content.assemble(("✗ ", "$error"), sanitize_line(ended.error)))
        elif ended.resumes:
            self._say(Content(_("stopped; what came is kept, and fetching it again goes on from there")))
        else:
            self._say(Content(_("stopped; nothing was kept")))


def _keys() -> str:
    keys = (
        ("Enter", _("load or fetch")),
        ("^O", _("options")),
        ("^U", _("unload")),
        ("^R", _("look again")),
        ("Esc", _("back")),
    )
    return " · ".join(f"{key} {what}" for key, what in keys)


def _summary(found: list[FoundModel], problems: list[str]) -> Content:
    """What to say once we have looked; nothing where the list says it all."""
    if problems:
        return Content.styled(sanitize_line(problems[0]), "$warning")
    if found:
        return Content("")
    before, _key, after = _("No model found on this machine. Press {p} to fetch {model}.").partition("{p}")
    return Content.assemble(before, ("p", "bold $primary"), after.format(model=STARTER.summary))

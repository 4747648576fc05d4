"""Choose a model: those found on this machine, or the starter, fetched on the spot.

Knows where models are found and how one is fetched; loading is left to whoever opened the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.background import in_thread
from app.fetch import STARTER, Fetch
from app.models import FoundModel, discover
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog
from app.widgets.meters import bar, size
from app.widgets.option_list import SteadyOptionList

_KEYS = "Enter load · p fetch the starter model · r look again · Esc back"


class _ModelOption(Option):
    """One model of the list."""

    def __init__(self, description: Content, path: Path) -> None:
        super().__init__(description)
        self.path = path


class ModelsScreen(Dialog[Path | None]):
    """Closes with the chosen file, or None."""

    CSS_PATH = "models.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f3", "leave", "Back"),
        Binding("p", "fetch", "Fetch the starter"),
        Binding("r", "look", "Look again"),
    ]

    def __init__(self, folders: Sequence[Path], loaded: Path | None) -> None:
        """Look in `folders` besides the usual places; `loaded` is marked."""
        super().__init__()
        self._folders = folders
        self._loaded = loaded
        self._fetch: Fetch | None = None

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with Vertical(id="models-panel") as panel:
            panel.border_title = "Models"
            yield SteadyOptionList(id="models-list", markup=False)
            yield Static("looking for models…", id="models-message")
            yield Static(Content(_KEYS), id="models-keys")

    def on_mount(self) -> None:
        """Look for models."""
        self.action_look()
        self.set_interval(0.1, self._watch_fetch)

    def on_unmount(self) -> None:
        """Leave no download behind."""
        if self._fetch is not None:
            self._fetch.stop()
            self._fetch.wait()

    def action_look(self) -> None:
        """Look for models again."""
        self.run_worker(self._look(), exclusive=True)

    def action_fetch(self) -> None:
        """Fetch the starter model."""
        if self._fetch is None:
            self._fetch = Fetch()

    def action_leave(self) -> None:
        """Stop a download, or close the screen."""
        if self._fetch is not None:
            self._fetch.stop()
        else:
            self.dismiss(None)

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        if isinstance(event.option, _ModelOption):
            self.dismiss(event.option.path)

    async def _look(self) -> None:
        found = await in_thread(lambda: discover(self._folders))
        models = self.query_one("#models-list", OptionList)
        models.set_options([_ModelOption(self._describe(model), model.path) for model in found])
        models.display = bool(found)
        if found:
            paths = [model.path for model in found]
            models.highlighted = paths.index(self._loaded) if self._loaded in paths else 0
            models.focus()
            self._say(Content(""))
        else:
            self._say(
                Content.assemble(
                    "No model found on this machine.\n\nPress ",
                    ("p", "bold $primary"),
                    f" to fetch {STARTER.summary} ({size(STARTER.size)}).",
                )
            )

    def _describe(self, model: FoundModel) -> Content:
        mark = "● " if model.path == self._loaded else "  "
        facts = f"{size(model.size)} · {model.origin.value} · {sanitize_line(str(model.path))}"
        return Content.assemble(
            (mark, "$success"), (sanitize_line(model.name), "bold"), "\n  ", (facts, "$muted")
        )

    def _watch_fetch(self) -> None:
        fetch = self._fetch
        if fetch is None:
            return
        if not fetch.done:
            if (progress := fetch.progress) is not None:
                share = progress.done / progress.total if progress.total else 0.0
                words = f" {progress.stage.value} {progress.done / 1e6:.0f} of {progress.total / 1e6:.0f} MB"
                self._say(Content.assemble(bar(share, 24), words, ("   Esc stops", "$muted")))
            return
        self._fetch = None
        if fetch.path is not None:
            self.dismiss(fetch.path)
        elif fetch.error:
            self._say(Content.assemble(("✗ ", "$error"), sanitize_line(fetch.error)))
        else:
            self._say(Content("stopped; nothing was kept"))

    def _say(self, content: Content) -> None:
        message = self.query_one("#models-message", Static)
        message.display = bool(content.plain)
        message.update(content)

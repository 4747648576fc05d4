"""Context, memory and device of one model, with what they would give.

Knows settings and previews; loads nothing. What belongs to a GPU is asked only where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, Static

from app.background import in_thread
from app.devices import parse_device
from app.i18n import _
from app.model_settings import ModelSettings
from app.models import FoundModel, resolve_model
from app.models.options import load_options
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog
from app.screens.model_rows import plan_in_words, shown_budget
from app.settings import SettingsFile
from engine import KVType, ModelNotFoundError, find_gpus, parse_budget, preview_model


class ModelOptionsScreen(Dialog[str | None]):
    """Remembers what was chosen and closes with "" or what went wrong; with None when nothing was chosen."""

    CSS_PATH = "model_options.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back"),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    def __init__(
        self, model: FoundModel, settings: SettingsFile, freed_bytes: int, freed_vram_bytes: int
    ) -> None:
        """Edit what is chosen for `model`; what is freed is as in `preview_model`."""
        super().__init__()
        self._model = model
        self._settings = settings
        self._freed = freed_bytes, freed_vram_bytes
        self._own = settings.values.models.get(str(model.path), ModelSettings())

    def compose(self) -> ComposeResult:
        """Build the form."""
        values = self._settings.values
        context = str(self._own.context or "")
        with Vertical(id="options-panel") as panel:
            panel.border_title = sanitize_line(self._model.name)
            yield Label(_("Context, in tokens"), markup=False)
            yield Input(context, id="options-context", placeholder=str(values.context or _("automatic")))
            yield Label(_("Memory, such as 8G or 50%"), markup=False)
            placeholder = str(values.ram_budget) if values.ram_budget else _("automatic")
            yield Input(shown_budget(self._own.ram_budget), id="options-memory", placeholder=placeholder)
            with Vertical(id="options-gpu") as gpu:
                gpu.display = self._own != replace(self._own, device=None, vram_budget=None, kv_type=None)
                yield Label(_("Device: auto, cpu, cuda or cuda:1"), markup=False)
                placeholder = values.device or _("automatic")
                yield Input(self._own.device or "", id="options-device", placeholder=placeholder)
                yield Label(_("Video memory, such as 20G or 80%"), markup=False)
                placeholder = str(values.vram_budget) if values.vram_budget else _("automatic")
                shown = shown_budget(self._own.vram_budget)
                yield Input(shown, id="options-vram", placeholder=placeholder)
                yield Label(_("Keys and values: f16 or q8_0"), markup=False)
                yield Input(self._own.kv_type or "", id="options-kv", placeholder=values.kv_type)
            yield Label(_("Draft model: a smaller one with the same vocabulary"), markup=False)
            shown = str(self._own.draft_model) if self._own.draft_model else ""
            yield Input(shown, id="options-draft", placeholder=_("none"))
            yield Static(id="options-plan", markup=False)
            yield Static(_("Enter keep · empty: as for all · Esc back"), id="options-keys")

    def on_mount(self) -> None:
        """Show what the present choice gives."""
        self._changed()
        self._look_for_gpus()

    @work
    async def _look_for_gpus(self) -> None:
        if (await in_thread(find_gpus)).devices:
            self.query_one("#options-gpu").display = True

    def action_leave(self) -> None:
        """Close and change nothing."""
        self.dismiss(None)

    @on(Input.Changed)
    def _changed(self) -> None:
        """Show what would come of what is written now."""
        try:
            own = self._written()
        except ValueError as error:
            self._tell(Content.assemble(("✗ ", "$error"), sanitize_line(str(error))))
            return
        self._preview(own)

    @work(exclusive=True)
    async def _preview(self, own: ModelSettings) -> None:
        values, path = self._settings.values, self._model.path
        options = load_options(replace(values, models={str(path): own}), path)
        self._tell(plan_in_words(await in_thread(lambda: preview_model(path, options, *self._freed))))

    def _tell(self, content: Content) -> None:
        self.query_one("#options-plan", Static).update(content)

    def _written(self) -> ModelSettings:
        """Read all fields. Raises ValueError with one line."""
        context, memory, device, vram, kv_type, draft = (
            self.query_one(f"#options-{name}", Input).value.strip()
            for name in ("context", "memory", "device", "vram", "kv", "draft")
        )
        context = context.replace(",", "")
        if context and not (context.isascii() and context.isdigit() and int(context) > 0):
            raise ValueError(_("the context must be a whole number above 0"))
        return replace(
            self._own,
            context=int(context) if context else None,
            ram_budget=parse_budget(memory) if memory else None,
            device=parse_device(device) if device else None,
            vram_budget=parse_budget(vram) if vram else None,
            kv_type=_kv_type(kv_type) if kv_type else None,
            draft_model=_draft_model(draft, self._settings.values.model_folders) if draft else None,
        )

    @on(Input.Submitted)
    async def _keep(self) -> None:
        try:
            own = self._written()
        except ValueError:
            return  # the line that says so is there already
        models = {**self._settings.values.models, str(self._model.path): own}
        problem = ""
        if self._settings.change(models=models):
            try:
                await in_thread(self._settings.save)
            except OSError as error:
                problem = _("settings were not saved: {error}").format(error=error)
        self.dismiss(problem)


def _kv_type(text: str) -> KVType:
    try:
        return KVType(text.lower())
    except ValueError:
        raise ValueError(_("keys and values must be f16 or q8_0")) from None


def _draft_model(text: str, folders: Sequence[Path]) -> Path:
    try:
        return resolve_model(text, folders).absolute()
    except ModelNotFoundError as error:
        raise ValueError(str(error)) from None

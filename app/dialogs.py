"""The dialogs over the chat, and what follows from what a person chose in them.

A part of the application, in a file of its own. Each dialog is imported when it is opened: what it needs is
not needed for the first frame.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App

from app.background import in_thread
from app.bridge import BudgetOf
from app.i18n import _
from app.models.options import load_options
from app.new_conversation import lead
from app.sanitize import sanitize_line
from app.screens.chat import ChatScreen
from app.settings import SettingsFile
from app.store import Store
from engine import Budget, EngineError, available_memory, parse_budget, parse_skip

if TYPE_CHECKING:
    from app.fetch import Fetches
    from app.personas import Persona


class DialogActions(App[int]):
    """The actions that open a dialog; `TiercelApp` has what they need."""

    chat: ChatScreen
    settings_file: SettingsFile
    store: Store

    @cached_property
    def fetches(self) -> Fetches:
        """The download of a model, which goes on when the screen that began it is closed."""
        from app.fetch import Fetches

        return Fetches()

    @property
    def in_dialog(self) -> bool:
        """Whether a dialog is open: a key pressed twice opens one only."""
        return len(self.screen_stack) > 1

    def load_model(self, path: Path) -> None:
        """Load a model as the settings say, those for it alone before those for all."""
        self.chat.load(load_options(self.settings_file.values, path, self.chat.chosen))

    def watch_fetches(self) -> None:
        """Tell of a download that ended while its screen was closed; load it where nothing is loaded."""
        if "fetches" not in self.__dict__ or self.in_dialog:
            return
        ended = self.fetches.take_ended()
        if ended is not None and ended.error:
            self.chat.notice("error", ended.error)
        elif ended is not None and ended.path is not None:
            self.chat.hint(_("{name} has arrived: F3 loads it").format(name=sanitize_line(ended.path.stem)))
            if self.chat.bridge.snapshot.model is None:
                self.load_model(ended.path)

    # -- the model

    def action_models(self, name: str = "") -> None:
        """Choose a model; with a name, load the one it begins."""
        from app.screens.models import Load, ModelsScreen, Unload

        if self.in_dialog:
            return
        model = self.chat.bridge.snapshot.model

        def use(choice: Load | Unload | None) -> None:
            if isinstance(choice, Load):
                self.load_model(choice.path)
            elif isinstance(choice, Unload):
                self.action_unload()

        tiers = self.chat.bridge.snapshot.tiers
        freed = tiers.ram_bytes + tiers.ring_bytes if tiers is not None else 0
        on_gpu = tiers is not None and tiers.gpu is not None
        screen = ModelsScreen(
            self.settings_file,
            model.path if model is not None else None,
            name,
            fetches=self.fetches,
            freed_bytes=freed + (model.kv_bytes if model is not None and not on_gpu else 0),
            freed_vram_bytes=tiers.vram_used_bytes if tiers is not None else 0,
        )
        self.push_screen(screen, use)

    def action_unload(self) -> None:
        """Unload the model."""
        self.chat.bridge.unload()
        self.chat.hint(_("the model is unloaded, its memory is free; F3 loads one"))

    def action_budget(self, size: str = "") -> None:
        """Change how much memory the weights may take."""
        self._budget("ram_budget", size)

    def action_vram_budget(self, size: str = "") -> None:
        """Change how much memory of the GPU the model may take."""
        self._budget("vram_budget", size)

    def _budget(self, memory: BudgetOf, size: str) -> None:
        if why_not := self.chat.bridge.why_no_budget(memory):
            self.chat.hint(why_not)
            return
        if size:
            try:
                self._use_budget(memory, parse_budget(size))
            except ValueError as error:
                self.chat.hint(str(error))
            return
        from app.screens.budget import BudgetScreen

        if not self.in_dialog:
            screen = BudgetScreen(
                lambda: self.chat.bridge.snapshot, available_memory, self._use_budget, memory
            )
            self.push_screen(screen)

    def _use_budget(self, memory: BudgetOf, budget: Budget | None) -> None:
        if memory == "ram_budget" and self.chat.chosen.ram_budget is not None:  # what is said later holds
            self.chat.chosen = replace(self.chat.chosen, ram_budget=budget)
        elif memory == "vram_budget" and self.chat.chosen.vram_budget is not None:
            self.chat.chosen = replace(self.chat.chosen, vram_budget=budget)
        if self.chat.bridge.set_budget(memory, budget):
            self.chat.notice("hint", "")  # of a size that was none, it may be
        else:
            self.chat.hint(_("no model is loaded"))

    def action_skip(self, rule: str = "") -> None:
        """Choose which blocks are left out; without a rule show what that does."""
        if not rule:
            from app.screens.skip import SkipScreen

            if not self.in_dialog:
                present = self.chat.decoding.skip
                self.push_screen(SkipScreen(lambda: self.chat.bridge.snapshot, present), self._use_rule)
            return
        self._use_rule(rule)

    def _use_rule(self, rule: str | None) -> None:
        if rule:
            try:
                self.chat.choose_skip(parse_skip(rule))
            except ValueError as error:
                self.chat.hint(str(error))

    def action_draft(self, kind: str = "") -> None:
        """Choose who drafts; without a kind show all."""
        from app.screens.choices import Drafting, DraftScreen, read_drafting

        def use(drafting: Drafting | None) -> None:
            if drafting is not None:
                self.chat.choose_draft(*drafting)

        if kind:
            try:
                use(read_drafting(kind))
            except ValueError as error:
                self.chat.hint(str(error))
        elif not self.in_dialog:
            model = self.chat.draft_model
            name = sanitize_line(model.stem) if model is not None else ""
            self.push_screen(DraftScreen(self.chat.decoding, name, self.chat.gain), use)

    async def action_compare(self, switch: str = "") -> None:
        """Answer a message twice, with one switch changed; without its name ask which."""
        from app.comparison import Switched
        from app.screens.choices import SwitchedScreen

        async def use(what: Switched | None) -> None:
            if what is not None:
                await self.chat.compare(what)

        if switch:
            try:
                what = Switched(switch.strip().lower())
            except ValueError:
                self.chat.hint(_("there is no switch {name}: skip, draft or greedy").format(name=switch))
            else:
                await use(what)
        elif not self.in_dialog and (found := self.chat.comparable()) is not None:
            self.push_screen(SwitchedScreen(found[1].way, self.chat.usual), use)

    def action_tiers(self) -> None:
        """Show more of where the weights are: a strip, a panel, the whole screen, nothing."""
        if self.in_dialog:
            return
        sizes = ("off", "strip", "panel") if self.chat.has_class("-wider") else ("off", "strip")
        present = self.settings_file.values.tiers
        place = sizes.index(present) if present in sizes else len(sizes) - 1
        if place < len(sizes) - 1:
            self._show_tiers(sizes[place + 1])
            return
        from app.screens.tiers import TiersScreen

        def go_on(onward: bool | None) -> None:
            if onward:
                self._show_tiers("off")

        bridge = self.chat.bridge
        self.push_screen(
            TiersScreen(lambda: bridge.snapshot, self.chat.tier_watch, pin=bridge.pin_block), go_on
        )

    def _show_tiers(self, size: str) -> None:
        self.chat.change_settings(tiers=size)
        self.chat.show_tiers(size)

    # -- conversations and personas

    def action_history(self, words: str = "") -> None:
        """Search everything that was ever said."""
        from app.screens.history import HistoryScreen

        if self.in_dialog:
            return
        screen = HistoryScreen(self.store, words)

        async def go(place: tuple[int, int] | None) -> None:
            await self.chat.forget(screen.deleted)
            if place is not None:
                await self.chat.open_conversation(*place)

        self.push_screen(screen, go)

    def action_personas(self, name: str = "") -> None:
        """Choose a persona."""
        from app.personas import find_persona, load_personas, personas_dir
        from app.screens.personas import PersonasScreen

        if name:
            personas, problems = load_personas(personas_dir())
            persona = find_persona(personas, name)
            if persona is not None:
                self._use_persona(persona)
            else:
                why = _("there is no persona {name}: /persona shows all").format(name=name)
                self.chat.hint("; ".join([why, *problems[:1]]))
            return

        def use(persona: Persona | None) -> None:
            if persona is not None:
                self._use_persona(persona)

        settings = self.settings_file.values
        if not self.in_dialog:
            screen = PersonasScreen(
                personas_dir(), settings.sampling, settings.model_folders, self.chat.workspace.current.persona
            )
            self.push_screen(screen, use)

    def _use_persona(self, persona: Persona) -> None:
        """Lead the present conversation as a persona says, and load its model."""
        lead(self.chat.workspace.current, persona, self.settings_file.values.sampling)
        self.chat.keep_conversation()
        self.chat.hint(_("persona of this conversation: {name}").format(name=sanitize_line(persona.name)))
        if persona.model:
            self.run_worker(self._load_named(persona.model))

    async def _load_named(self, name: str) -> None:
        from app.models import resolve_model

        try:
            path = await in_thread(lambda: resolve_model(name))
        except EngineError as error:
            self.chat.notice("hint", str(error))
            return
        present = self.chat.bridge.snapshot.model
        if present is None or present.path != path:
            self.load_model(path)

    # -- help

    def action_help(self) -> None:
        """Show the keys."""
        from app.screens.help import HelpScreen

        if not self.in_dialog:
            self.push_screen(HelpScreen())

    def action_command_palette(self) -> None:
        """Show all commands."""
        from app.screens.dialog import Palette

        if not self.in_dialog:
            self.push_screen(Palette())

    def action_settings(self) -> None:
        """Show all settings."""
        from app.personas import load_personas, personas_dir
        from app.screens.settings import SettingsScreen

        if not self.in_dialog:
            names = [persona.name for persona in load_personas(personas_dir())[0]]
            self.push_screen(SettingsScreen(self.settings_file, self.change_setting, names))

    def change_setting(self, **changes: object) -> None:
        """Remember settings and show what follows from them."""
        raise NotImplementedError

"""Choose a persona, or make, change and delete one.

Reads the files when it opens and writes them one at a time. What a persona does to a conversation is left to
whoever opened the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.background import in_thread
from app.i18n import _
from app.models import discover
from app.personas import Persona, delete_persona, load_personas, model_problem, save_persona
from app.sampling_fields import FIELDS, label, shown_value
from app.sanitize import sanitize, sanitize_line
from app.screens.dialog import Dialog
from app.widgets.option_list import SteadyOptionList
from app.widgets.persona_form import PersonaForm
from engine import SamplingParams

_ONE_COLUMN = 64


class PersonasScreen(Dialog[Persona | None]):
    """Closes with the chosen persona, or None."""

    CSS_PATH = "personas.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("n", "new", show=False),
        Binding("e", "edit", show=False),
        Binding("c", "copy", show=False),
        Binding("d,delete", "delete", show=False),
        Binding("u", "undo", show=False),
    ]

    def __init__(
        self, folder: Path, base: SamplingParams, model_folders: Sequence[Path] = (), current: str = ""
    ) -> None:
        """Read `folder`; personas differ from `base`; models are also looked for in `model_folders`."""
        super().__init__()
        self._folder = folder
        self._base = base
        self._model_folders = model_folders
        self._current = current
        self._personas: list[Persona] = []
        self._models: list[str] | None = None
        self._deleted: Persona | None = None
        self._draft: Persona | None = None
        self._refused: Persona | None = None

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with Vertical(id="personas-panel") as panel:
            panel.border_title = _("Personas")
            with Horizontal(id="personas-columns"):
                yield SteadyOptionList(id="personas-list", markup=False)
                with VerticalScroll(id="persona-view", can_focus=False):
                    yield Static(id="persona-facts")
                yield PersonaForm()
            yield Static(id="personas-message")
            yield Static(id="personas-keys")

    async def on_mount(self) -> None:
        """Read the files."""
        self._show_form(False)
        await self._read(self._current)
        self.run_worker(self._look_for_models())

    def on_resize(self, event: Resize) -> None:
        """Put list and details in one column where two have no room."""
        self.set_class(event.size.width < _ONE_COLUMN, "-one-column")
        self.query_one(PersonaForm).set_class(event.size.height < 24, "-low")

    # -- the list

    async def _read(self, chosen: str) -> None:
        self._personas, problems = await in_thread(lambda: load_personas(self._folder))
        listed = self.query_one("#personas-list", OptionList)
        listed.set_options([Option(self._describe(persona)) for persona in self._personas])
        names = [persona.name for persona in self._personas]
        listed.highlighted = names.index(chosen) if chosen in names else 0 if names else None
        listed.focus()
        more = _(" (and {n} more)").format(n=len(problems) - 1) if len(problems) > 1 else ""
        self._say(problems[0] + more if problems else "", "! ", "$warning")
        self._show_facts()

    def _describe(self, persona: Persona) -> Content:
        mark = "● " if persona.name == self._current else "  "
        note = sanitize_line(persona.note) or _("no note")
        return Content.assemble(
            (mark, "$success"), (sanitize_line(persona.name), "bold"), "\n  ", (note, "$muted")
        )

    async def _look_for_models(self) -> None:
        self._models = [model.name for model in await in_thread(lambda: discover(self._model_folders))]
        self._show_facts()

    @property
    def _chosen(self) -> Persona | None:
        place = self.query_one("#personas-list", OptionList).highlighted
        return self._personas[place] if place is not None and place < len(self._personas) else None

    @on(OptionList.OptionHighlighted)
    def _show_facts(self) -> None:
        persona = self._chosen
        facts = self.query_one("#persona-facts", Static)
        facts.update(Content("") if persona is None else self._facts(persona))

    def _facts(self, persona: Persona) -> Content:
        params = persona.drawn(self._base)
        own = [field for field in FIELDS if field.name in persona.sampling]
        sampling = " · ".join(f"{label(field.name)} {shown_value(field, params)}" for field in own)
        problem = model_problem(persona, self._models) if self._models is not None else ""
        origin = _("comes with Tiercel; a changed one is kept as your own") if persona.path is None else ""
        return Content.assemble(
            (sanitize_line(persona.name), "bold"),
            ("\n" + (sanitize_line(persona.note) or _("no note")), "$muted"),
            (f"\n{origin}" if origin else "", "$muted"),
            ("\n\n" + _("MODEL") + "\n", "$muted"),
            sanitize_line(persona.model) or _("whichever is loaded"),
            (f"\n! {problem}" if problem else "", "$warning"),
            ("\n\n" + _("SAMPLING") + "\n", "$muted"),
            sampling or _("as in the settings"),
            ("\n\n" + _("SYSTEM PROMPT") + "\n", "$muted"),
            sanitize(persona.system).strip() or _("as in the settings"),
        )

    @on(OptionList.OptionSelected)
    def _use(self) -> None:
        if self._chosen is not None:
            self.dismiss(self._chosen)

    # -- changing

    def action_new(self) -> None:
        """Fill in the fields of a new one."""
        self._edit(Persona(""))

    def action_edit(self) -> None:
        """Change the chosen one."""
        if self._chosen is not None:
            self._edit(self._chosen)

    async def action_copy(self) -> None:
        """Make another from the chosen one, and change that."""
        persona = self._chosen
        if persona is None or self._draft is not None:
            return
        names = {other.name for other in self._personas}
        copies = (_("{name} {n}").format(name=persona.name, n=n) for n in count(2))
        name = next(name for name in copies if name not in names)
        if await self._save(replace(persona, name=name, path=None)):
            self.action_edit()

    async def action_delete(self) -> None:
        """Delete the chosen one; it can be brought back."""
        persona = self._chosen
        if persona is None or self._draft is not None:
            return
        if persona.path is None:
            self._say(_("this one comes with Tiercel and takes no room"), "› ", "$primary")
            return
        try:
            await in_thread(lambda: delete_persona(persona))
        except OSError as error:
            self._say(_("it was not deleted: {error}").format(error=error))
            return
        self._deleted = persona
        place = self._personas.index(persona)
        following = self._personas[place + 1 :] or self._personas[:place]
        await self._read(following[0].name if following else "")
        words = _("{name} is deleted; u brings it back")
        self._say(words.format(name=persona.name), "› ", "$primary")

    async def action_undo(self) -> None:
        """Bring back what was deleted last."""
        if (
            self._deleted is not None
            and self._draft is None
            and await self._save(replace(self._deleted, path=None))
        ):
            self._deleted = None

    async def action_leave(self) -> None:
        """Close; or save what was edited and go back to the list."""
        if self._draft is None:
            self.dismiss(None)
            return
        form = self.query_one(PersonaForm)
        if form.typing is not None:
            form.typing.drop_entry()
            return
        persona = form.persona
        if persona in (self._draft, self._refused):
            self._show_form(False)
            self._say("")
        elif await self._save(persona):
            self._show_form(False)
        else:
            self._refused = persona

    async def _save(self, persona: Persona) -> bool:
        try:
            saved = await in_thread(lambda: save_persona(self._folder, persona))
        except (OSError, ValueError) as error:
            again = _("; Esc again leaves it as it was") if self._draft is not None else ""
            self._say(_("not saved: {error}").format(error=error) + again)
            return False
        await self._read(saved.name)
        return True

    def _edit(self, persona: Persona) -> None:
        if self._draft is None:
            self._draft, self._refused = persona, None
            self._show_form(True)
            self.query_one(PersonaForm).edit(persona, self._base, self._models or [])
            self._say("")

    def _show_form(self, shown: bool) -> None:
        self._draft = self._draft if shown else None
        self.set_class(shown, "-editing")
        keys = _("Enter use · n new · e edit · c copy · d delete · Esc back")
        if shown:
            keys = _("Tab next field · ↑↓←→ sampling · Esc save and go back")
        else:
            self.query_one("#personas-list", OptionList).focus()
        self.query_one("#personas-keys", Static).update(Content(keys))

    def _say(self, text: str, mark: str = "✗ ", style: str = "$error") -> None:
        message = self.query_one("#personas-message", Static)
        message.display = bool(text)
        message.update(Content.assemble((mark, style), sanitize_line(text)))

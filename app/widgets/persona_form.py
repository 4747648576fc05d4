"""The fields of a persona, to be edited. Knows a persona; does not know where it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static, TextArea

from app.i18n import _
from app.personas import Persona
from app.sanitize import sanitize, sanitize_line
from app.widgets.sampling_table import SamplingTable
from engine import SamplingParams


class PersonaForm(VerticalScroll, can_focus=False):
    """Name, note, model, system prompt, and the sampling parameters that differ."""

    DEFAULT_CSS = """
    PersonaForm {
        scrollbar-size-vertical: 1;
        scrollbar-background: $surface;
        scrollbar-background-hover: $surface;
        scrollbar-background-active: $surface;
        & .label { height: 1; margin-right: 1; color: $muted; }
        & Input { height: 1; border: none; padding: 0 1; margin: 0 1 1 0; background: $panel; }
        & Input:focus { background: $boost; background-tint: $primary 15%; }
        & Input > .input--placeholder { color: $muted; }
        & Input > .input--suggestion { color: $muted; }
        & TextArea { height: 7; border: none; padding: 0 1; margin: 0 1 1 0; background: $panel; }
        & TextArea:focus { border: none; background: $boost; background-tint: $primary 15%; }
        & TextArea > .text-area--cursor-line { background: transparent; }
        & SamplingTable { height: 19; margin-right: 1; }
        &.-low TextArea { height: 4; }
        &.-low SamplingTable { height: 100%; }
    }
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        super().__init__()
        self._persona = Persona("")
        self._base = SamplingParams()
        self._overrides = dict(self._persona.sampling)

    def compose(self) -> ComposeResult:
        """Build the fields."""
        yield Static(Content(_("NAME")), classes="label")
        yield Input(id="persona-name", compact=True, max_length=80)
        yield Static(Content(_("WHAT IT IS FOR")), classes="label")
        yield Input(id="persona-note", compact=True)
        yield Static(Content(_("MODEL")), classes="label")
        yield Input(id="persona-model", compact=True, placeholder=_("whichever is loaded"))
        yield Static(Content(_("SYSTEM PROMPT")), classes="label")
        yield TextArea(id="persona-system", compact=True)
        yield Static(Content(_("SAMPLING  only what differs")), classes="label")
        yield SamplingTable()

    def edit(self, persona: Persona, base: SamplingParams, models: Sequence[str]) -> None:
        """Fill the fields; `base` is what the persona's sampling differs from, `models` are suggested."""
        self._persona, self._base, self._overrides = persona, base, dict(persona.sampling)
        self.query_one("#persona-name", Input).value = sanitize_line(persona.name)
        self.query_one("#persona-note", Input).value = sanitize_line(persona.note)
        model = self.query_one("#persona-model", Input)
        model.value = sanitize_line(persona.model)
        model.suggester = SuggestFromList([sanitize_line(name) for name in models], case_sensitive=False)
        self.query_one("#persona-system", TextArea).text = sanitize(persona.system)
        table = self.query_one(SamplingTable)
        table.set_values(persona.drawn(base), base=base, own=self._overrides)
        self.scroll_home(animate=False)
        self.query_one("#persona-name", Input).focus()

    @property
    def persona(self) -> Persona:
        """The persona as it is in the fields; what was not touched keeps even what cannot be shown."""
        was = self._persona
        name, note, model = (
            self.query_one(f"#persona-{field}", Input).value.strip() for field in ("name", "note", "model")
        )
        system = self.query_one("#persona-system", TextArea).text
        return replace(
            was,
            name=name,
            note=was.note if note == sanitize_line(was.note) else note,
            model=was.model if model == sanitize_line(was.model) else model,
            system=was.system if system == sanitize(was.system) else system,
            sampling=self._overrides,
        )

    @property
    def typing(self) -> SamplingTable | None:
        """The table while a number is being typed into it."""
        table = self.query_one(SamplingTable)
        return table if table.typing else None

    def on_sampling_table_edited(self, event: SamplingTable.Edited) -> None:
        """Keep what differs."""
        event.stop()
        # A seed of its own may be "random" again: that is how it is left to the settings.
        values = {name: getattr(event.params, name) for name in event.own}
        self._overrides = {name: value for name, value in values.items() if value is not None}

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to the next field."""
        event.stop()
        self.screen.focus_next()

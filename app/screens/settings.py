"""All settings, one row each. Made from the typed settings, so that none can be missing here.

Knows the kinds of settings and their words; what a change means is left to the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Blur, Click, DescendantFocus, Resize
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from app.i18n import _
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog
from app.setting_kinds import Choice, Named, TypedKind
from app.settings import ENTRIES, Settings, SettingsFile

_DEFAULTS: Final = Settings()


class Cycle(Static, can_focus=True):
    """A value chosen with left and right."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "turn(-1)", "Before"),
        Binding("right,space,enter", "turn(1)", "Next"),
    ]

    class Turned(Message):
        """Another value was chosen."""

    def __init__(self, options: Mapping[Any, str], value: Any) -> None:
        """Offer `options`, the word for each value; `value` may be one that is not among them."""
        super().__init__()
        self._options = options
        self.value = value

    def on_mount(self) -> None:
        """Show the value."""
        self.put(self.value)

    def put(self, value: Any) -> None:
        """Show `value`."""
        self.value = value
        word = self._options.get(value, str(value))
        self.update(Content.assemble(("‹ ", "$muted"), sanitize_line(word), (" ›", "$muted")))

    def action_turn(self, step: int) -> None:
        """Choose the next value, or the one before."""
        values = list(self._options)
        at = values.index(self.value) + step if self.value in values else 0
        self.put(values[at % len(values)])
        self.post_message(self.Turned())

    def on_click(self, event: Click) -> None:
        """As a key would; at the left arrow backwards."""
        self.action_turn(-1 if event.x < 2 else 1)


class Typed(Input):
    """A value typed by a person."""

    class Left(Message):
        """The cursor went elsewhere."""

    def on_blur(self, event: Blur) -> None:
        """Say so."""
        self.post_message(self.Left())


class SettingRow(Vertical):
    """One setting: its name and value, what it means, and what is wrong with what was typed."""

    def __init__(
        self,
        name: str,
        value: Any,
        options: Mapping[Any, str] | None,
        change: Callable[..., None],
    ) -> None:
        """Show the field `name`; with `options` it is chosen among them, without it is typed."""
        super().__init__()
        self.entry = ENTRIES[name]
        self.field = name
        self._value = value
        self._options = options
        self._change = change

    def compose(self) -> ComposeResult:
        """Build the two lines."""
        with Horizontal(classes="line"):
            yield Static(classes="name")
            if self._options is not None:
                yield Cycle(self._options, self._value)
            else:
                empty = self._kind.empty
                yield Typed(self._typed, placeholder=_(empty) if empty else "", compact=True)
                yield Static(
                    Content(_(unit) if (unit := getattr(self._kind, "unit", "")) else ""), classes="unit"
                )
        yield Static(Content(_(self.entry.help)), classes="help")
        yield Static(classes="problem")

    def on_mount(self) -> None:
        """Show the name."""
        self._show_name()

    @property
    def _kind(self) -> TypedKind:
        kind = self.entry.kind
        assert not isinstance(kind, Choice | Named)
        return kind  # type: ignore[return-value]  # the other kinds of fields with a label

    @property
    def _typed(self) -> str:
        return sanitize_line(self._kind.shown(self._value))

    def reset(self) -> None:
        """Go back to the default."""
        default = getattr(_DEFAULTS, self.field)
        if self._options is not None:
            self.query_one(Cycle).put(default)
        self._take(default)
        if self._options is None:
            self.query_one(Typed).value = self._typed
            self._complain("")

    def apply(self) -> bool:
        """Take what was typed, if anything; False where it cannot be used."""
        if self._options is not None:
            return True
        text = self.query_one(Typed).value
        if text == self._typed:
            return True
        try:
            value = self._kind.parse(text)
        except (TypeError, ValueError) as error:
            self._complain(str(error))
            return False
        self._take(value)
        return True

    @on(Cycle.Turned)
    def _choose(self, event: Cycle.Turned) -> None:
        event.stop()
        self._take(self.query_one(Cycle).value)

    @on(Input.Changed)
    def _check(self, event: Input.Changed) -> None:
        try:
            self._kind.parse(event.value)
        except (TypeError, ValueError) as error:
            self._complain(str(error))
        else:
            self._complain("")

    @on(Input.Submitted)
    @on(Typed.Left)
    def _leave(self, event: Message) -> None:
        event.stop()
        self.apply()

    def _take(self, value: Any) -> None:
        if value != self._value:
            self._value = value
            self._change(**{self.field: value})
        self._show_name()

    def _complain(self, text: str) -> None:
        problem = self.query_one(".problem", Static)
        problem.update(Content.styled(f"✗ {sanitize_line(text)}" if text else "", "$error"))
        problem.display = bool(text)

    def _show_name(self) -> None:
        own = self._value != getattr(_DEFAULTS, self.field)
        mark = ("• ", "$accent") if own else "  "
        self.query_one(".name", Static).update(Content.assemble(mark, _(self.entry.label)))


class SettingsScreen(Dialog[None]):
    """A list of settings over the chat; each change holds at once."""

    CSS_PATH = "settings.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f12", "leave", "Close"),
        # Before the list around the rows, which would scroll.
        Binding("up", "move(-1)", "Setting above", priority=True),
        Binding("down", "move(1)", "Setting below", priority=True),
        Binding("ctrl+r", "reset", "Default"),
    ]

    def __init__(self, file: SettingsFile, change: Callable[..., None], personas: Sequence[str] = ()) -> None:
        """Show the values of `file`; `change(field=value)` is called for each change."""
        super().__init__()
        self._file = file
        self._change = change
        self._personas = personas

    def compose(self) -> ComposeResult:
        """Build a row for each setting, under the heading of its group."""
        with Vertical(id="settings-panel") as panel:
            panel.border_title = _("Settings")
            with VerticalScroll(id="settings-scroll", can_focus=False):
                for group in dict.fromkeys(entry.group for entry in ENTRIES.values() if entry.label):
                    yield Static(Content(_(group)), classes="group")
                    for name, entry in ENTRIES.items():
                        if entry.label and entry.group == group:
                            value = getattr(self._file.values, name)
                            yield SettingRow(name, value, self._options(name), self._change)
            yield Static(
                Content(_("kept in {0}").format(sanitize_line(str(self._file.path)))), id="settings-path"
            )

    def on_resize(self, event: Resize) -> None:
        """Say as much about the keys as there is room for."""
        keys = _("Up Down choose · Left Right change · ^R default · Esc close")
        panel = self.query_one("#settings-panel")
        panel.border_subtitle = keys if event.size.width >= 76 else _("^R default · Esc close")

    def _options(self, name: str) -> Mapping[Any, str] | None:
        kind = ENTRIES[name].kind
        if isinstance(kind, Choice):
            return {value: _(word) for value, word in kind.options.items()}
        if isinstance(kind, Named):
            names = self.app.available_themes if name == "theme" else self._personas
            return {**({"": _(kind.empty)} if kind.empty else {}), **{each: each for each in names}}
        return None

    def action_leave(self) -> None:
        """Close, unless something was typed that cannot be used; then only when asked again."""
        rows = [row for row in self.query(SettingRow) if not row.apply()]
        if rows and not self.has_class("-warned"):
            self.add_class("-warned")
            rows[0].query_one(Typed).focus()
            return
        self.dismiss(None)

    def action_move(self, step: int) -> None:
        """Go to the setting above or below."""
        if step > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def action_reset(self) -> None:
        """Put the default in the setting with the cursor."""
        if (row := self._row(self.focused)) is not None:
            row.reset()

    @on(Input.Changed)
    def _forget_warning(self) -> None:
        self.remove_class("-warned")

    @on(DescendantFocus)
    def _show_whole_row(self, event: DescendantFocus) -> None:
        if (row := self._row(event.widget)) is not None:
            self.call_after_refresh(row.scroll_visible, animate=False)

    def _row(self, widget: Widget | None) -> SettingRow | None:
        rows = (node for node in (widget.ancestors if widget else ()) if isinstance(node, SettingRow))
        return next(rows, None)

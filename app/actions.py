"""Every action of the interface, once: bindings, key bar, help, palette, slash commands and the key map file
are made from this table, so that none of them can fall behind.

Knows keys and words. Keys that terminals or multiplexers take for themselves (ctrl+b, ctrl+a, ctrl+s, ctrl+i,
ctrl+m, ctrl+h, F10, F11) are not used. Words are English here and translated where they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Scope(StrEnum):
    """Where a key of an action is heard."""

    EVERYWHERE = "everywhere"
    """In the chat, whatever has the focus."""
    ALWAYS = "always"
    """As EVERYWHERE, and before the focused widget and over every dialog."""
    FIRST = "first"
    """As EVERYWHERE, and before the focused widget, which may have another use for the key."""
    TURN = "turn"
    """While the conversation has the focus: letters, which the message box would take as text."""
    WIDGET = "widget"
    """By a widget itself; listed here for the help."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a person can do."""

    id: str
    """What the key map file calls it."""
    keys: str
    """Textual's names, separated by commas; empty for none."""
    shown: str
    """The key as people write it; empty where there is none."""
    label: str
    """One or two words for the key bar."""
    help: str
    """What it does."""
    method: str = ""
    """Textual's action, such as `app.quit`; empty where a widget handles the key itself."""
    scope: Scope = Scope.EVERYWHERE
    slash: str = ""
    """Its name as a slash command, without the slash; empty for none."""
    argument: str = ""
    """What may follow the slash command, in one word; such an action takes it as a string."""
    rank: int = 0
    """Place in the queue for room in the key bar, from 1; 0 keeps it out."""
    group: str = "Chat"
    """Heading in the help."""


_T, _F, _W = Scope.TURN, Scope.FIRST, Scope.WIDGET

ACTIONS: Final[tuple[Action, ...]] = (
    Action("send", "enter", "Enter", "send", "Send the message", scope=_W, rank=1),
    Action(
        "newline", "ctrl+j", "^J", "newline", "New line in the message (or shift+enter)", scope=_W, rank=14
    ),
    Action(
        "stop", "escape", "Esc", "stop", "Stop the reply, or loading, and keep what came", "app.stop", rank=2
    ),
    Action(
        "editor",
        "ctrl+x",
        "^X",
        "editor",
        "Write the message in your own editor",
        "screen.editor",
        _F,
        slash="editor",
    ),
    Action(
        "history.older",
        "up",
        "Up Down",
        "earlier",
        "At the first or last line: messages you sent before",
        scope=_W,
    ),
    Action("attach", "", "@file", "attach", "Type @ and a path: the file goes with the message", scope=_W),
    Action("command", "", "/", "command", "At the start of the message: a command, such as /help", scope=_W),
    Action("scroll", "pageup,pagedown", "PgUp PgDn", "scroll", "Scroll the conversation", scope=_W),
    Action(
        "newest", "ctrl+end", "^End", "newest", "Go to the newest line and follow it", "screen.newest", _F
    ),
    Action(
        "find.here",
        "",
        "",
        "find",
        "Find in this conversation",
        "screen.find",
        slash="find",
        argument="words",
    ),
    Action("copy.selection", "ctrl+c", "^C", "copy", "Copy what is selected", "app.copy", Scope.ALWAYS),
    Action(
        "system",
        "",
        "",
        "system",
        "Set the system prompt of this conversation",
        "screen.set_system",
        slash="system",
        argument="text",
    ),
    Action(
        "overflow",
        "",
        "",
        "full context",
        "When the context is full: drop the oldest turns, or stop",
        "screen.toggle_overflow",
        slash="overflow",
    ),
    Action("undo", "", "", "undo", "Bring back what was deleted last", "screen.undo", slash="undo"),
    Action(
        "turn.up",
        "alt+up",
        "Alt-Up",
        "turn above",
        "Choose the turn above; in the conversation also k",
        "screen.turn_up",
        _F,
        group="Turns",
    ),
    Action(
        "turn.down",
        "alt+down",
        "Alt-Down",
        "turn below",
        "Choose the turn below; in the conversation also j",
        "screen.turn_down",
        _F,
        group="Turns",
    ),
    Action(
        "turn.edit",
        "e",
        "e",
        "edit",
        "Edit your message and send it again; the old one stays as a sibling",
        "screen.edit_turn",
        _T,
        slash="edit",
        group="Turns",
    ),
    Action(
        "turn.retry",
        "r",
        "r",
        "again",
        "Another reply; the old one stays as a sibling",
        "screen.retry",
        _T,
        slash="retry",
        group="Turns",
    ),
    Action(
        "turn.branch",
        "b",
        "b",
        "branch",
        "A new conversation that begins as this one up to here",
        "screen.branch",
        _T,
        slash="branch",
        group="Turns",
    ),
    Action(
        "turn.before",
        "left_square_bracket",
        "[",
        "sibling before",
        "The version before, of a message or a reply",
        "screen.sibling(-1)",
        _T,
        group="Turns",
    ),
    Action(
        "turn.after",
        "right_square_bracket",
        "]",
        "sibling after",
        "The version after",
        "screen.sibling(1)",
        _T,
        group="Turns",
    ),
    Action(
        "turn.compare",
        "a",
        "a",
        "compare",
        "Answer twice with one switch changed, side by side, and keep one",
        "app.compare",
        _T,
        slash="compare",
        argument="switch",
        group="Turns",
    ),
    Action(
        "turn.copy", "y", "y", "copy", "Copy the message", "screen.copy_turn", _T, slash="copy", group="Turns"
    ),
    Action(
        "turn.code",
        "c",
        "c",
        "copy code",
        "Copy a code block; again for the one before",
        "screen.copy_code",
        _T,
        slash="code",
        group="Turns",
    ),
    Action(
        "turn.delete",
        "d",
        "d",
        "delete",
        "Delete the turn and what follows it; u brings it back",
        "screen.delete_turn",
        _T,
        group="Turns",
    ),
    Action(
        "turn.undo", "u", "u", "undo", "Bring back what was deleted last", "screen.undo", _T, group="Turns"
    ),
    Action(
        "turn.raw",
        "t",
        "t",
        "raw",
        "The text as it was generated, or as Markdown",
        "screen.toggle_raw",
        _T,
        slash="raw",
        group="Turns",
    ),
    Action(
        "turn.find",
        "slash",
        "/",
        "find",
        "Find in this conversation; n and N go on",
        "screen.find",
        _T,
        group="Turns",
    ),
    Action(
        "turn.details",
        "enter",
        "Enter",
        "details",
        "What made this message: model, sampling, switches",
        "screen.turn_details",
        _T,
        group="Turns",
    ),
    Action(
        "chat.new",
        "ctrl+n",
        "^N",
        "new",
        "New conversation",
        "screen.new_chat",
        _F,
        slash="new",
        rank=5,
        group="Conversations",
    ),
    Action(
        "chat.list",
        "f2",
        "F2",
        "chats",
        "Show or hide the conversations; Enter opens one, d deletes it",
        "screen.chats",
        _F,
        rank=6,
        group="Conversations",
    ),
    Action(
        "chat.search",
        "ctrl+f",
        "^F",
        "history",
        "Search everything that was ever said",
        "app.history",
        _F,
        slash="history",
        argument="words",
        group="Conversations",
    ),
    Action(
        "chat.next",
        "ctrl+pagedown",
        "^PgDn",
        "next tab",
        "Go to the next open conversation",
        "screen.turn_tab(1)",
        _F,
        group="Conversations",
    ),
    Action(
        "chat.previous",
        "ctrl+pageup",
        "^PgUp",
        "tab before",
        "Go to the open conversation before",
        "screen.turn_tab(-1)",
        _F,
        group="Conversations",
    ),
    Action(
        "chat.tab",
        "alt+1,alt+2,alt+3,alt+4,alt+5,alt+6,alt+7,alt+8,alt+9",
        "Alt-1..9",
        "tab",
        "Go to an open conversation by its place",
        scope=_W,
        group="Conversations",
    ),
    Action(
        "chat.close",
        "alt+w",
        "Alt-W",
        "close",
        "Close this conversation's tab; it stays in the list",
        "screen.close_tab",
        _F,
        slash="close",
        group="Conversations",
    ),
    Action(
        "chat.rename",
        "",
        "",
        "rename",
        "Give this conversation another title",
        "screen.rename",
        slash="rename",
        argument="title",
        group="Conversations",
    ),
    Action(
        "chat.delete",
        "",
        "",
        "delete chat",
        "Delete this conversation; /undo brings it back",
        "screen.delete_chat",
        slash="delete",
        group="Conversations",
    ),
    Action(
        "chat.export",
        "",
        "",
        "export",
        "Save this conversation as Markdown (.md), JSONL, JSON or HTML",
        "screen.export",
        slash="export",
        argument="file",
        group="Conversations",
    ),
    Action(
        "model.choose",
        "f3",
        "F3",
        "models",
        "Choose, fetch or unload a model",
        "app.models",
        _F,
        slash="model",
        argument="name",
        rank=7,
        group="Model",
    ),
    Action(
        "model.unload",
        "",
        "",
        "unload",
        "Unload the model and give its memory back",
        "app.unload",
        slash="unload",
        group="Model",
    ),
    Action(
        "tiers.size",
        "f4",
        "F4",
        "tiers",
        "Where the weights are: off, a strip, a panel, the whole screen",
        "app.tiers",
        _F,
        slash="tiers",
        rank=8,
        group="Model",
    ),
    Action(
        "switch.skip",
        "f5",
        "F5",
        "skip",
        "Leave out blocks that matter little, from the next token on: faster, approximate",
        "screen.toggle_skip",
        _F,
        rank=10,
        group="Model",
    ),
    Action(
        "switch.draft",
        "f6",
        "F6",
        "drafts",
        "Propose tokens cheaply and verify several at once, from the next one on: faster, exact",
        "screen.toggle_draft",
        _F,
        rank=11,
        group="Model",
    ),
    Action(
        "switch.greedy",
        "f7",
        "F7",
        "greedy",
        "Always take the most probable token, from the next one on",
        "screen.toggle_greedy",
        _F,
        slash="greedy",
        rank=12,
        group="Model",
    ),
    Action(
        "sampling",
        "ctrl+r",
        "^R",
        "sampling",
        "How tokens are drawn; also while a reply grows",
        "screen.sampling",
        _F,
        slash="sampling",
        rank=13,
        group="Model",
    ),
    Action(
        "skip",
        "",
        "",
        "layer skip",
        "What leaving blocks out does, and which are left out, such as kl=0.05, blk.10-12 or off",
        "app.skip",
        slash="skip",
        argument="rule",
        group="Model",
    ),
    Action(
        "draft",
        "",
        "",
        "draft",
        "Who proposes tokens, and how many at a time, such as ngram, self 4 or off",
        "app.draft",
        slash="draft",
        argument="kind",
        group="Model",
    ),
    Action(
        "persona",
        "",
        "",
        "personas",
        "Choose or edit a persona: system prompt, sampling, model",
        "app.personas",
        slash="persona",
        argument="name",
        group="Model",
    ),
    Action(
        "budget",
        "",
        "",
        "memory budget",
        "How much memory the weights may take, such as 8G or 50%",
        "app.budget",
        slash="budget",
        argument="size",
        group="Model",
    ),
    Action(
        "vram",
        "",
        "",
        "video memory",
        "How much memory of the GPU the model may take, such as 20G or 80%",
        "app.vram_budget",
        slash="vram",
        argument="size",
        group="Model",
    ),
    Action(
        "help", "f1", "F1", "keys", "This list of keys", "app.help", _F, slash="help", rank=3, group="Program"
    ),
    Action(
        "palette", "ctrl+p", "^P", "more", "All commands", "app.command_palette", _F, rank=9, group="Program"
    ),
    Action(
        "settings",
        "f12",
        "F12",
        "settings",
        "All settings",
        "app.settings",
        _F,
        slash="settings",
        group="Program",
    ),
    Action(
        "theme",
        "",
        "",
        "theme",
        "Choose the colour theme",
        "app.change_theme",
        slash="theme",
        group="Program",
    ),
    Action("pane", "tab", "Tab", "next pane", "Go to the next pane", scope=_W, group="Program"),
    Action(
        "quit",
        "ctrl+q",
        "^Q",
        "quit",
        "Quit; everything is saved",
        "app.quit",
        Scope.ALWAYS,
        slash="quit",
        rank=4,
        group="Program",
    ),
)

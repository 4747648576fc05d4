"""What a person does with single turns: edit, ask again, branch, copy, delete, look at versions.

A part of the chat screen, in a file of its own. Knows turns, the workspace and the transcript; does not know
how replies come.
"""

from __future__ import annotations

from functools import cached_property

from textual.screen import Screen

from app.code_blocks import code_blocks
from app.conversation import Conversation, Turn, TurnStatus
from app.i18n import _
from app.sanitize import sanitize_line
from app.widgets.prompt import Prompt
from app.widgets.transcript import Transcript
from app.workspace import Workspace


class TurnActions(Screen[None]):
    """The actions of the scope TURN; `ChatScreen` has what they need."""

    workspace: Workspace
    _code_at: tuple[int, int] = (0, 0)
    """The turn whose code was copied last, and how many of its blocks from the end."""

    @cached_property
    def transcript(self) -> Transcript:
        """The conversation on the screen."""
        return self.query_one(Transcript)

    # -- what ChatScreen does for us

    def hint(self, text: str) -> None:
        """Show a notice that goes away by itself."""
        raise NotImplementedError

    async def show_conversation(self) -> None:
        """Show the present conversation anew."""
        raise NotImplementedError

    def remember(self, conversation: Conversation) -> None:
        """List a conversation that has changed."""
        raise NotImplementedError

    async def ask_again(self) -> None:
        """Ask for a reply to the message that ends the conversation."""
        raise NotImplementedError

    def copy_text(self, text: str, what: str) -> None:
        """Copy `text`, and say how `what` was copied."""
        raise NotImplementedError

    # -- the cursor

    def action_turn_up(self) -> None:
        """Go to the conversation, and there choose the turn above."""
        self._move_cursor(-1)

    def action_turn_down(self) -> None:
        """Go to the conversation, and there choose the turn below."""
        self._move_cursor(1)

    def _move_cursor(self, step: int) -> None:
        if self.focused is self.transcript:
            self.transcript.move_cursor(step)
        else:  # its mark is not seen before
            self.set_focus(self.transcript)

    def _chosen(self, role: str = "") -> Turn | None:
        """Return the turn that an action is meant for: the chosen one, or the last of `role` up to there.

        Says so and returns None where there is none or it still grows.
        """
        chosen, turns = self.transcript.current, self.workspace.current.turns
        if chosen is not None and role and chosen.role != role:
            before = turns[: turns.index(chosen) + 1]
            chosen = next((turn for turn in reversed(before) if turn.role == role), None)
        if chosen is None:
            self.hint(_("there is no turn to do that with"))
        elif chosen.status is TurnStatus.STREAMING:
            self.hint(_("this reply still grows: Esc stops it"))
            chosen = None
        return chosen

    # -- versions

    def action_edit_turn(self) -> None:
        """Put a message back into the box; sent, it becomes a sibling of the old one."""
        if turn := self._chosen("user"):
            prompt = self.query_one(Prompt)
            if prompt.text.strip() and self.workspace.editing is None:
                self.hint(_("the message box is not empty: send or clear it first"))
                return
            self.workspace.edit(turn)
            prompt.load_message(turn.text, turn.attachments)
            self.set_focus(prompt)
            self.hint(_("editing: Enter sends it as another version, Esc leaves the old one"))

    async def action_retry(self) -> None:
        """Ask for another reply: to the chosen message, or to the one that the chosen reply answers."""
        turn = self._chosen()
        if turn is None or self._busy():
            return
        line = self.workspace.current.turns
        place = line.index(turn) + (turn.role == "user")
        if place == 0:
            self.hint(_("there is no turn to do that with"))
            return
        if place < len(line):
            self.workspace.current.cut(line[place])
        await self.ask_again()

    async def action_branch(self) -> None:
        """Begin a new conversation with everything up to the chosen turn."""
        if turn := self._chosen():
            self.workspace.branch(turn)
            await self.show_conversation()
            self.hint(_("a new conversation that begins as the other did"))

    async def action_sibling(self, step: int) -> None:
        """Show the version before (-1) or after (1) of the chosen turn."""
        turn = self._chosen()
        if turn is None or self._busy():
            return
        shown = self.workspace.show_sibling(turn, step)
        if shown is None:
            self.hint(_("there is no other version in that direction"))
            return
        await self.show_conversation()
        self.transcript.choose(shown)

    # -- copies

    def action_copy_turn(self) -> None:
        """Copy the chosen message, as it was typed or generated."""
        if turn := self.transcript.current:
            self.copy_text(turn.text, _("message"))

    def action_copy_code(self) -> None:
        """Copy the last code block of the chosen turn; again for the one before it."""
        turn = self.transcript.current
        blocks = code_blocks(turn) if turn is not None else []
        if turn is None or not blocks:
            self.hint(_("there is no code block in this turn"))
            return
        again = self._code_at[1] + 1 if self._code_at[0] == turn.id else 1
        number = (again - 1) % len(blocks) + 1
        self._code_at = (turn.id, number)
        place = len(blocks) - number + 1
        self.copy_text(
            blocks[-number], _("code block {place} of {count}").format(place=place, count=len(blocks))
        )

    # -- deleting

    async def action_delete_turn(self) -> None:
        """Delete the chosen turn and what follows it."""
        if (turn := self._chosen()) and not self._busy():
            count = self.workspace.delete_turn(turn)
            await self.show_conversation()
            self.hint(_("{count} turns deleted; u or /undo brings them back").format(count=count))

    async def action_undo(self) -> None:
        """Bring back what was deleted last."""
        conversation = self.workspace.undo()
        if conversation is None:
            self.hint(_("nothing was deleted since the start"))
            return
        self.remember(conversation)
        await self.show_conversation()
        self.hint(_("it is back"))

    # -- looking

    def action_toggle_raw(self) -> None:
        """Show the chosen turn as it was generated, or as Markdown."""
        if (turn := self._chosen()) and (view := self.transcript.view(turn)):
            self.run_worker(view.toggle_raw())

    def action_turn_details(self) -> None:
        """Show what made the chosen turn."""
        from app.screens.details import DetailsScreen

        if turn := self.transcript.current:
            self.app.push_screen(DetailsScreen(turn, sanitize_line(self.workspace.current.title)))

    def _busy(self) -> bool:
        """Whether a reply grows in this conversation; says so."""
        busy = self.workspace.current.streaming is not None
        if busy:
            self.hint(_("a reply is still coming: Esc stops it"))
        return busy

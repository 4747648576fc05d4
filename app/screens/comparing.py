"""One message answered twice with one switch changed: asks for both replies, and keeps the chosen one.

A part of the chat screen, in a file of its own. Both replies are turns of the conversation like any others:
versions of one another, saved as they grow.
"""

from __future__ import annotations

from app.comparison import Candidate, Comparison, Switched, Usual, Way, first_of, switched
from app.conversation import Turn
from app.i18n import _
from app.live_reply import LiveReply
from app.sanitize import sanitize_line
from app.screens.engine_view import EngineView
from engine import SamplingParams


class ComparingActions(EngineView):
    """The action that compares; `ChatScreen` has the rest."""

    _comparison: Comparison | None = None

    def begin_reply(self, *added: Turn, way: Way | None = None) -> LiveReply:
        """Ask for a reply to the message that ends the conversation; see `ChatScreen`."""
        raise NotImplementedError

    async def show_reply(self, live: LiveReply, *added: Turn) -> None:
        """Show a reply that was begun; see `ChatScreen`."""
        raise NotImplementedError

    def comparable(self) -> tuple[Turn, Candidate] | None:
        """Return the message that the chosen turn stands for, and the first of two replies to it.

        None, which it says, where nothing can be compared.
        """
        turn, model = self._chosen("user"), self.bridge.snapshot.model
        if turn is None or self._busy():
            return None
        if model is None:
            self.hint(_("no model is loaded"))
            return None
        return turn, first_of(self.workspace.current, turn, sanitize_line(model.name), self.way)

    async def compare(self, what: Switched) -> None:
        """Answer the chosen message, or the one that the chosen reply answers, with and without a switch."""
        from app.screens.compare import CompareScreen

        found, conversation = self.comparable(), self.workspace.current
        if found is None:
            return
        message, first = found
        second = Candidate("B", switched(first.way, what, self.usual))
        self._comparison = Comparison(conversation, message, first, second)
        screen = CompareScreen(self._comparison, lambda: self.bridge.live(conversation), self._stop_comparing)
        self.app.push_screen(screen, self._keep)
        await self._ask_next()

    @property
    def way(self) -> Way:
        """How the next reply is made."""
        return Way(self.sampling, self.decoding)

    @property
    def usual(self) -> Usual:
        """What the switches turn on."""
        return Usual(self._skip_before, self._draft_before, self._warm)

    @property
    def _warm(self) -> float:
        """The temperature that is chosen beside greedy."""
        sampling = self.workspace.current.sampling or self.settings.sampling
        return sampling.temperature or SamplingParams().temperature

    async def _ask_next(self) -> None:
        comparison = self._comparison
        candidate = comparison.next if comparison is not None else None
        if comparison is None or candidate is None:
            return
        line = comparison.conversation.turns
        place = line.index(comparison.message) + 1
        if place < len(line):
            comparison.conversation.cut(line[place])
        live = self.begin_reply(way=candidate.way)
        candidate.turn = live.turn  # at once: it may end before it is shown
        await self.show_reply(live)

    def reply_ended(self, live: LiveReply) -> None:
        """Show how a reply has ended, and ask for the one it is compared with."""
        super().reply_ended(live)
        if self._comparison is not None:
            self._comparison.note_end(live.turn)
            if self._comparison.next is not None:
                self.run_worker(self._ask_next(), group="compare")

    def _stop_comparing(self) -> None:
        if self._comparison is not None:
            self._comparison.stopped = True
            if self.bridge.live(self._comparison.conversation) is not None:
                self.bridge.stop(self._comparison.conversation)

    async def _keep(self, kept: Candidate | None) -> None:
        """Lead the conversation through the reply that was chosen; the other stays as its sibling."""
        comparison, self._comparison = self._comparison, None
        if comparison is None:
            return
        turn = (kept or comparison.first).turn
        if turn is not None:
            comparison.conversation.show(turn)
            self._store.set_head(comparison.conversation)
            await self.show_conversation()
            self.transcript.choose(turn)
        if kept is not None:
            self.hint(_("{name} is the reply now, the other one its sibling: [ and ]").format(name=kept.name))

"""Which conversations are open, what is written in each, and what was deleted last.

Changes go to the store at once. Knows conversations and the store; does not know widgets or the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from dataclasses import replace as copy_with
from typing import Final
from weakref import WeakValueDictionary

from app.conversation import Conversation, Turn, new_id
from app.store import Store

MOST_TABS: Final = 9
"""Open conversations: as many as there are keys for them."""
_UNDO_STEPS: Final = 50


@dataclass(frozen=True, slots=True)
class _Deleted:
    """A conversation, or turns of one, that can be brought back."""

    conversation: Conversation
    turns: list[Turn]
    """Empty for the whole conversation."""


class Workspace:
    """The open conversations; one of them is on the screen."""

    def __init__(self, store: Store, begin: Callable[[], Conversation] = Conversation) -> None:
        """Begin with a new conversation, which is empty, as `begin` makes them."""
        self._begin = begin
        self.tabs: list[Conversation] = [begin()]
        self.active = 0
        self.drafts: dict[int, str] = {}
        """What is written and not sent, by conversation."""
        self._edited: dict[int, Turn] = {}
        """Which message is being edited, by conversation: what is written takes its place, as a sibling."""
        self._left: WeakValueDictionary[int, Conversation] = WeakValueDictionary()
        """Conversations without a tab that a growing reply or an undo still holds."""
        self._store = store
        self._deleted: list[_Deleted] = []

    @property
    def current(self) -> Conversation:
        """The conversation on the screen."""
        return self.tabs[self.active]

    def find(self, conversation_id: int) -> Conversation | None:
        """Return an open conversation."""
        return next((tab for tab in self.tabs if tab.id == conversation_id), None)

    def held(self, conversation_id: int) -> Conversation | None:
        """Return a conversation that is open, or that something goes on with: a second copy of it, read from
        the store, would not get what is still to come.
        """
        return self.find(conversation_id) or self._left.get(conversation_id)

    def new(self) -> None:
        """Go to a new conversation; one that is untouched gives it its tab."""
        untouched = [place for place, tab in enumerate(self.tabs) if self._is_untouched(tab)]
        if untouched:
            self.active = untouched[0]
        self.open(self._begin())

    def open(self, conversation: Conversation) -> None:
        """Go to a conversation: to its tab, in place of an untouched one, or in a tab of its own."""
        if (present := self.find(conversation.id)) is not None:
            self.active = self.tabs.index(present)
            return
        if self._is_untouched(self.current):
            self.tabs[self.active] = conversation
            return
        if len(self.tabs) == MOST_TABS:
            idle = [place for place, tab in enumerate(self.tabs) if tab.streaming is None]
            self._leave(next((place for place in idle if place != self.active), 0))
        self.tabs.append(conversation)
        self.active = len(self.tabs) - 1

    def go(self, place: int) -> bool:
        """Go to the tab at `place`, from 0; False when there is none."""
        if not 0 <= place < len(self.tabs):
            return False
        self.active = place
        return True

    def close(self) -> None:
        """Close the tab on the screen and go to the one before it. The conversation stays in the store."""
        self._leave(self.active)
        if not self.tabs:
            self.tabs.append(self._begin())
        self.active = max(0, self.active - 1)

    def _leave(self, place: int) -> None:
        conversation = self.tabs.pop(place)
        self._left[conversation.id] = conversation

    # -- drafts

    @property
    def editing(self) -> Turn | None:
        """The message on the screen that is being edited, while it is on the line shown."""
        turn = self._edited.get(self.current.id)
        return turn if any(turn is other for other in self.current.turns) else None

    def edit(self, turn: Turn | None) -> None:
        """Begin to edit a message of the conversation on the screen; None ends it."""
        self._edited.pop(self.current.id, None)
        if turn is not None:
            self._edited[self.current.id] = turn

    def keep_draft(self, text: str) -> None:
        """Keep what is written in the conversation on the screen."""
        key = self.current.id
        if text != self.drafts.get(key, ""):
            self.drafts[key] = text
            if not text:
                del self.drafts[key]
            self._store.save_draft(key, text)

    def restore_drafts(self, drafts: dict[int, str], stored: set[int]) -> None:
        """Take the drafts of an earlier run; one of a conversation that was never sent gets a tab."""
        self.drafts = {**drafts, **self.drafts}
        for conversation_id in sorted(drafts.keys() - stored):
            if self.find(conversation_id) is None:
                conversation = self._begin()
                conversation.id = conversation_id
                self.open(conversation)

    # -- changes to turns

    def branch(self, turn: Turn) -> None:
        """Go to a new conversation that begins as this one does up to `turn`."""
        source = self.current
        new = Conversation(
            title=f"⎇ {source.title.removeprefix('⎇ ')}",
            persona=source.persona,
            system=source.system,
            sampling=source.sampling,
            overflow=source.overflow,
        )
        ids: dict[int | None, int] = {}
        turns: list[Turn] = []
        for old in source.turns[: source.turns.index(turn) + 1]:
            parent = ids.get(old.parent_id) if old.parent_id is not None else None
            ids[old.id] = new_id()
            made_by = dict(old.made_by)
            if "seen_from" in made_by:
                made_by["seen_from"] = ids.get(made_by["seen_from"])
            turns.append(
                copy_with(old, id=ids[old.id], parent_id=parent, conversation_id=new.id, made_by=made_by)
            )
        new.grow(turns, turns[-1].id)
        self._store.add(new, *turns)
        self.open(new)

    def show_sibling(self, turn: Turn, step: int) -> Turn | None:
        """Lead the conversation through the version `step` places after `turn`'s; None when there is none."""
        siblings = self.current.siblings(turn)
        place = siblings.index(turn) + step
        if not 0 <= place < len(siblings):
            return None
        self.current.show(siblings[place])
        self._store.set_head(self.current)
        return siblings[place]

    def delete_turn(self, turn: Turn) -> int:
        """Delete `turn` and what follows it, and return how many turns went."""
        conversation = self.current
        gone = conversation.remove(turn)
        self._remember(_Deleted(conversation, gone))
        self._store.delete_turns(gone)
        self._store.set_head(conversation)
        return len(gone)

    def delete(self, conversation: Conversation) -> None:
        """Delete a whole conversation, and close its tab."""
        self.note_deleted(conversation)
        self._store.delete_conversation(conversation.id)
        self.drop([conversation.id])

    def note_deleted(self, conversation: Conversation) -> None:
        """Remember a conversation that was deleted, to bring it back."""
        self._left[conversation.id] = conversation
        self._remember(_Deleted(conversation, []))

    def is_deleted(self, conversation_id: int) -> bool:
        """Whether a whole conversation was deleted and not brought back."""
        return any(last.conversation.id == conversation_id and not last.turns for last in self._deleted)

    def drop(self, conversation_ids: Collection[int]) -> bool:
        """Close the tabs of these; True when the one on the screen was among them."""
        shown = self.current
        for tab in [tab for tab in self.tabs if tab.id in conversation_ids]:
            self.active = self.tabs.index(tab)
            self.close()
        if shown in self.tabs:
            self.active = self.tabs.index(shown)
        return shown.id in conversation_ids

    def undo(self) -> Conversation | None:
        """Bring back what was deleted last and go there; None when there is nothing."""
        if not self._deleted:
            return None
        last = self._deleted.pop()
        conversation = last.conversation
        if last.turns:
            conversation.restore(last.turns)
            self._store.delete_turns(last.turns, deleted=False)
            self._store.set_head(conversation)
        else:
            self._store.delete_conversation(conversation.id, deleted=False)
        self.open(conversation)
        return conversation

    def _remember(self, deleted: _Deleted) -> None:
        self._deleted.append(deleted)
        del self._deleted[:-_UNDO_STEPS]

    def _is_untouched(self, conversation: Conversation) -> bool:
        return not conversation.turns and not self.drafts.get(conversation.id)

"""The application's store: writes go to one thread in order, reads answer at once.

What fails because the disk is full, read-only or busy, be it opening the file or a write, is tried again;
`trouble` says so until it succeeds, and nothing that was written later overtakes it. Callers never wait
for a write, nor does a read: it has a connection of its own. Knows the queue, not widgets; the SQL is in
`reads` and `writes`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.conversation import Conversation, Turn
from app.store import writes
from app.store.db import open_beside, open_database, open_for_reading, purge
from app.store.migrations import NewerDatabaseError
from app.store.reads import Reads
from app.store.writes import Write

RETRY_S: Final = 2.0
"""Pause before a write that failed is tried again."""
_INTERRUPTED: Final = "interrupted: the program ended"
_RECOVER: Final = "UPDATE message SET status = 'cancelled', note = ? WHERE status = 'streaming'"


class Store(Reads):
    """Reads wait for the first try at opening the database; writes are taken at once."""

    def __init__(self, path: Path) -> None:
        """Prepare; writes wait until `start`."""
        self.path = path
        self.notice = ""
        """How opening went, when it did not go well."""
        self.trouble = ""
        """Why the last write failed; empty when everything is saved or about to be."""
        self._lost = ""
        """Why a write was given up, if one was."""
        self._waiting: deque[Write] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._lock = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        """None where there is nothing to read."""
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tiercel-store", daemon=True)

    def start(self) -> None:
        """Open the database, in the store's own thread."""
        self._thread.start()

    @property
    def unsaved(self) -> str:
        """Why something would be lost if the program ended now, or has been; empty when all goes well."""
        return self._lost or (self.trouble if self._waiting else "")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        self._opened.wait()
        with self._lock:
            yield self._reader

    # -- writes

    def add(self, conversation: Conversation, *turns: Turn) -> None:
        """Save new turns, the last as the end of the line shown, and the conversation if it is new."""
        self._enqueue(writes.add(conversation, turns))

    def save_text(self, turn: Turn) -> None:
        """Save the text that a reply has so far, and whose it is."""
        self._enqueue(writes.text(turn))

    def finish(self, turn: Turn) -> None:
        """Save a reply that has ended."""
        self._enqueue(writes.finish(turn))

    def set_head(self, conversation: Conversation) -> None:
        """Save which line of the tree is shown."""
        self._enqueue(writes.head(conversation))

    def save_conversation(self, conversation: Conversation) -> None:
        """Save title, persona, system prompt, sampling and overflow; a new conversation is stored by it."""
        self._enqueue(writes.facts(conversation))

    def delete_conversation(self, conversation_id: int, *, deleted: bool = True) -> None:
        """Hide a conversation from list, search and export, or bring it back; purged after KEPT_DAYS."""
        self._enqueue(writes.delete_conversation(conversation_id, deleted=deleted))

    def delete_turns(self, turns: Sequence[Turn], *, deleted: bool = True) -> None:
        """Hide turns, those below them included in `turns`, or bring them back; purged after KEPT_DAYS."""
        self._enqueue(writes.delete_turns(turns, deleted=deleted))

    def save_draft(self, conversation_id: int, text: str) -> None:
        """Save what was typed and not sent; an empty text removes it."""
        self._enqueue(writes.draft(conversation_id, text))

    def flush(self, timeout: float) -> bool:
        """Wait until everything is saved; False when that takes longer than `timeout` seconds."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._waiting, timeout)

    def close(self, timeout: float = 5.0) -> bool:
        """Save what waits, close the file and end the thread; False when something could not be saved."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._waiting and not self._lost

    # -- the thread

    def _enqueue(self, write: Write) -> None:
        with self._wake:
            for place, other in enumerate(self._waiting):
                # The first may be on its way to the disk right now.
                if place and write.key is not None and other.key == write.key:
                    self._waiting[place] = write
                    return
            self._waiting.append(write)
            self._wake.notify_all()

    def _run(self) -> None:
        while (connection := self._open()) is None:
            if not self._pause():
                self._read_from(None)
                return
        while (write := self._next()) is not None:
            try:
                self._execute(connection, write)
            except sqlite3.OperationalError as error:
                self.trouble = str(error)
                if not self._pause():
                    break
                continue
            except (sqlite3.Error, UnicodeError, OverflowError) as error:  # no retry can mend it
                self._lost = str(error)
                self.notice = f"a change was not saved: {error}"
            else:
                self.trouble = ""
            with self._wake:
                self._waiting.popleft()
                self._wake.notify_all()
        self._read_from(None)
        connection.close()  # the last to close brings the log into the file and removes it

    def _open(self) -> sqlite3.Connection | None:
        """Open the database, close the replies that a crash left open; None when that fails now."""
        connection = None
        try:
            connection, notice = open_database(self.path)
            connection.execute(_RECOVER, (_INTERRUPTED,))
            purge(connection)
            reader = open_beside(self.path)
        except (OSError, sqlite3.Error, NewerDatabaseError) as error:
            if connection is not None:
                connection.close()
            why = error.strerror if isinstance(error, OSError) else error
            self.trouble = f"{self.path}: {why}"
            if not self._opened.is_set():
                self._read_from(open_for_reading(self.path))
            return None
        self.notice, self.trouble = notice, ""
        self._read_from(reader)
        return connection

    def _read_from(self, connection: sqlite3.Connection | None) -> None:
        """Serve reads from `connection` from now on, and close the one before."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = connection
        self._opened.set()

    def _next(self) -> Write | None:
        """Return the oldest write, waiting for one; None when the store closes and none is left."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closing)
            return self._waiting[0] if self._waiting else None

    def _pause(self) -> bool:
        """Wait before a retry; False when the store closes."""
        with self._wake:
            return not self._wake.wait_for(lambda: self._closing, RETRY_S)

    def _execute(self, connection: sqlite3.Connection, write: Write) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement, values in write.statements:
                connection.execute(statement, values)
            connection.execute("COMMIT")
        except (sqlite3.Error, UnicodeError, OverflowError):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

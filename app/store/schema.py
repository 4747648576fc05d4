"""The tables, as the list of steps that lead to them. A step that was shipped is never edited.

A message points to the one before it (`parent_id`), so that edits and regenerations become branches;
`conversation.head_id` says which leaf is shown. Times are milliseconds since 1970. The full-text table
holds no text of its own: it indexes `message` through `cjk_spaced` (see `search`), and only messages that
are complete, because indexing a growing reply at every save would cost more than generating it.
"""

from __future__ import annotations

from typing import Final

_TABLES: Final = """
CREATE TABLE conversation (
    id INTEGER PRIMARY KEY,
    title TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    head_id INTEGER
) STRICT;

CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    conversation_id INTEGER NOT NULL REFERENCES conversation(id) ON DELETE CASCADE,
    parent_id INTEGER REFERENCES message(id) ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
    text TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('streaming', 'done', 'cancelled', 'error')),
    note TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    model TEXT NOT NULL DEFAULT '',
    sampling_json TEXT,
    stats_json TEXT
) STRICT;

CREATE INDEX conversation_by_time ON conversation(updated_at);
CREATE INDEX message_by_conversation ON message(conversation_id);
CREATE INDEX message_by_parent ON message(parent_id);
CREATE INDEX message_unfinished ON message(status) WHERE status = 'streaming';

CREATE VIRTUAL TABLE message_fts USING fts5(
    text, content='message', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
);

CREATE TRIGGER message_added AFTER INSERT ON message WHEN new.status <> 'streaming' BEGIN
    INSERT INTO message_fts(rowid, text) VALUES (new.id, cjk_spaced(new.text));
END;

CREATE TRIGGER message_removed AFTER DELETE ON message WHEN old.status <> 'streaming' BEGIN
    INSERT INTO message_fts(message_fts, rowid, text) VALUES ('delete', old.id, cjk_spaced(old.text));
END;

-- One trigger, because the order of two is not defined and the index must forget before it learns.
CREATE TRIGGER message_changed AFTER UPDATE OF text, status ON message BEGIN
    INSERT INTO message_fts(message_fts, rowid, text)
        SELECT 'delete', old.id, cjk_spaced(old.text) WHERE old.status <> 'streaming';
    INSERT INTO message_fts(rowid, text)
        SELECT new.id, cjk_spaced(new.text) WHERE new.status <> 'streaming';
END;
"""

# A draft may belong to a conversation that has no message yet and is not stored.
_HISTORY: Final = """
ALTER TABLE conversation ADD COLUMN persona TEXT NOT NULL DEFAULT '';
ALTER TABLE conversation ADD COLUMN model_ref TEXT NOT NULL DEFAULT '';
ALTER TABLE conversation ADD COLUMN params_json TEXT;
ALTER TABLE conversation ADD COLUMN deleted_at INTEGER;
ALTER TABLE message ADD COLUMN made_by_json TEXT;
ALTER TABLE message ADD COLUMN deleted_at INTEGER;

UPDATE conversation SET model_ref = coalesce((
    SELECT model FROM message WHERE conversation_id = conversation.id AND model <> '' ORDER BY id DESC LIMIT 1
), '');

CREATE INDEX conversation_deleted ON conversation(deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX message_deleted ON message(deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE draft (
    conversation_id INTEGER PRIMARY KEY,
    text TEXT NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;

CREATE TABLE attachment (
    id INTEGER PRIMARY KEY,
    message_id INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;

CREATE INDEX attachment_by_message ON attachment(message_id, position);
"""

_DECODING: Final = "ALTER TABLE message ADD COLUMN decoding_json TEXT;"

MIGRATIONS: Final[tuple[str, ...]] = (_TABLES, _HISTORY, _DECODING)
"""Step n leads from `user_version` n to n + 1."""

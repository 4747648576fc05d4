-- What version 2 made, with rows as it wrote them; the tests build a database file of it.
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

INSERT INTO conversation VALUES (1700000000000000001, 'Streaming weights', 1700000000000, 1700000300000, 1700000000000000012, 'Terse', 'SmolLM2', '{"system": "be brief", "overflow": "stop"}', NULL);
INSERT INTO message VALUES (1700000000000000011, 1700000000000000001, NULL, 'user', 'How to stream weights?', 'done', '', 1700000100000, '', NULL, NULL, NULL, NULL);
INSERT INTO message VALUES (1700000000000000012, 1700000000000000001, 1700000000000000011, 'assistant', '如何加载权重 Café', 'done', '', 1700000300000, 'SmolLM2', '{"temperature": 0.25}', '{"prompt_tokens": 3, "completion_tokens": 2}', '{"backend": "cpu avx2", "threads": 2}', NULL);
INSERT INTO attachment VALUES (1, 1700000000000000011, 0, 'file', '@notes.txt', 'a note');

PRAGMA user_version = 2;

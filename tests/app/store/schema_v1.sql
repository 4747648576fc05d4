-- What version 1 made, with rows as it wrote them; the tests build a database file of it.
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

INSERT INTO conversation VALUES (1700000000000000001, 'Streaming weights', 1700000000000, 1700000300000, 1700000000000000012);
INSERT INTO conversation VALUES (1700000000000000002, 'Empty', 1700000000000, 1700000000000, NULL);
INSERT INTO message VALUES (1700000000000000011, 1700000000000000001, NULL, 'user', 'How to stream weights?', 'done', '', 1700000100000, '', NULL, NULL);
INSERT INTO message VALUES (1700000000000000012, 1700000000000000001, 1700000000000000011, 'assistant', '如何加载权重 Café', 'done', '', 1700000300000, 'SmolLM2', '{"temperature": 0.25}', '{"prompt_tokens": 3, "completion_tokens": 2}');
INSERT INTO message VALUES (1700000000000000013, 1700000000000000001, 1700000000000000011, 'assistant', 'half of', 'streaming', '', 1700000200000, 'SmolLM2', NULL, NULL);

PRAGMA user_version = 1;

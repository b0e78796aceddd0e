"""The tables of the memory store and the rules that they keep by themselves."""

from importlib import import_module

import apsw

from teamlore_client._memory import DIMENSION

VERSION = 4

SCHEMA = f"""
-- row is what the word and vector indexes refer to; a text key's hidden rowid may change under VACUUM.
CREATE TABLE memories (
    row INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE CHECK (length(id) BETWEEN 8 AND 64 AND id NOT GLOB '*[^A-Za-z0-9_-]*'),
    bank TEXT NOT NULL CHECK (length(bank) BETWEEN 1 AND 255 AND bank NOT GLOB '*[^A-Za-z0-9._:@-]*'),
    visibility TEXT NOT NULL CHECK (visibility IN ('system', 'team', 'client', 'private')),
    team_id TEXT CHECK (team_id <> ''),
    client_id TEXT CHECK (client_id <> ''),
    user_id TEXT CHECK (user_id <> ''),
    text TEXT NOT NULL CHECK (text <> ''),
    tags TEXT NOT NULL CHECK (json_type(tags) = 'array'),
    metadata TEXT NOT NULL CHECK (json_type(metadata) = 'object'),
    fact_type TEXT,
    derivation TEXT NOT NULL CHECK (derivation IN ('fact', 'observation', 'model')),
    occurred_at INTEGER,            -- microseconds since 1970, UTC
    created_at INTEGER NOT NULL,    -- microseconds since 1970, UTC
    author TEXT,
    CHECK (CASE visibility
        WHEN 'system' THEN team_id IS NULL AND client_id IS NULL AND user_id IS NULL
        WHEN 'team' THEN team_id IS NOT NULL AND client_id IS NULL AND user_id IS NULL
        WHEN 'client' THEN client_id IS NOT NULL AND user_id IS NULL
        ELSE user_id IS NOT NULL AND client_id IS NULL END)
) STRICT;
CREATE INDEX memories_by_time ON memories (bank, created_at, id);

CREATE VIRTUAL TABLE words USING fts5(
    text, content='memories', content_rowid='row', tokenize='porter unicode61 remove_diacritics 2');
INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
CREATE VIRTUAL TABLE live_words USING fts5vocab(words, 'row');

-- A partition a bank keeps the search exact within one bank; small chunks keep a small bank small on disk.
CREATE VIRTUAL TABLE vectors USING vec0(
    row INTEGER PRIMARY KEY, bank TEXT PARTITION KEY,
    embedding FLOAT[{DIMENSION}] DISTANCE_METRIC=cosine, chunk_size=256);

CREATE TRIGGER memories_indexed AFTER INSERT ON memories BEGIN
    INSERT INTO words (rowid, text) VALUES (new.row, new.text);
END;
-- However a row is deleted, its words and its vector go in the same statement.
CREATE TRIGGER memories_deleted AFTER DELETE ON memories BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.row, old.text);
    DELETE FROM vectors WHERE row = old.row;
END;
CREATE TRIGGER memories_immutable BEFORE UPDATE OF row, id, bank, text ON memories BEGIN
    SELECT RAISE(ABORT, 'a memory''s text, id and bank never change');
END;

-- Deleted, but its bytes may still stand in the write-ahead log. Every opener works this off.
CREATE TABLE unacknowledged_erasures (
    bank TEXT NOT NULL, id TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (bank, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""

STANDING = """
ALTER TABLE memories ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE memories ADD COLUMN status TEXT NOT NULL DEFAULT 'current'
    CHECK (status IN ('current', 'suspect', 'contradicted', 'superseded'));
ALTER TABLE memories ADD COLUMN trust TEXT NOT NULL DEFAULT 'extracted';
ALTER TABLE memories ADD COLUMN may_be_stale INTEGER NOT NULL DEFAULT 0;
ALTER TABLE memories ADD COLUMN superseded_by TEXT NOT NULL DEFAULT '';
ALTER TABLE memories ADD COLUMN last_verified INTEGER;    -- microseconds since 1970, UTC
"""
"""What version 2 adds; a new file gets it after the rest, so that both come out alike."""

CITATIONS = """
ALTER TABLE memories ADD COLUMN citations TEXT NOT NULL DEFAULT '[]' CHECK (json_type(citations) = 'array');
"""

MARKS = """
-- The page of a bank's feed that was taken last, and for which sync state: what ties this file to that one.
CREATE TABLE marks (
    bank TEXT PRIMARY KEY, state TEXT NOT NULL, before TEXT NOT NULL, through TEXT NOT NULL
) STRICT, WITHOUT ROWID;
"""
"""What version 4 adds. A file of before carries no mark, as a new one does: both are compared once."""

STEPS = {1: SCHEMA, 2: STANDING, 3: CITATIONS, 4: MARKS}


def load_vectors(connection: apsw.Connection) -> None:
    """Load sqlite-vec, and nothing that SQL could name afterwards."""
    connection.enable_load_extension(True)
    connection.load_extension(import_module("sqlite_vec").loadable_path())  # a package without types
    connection.enable_load_extension(False)

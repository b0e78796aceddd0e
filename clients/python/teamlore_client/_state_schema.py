"""The tables of the sync state."""

VERSION = 4

SCHEMA = """
CREATE TABLE device (id TEXT NOT NULL) STRICT;
CREATE TABLE banks (
    bank TEXT PRIMARY KEY,
    cursor TEXT,
    received_count INTEGER NOT NULL DEFAULT 0,
    received_sum INTEGER NOT NULL DEFAULT 0,    -- modulo 2^64, as a signed number
    last_sync TEXT,
    last_error TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE ledger (
    bank TEXT NOT NULL, id TEXT NOT NULL,
    answer TEXT NOT NULL CHECK (answer IN ('stored', 'unchanged', 'duplicate', 'rejected', 'forgotten')),
    detail TEXT NOT NULL DEFAULT '',            -- the id of the duplicate, or the reason of the refusal
    PRIMARY KEY (bank, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE pulled (bank TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (bank, id)) STRICT, WITHOUT ROWID;
CREATE TABLE received (
    bank TEXT NOT NULL, id TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (bank, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE suppressed (bank TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (bank, id)) STRICT, WITHOUT ROWID;
CREATE TABLE overrides (
    bank TEXT NOT NULL, id TEXT NOT NULL, choice TEXT NOT NULL CHECK (choice IN ('promoted', 'withheld')),
    PRIMARY KEY (bank, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE owed_acks (
    bank TEXT NOT NULL, id TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (bank, id)
) STRICT, WITHOUT ROWID;
"""

SENT = """
CREATE TABLE sent (bank TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (bank, id)) STRICT, WITHOUT ROWID;
ALTER TABLE banks ADD COLUMN settled INTEGER NOT NULL DEFAULT 0;
"""
"""What version 2 adds. A bank of before is not settled: a push of then may have lost its answer unnoticed."""

SKIPPED = """
CREATE TABLE skipped (
    bank TEXT NOT NULL, id TEXT NOT NULL,
    own_id TEXT NOT NULL,                       -- the memory saved here that it nearly repeats
    PRIMARY KEY (bank, id)
) STRICT, WITHOUT ROWID;
"""
"""What version 3 adds. What was skipped before is known again after `team sync --from-start`."""

HELD = "CREATE INDEX duplicates ON ledger (bank, detail) WHERE answer = 'duplicate';"
"""What version 4 adds: each page of the feed asks which own memories are held there under another id."""

STEPS = {1: SCHEMA, 2: SENT, 3: SKIPPED, 4: HELD}

OF_A_BANK = ("ledger", "pulled", "received", "owed_acks", "banks", "sent", "skipped")
"""What the server knows anew when the bank is joined again. Suppressed ids and overrides are this user's word: they stay.

Of the ledger stays what the server does not know anew: which own memories are held there under another id, and which of
those ids were forgotten.
"""

-- Rows of either ledger that could not be read, as they stood in Redis: fields
-- by name, in JSON. The position moves past them in the same transaction.

CREATE TABLE leeway.unreadable (
    deployment text   NOT NULL,
    ledger     text   NOT NULL,
    row_ms     bigint NOT NULL,
    row_seq    bigint NOT NULL,
    why        text   NOT NULL,
    raw        text   NOT NULL,
    PRIMARY KEY (deployment, ledger, row_ms, row_seq)
);

-- The two ledgers, a row for each of Redis's. A row is known by its deployment
-- and its place in the ledger: milliseconds and a number within them. What a
-- row stands for is unique too, so that nothing is there twice whatever becomes
-- of Redis.

CREATE TABLE leeway.spend (
    deployment          text    NOT NULL,
    row_ms              bigint  NOT NULL,
    row_seq             bigint  NOT NULL,
    booked_at           timestamptz GENERATED ALWAYS AS (to_timestamp(row_ms::double precision / 1000)) STORED,
    job_id              text    NOT NULL,
    attempt             integer NOT NULL,
    path                text    NOT NULL,
    class               text    NOT NULL,
    producer            text    NOT NULL,
    backend             text    NOT NULL,
    model               text    NOT NULL,
    currency            text    NOT NULL,
    price_version       text    NOT NULL,
    opened_at_ms        bigint  NOT NULL,
    settled_at_ms       bigint  NOT NULL,
    max_cost_micro      bigint  NOT NULL,
    input_tokens        bigint  NOT NULL,
    cached_tokens       bigint  NOT NULL,
    output_tokens       bigint  NOT NULL,
    reasoning_tokens    bigint  NOT NULL,
    priced              boolean NOT NULL,
    cost_micro          bigint  NOT NULL,
    list_cost_micro     bigint,
    reported_cost_micro bigint,
    known               text    NOT NULL,
    clamped             boolean NOT NULL,
    result              text    NOT NULL,
    PRIMARY KEY (deployment, row_ms, row_seq),
    UNIQUE (deployment, job_id, attempt)
);

CREATE TABLE leeway.miss (
    deployment         text   NOT NULL,
    row_ms             bigint NOT NULL,
    row_seq            bigint NOT NULL,
    booked_at          timestamptz GENERATED ALWAYS AS (to_timestamp(row_ms::double precision / 1000)) STORED,
    job_id             text   NOT NULL,
    path               text   NOT NULL,
    class              text   NOT NULL,
    producer           text   NOT NULL,
    backend            text   NOT NULL,
    outcome            text   NOT NULL,
    cause              text   NOT NULL,
    at_ms              bigint NOT NULL,
    deadline_at_ms     bigint NOT NULL,
    admit_slack_ms     bigint NOT NULL,
    admit_queue_age_ms bigint NOT NULL,
    predicted_wait_ms  bigint NOT NULL,
    queue_wait_ms      bigint NOT NULL,
    first_byte_ms      bigint NOT NULL,
    late_by_ms         bigint NOT NULL,
    PRIMARY KEY (deployment, row_ms, row_seq),
    UNIQUE (deployment, job_id)
);

-- How far each ledger is archived; it moves in the transaction that writes the
-- rows. booked counts the rows up to there since the ledger began.
CREATE TABLE leeway.cursor (
    deployment text   NOT NULL,
    ledger     text   NOT NULL,
    row_ms     bigint NOT NULL,
    row_seq    bigint NOT NULL,
    booked     bigint NOT NULL,
    PRIMARY KEY (deployment, ledger)
);

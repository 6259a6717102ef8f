"""SQL statements of the job queue.

A job has one row.  ``available_at`` is when a worker may receive it: the end of its delay, or of
the lease of the worker that holds it.  So a job whose holder crashed is received like a delayed
one.  Each delivery has a higher ``fence``; every settlement compares it.
"""

from __future__ import annotations

from retrytemplate._storage.sql_dialect import META, SET, WRITE_AHEAD
from retrytemplate._storage.sql_schema import Schema

VERSION = 1
NUMBER = {
    "sqlite": "integer PRIMARY KEY",
    "postgresql": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}
TABLE = """
CREATE TABLE IF NOT EXISTS ${{prefix}}_jobs (
    number {number},
    id text NOT NULL UNIQUE,
    queue text NOT NULL,
    key text NOT NULL,
    body text NOT NULL,
    state text NOT NULL,
    priority bigint NOT NULL,
    fence bigint NOT NULL,
    deliveries bigint NOT NULL,
    crashes bigint NOT NULL,
    enqueued_at double precision NOT NULL,
    available_at double precision NOT NULL,
    finished_at double precision,
    worker text,
    process text,
    last_failure text,
    letter text,
    replays text NOT NULL,
    UNIQUE (queue, key)
)"""
UNFINISHED = """
CREATE INDEX IF NOT EXISTS ${prefix}_jobs_unfinished
ON ${prefix}_jobs (queue, priority DESC, available_at, number) WHERE finished_at IS NULL"""


def _creating(dialect: str) -> list[str]:
    """The statements that create the tables; the last one writes their version."""
    made = [TABLE.format(number=NUMBER[dialect]), UNFINISHED, META]
    if dialect == "sqlite":
        made.append(WRITE_AHEAD)
    return [*made, SET % ("jobs", VERSION)]


JOBS = Schema("jobs", VERSION, _creating)

ENQUEUE = """
INSERT INTO ${prefix}_jobs (
    id, queue, key, body, state, priority, fence, deliveries, crashes, enqueued_at, available_at,
    replays
) VALUES (
    :id, :queue, :key, :body, 'waiting', :priority, 0, 0, 0, ${now}, ${now} + :delay, '[]'
) ON CONFLICT (queue, key) DO NOTHING RETURNING id"""
FIND_KEY = "SELECT id FROM ${prefix}_jobs WHERE queue = :queue AND key = :key"

STATE = """CASE WHEN finished_at IS NOT NULL THEN state WHEN available_at <= ${now} THEN 'ready'
    WHEN state = 'running' THEN state ELSE 'delayed' END"""
# The columns of a job; ``attempts`` are the deliveries.
COLUMNS = (
    "number id key state body priority attempts crashes enqueued_at available_at finished_at worker"
    " last_failure letter replays"
).split()
SHOWN = f"""
SELECT number, id, key, {STATE}, body, priority, deliveries, crashes,
    enqueued_at, available_at, finished_at, worker, last_failure, letter, replays
FROM ${{prefix}}_jobs WHERE queue = :queue"""
ONE = f"{SHOWN} AND id = :id"
PAGE = f"""{SHOWN} AND number > :after
AND (CAST(:state AS text) IS NULL OR {STATE} = :state) ORDER BY number LIMIT :limit"""

REPLAYS = """
SELECT replays, ${now} FROM ${prefix}_jobs
WHERE queue = :queue AND id = :id AND state = 'dead_lettered'"""
REPLAY = """
UPDATE ${prefix}_jobs SET
    state = 'waiting', available_at = ${now}, finished_at = NULL, deliveries = 0, crashes = 0,
    replays = :replays
WHERE queue = :queue AND id = :id AND state = 'dead_lettered' AND replays = :before RETURNING id"""
PURGE = """
DELETE FROM ${prefix}_jobs WHERE number IN (
    SELECT number FROM ${prefix}_jobs
    WHERE queue = :queue AND state = 'completed' AND finished_at <= ${now} - :age
    ORDER BY number LIMIT :limit
) RETURNING number"""

# A clock that is read for each row would not use the index.
RECEIVE = """
WITH due AS MATERIALIZED (
    SELECT number FROM ${prefix}_jobs
    WHERE queue = :queue AND finished_at IS NULL AND available_at <= (SELECT ${now})
    ORDER BY priority DESC, available_at, number LIMIT :limit ${skip_locked}
)
UPDATE ${prefix}_jobs SET
    crashes = crashes + CASE WHEN state = 'running' THEN 1 ELSE 0 END,
    state = 'running', fence = fence + 1, deliveries = deliveries + 1,
    available_at = ${now} + :lease, worker = :worker, process = :process
WHERE number IN (SELECT number FROM due)
RETURNING -priority, number, fence, id, body, deliveries, enqueued_at"""

NO_HOLDER = "worker = NULL, process = NULL"
OURS = "${in_pairs}"
HELD = f"state = 'running' AND {OURS}"
# A message that was acknowledged in the caller's transaction is acknowledged again afterwards.
ACKNOWLEDGE = f"""
UPDATE ${{prefix}}_jobs SET
    state = 'completed', finished_at = coalesce(finished_at, ${{now}}), {NO_HOLDER}
WHERE state IN ('running', 'completed') AND {OURS} RETURNING number, fence"""
# The same for one job, with the statement that ends the attempt.
ACKNOWLEDGE_ENDED = f"""
UPDATE ${{prefix}}_jobs SET
    state = 'completed', finished_at = coalesce(finished_at, ${{now}}), {NO_HOLDER}
WHERE ${{has_ended}} AND state IN ('running', 'completed')
    AND number = :number AND fence = :delivery RETURNING 1"""
REQUEUE = f"""
UPDATE ${{prefix}}_jobs SET
    state = 'waiting', available_at = ${{now}} + :delay, last_failure = :failure, {NO_HOLDER}
WHERE {HELD} RETURNING number, fence"""
DEAD_LETTER = f"""
UPDATE ${{prefix}}_jobs SET
    state = 'dead_lettered', finished_at = ${{now}}, last_failure = :failure, letter = :letter,
    {NO_HOLDER}
WHERE {HELD} RETURNING number, fence"""
# It is received before jobs that were enqueued later.
RELEASE = f"""
UPDATE ${{prefix}}_jobs SET
    state = 'waiting', available_at = enqueued_at, deliveries = deliveries - 1, {NO_HOLDER}
WHERE {HELD}"""
# A row that is locked belongs to the caller's transaction, which acknowledges it.
EXTEND = f"""
WITH held AS MATERIALIZED (
    SELECT number FROM ${{prefix}}_jobs WHERE {HELD} ${{skip_locked}}
)
UPDATE ${{prefix}}_jobs SET available_at = ${{now}} + :lease
WHERE number IN (SELECT number FROM held) RETURNING number, fence"""
EXTEND_LOCKED = f"""
SELECT number, fence FROM ${{prefix}}_jobs WHERE state IN ('running', 'completed') AND {OURS}"""
SETTLED = f"""
SELECT number, fence FROM ${{prefix}}_jobs WHERE state <> 'running' AND {OURS}"""

OF_OTHERS = """queue = :queue AND finished_at IS NULL AND available_at > ${now}
AND state = 'running'"""
RUNNING = f"""
SELECT DISTINCT process FROM ${{prefix}}_jobs WHERE {OF_OTHERS} AND process <> :own"""
TAKE_BACK = f"""
UPDATE ${{prefix}}_jobs SET available_at = ${{now}} WHERE {OF_OTHERS} AND process = :process"""

"""SQL statements of the context cache."""

from __future__ import annotations

from retrytemplate._internal.values import MAX_STORED_INT
from retrytemplate._storage.sql_dialect import META, SET, WRITE_AHEAD

SCHEMA = 1
"""The version of the tables."""


CONTEXTS = """
CREATE TABLE IF NOT EXISTS ${prefix}_contexts (
    key text${collate_c} NOT NULL PRIMARY KEY,
    record text,
    version bigint NOT NULL,
    fence bigint NOT NULL,
    phase text NOT NULL,
    worker text,
    process text,
    lease_until double precision,
    lost text,
    expires double precision,
    updated double precision NOT NULL
)"""


KEEP_FENCE = f"""
CREATE TRIGGER IF NOT EXISTS ${{prefix}}_fence AFTER DELETE ON ${{prefix}}_contexts
WHEN OLD.fence > (SELECT value FROM ${{prefix}}_meta WHERE name = 'fence')
AND OLD.fence <= {MAX_STORED_INT}
BEGIN UPDATE ${{prefix}}_meta SET value = OLD.fence WHERE name = 'fence'; END"""
# It has only the successes that are remembered.
ENDS = """
CREATE INDEX IF NOT EXISTS ${prefix}_expires ON ${prefix}_contexts (expires)
WHERE expires IS NOT NULL"""


VERSION = SET % ("schema", SCHEMA)


# Whether the time to live has ended.  It begins with the end of the lease if the key was never
# released; a completion marker has its own end.
OVER = """coalesce(
    CASE WHEN c.worker IS NULL OR c.phase = 'done' THEN c.expires <= ${now}
         ELSE c.lease_until + CAST(:ttl AS double precision) <= ${now} END, false)"""
FREE = "(c.worker IS NULL OR c.lease_until <= ${now})"
MINE = "key = :key AND fence = :fence AND worker = :worker"
AFTER_TTL = "${now} + CAST(:ttl AS double precision)"
FENCE = "${greatest}(CAST(${now} * 1000000 AS bigint), ${min_fence})"

BEGIN = f"""
INSERT INTO ${{prefix}}_contexts AS c
    (key, version, fence, phase, worker, process, lease_until, updated)
SELECT :key, 0, {FENCE}, 'attempting', :worker, :process, ${{now}} + :lease, ${{now}}
    ${{serialize_key}}
ON CONFLICT (key) DO UPDATE SET
    record = CASE WHEN {OVER} THEN NULL ELSE c.record END,
    version = CASE WHEN {OVER} THEN 0 ELSE c.version END,
    expires = CASE WHEN {OVER} THEN NULL ELSE c.expires END,
    fence = ${{greatest}}(c.fence + 1, {FENCE}),
    phase = CASE WHEN c.phase IN ('recovering', 'done') AND NOT {OVER} THEN c.phase
                 ELSE 'attempting' END,
    worker = excluded.worker,
    process = excluded.process,
    lease_until = ${{now}} + :lease,
    lost = CASE WHEN {OVER} THEN NULL
                WHEN c.phase = 'attempting' AND c.worker <> excluded.worker
                THEN coalesce(c.lost, c.worker)
                ELSE c.lost END,
    updated = ${{now}}
WHERE (c.worker IN (excluded.worker, CAST(:takeover AS text)) OR {FREE})
    AND (c.phase <> 'done' OR :fresh OR {OVER})
RETURNING record, fence, lease_until, lost, phase"""
REFUSAL = """
SELECT worker, process, lease_until, lease_until > ${now} AS held, phase = 'done' AS done
FROM ${prefix}_contexts WHERE key = :key"""
RENEW = f"""
UPDATE ${{prefix}}_contexts SET lease_until = ${{now}} + :lease
WHERE {MINE} RETURNING lease_until"""
FAIL = f"""
UPDATE ${{prefix}}_contexts SET
    record = :record, version = :version, phase = :phase, worker = CAST(:holder AS text),
    lease_until = CASE WHEN CAST(:holder AS text) IS NULL THEN NULL ELSE ${{now}} + :lease END,
    lost = NULL, expires = {AFTER_TTL}, updated = ${{now}}
WHERE {MINE} RETURNING lease_until"""
WRITTEN = """
SELECT lease_until FROM ${prefix}_contexts
WHERE key = :key AND fence = :fence AND worker IS NULL AND version = :version AND phase = :phase"""
FINISH = f"DELETE FROM ${{prefix}}_contexts WHERE {MINE} RETURNING 1"
REMEMBER = f"""
UPDATE ${{prefix}}_contexts SET
    record = CAST(:record AS text), version = :version, phase = 'done', worker = NULL,
    lease_until = NULL, lost = NULL, expires = ${{now}} + :remember, updated = ${{now}}
WHERE {MINE} RETURNING 1"""
# PostgreSQL: the end of a claim and a statement that depends on it, in one round trip.
ENDED_WITH = """
WITH ended AS (%s), also AS (%s)
SELECT (SELECT count(*) FROM ended), (SELECT count(*) FROM also)"""
# A lost attempt that is not recorded yet is restored, so that the next worker finds it.
GIVE_BACK = f"""
UPDATE ${{prefix}}_contexts SET
    worker = lost, lease_until = CASE WHEN lost IS NULL THEN NULL ELSE ${{now}} END, lost = NULL,
    phase = CASE WHEN phase = 'attempting' AND lost IS NULL THEN 'idle' ELSE phase END
WHERE {MINE} RETURNING 1"""
HOLDS = f"SELECT 1 FROM ${{prefix}}_contexts WHERE {MINE} AND lease_until > ${{now}}"
FORGET = "DELETE FROM ${prefix}_contexts WHERE key = :key"
PEEK = f"""
SELECT record FROM ${{prefix}}_contexts AS c
WHERE key = :key AND record IS NOT NULL AND NOT {OVER}"""
KEYS = f"""
SELECT key FROM ${{prefix}}_contexts AS c
WHERE key > :after AND record IS NOT NULL AND NOT {OVER} ORDER BY key LIMIT :limit"""
SHARE = f"""
INSERT INTO ${{prefix}}_contexts AS c
    (key, record, version, fence, phase, expires, updated)
VALUES (:key, :record, :version, {FENCE}, :phase, {AFTER_TTL}, ${{now}})
ON CONFLICT (key) DO UPDATE SET
    record = excluded.record, version = excluded.version, phase = excluded.phase,
    worker = NULL, lease_until = NULL, lost = NULL, expires = {AFTER_TTL}, updated = ${{now}}
WHERE c.record IS NULL OR {OVER}
RETURNING 1"""
SWAP = f"""
UPDATE ${{prefix}}_contexts AS c SET
    record = :record, version = :version, phase = :phase, expires = {AFTER_TTL}, updated = ${{now}}
WHERE key = :key AND version = :expected AND record IS NOT NULL AND NOT {OVER}
RETURNING 1"""
# The outer condition is checked again if a key was taken meanwhile.
PURGE = f"""
DELETE FROM ${{prefix}}_contexts AS c WHERE key IN (
    SELECT key FROM ${{prefix}}_contexts AS c
    WHERE key > :after AND {OVER} AND {FREE} ORDER BY key LIMIT :limit
) AND {OVER} AND {FREE}
RETURNING key"""
# Some of the same, found by the index: a clock that is read for each row would not use it.
SWEEP = f"""
DELETE FROM ${{prefix}}_contexts AS c WHERE key IN (
    SELECT key FROM ${{prefix}}_contexts
    WHERE expires <= (SELECT ${{now}}) AND worker IS NULL
    ORDER BY expires LIMIT :limit ${{skip_locked}}
) AND {OVER} AND {FREE}"""


def schema(dialect: str) -> list[str]:
    """The statements that create the tables; the last one writes their version."""
    if dialect == "sqlite":
        return [CONTEXTS, ENDS, META, KEEP_FENCE, SET % ("fence", 0), WRITE_AHEAD, VERSION]
    return [CONTEXTS, ENDS, META, VERSION]

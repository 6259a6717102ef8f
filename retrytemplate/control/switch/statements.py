"""The SQL of a kill switch's store: the same text for SQLite and PostgreSQL, but for a few words.

One row holds the version and the document.  Whoever changes it holds its lock until the records of
the change are there: so they are numbered in the order of the versions, with no gap.
"""

from __future__ import annotations

from retrytemplate._storage.sql_dialect import META, SET, WRITE_AHEAD
from retrytemplate._storage.sql_schema import Schema

__all__ = ["APPEND", "CHANGE", "CLAIM", "LOAD", "OF_VERSION", "RECORDS", "TABLES", "TOLD"]

VERSION = 1
SWITCH = """
CREATE TABLE IF NOT EXISTS ${prefix}_switch (
    name text NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    document text NOT NULL
)"""
AUDIT = """
CREATE TABLE IF NOT EXISTS ${prefix}_switch_audit (
    number bigint NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    record text NOT NULL,
    written double precision NOT NULL,
    worker text,
    lease_until double precision,
    told double precision
)"""
UNTOLD = """
CREATE INDEX IF NOT EXISTS ${prefix}_switch_untold ON ${prefix}_switch_audit (number)
WHERE told IS NULL"""
NOTHING = """
INSERT INTO ${prefix}_switch (name, version, document) VALUES ('stopped', 0, '')
ON CONFLICT (name) DO NOTHING"""

LOAD = """
SELECT version, CASE WHEN version = CAST(:known AS bigint) THEN '' ELSE document END
FROM ${prefix}_switch WHERE name = 'stopped'"""
CHANGE = """
UPDATE ${prefix}_switch SET version = :version, document = :document
WHERE name = 'stopped' AND version = :expected RETURNING 1"""
APPEND = """
INSERT INTO ${prefix}_switch_audit (number, version, record, written)
SELECT coalesce(max(number), 0) + 1, :version, :record, ${now} FROM ${prefix}_switch_audit"""
OF_VERSION = "SELECT record FROM ${prefix}_switch_audit WHERE version = :version ORDER BY number"
RECORDS = """
SELECT number, record, told IS NOT NULL FROM ${prefix}_switch_audit
WHERE CAST(:before AS bigint) IS NULL OR number < CAST(:before AS bigint)
ORDER BY number DESC LIMIT :limit"""
FREE = "told IS NULL AND (worker IS NULL OR worker = :worker OR lease_until <= ${now})"
# Materialized: looked for again row by row, behind each that is claimed would come another.  The
# outer condition is looked at again where a record was claimed in the meantime.
CLAIM = f"""
WITH free AS MATERIALIZED (
    SELECT number FROM ${{prefix}}_switch_audit WHERE {FREE}
    ORDER BY number LIMIT :limit ${{unlocked}}
)
UPDATE ${{prefix}}_switch_audit SET worker = :worker, lease_until = ${{now}} + :lease
WHERE number IN (SELECT number FROM free) AND {FREE}
RETURNING number, record, false"""
TOLD = """
UPDATE ${prefix}_switch_audit SET told = ${now}
WHERE number = :number AND worker = :worker AND told IS NULL"""


def _creating(dialect: str) -> list[str]:
    """What makes the tables; their version last, when everything is there."""
    made = [SWITCH, AUDIT, UNTOLD, NOTHING, META]
    if dialect == "sqlite":
        made.append(WRITE_AHEAD)
    return [*made, SET % ("switch", VERSION)]


TABLES = Schema("switch", VERSION, _creating)

"""SQL fragments that differ between SQLite and PostgreSQL."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from retrytemplate._internal.values import MAX_STORED_INT

if TYPE_CHECKING:
    from collections.abc import Mapping

DIALECT_FRAGMENTS: Mapping[str, Mapping[str, str]] = {
    "sqlite": {
        "now": "((julianday('now') - 2440587.5) * 86400.0)",
        "greatest": "max",
        "collate_c": "",
        "skip_locked": "",
        "has_ended": "true",  # else the statement is not run
        # The clock counts milliseconds: a key that is deleted and begun again within the same
        # millisecond must get a higher number, too.
        "min_fence": f"(SELECT CASE WHEN value < {MAX_STORED_INT} THEN value + 1 ELSE 0 END "
        "FROM ${prefix}_meta WHERE name = 'fence')",
        "serialize_key": "WHERE true",
        "exists": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :table",
        "in_pairs": "(number, fence) IN (SELECT json_extract(value, '$[0]'), "
        "json_extract(value, '$[1]') FROM json_each(:pairs))",
    },
    "postgresql": {
        "now": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
        "greatest": "greatest",
        "collate_c": ' COLLATE "C"',
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        "has_ended": "EXISTS (SELECT 1 FROM ended)",
        "min_fence": "0",
        # The worker that begins a key waits here for the previous one, and reads the clock after
        # that: a fence that was read earlier could be lower than one that has been used meanwhile.
        "serialize_key": "FROM (SELECT pg_advisory_xact_lock("
        "hashtextextended('${prefix}/' || :key, 0)) OFFSET 0) AS turn",
        "exists": "SELECT 1 WHERE to_regclass(CAST(:table AS text)) IS NOT NULL",
        # The second condition alone would read the whole table: 100 pairs are assumed.
        "in_pairs": "number = ANY (ARRAY(SELECT CAST(value ->> 0 AS bigint) "
        "FROM json_array_elements(CAST(:pairs AS json)))) "
        "AND (number, fence) IN (SELECT CAST(value ->> 0 AS bigint), "
        "CAST(value ->> 1 AS bigint) FROM json_array_elements(CAST(:pairs AS json)))",
    },
}

DIALECTS = tuple(DIALECT_FRAGMENTS)
# The server and the table of a name.  A copy of a server has the same system identifier.
IDENTITY = {
    "sqlite": "SELECT file FROM pragma_database_list WHERE name = 'main'",
    "postgresql": "SELECT system_identifier, pg_postmaster_start_time(), current_database(), "
    "CAST(to_regclass(CAST(:table AS text)) AS oid) FROM pg_control_system()",
}
# SQLite: a transaction that takes the lock with its first write.
TRANSACTION = {"sqlite": "SERIALIZABLE", "postgresql": "READ COMMITTED"}
# The same in autocommit mode.
START = {"sqlite": "BEGIN", "postgresql": "BEGIN ISOLATION LEVEL READ COMMITTED"}


META = """
CREATE TABLE IF NOT EXISTS ${prefix}_meta (
    name text NOT NULL PRIMARY KEY,
    value bigint NOT NULL
)"""


SET = "INSERT INTO ${prefix}_meta (name, value) VALUES ('%s', %d) ON CONFLICT (name) DO NOTHING"


# A property of the file.  During the write of another connection it fails immediately; the
# statements before it in the schema have waited for that write.
WRITE_AHEAD = "PRAGMA journal_mode = wal"
TABLE = "${exists}"
FOUND = "SELECT value FROM ${prefix}_meta WHERE name = :name"


def in_dialect(statement: str, dialect: str, prefix: str) -> str:
    """The statement in a dialect of SQL, on the tables of a prefix."""
    words = {
        name: _filled(word, prefix=prefix) for name, word in DIALECT_FRAGMENTS[dialect].items()
    }
    return _filled(statement, prefix=prefix, **words)


def _filled(text: str, **words: str) -> str:
    return Template(text).safe_substitute(words)

"""Where the job writes: a SQLite file, its own tables beside those of the step."""

from __future__ import annotations

import secrets
import sqlite3
from typing import TYPE_CHECKING, Any

from retrytemplate.batch import JobRepository
from retrytemplate.extras import extra

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from retrytemplate.demo.job import Priced

__all__ = ["DatabaseRefused", "Tables"]

# Written into the file's header, so that nobody else's tables are ever dropped.
OURS = 0x52544F52

SCHEMA = """
DROP TABLE IF EXISTS orders;
DROP TABLE IF EXISTS written;
DROP VIEW IF EXISTS dead_letters;
DROP TABLE IF EXISTS batch_letters;
DROP TABLE IF EXISTS batch_outbox;
DROP TABLE IF EXISTS batch_runs;
DROP TABLE IF EXISTS batch_meta;
CREATE TABLE orders (              -- as its last line in the file says
    order_id TEXT PRIMARY KEY, line INTEGER NOT NULL, customer TEXT NOT NULL,
    placed_on TEXT NOT NULL, sku TEXT NOT NULL, quantity INTEGER NOT NULL
);
CREATE TABLE written (             -- every line that was priced
    line INTEGER PRIMARY KEY, order_id TEXT NOT NULL REFERENCES orders,
    cents INTEGER NOT NULL, attempts INTEGER NOT NULL
);
CREATE VIEW dead_letters AS        -- every line that was not, and why: as the step keeps it
SELECT json_extract(payload, '$.line') AS line, json_extract(payload, '$.text') AS content,
    json_array_length(attempts) AS attempts, error_type AS error, error_message AS message,
    attempts AS history
FROM batch_letters;
"""

ORDER = """
INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (order_id) DO UPDATE SET
    line = excluded.line, customer = excluded.customer, placed_on = excluded.placed_on,
    sku = excluded.sku, quantity = excluded.quantity
WHERE excluded.line > orders.line
"""


class DatabaseRefused(Exception):
    """The database file cannot be written, or belongs to something else or to another run."""


class Tables:
    """Two tables, ``orders`` and ``written``, and a view of the step's dead letters.

    :param path: a new file, or that of an earlier run, whose tables are replaced; if that one
        still goes on, its next transaction is refused.
    """

    def __init__(self, path: Path) -> None:
        with extra("batch", "the demo"):
            from sqlalchemy import URL
        self.path = path
        self.repository = JobRepository(URL.create("sqlite", database=str(path)))
        self._run = secrets.randbits(31)  # in the file's header, too: whose tables these are
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=10.0)
        except sqlite3.Error as problem:
            raise DatabaseRefused(f"cannot write the database {path}: {problem}") from problem
        try:
            self._prepare()
        except sqlite3.Error as problem:
            self.close()
            raise DatabaseRefused(f"cannot write the database {path}: {problem}") from problem
        except DatabaseRefused:
            self.close()
            raise

    def _prepare(self) -> None:
        owner = self._number("PRAGMA application_id")
        if owner != OURS and self._number("SELECT count(*) FROM sqlite_master"):
            raise DatabaseRefused(f"{self.path} is a database of something else: name another file")
        self._connection.execute(f"PRAGMA application_id = {OURS}")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(
            f"BEGIN IMMEDIATE; PRAGMA user_version = {self._run}; {SCHEMA} COMMIT;"
        )

    def write(self, items: Sequence[Priced], transaction: Any) -> None:
        """A chunk of priced lines.

        Raises ``DatabaseRefused`` when another run has replaced the tables.
        """
        self._check(transaction.exec_driver_sql("PRAGMA user_version").scalar())
        orders = [
            (o.order_id, each.line, o.customer, o.placed_on.isoformat(), o.sku, o.quantity)
            for each in items
            for o in (each.order,)
        ]
        transaction.exec_driver_sql(ORDER, orders)
        rows = [(each.line, each.order.order_id, each.cents, each.attempts) for each in items]
        transaction.exec_driver_sql("INSERT INTO written VALUES (?, ?, ?, ?)", rows)

    def check(self) -> None:
        """Raise ``DatabaseRefused`` if another run has replaced the tables."""
        self._check(self._number("PRAGMA user_version"))

    def _check(self, run: int) -> None:
        if run != self._run:
            raise DatabaseRefused(f"another run has replaced the tables of {self.path}")

    def attempts(self) -> dict[int, int]:
        """How many lines took how many attempts."""
        rows = self._connection.execute(
            "SELECT attempts, count(*) FROM (SELECT attempts FROM written UNION ALL "
            "SELECT attempts FROM dead_letters) GROUP BY attempts ORDER BY attempts"
        )
        return dict(rows)

    def written(self) -> set[int]:
        """The numbers of the lines that were written."""
        return {line for (line,) in self._connection.execute("SELECT line FROM written")}

    def dead(self) -> set[int]:
        """The numbers of the lines that were given up."""
        return {line for (line,) in self._connection.execute("SELECT line FROM dead_letters")}

    def dead_by_error(self) -> dict[str, int]:
        """How many lines were given up with which error, the most frequent first."""
        rows = self._connection.execute(
            "SELECT error, count(*) FROM dead_letters GROUP BY error ORDER BY count(*) DESC, error"
        )
        return dict(rows)

    def close(self) -> None:
        """Close the file."""
        self.repository.close()
        self._connection.close()

    def _number(self, query: str) -> int:
        row: tuple[int] = self._connection.execute(query).fetchone()
        return row[0]

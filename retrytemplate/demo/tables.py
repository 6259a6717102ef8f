"""Where the job writes: a SQLite file, one transaction an item."""

from __future__ import annotations

import json
import secrets
import sqlite3
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from retrytemplate import RetryContext
    from retrytemplate.demo.orders import Line, Order

__all__ = ["DatabaseRefused", "Tables"]

# Written into the file's header, so that nobody else's tables are ever dropped.
OURS = 0x52544F52

SCHEMA = """
DROP TABLE IF EXISTS orders;
DROP TABLE IF EXISTS written;
DROP TABLE IF EXISTS dead_letters;
CREATE TABLE orders (              -- as its last line in the file says
    order_id TEXT PRIMARY KEY, line INTEGER NOT NULL, customer TEXT NOT NULL,
    placed_on TEXT NOT NULL, sku TEXT NOT NULL, quantity INTEGER NOT NULL
);
CREATE TABLE written (             -- every line that was priced
    line INTEGER PRIMARY KEY, order_id TEXT NOT NULL REFERENCES orders,
    cents INTEGER NOT NULL, attempts INTEGER NOT NULL
);
CREATE TABLE dead_letters (        -- every line that was not, and why
    line INTEGER PRIMARY KEY, content TEXT NOT NULL, attempts INTEGER NOT NULL,
    error TEXT NOT NULL, message TEXT NOT NULL, history TEXT NOT NULL
);
"""

ORDER = """
INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (order_id) DO UPDATE SET
    line = excluded.line, customer = excluded.customer, placed_on = excluded.placed_on,
    sku = excluded.sku, quantity = excluded.quantity
WHERE excluded.line > orders.line
"""


def _date(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


class DatabaseRefused(Exception):
    """The database file cannot be written, or belongs to something else or to another run."""


class Tables:
    """Three tables: ``orders``, ``written``, ``dead_letters``.

    :param path: a new file, or that of an earlier run, whose tables are replaced; if that one
        still goes on, its next transaction is refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
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

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or nothing.

        Raises ``DatabaseRefused`` when another run has replaced the tables.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if self._number("PRAGMA user_version") != self._run:
                raise DatabaseRefused(f"another run has replaced the tables of {self.path}")
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def put_order(self, line: int, order: Order) -> None:
        """The order as this line has it, unless a later line of the file was here before."""
        day = order.placed_on.isoformat()
        values = (order.order_id, line, order.customer, day, order.sku, order.quantity)
        self._connection.execute(ORDER, values)

    def put_written(self, line: int, order: Order, cents: int, attempts: int) -> None:
        """The line is done."""
        values = (line, order.order_id, cents, attempts)
        self._connection.execute("INSERT INTO written VALUES (?, ?, ?, ?)", values)

    def put_dead_letter(self, line: Line, context: RetryContext) -> None:
        """The line is given up, with the record of each attempt."""
        history = [
            {
                "attempt": record.number,
                "started": _date(record.started),
                "seconds": record.duration,
                "error": record.type_name,
                "message": record.message,
            }
            for record in context.history
        ]
        last = history[-1]
        values = (
            *(line.number, line.text, context.retry_count),
            *(last["error"], last["message"], json.dumps(history)),
        )
        self._connection.execute("INSERT INTO dead_letters VALUES (?, ?, ?, ?, ?, ?)", values)

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
        self._connection.close()

    def _number(self, query: str) -> int:
        row: tuple[int] = self._connection.execute(query).fetchone()
        return row[0]

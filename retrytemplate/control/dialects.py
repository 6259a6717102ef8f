"""How a database is told how long a statement may take, and how it says that one took longer."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from retrytemplate.classify.exceptions import attribute
from retrytemplate.control.client_errors import DATABASE_STATEMENT, LOCK
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["DIALECTS"]

# What the errors are by SQLSTATE, and by SQLite's code.
POSTGRESQL_KINDS = {"57014": DATABASE_STATEMENT, "55P03": LOCK}
SQLITE_KINDS = {9: DATABASE_STATEMENT, 5: LOCK}
LONGEST = 2**31 - 1  # milliseconds that either database can hold
STEPS = 1000  # of SQLite's machine: some microseconds


def milliseconds(seconds: float) -> int:
    """At least one: none would mean no limit.  No less than that: what is cut has had its time."""
    return LONGEST if math.isinf(seconds) else max(1, min(LONGEST, math.ceil(seconds * 1000)))


class PostgreSQL:
    """Two settings of the transaction; what it fails with takes them along."""

    outlives_rollback = False

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.before: tuple[str, str] | None = None

    def begin(self) -> None:
        driver: Any = self.connection.connection.dbapi_connection
        if driver.autocommit:
            raise MisuseError(
                "statement_limit() needs a transaction: this connection commits every statement"
            )

    def set(self, seconds: float, lock_seconds: float) -> None:
        if self.before is None:
            names = ("statement_timeout", "lock_timeout")
            asked = ", ".join(f"current_setting('{name}')" for name in names)
            statement, lock = self._run(f"SELECT {asked}").one()
            self.before = (statement, lock)
        self._set(
            self.before[0] if math.isinf(seconds) else f"{milliseconds(seconds)}",
            self.before[1] if math.isinf(lock_seconds) else f"{milliseconds(lock_seconds)}",
        )

    def end(self) -> None:
        if self.before is not None and self.connection.in_transaction():
            self._set(*self.before)

    def kind(self, exception: Any) -> str | None:
        orig = attribute(exception, "orig")
        return POSTGRESQL_KINDS.get(attribute(orig, "sqlstate") or attribute(orig, "pgcode"))

    def _set(self, statement: str, lock: str) -> None:
        self._run(
            f"SELECT set_config('statement_timeout', '{statement}', true), "
            f"set_config('lock_timeout', '{lock}', true)"
        )

    def _run(self, text: str) -> Any:
        options = {"stream_results": False}
        return self.connection.exec_driver_sql(text, execution_options=options)


class SQLite:
    """A handler that is asked every so many steps; and how long a busy file is waited for.

    Both are the driver's: a pool hands them on to whoever comes next.
    """

    outlives_rollback = True

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.driver: Any = None  # kept: a connection that was closed gives it no more
        self.busy = 0

    def begin(self) -> None:
        self.driver = self.connection.connection.dbapi_connection
        self.busy = self._pragma("busy_timeout")

    def set(self, seconds: float, lock_seconds: float) -> None:
        self.driver = self.connection.connection.dbapi_connection
        self._wait(min(self.busy, milliseconds(lock_seconds)))
        until = time.monotonic() + float(seconds)  # the database lives in real time
        # Nothing of it is Python code: SQLite would swallow the Ctrl-C that comes in there.
        self._handle(map(until.__lt__, iter(time.monotonic, None)).__next__)

    def end(self) -> None:
        self._handle(None)
        self._wait(self.busy)

    def kind(self, exception: Any) -> str | None:
        code = attribute(attribute(exception, "orig"), "sqlite_errorcode")
        return None if code is None else SQLITE_KINDS.get(code & 0xFF)

    def _wait(self, busy: int) -> None:
        self._pragma(f"busy_timeout = {busy}")

    def _pragma(self, text: str) -> Any:
        """Past SQLAlchemy, which would begin a transaction for it."""
        cursor = self.driver.cursor()
        try:
            cursor.execute(f"PRAGMA {text}")
            row: Any = cursor.fetchone()
            return row[0]
        finally:
            cursor.close()

    def _handle(self, handler: Any) -> None:
        if self.connection.dialect.is_async:
            self.driver.run_async(lambda inner: inner.set_progress_handler(handler, STEPS))
        else:
            self.driver.set_progress_handler(handler, STEPS)


DIALECTS: dict[str, Any] = {"postgresql": PostgreSQL, "sqlite": SQLite}

"""Time limits of SQL statements in the dialects of the databases."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.deadline import MINIMUM, Deadline, remaining_time
from retrytemplate._internal.validation import check_span_or_none, read_seconds
from retrytemplate.classify.exceptions import safe_getattr
from retrytemplate.control.classification.timeouts import DATABASE_STATEMENT, LOCK
from retrytemplate.errors import DeadlineExceededError, MisuseError

if TYPE_CHECKING:
    from typing import Self

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from retrytemplate._internal.validation import Seconds


# What undoes and ends must always be possible.
UNLIMITED = ("ROLLBACK", "SAVEPOINT", "RELEASE", "COMMIT")
HELD = "retrytemplate.statement_limit"


def statement_limit(
    connection: Connection | AsyncConnection,
    seconds: Seconds | None = None,
    *,
    lock: Seconds | None = None,
    deadline: Deadline | None = None,
    minimum: Seconds = MINIMUM,
) -> StatementLimit:
    """A block whose statements the database cancels at a limit, or after the remaining time.

    :param connection: of SQLAlchemy, ``with`` for a ``Connection``, ``async with`` for an
        ``AsyncConnection``; of a session: ``session.connection()``.
    :param seconds: the limit of each statement; None: only the remaining time limits it.
    :param lock: seconds that one waits for locks.
    :param deadline: None: the one in force when the statement begins.
    :param minimum: with less left no statement is sent.
    :raises DeadlineExceededError: a statement was cut, or not begun; its ``kind`` is
        ``"database statement"``, ``"lock acquire"``, or that of the deadline.
    :raises NotImplementedError: for another database than PostgreSQL and SQLite.
    :raises MisuseError: within another such block of the connection; on PostgreSQL where the
        connection commits each statement by itself: the limit belongs to a transaction.
    :raises ValueError: for a limit that is not above 0.

    PostgreSQL: ``statement_timeout`` and ``lock_timeout`` of the transaction, set before each
    statement, which is a round trip more.  SQLite: a progress handler, instead of one that you
    may have, and ``busy_timeout``.  A statement that was cut had no effect.

    >>> from sqlalchemy import create_engine, text
    >>> engine = create_engine("sqlite://")
    >>> with engine.connect() as connection, Deadline(2.0):
    ...     with statement_limit(connection, seconds=0.5):
    ...         connection.scalar(text("SELECT 17"))
    17
    >>> engine.dispose()
    """
    return StatementLimit(connection, seconds, lock, deadline, minimum)


class NotSentError(Exception):
    """No time is left for a statement: a ``TimeoutError`` would make SQLAlchemy close the
    connection."""


class StatementLimit:
    """The context manager of ``statement_limit``."""

    def __init__(
        self, connection: Any, seconds: Any, lock: Any, deadline: Deadline | None, minimum: Any
    ) -> None:
        self.own, self.lock = _limit("seconds", seconds), _limit("lock", lock)
        self.deadline, self.minimum = deadline, minimum
        remaining_time(deadline, minimum)
        self._async: Any = None
        self._connection = self._sync(connection)
        dialect = self._connection.dialect
        if dialect.name not in DIALECTS:
            raise NotImplementedError(
                f"statement_limit() knows {' and '.join(DIALECTS)}, not {dialect.name}"
            )
        self._database = DIALECTS[dialect.name](self._connection)
        self._setting = False
        self._info: dict[Any, Any] = {}
        self._began = 0.0
        self._seconds = self._lock_seconds = self._left = math.inf

    def _sync(self, connection: Any) -> Connection:
        from sqlalchemy import Connection

        if isinstance(connection, Connection):
            return connection
        inner = getattr(connection, "sync_connection", None)
        if not isinstance(inner, Connection):
            raise TypeError(
                "connection must be a Connection or an AsyncConnection of SQLAlchemy that is open, "
                f"got {connection!r}"
            )
        self._async = connection
        return inner

    def __enter__(self) -> Self:
        if self._async is not None:
            raise MisuseError("an AsyncConnection takes: async with statement_limit(...)")
        self._enter(self._connection)
        return self

    def __exit__(self, _: object, exception: BaseException | None, *__: object) -> None:
        self._exit(self._connection, exception)
        self._translate_error(exception)

    async def __aenter__(self) -> Self:
        if self._async is None:
            raise MisuseError("a Connection takes: with statement_limit(...)")
        await self._async.run_sync(self._enter)
        return self

    async def __aexit__(self, _: object, exception: BaseException | None, *__: object) -> None:
        from retrytemplate._storage.cancellation import run_to_completion

        await run_to_completion(self._async.run_sync(self._exit, exception))
        self._translate_error(exception)

    def _enter(self, connection: Connection) -> None:
        from sqlalchemy import event

        remaining_time(self.deadline, self.minimum)
        if HELD in connection.info:
            raise MisuseError("the connection is within a statement_limit() already: use one block")
        self._database.begin()
        self._info = connection.info  # kept: a connection that was closed gives it no more
        self._info[HELD] = True
        event.listen(connection, "before_cursor_execute", self._before)

    def _before(self, connection: Connection, cursor: Any, statement: str, *others: Any) -> None:
        if self._setting or statement.lstrip().upper().startswith(UNLIMITED):
            return
        try:
            self._left = remaining_time(self.deadline, self.minimum)
        except TimeoutError as error:
            raise NotSentError(error) from None
        self._seconds = min(self.own, self._left)
        self._lock_seconds = min(self.lock, self._seconds)
        self._setting = True
        self._began = time.monotonic()  # before the database measures: a thread may be held up
        try:
            self._database.set(self._seconds, self._lock_seconds)
        finally:
            self._setting = False

    def _exit(self, connection: Connection, exception: BaseException | None) -> None:
        from sqlalchemy import event

        event.remove(connection, "before_cursor_execute", self._before)
        self._info.pop(HELD, None)
        # The cancelled transaction is about to be rolled back.
        if isinstance(exception, Exception | None) or self._database.outlives_rollback:
            failed = exception is not None or connection.closed or connection.invalidated
            # Nothing can be set in a failed transaction, nor without a transaction.
            with suppress(Exception) if failed else nullcontext():
                self._database.end()

    def _translate_error(self, exception: BaseException | None) -> None:
        """Raise the timeout, if a limit of this block has cancelled the statement."""
        if isinstance(exception, NotSentError):
            raise exception.args[0] from exception.__cause__
        kind = self._database.kind(exception)
        limit = self._lock_seconds if kind == LOCK else self._seconds
        if kind is None or time.monotonic() - self._began < limit:
            return  # another limit has cancelled it
        message = f"the database cancelled a statement after {limit:.3g} seconds"
        deadline = Deadline.current() if self.deadline is None else self.deadline
        if limit == self._left and deadline is not None:
            raise deadline.error(f"{message}: no more were left") from exception
        raise DeadlineExceededError(message, kind=kind, limit=limit) from exception


def _limit(name: str, value: Any) -> float:
    seconds = read_seconds(name, value, check_span_or_none)
    return math.inf if seconds is None else float(seconds)


# What the errors are by SQLSTATE, and by SQLite's code.
POSTGRESQL_KINDS = {"57014": DATABASE_STATEMENT, "55P03": LOCK}
SQLITE_KINDS = {9: DATABASE_STATEMENT, 5: LOCK}
LONGEST = 2**31 - 1  # milliseconds that either database can hold
STEPS = 1000  # of SQLite's machine: some microseconds


def milliseconds(seconds: float) -> int:
    """At least 1, because 0 means no limit; rounded up, so that no statement ends early."""
    return LONGEST if math.isinf(seconds) else max(1, min(LONGEST, math.ceil(seconds * 1000)))


class PostgreSQL:
    """Two settings of the transaction; a rollback reverts them."""

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
            settings = ", ".join(f"current_setting('{name}')" for name in names)
            statement, lock = self._run(f"SELECT {settings}").one()
            self.before = (statement, lock)
        self._set(
            self.before[0] if math.isinf(seconds) else f"{milliseconds(seconds)}",
            self.before[1] if math.isinf(lock_seconds) else f"{milliseconds(lock_seconds)}",
        )

    def end(self) -> None:
        if self.before is not None and self.connection.in_transaction():
            self._set(*self.before)

    def kind(self, exception: Any) -> str | None:
        orig = safe_getattr(exception, "orig")
        return POSTGRESQL_KINDS.get(safe_getattr(orig, "sqlstate") or safe_getattr(orig, "pgcode"))

    def _set(self, statement: str, lock: str) -> None:
        self._run(
            f"SELECT set_config('statement_timeout', '{statement}', true), "
            f"set_config('lock_timeout', '{lock}', true)"
        )

    def _run(self, text: str) -> Any:
        options = {"stream_results": False}
        return self.connection.exec_driver_sql(text, execution_options=options)


class SQLite:
    """A handler that is called after a number of steps; and how long a busy file is waited for.

    Both belong to the driver: a pool passes them on to the next user.
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
        code = safe_getattr(safe_getattr(exception, "orig"), "sqlite_errorcode")
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

"""The job repository: runs and dead letters in a database."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.closing import Closing
from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.imports import extra
from retrytemplate._internal.validation import check_wait
from retrytemplate._storage import sql_engine
from retrytemplate._storage.cancellation import run_to_completion
from retrytemplate._storage.column_keys import TABLE_PREFIXES
from retrytemplate._storage.store_role import StoreRole
from retrytemplate.backends.durable import check_records
from retrytemplate.batch import validation
from retrytemplate.batch.errors import JobRepositoryError
from retrytemplate.batch.journal import runs
from retrytemplate.batch.journal.letter_rows import count_open_letters
from retrytemplate.batch.journal.letters import RecordLimits
from retrytemplate.batch.journal.schema import Tables, check_tables, create, has_tables, tables
from retrytemplate.caches.record_limit import RECORD_LIMIT
from retrytemplate.clock import given_or_system
from retrytemplate.errors import MisuseError
from retrytemplate.listeners.defaults import track, untrack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from typing import Self

    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock

JOB_REPOSITORY = StoreRole(
    "job repository", "a journal there is lost when the process ends", extra="batch"
)

READ_EVERY = 15.0
"""Seconds between two readings of the snapshot."""


@frozen
class RepositorySnapshot:
    """The steps of a job repository.

    :param progress: the part of the source that the newest run of a step has read, from 0 to 1, by
        step; steps whose progress is unknown are left out.
    :param backlog: the number of open dead letters of every step with a run.
    """

    progress: Mapping[str, float]
    backlog: Mapping[str, int]


class JobRepository(Closing):
    """The journal of the runs, and their dead letters, in a database.

    :param url: of the database, as SQLAlchemy writes it, or an ``Engine`` or ``AsyncEngine``.
        SQLite serves the processes of one machine, PostgreSQL those of many.
    :param lease: seconds for which a run is its process's alone.  They are renewed while it lives;
        a run whose lease has expired is taken over by the next process that runs it.
    :param prefix: of the names of the tables, which are made on first use.
    :param timeout: seconds to wait for a connection or a lock.
    :param redact: ``(text) -> text``, applied to the messages and tracebacks of failures before
        they are stored, in dead letters and in runs; None: they are stored as they are.  Items are
        never redacted: a replay needs them.
    :param record_limit: bytes of a dead letter's failure and history, and of a run's error, at
        least 8192.  The history has the first three and the last thirteen attempts; of longer ones
        the middle, then the tracebacks are given up first.
    :param clock: measures the time between two readings of ``snapshot``; None: the system's.
    :raises TypeError, ValueError: a parameter is of another type, or out of its range.

    A step writes its items in this database's transactions, unless it is given another one.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with JobRepository(f"sqlite:///{folder}/jobs.db") as repository:
    ...         repository.lease
    30.0
    """

    def __init__(
        self,
        url: str | URL | Engine | AsyncEngine,
        lease: Seconds = 30.0,
        prefix: str = "batch",
        *,
        timeout: Seconds = 5.0,
        redact: Callable[[str], str] | None = None,
        record_limit: int = RECORD_LIMIT,
        clock: Clock | None = None,
    ) -> None:
        self.lease: float = check_wait("lease", lease)
        self.timeout: float = check_wait("timeout", timeout)
        self.prefix = TABLE_PREFIXES.checked(prefix)
        check_records(redact, record_limit)
        self.limits = RecordLimits(redact, record_limit)
        with extra("batch", "a job repository"):
            from sqlalchemy import Engine

        self._asynchronous = hasattr(url, "sync_engine")
        inner: Any = getattr(url, "sync_engine", url)
        given = isinstance(inner, Engine)
        self._given = url if given else None
        self._url = sql_engine.parse_url(inner.url if given else url, JOB_REPOSITORY)
        self._engine: Engine | None = None
        self._reader: Engine | None = None
        self._lock = threading.RLock()
        self.created = False
        self._schema_checked = False
        self._clock = given_or_system(clock)
        # When it was read, and the text of the error if it could not be read.
        self._shown: tuple[float, RepositorySnapshot | str] = (-inf, RepositorySnapshot({}, {}))
        track(self)

    def __repr__(self) -> str:
        where = self._url.set(query={})
        return f"<JobRepository {where.get_backend_name()} {where.database} lease={self.lease}>"

    @property
    def name(self) -> str:
        """Its database, without user and password, and the prefix of its tables."""
        from sqlalchemy import URL

        url = self._url
        query = {each: url.query[each] for each in ("host", "port") if each in url.query}
        parts: dict[str, Any] = {"host": url.host, "port": url.port, "database": url.database}
        return f"{URL.create(url.get_backend_name(), **parts, query=query)} {self.prefix}"

    @property
    def tables(self) -> Tables:
        """Its tables, as SQLAlchemy knows them."""
        return tables(self.prefix)

    @property
    def engine(self) -> Engine:
        """The engine whose transactions the steps write in."""
        if self._asynchronous:
            raise MisuseError(
                "this call needs a JobRepository on an Engine or a URL, not on an AsyncEngine; "
                "use run_async() for a step, or give the repository an Engine or a URL"
            )
        with self._lock:
            made = self._engine
            if made is None:
                given: Any = self._given
                made = self._engine = given or sql_engine.transaction_engine(
                    self._url, self.timeout, JOB_REPOSITORY
                )
            return made

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction on the repository's tables."""
        with self.engine.connect() as connection, connection.begin():
            self.create(connection)
            yield connection
        self.created = True  # not before it is committed

    @contextmanager
    def read_only(self) -> Iterator[Connection]:
        """A connection for reading: it takes no lock and creates no table.

        :raises JobRepositoryError: the database cannot be reached, or has no such tables.
        """
        with self.translate_errors(), self._read_only_engine().connect() as connection:
            if not self._schema_checked:
                check_tables(connection, self.tables)
                self._schema_checked = True
            yield connection

    def snapshot(self) -> RepositorySnapshot:
        """The progress and the open dead letters of its steps, read every 15 s at most.

        Between two readings it returns the last values.  Without tables there are none, and none
        are created.

        :raises JobRepositoryError: the database could not be read at the last reading.
        """
        at, (read_at, shown) = self._clock.monotonic(), self._shown
        if at - read_at >= READ_EVERY:
            self._shown = at, shown  # other threads get the last values meanwhile
            try:
                shown = self._read_snapshot()
            except Exception as exc:  # a snapshot is synchronous: no cancellation arrives here
                self._shown = at, str(exc)
                raise
            self._shown = at, shown
        if isinstance(shown, str):
            raise JobRepositoryError(shown)
        return shown

    def _read_snapshot(self) -> RepositorySnapshot:
        """Read it in a connection of its own, which neither a close nor a fork has to end."""
        progress: Mapping[str, float | None] = {}
        letters: Mapping[str, int] = {}
        if sql_engine.missing_file(self._url) is None:
            given: Any = None if self._asynchronous else self._given
            engine = given or sql_engine.single_use_engine(self._url, self.timeout, JOB_REPOSITORY)
            with self.translate_errors(), engine.connect() as connection:
                if has_tables(connection, self.tables):
                    progress = runs.newest_progress(connection, self.tables)
                    letters = count_open_letters(connection, self.tables)
        return RepositorySnapshot(
            {step: ratio for step, ratio in progress.items() if ratio is not None},
            {step: letters.get(step, 0) for step in progress},
        )

    def _read_only_engine(self) -> Engine:
        with self._lock:
            given: Any = self._reader or (None if self._asynchronous else self._given)
            if given is None:
                missing = sql_engine.missing_file(self._url)
                if missing:
                    raise JobRepositoryError(f"there is no file {missing}")
                given = sql_engine.read_only_engine(self._url, self.timeout, JOB_REPOSITORY)
            reader: Engine = given
            self._reader = reader
            return reader

    @contextmanager
    def translate_errors(self, what: str = "the job repository") -> Iterator[None]:
        """Translate the database errors of the repository into ``JobRepositoryError``."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except SQLAlchemyError as exc:
            why = summary(getattr(exc, "orig", None) or exc)
            raise JobRepositoryError(f"{what} cannot be used: {why}") from exc

    @asynccontextmanager
    async def asynchronous_engine(self) -> AsyncIterator[AsyncEngine]:
        """The same for the tasks of the running loop; closed with the context unless given."""
        if self._asynchronous:
            given: Any = self._given
            yield given
            return
        made = sql_engine.transaction_engine(
            self._url, self.timeout, JOB_REPOSITORY, asynchronous=True
        )
        try:
            yield made
        finally:
            await run_to_completion(made.dispose())

    def create(self, connection: Connection) -> None:
        """Create the tables where they are missing."""
        if not self.created:
            create(connection, self.tables)

    def abandon(self, run_id: int) -> bool:
        """Abandon a run: its holder can no longer write, and it cannot be resumed.

        :returns: False: there is no such run, or it is completed or given up already.
        """
        validation.check_number("run_id", run_id)
        with self.translate_errors(), self.transaction() as connection:
            return runs.abandon(connection, self.tables, run_id)

    def close(self) -> None:
        """Close the connections of an engine that was made here, and show no more gauges."""
        untrack(self)
        with self._lock:
            made, self._engine, self._reader = (self._engine, self._reader), None, None
        for each in made:
            if each is not None and each is not self._given:
                each.dispose()

    def __enter__(self) -> Self:
        track(self)
        return self

"""The job: every line of the file is priced and written, or dead-lettered with its history.

A chunk step: lines are priced concurrently, each with its retries, and written in chunks, each in
one transaction with the step's journal.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from attrs import Factory, asdict, define, field, frozen

from retrytemplate import (
    ExceptionClassifier,
    ExponentialBackoff,
    RetryAfterBackoff,
    RetryListener,
    RetryTemplate,
    SimpleRetryPolicy,
    SystemClock,
    current_context,
)
from retrytemplate._internal.imports import extra
from retrytemplate.batch import (
    ChunkStep,
    DeadLetters,
    JobRepository,
    SequenceReader,
    SkipPolicy,
    StepListener,
    UpsertWriter,
)
from retrytemplate.demo.client import PricingClient, PricingError, ServiceUnavailable
from retrytemplate.demo.orders import InvalidOrder, LineCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from sqlalchemy import Table

    from retrytemplate import Clock, RetryContext
    from retrytemplate.batch import Event
    from retrytemplate.demo.flaky_service import PricingService
    from retrytemplate.demo.orders import Line

ATTEMPTS = 5
# Lines per transaction, and concurrent requests.
CHUNK = 500
AT_ONCE = 32

WORTH_RETRYING = ExceptionClassifier(
    {
        ConnectionError: True,
        ConnectionRefusedError: False,  # no process listens on the port
        TimeoutError: True,
        PricingError: False,  # the service rejects this order
        ServiceUnavailable: True,  # also a PricingError, but more specific
    },
    default=False,  # for example an InvalidOrder
)
"""Retryable errors: the most specific class decides."""

# Errors of the client, by the service's names of them; the first match counts.
KINDS: tuple[tuple[type[Exception], str], ...] = (
    (ServiceUnavailable, "unavailable"),
    (PricingError, "rejected"),
    (ConnectionResetError, "reset"),
    (TimeoutError, "slow"),
)


GIVEN_UP = SkipPolicy(on=(InvalidOrder, PricingError, ConnectionError, TimeoutError))
"""Failures of a line or of the service: the line is dead-lettered, the step continues."""


class DatabaseRefused(Exception):
    """The database file exists already, or cannot be written."""


class Priced(dict[str, Any]):
    """The row of a priced line."""


@define
class Tally(RetryListener, StepListener):
    """Counts of the running job; several threads report attempts to it.

    :param watch: called for every line that is priced or given up, and for every chunk.
    """

    total: int
    watch: Callable[[Tally], None] = lambda tally: None
    read: int = 0
    over: int = 0
    """Lines that are priced or given up; priced ones are written with their chunk."""
    written: int = 0
    dead_lettered: int = 0
    failures: int = 0
    planned_wait: float = 0.0
    seen: Counter[str] = Factory(Counter)
    _lock: threading.Lock = field(init=False, factory=threading.Lock)

    def on_error(self, context: RetryContext, exception: BaseException) -> None:
        kind = next((name for kind, name in KINDS if isinstance(exception, kind)), None)
        with self._lock:
            self.failures += 1
            if kind is not None:
                self.seen[kind] += 1

    def on_success(self, context: RetryContext, result: Any) -> None:
        if isinstance(result, Priced):
            with self._lock:
                self.seen["priced"] += 1
                self._is_over()

    def on_backoff(self, context: RetryContext, delay: float) -> None:
        with self._lock:
            self.planned_wait += delay

    def close(self, context: RetryContext, exception: BaseException | None) -> None:
        if exception is not None and GIVEN_UP.covers(exception):
            with self._lock:
                self._is_over()

    def _is_over(self) -> None:
        self.over += 1
        self.watch(self)

    def on_event(self, event: Event) -> None:
        with self._lock:
            if event.kind == "read":
                self.read += len(event.numbers)
            elif event.kind == "written":
                self.written += len(event.numbers)
            elif event.kind == "dead_lettered":
                self.dead_lettered += len(event.numbers)
            self.watch(self)


class StopWatch:
    """A clock, by default the system's, that sums the time slept."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self.slept = 0.0
        self.monotonic = self._clock.monotonic
        self.time = self._clock.time
        self.sleep_async = self._clock.sleep_async

    def sleep(self, delay: float) -> None:
        began = self.monotonic()
        try:
            self._clock.sleep(delay)
        finally:
            with self._lock:
                self.slept += self.monotonic() - began


@frozen(kw_only=True)
class Report:
    """The results of all lines.  ``problems`` is empty if the figures agree."""

    read: int
    written: int
    dead_lettered: int
    retried: int
    """Lines that took more than one attempt."""
    attempts: dict[int, int]
    """The number of lines by their number of attempts."""
    dead_letters_by_error: dict[str, int]
    """The number of dead-lettered lines by the type of their last error."""
    planned_wait: float
    """The sum of all delays between attempts, in seconds."""
    waited: float
    """The sum of the delays that were slept, in seconds; lines sleep concurrently."""
    seconds: float
    stopped: bool
    """Whether it was stopped before the last line."""
    sent: dict[str, int]
    """The counts of the service."""
    seen: dict[str, int]
    """The counts of the client."""
    problems: tuple[str, ...]

    @property
    def retries(self) -> int:
        """Attempts beyond the first, of all lines."""
        return sum((attempts - 1) * lines for attempts, lines in self.attempts.items())


@define
class Job:
    """Reads *lines*, has them priced by *service*, writes to *database*, a new SQLite file.

    Raises ``DatabaseRefused`` if the file exists and is not empty, or cannot be written.
    """

    lines: Sequence[Line]
    service: PricingService
    database: Path
    timeout: float = 0.5
    """Limit of one response, in seconds."""
    clock: StopWatch = Factory(StopWatch)
    tally: Tally = field(init=False)
    template: RetryTemplate = field(init=False)

    repository: JobRepository = field(init=False)
    step: ChunkStep = field(init=False)
    _written: Table = field(init=False)
    _client: threading.local = field(init=False, factory=threading.local)
    _clients: list[PricingClient] = field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self._written = written_table()
        self.repository = self._new_database()
        self.tally = Tally(total=len(self.lines))
        self.template = RetryTemplate(
            policy=SimpleRetryPolicy(max_attempts=ATTEMPTS, classifier=WORTH_RETRYING),
            backoff=RetryAfterBackoff(
                fallback=ExponentialBackoff(initial=0.02, maximum=0.5, jitter="full")
            ),
            name="reprocess-orders",
            listeners=(self.tally,),
            clock=self.clock,
        )
        self.step = ChunkStep(
            "reprocess-orders",
            reader=SequenceReader(self.lines, name="orders"),
            processor=self._price,
            writer=UpsertWriter(self._written, key=("line",)),
            chunk_size=CHUNK,
            repository=self.repository,
            retry=self.template,
            skip=GIVEN_UP,
            key=lambda line: line.number,
            codec=LineCodec(),
            concurrency=AT_ONCE,
            listeners=(self.tally,),
        )

    def _new_database(self) -> JobRepository:
        from sqlalchemy import URL
        from sqlalchemy.exc import OperationalError

        path = self.database
        if path.is_dir() or (path.exists() and path.stat().st_size):
            raise DatabaseRefused(f"{path} exists already; name a new file")
        repository = JobRepository(URL.create("sqlite", database=str(path)))
        try:
            with repository.transaction() as transaction:
                self._written.create(transaction)
        except OperationalError as problem:
            repository.close()
            raise DatabaseRefused(f"cannot write the database {path}: {problem.orig}") from problem
        return repository

    def close(self) -> None:
        """Close the database file."""
        self.repository.close()

    def run(self, watch: Callable[[Tally], None] = lambda tally: None) -> Report:
        """Price all lines, or stop after ``step.stop()``; *watch* gets the tally after each event.

        Raises the exception that ended the run, a failure of the database for example.
        """
        self.tally.watch = watch
        began = self.clock.monotonic()
        with self.service:
            try:
                ended = self.step.run()
            finally:
                for client in self._clients:
                    client.close()
        if ended.exception is not None:
            raise ended.exception
        return self._report(self.clock.monotonic() - began, ended.status == "stopped")

    def _price(self, line: Line) -> Priced:
        order = line.parse()
        cents = self._own_client().price(order, key=f"line-{line.number}")
        context = current_context()
        assert context is not None
        return Priced(line=line.number, cents=cents, attempts=context.attempt, **asdict(order))

    def _own_client(self) -> PricingClient:
        """The client of this thread, which keeps its connection."""
        client: PricingClient | None = getattr(self._client, "own", None)
        if client is None:
            client = PricingClient(self.service.host, self.service.port, self.timeout)
            self._client.own = client
            self._clients.append(client)
        return client

    def _report(self, seconds: float, stopped: bool) -> Report:
        from sqlalchemy import select

        with self.repository.engine.connect() as connection:
            columns = select(self._written.c.line, self._written.c.attempts)
            rows = connection.execute(columns).all()
        letters = list(DeadLetters(self.repository).each())
        written = {line for line, _ in rows}
        dead = {LineCodec().decode(letter.payload).number for letter in letters}
        attempts = Counter(made for _, made in rows)
        attempts.update(letter.attempts for letter in letters)
        due = self.lines[: self.tally.read] if stopped else self.lines
        sent, seen = self.service.sent, dict(self.tally.seen)
        return Report(
            read=self.tally.read,
            written=len(written),
            dead_lettered=len(dead),
            retried=sum(lines for made, lines in attempts.items() if made > 1),
            attempts=dict(sorted(attempts.items())),
            dead_letters_by_error=dict(Counter(each.error_type for each in letters).most_common()),
            planned_wait=self.tally.planned_wait,
            waited=self.clock.slept,
            seconds=seconds,
            stopped=stopped,
            sent=sent,
            seen=seen,
            problems=(
                *unaccounted((line.number for line in due), written, dead),
                *differences(sent, seen),
            ),
        )


def written_table() -> Table:
    """The table of the lines that have a price."""
    with extra("batch", "the demo"):
        from sqlalchemy import Column, Date, Integer, MetaData, String, Table

    return Table(
        "written",
        MetaData(),
        Column("line", Integer, primary_key=True),
        Column("order_id", String),
        Column("placed_on", Date),
        Column("customer", String),
        Column("sku", String),
        Column("quantity", Integer),
        Column("cents", Integer),
        Column("attempts", Integer),
    )


def unaccounted(lines: Iterable[int], written: set[int], dead: set[int]) -> Iterator[str]:
    """Violations of the rule that every line is in exactly one of the two sets."""
    expected = set(lines)
    for numbers, state in (
        (expected - written - dead, "neither written nor dead-lettered"),
        (written & dead, "both written and dead-lettered"),
        ((written | dead) - expected, "written or dead-lettered, but not in the file"),
    ):
        if numbers:
            yield f"{len(numbers)} lines are {state}, the first is line {min(numbers)}"


def differences(sent: dict[str, int], seen: dict[str, int]) -> Iterator[str]:
    """Differences between the counts of the service and of the client.

    A response may arrive while its client gives up: the service sent it, the client saw a slow one.
    """
    surplus = {kind: sent.get(kind, 0) - seen.get(kind, 0) for kind in sent.keys() | seen.keys()}
    late = [many for kind, many in surplus.items() if kind != "slow"]
    if min(late, default=0) < 0 or sum(surplus.values()) != 0:
        for kind in sorted(surplus):
            if surplus[kind]:
                there, here = sent.get(kind, 0), seen.get(kind, 0)
                yield f"{kind}: the service sent {there}, the client saw {here}"

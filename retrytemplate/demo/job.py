"""The job: every line of the file is priced and written, or given up and kept with its history.

Stateful retry, as with a message broker: a line that fails is rolled back and comes again, until
its attempts run out and the recovery files it as a dead letter.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from attrs import Factory, define, field, frozen

from retrytemplate import (
    ExceptionClassifier,
    ExponentialBackoff,
    RetryAfterBackoff,
    RetryError,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    SystemClock,
)
from retrytemplate.demo.client import PricingClient, PricingError, ServiceUnavailable
from retrytemplate.demo.tables import DatabaseRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from retrytemplate import Clock, RetryContext
    from retrytemplate.demo.orders import Line
    from retrytemplate.demo.service import PricingService
    from retrytemplate.demo.tables import Tables

__all__ = ["ATTEMPTS", "WORTH_RETRYING", "Job", "Report", "StopWatch", "Tally"]

ATTEMPTS = 5
# So many failed lines may wait for their turn; then the oldest goes before any new line.
WAITING = 256

WORTH_RETRYING = ExceptionClassifier(
    {
        ConnectionError: True,
        ConnectionRefusedError: False,  # nobody is there at all
        TimeoutError: True,
        PricingError: False,  # the service refuses this order
        ServiceUnavailable: True,  # a PricingError too, but nearer
    },
    default=False,  # an InvalidOrder, say
)
"""What is worth another attempt: the nearest class decides."""

# What the client saw, in the service's words; the first that fits.
KINDS: tuple[tuple[type[Exception], str], ...] = (
    (ServiceUnavailable, "unavailable"),
    (PricingError, "refused"),
    (ConnectionResetError, "reset"),
    (TimeoutError, "slow"),
)


@define
class Tally(RetryListener):
    """Keeps count while the job runs."""

    total: int
    read: int = 0
    written: int = 0
    dead: int = 0
    failures: int = 0
    asked: float = 0.0
    seen: Counter[str] = Factory(Counter)

    @property
    def done(self) -> int:
        """Lines that are finished, either way."""
        return self.written + self.dead

    @property
    def again(self) -> int:
        """Lines that failed and are still to come again."""
        return self.read - self.done

    def on_success(self, context: RetryContext, result: Any) -> None:
        self.written += 1

    def on_error(self, context: RetryContext, exception: BaseException) -> None:
        self.failures += 1
        kind = next((name for kind, name in KINDS if isinstance(exception, kind)), None)
        if kind is not None:
            self.seen[kind] += 1

    def on_backoff(self, context: RetryContext, delay: float) -> None:
        self.asked += delay

    def on_recovery(self, context: RetryContext, result: Any) -> None:
        self.dead += 1


class StopWatch:
    """A clock, the system's unless told otherwise, which adds up what was really slept."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self.slept = 0.0
        self.monotonic = self._clock.monotonic
        self.time = self._clock.time
        self.sleep_async = self._clock.sleep_async

    def sleep(self, delay: float) -> None:
        began = self.monotonic()
        try:
            self._clock.sleep(delay)
        finally:
            self.slept += self.monotonic() - began


@frozen(kw_only=True)
class Report:
    """What became of the lines.  ``problems`` is empty when everything adds up."""

    read: int
    written: int
    dead: int
    retried: int
    """Lines that took more than one attempt."""
    attempts: dict[int, int]
    """How many lines took how many attempts."""
    dead_by_error: dict[str, int]
    """The last error of the lines that were given up, by its type's name."""
    asked: float
    """All delays between attempts together (seconds)."""
    waited: float
    """What of them was waited out; in the rest other lines had their turn."""
    seconds: float
    sent: dict[str, int]
    """What the service counted."""
    seen: dict[str, int]
    """What the client met."""
    problems: tuple[str, ...]

    @property
    def retries(self) -> int:
        """Attempts beyond the first, of all lines."""
        return sum((attempts - 1) * lines for attempts, lines in self.attempts.items())


@define
class Job:
    """Reads *lines*, has them priced by *service*, writes to *tables*."""

    lines: Sequence[Line]
    service: PricingService
    tables: Tables
    timeout: float = 0.5
    """How long to wait for an answer (seconds)."""
    clock: StopWatch = Factory(StopWatch)
    tally: Tally = field(init=False)
    template: RetryTemplate = field(init=False)

    def __attrs_post_init__(self) -> None:
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

    def run(self, watch: Callable[[Tally], None] = lambda tally: None) -> Report:
        """Do it all; *watch* is told after every delivery.

        Raises ``sqlite3.Error`` when the database fails, ``DatabaseRefused`` when another run has
        taken it over: that is not the line's fault, and no further delivery will mend it.
        """
        began = self.clock.monotonic()
        with self.service:
            client = PricingClient(self.service.host, self.service.port, self.timeout)
            try:
                self._reprocess(client, watch)
            finally:
                client.close()
        return self._report(self.clock.monotonic() - began)

    def _reprocess(self, client: PricingClient, watch: Callable[[Tally], None]) -> None:
        again: deque[Line] = deque()
        for line in self._deliveries(again):
            try:
                self._deliver(line, client)
            except (sqlite3.Error, DatabaseRefused, RetryError):
                raise
            except Exception:
                again.append(line)  # rolled back and counted: it comes again
            watch(self.tally)

    def _deliver(self, line: Line, client: PricingClient) -> None:
        """Hand a line to the template; a failure is rethrown, the last delivery recovers."""

        def work(context: RetryContext) -> None:
            # One attempt, one transaction: what fails in here leaves no trace in the database.
            with self.tables.transaction():
                order = line.parse()
                self.tables.put_order(line.number, order)
                cents = client.price(order, key=f"line-{line.number}")
                self.tables.put_written(line.number, order, cents, context.attempt)

        def dead_letter(context: RetryContext) -> None:
            with self.tables.transaction():
                self.tables.put_dead_letter(line, context)

        # "wait": a failure is rethrown at once, and other lines go on meanwhile; only a line that
        # comes again before its delay is over waits out the rest.
        state = RetryState(line.number, defer_backoff="wait")
        self.template.execute(work, recovery=dead_letter, state=state)

    def _deliveries(self, again: deque[Line]) -> Iterator[Line]:
        """The lines of the file, and those that failed until none is left."""
        for line in self.lines:
            while len(again) >= WAITING:
                yield again.popleft()
            self.tally.read += 1
            yield line
        while again:
            yield again.popleft()

    def _report(self, seconds: float) -> Report:
        written, dead = self.tables.written(), self.tables.dead()
        attempts = self.tables.attempts()
        sent, seen = self.service.sent, {**self.tally.seen, "priced": self.tally.written}
        return Report(
            read=self.tally.read,
            written=len(written),
            dead=len(dead),
            retried=sum(lines for made, lines in attempts.items() if made > 1),
            attempts=attempts,
            dead_by_error=self.tables.dead_by_error(),
            asked=self.tally.asked,
            waited=self.clock.slept,
            seconds=seconds,
            sent=sent,
            seen=seen,
            problems=(
                *unaccounted((line.number for line in self.lines), written, dead),
                *differences(sent, seen),
            ),
        )


def unaccounted(lines: Iterable[int], written: set[int], dead: set[int]) -> Iterator[str]:
    """What breaks the rule that every line is in exactly one of the two."""
    expected = set(lines)
    for numbers, what in (
        (expected - written - dead, "neither written nor dead-lettered"),
        (written & dead, "both written and dead-lettered"),
        ((written | dead) - expected, "written or dead-lettered, but not in the file"),
    ):
        if numbers:
            yield f"{len(numbers)} lines are {what}, the first is line {min(numbers)}"


def differences(sent: dict[str, int], seen: dict[str, int]) -> Iterator[str]:
    """Where the service's count and the client's are not the same."""
    for kind in sorted(sent.keys() | seen.keys()):
        there, here = sent.get(kind, 0), seen.get(kind, 0)
        if there != here:
            yield f"{kind}: the service sent {there}, the client saw {here}"

"""Counts of executions by name: exact counts, and counts that decay with time."""

from __future__ import annotations

from functools import partial
from math import exp, floor
from typing import TYPE_CHECKING, Any, Literal, get_args

from attrs import field, frozen

from retrytemplate._internal import validation
from retrytemplate._internal.locks import Monitor
from retrytemplate.clock import SystemClock, check_clock, given_or_system
from retrytemplate.errors import Rejected
from retrytemplate.listeners.base import RetryListener

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from retrytemplate._engine.context import RetryContext
    from retrytemplate.clock import Clock

__all__ = ["Kind", "RetryStatistics", "RollingStatistics", "StatisticsListener"]

Kind = Literal["started", "complete", "recovery", "error", "abort", "rejected"]
KINDS: tuple[Kind, ...] = get_args(Kind)

CIRCUIT_ATTRIBUTES = ("circuit.open", "circuit.short_count")


NONE: dict[Kind, int] = dict.fromkeys(KINDS, 0)
# For each kind the decayed count, and the time of that value.
UNSEEN: dict[Kind, tuple[float, float]] = dict.fromkeys(KINDS, (0.0, 0.0))


def _decay(value: float, age: float, window: float) -> float:
    # Two threads may read the clock in one order and acquire the lock in the other.
    return value * exp(-max(age, 0.0) / window)


def _rounded(value: float) -> int:
    """Half up, as Spring Retry rounds; ``round`` would go to the even neighbour."""
    return floor(value + 0.5)


def _shown(numbers: RetryStatistics | RollingStatistics) -> str:
    counts = ", ".join(f"{kind} {getattr(numbers, kind)}" for kind in KINDS)
    rate = f"error_rate {numbers.error_rate:.3g}"
    return f"<{type(numbers).__name__} {numbers.name!r}: {counts}, {rate}>"


@frozen(repr=False)
class RetryStatistics:
    """The statistics of one name at one time.

    ``started``, ``complete``, ``recovery``, ``error``, ``abort`` and ``rejected`` are counts since
    the listener was created; ``rolled`` has the same counts, decayed over the window and rounded;
    ``error_rate`` is the decayed ratio of executions that ended in an abort or a recovery;
    ``attributes`` are those that a circuit breaker set.

    Source: ``org.springframework.retry.RetryStatistics``.
    """

    name: str
    started: int
    complete: int
    recovery: int
    error: int
    abort: int
    rejected: int
    rolled: Mapping[Kind, int]
    error_rate: float
    attributes: Mapping[str, Any] = field(factory=dict)

    def __repr__(self) -> str:
        return _shown(self)


@frozen(eq=False, repr=False)
class RollingStatistics:
    """The live statistics of one name.  Thread-safe.

    A decayed count is multiplied by ``exp(-age / window)``: an event *window* seconds ago counts
    0.37, one three windows ago 0.05.

    :param clock: the clock; only ``monotonic`` is read.
    :param window: the time constant of the decay, in seconds; default 15, above 0.
    :param name: the name whose executions are counted.

    >>> numbers = RollingStatistics(window=15.0)
    >>> numbers.increment("started")
    >>> numbers.increment("abort")
    >>> numbers.started, numbers.rolled("abort")
    (1, 1)

    Source: ``ExponentialAverageRetryStatistics`` of Spring Retry.
    """

    clock: Clock = field(factory=SystemClock, validator=validation.checked_by(check_clock))
    window: float = field(
        default=15.0,
        converter=validation.to_seconds,
        validator=validation.checked_by(validation.check_span),
    )
    name: str = ""
    _counts: dict[Kind, int] = field(init=False, repr=False, factory=NONE.copy)
    _faded: dict[Kind, tuple[float, float]] = field(init=False, repr=False, factory=UNSEEN.copy)
    _attributes: dict[str, Any] = field(init=False, repr=False, factory=dict)
    _monitor: Monitor = field(init=False, repr=False, factory=Monitor)

    def increment(self, *kinds: Kind) -> None:
        """Increment the count of each kind, in one step.

        :raises ValueError: if a kind is unknown.
        """
        for kind in kinds:
            _check_kind(kind)
        self._monitor.post(self._count, kinds, self.clock.monotonic())

    def _count(self, kinds: Iterable[Kind], now: float) -> None:
        for kind in kinds:
            value, since = self._faded[kind]
            self._counts[kind] += 1
            self._faded[kind] = (_decay(value, now - since, self.window) + 1, now)

    def rolled(self, kind: Kind) -> int:
        """The decayed count, rounded half up."""
        _check_kind(kind)
        return _rounded(self._now()[kind])

    @property
    def error_rate(self) -> float:
        """Decayed aborts and recoveries divided by decayed starts; 0.0 if the starts round to 0.

        It can exceed 1: an abort may be more recent than its start.
        """
        return _error_rate(self._now())

    @property
    def started(self) -> int:
        """Attempts of stateless executions, and stateful executions that were not exhausted."""
        return self._counts["started"]

    @property
    def complete(self) -> int:
        """Executions that ended without being exhausted."""
        return self._counts["complete"]

    @property
    def recovery(self) -> int:
        """Executions that ended with the result of a recovery."""
        return self._counts["recovery"]

    @property
    def error(self) -> int:
        """Failed attempts."""
        return self._counts["error"]

    @property
    def abort(self) -> int:
        """Executions that were exhausted without recovery."""
        return self._counts["abort"]

    @property
    def rejected(self) -> int:
        """Attempts and executions that a guard or another component rejected."""
        return self._counts["rejected"]

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The last ``circuit.open`` and ``circuit.short_count``, if a circuit breaker set them."""
        return self._monitor.read(self._attributes.copy)

    def update_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Update the attributes that a circuit breaker set."""
        self._monitor.post(self._attributes.update, attributes)

    def snapshot(self) -> RetryStatistics:
        """A consistent copy of all numbers."""
        now = self.clock.monotonic()
        counts, faded, attributes = self._monitor.read(self._copies)
        values = self._at(faded, now)
        return RetryStatistics(
            name=self.name,
            **counts,
            rolled={kind: _rounded(value) for kind, value in values.items()},
            error_rate=_error_rate(values),
            attributes=attributes,
        )

    def __repr__(self) -> str:
        return _shown(self)

    def _now(self) -> dict[Kind, float]:
        now = self.clock.monotonic()
        return self._at(self._monitor.read(self._faded.copy), now)

    def _copies(
        self,
    ) -> tuple[dict[Kind, int], dict[Kind, tuple[float, float]], dict[str, Any]]:
        return self._counts.copy(), self._faded.copy(), self._attributes.copy()

    def _at(self, faded: dict[Kind, tuple[float, float]], now: float) -> dict[Kind, float]:
        return {k: _decay(value, now - since, self.window) for k, (value, since) in faded.items()}


def _check_kind(kind: Any) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")


def _error_rate(values: dict[Kind, float]) -> float:
    if _rounded(values["started"]) == 0:
        return 0.0
    return (values["abort"] + values["recovery"]) / values["started"]


class StatisticsListener(RetryListener):
    """Count the results of executions by the name of the template.  Thread-safe.

    Executions without a name are not counted.  The rules are those of Spring Retry, except for
    ``rejected``:

    * A failed attempt is an ``error``, and also a ``started`` if the execution has no key.  If it
      ended with a ``Rejected``, it is ``rejected`` instead of ``error``.
    * At its end an execution is a ``started``, unless it is exhausted; with a circuit breaker
      policy also if it is exhausted.
    * It is then a ``recovery`` if a recovery returned, an ``abort`` if it was exhausted, and
      ``complete`` if it was closed.  It is not counted as one of these if a stateful failure was
      re-raised or the execution was cancelled.

    So ``started`` counts the attempts of stateless executions, and the stateful executions that
    were not exhausted.  A vetoed execution is ``complete``; one that a guard or a kill switch
    rejected is ``rejected``.

    :param clock: the clock; only ``monotonic`` is read.
    :param window: the time constant of the decay, in seconds; default 15, above 0.
    :raises ValueError: if ``window`` is not above 0.

    >>> statistics = StatisticsListener(window=60.0)
    >>> statistics.find("charge") is None
    True
    >>> statistics.find_all()
    ()

    Source: ``StatisticsListener`` and ``DefaultStatisticsRepository`` of Spring Retry.
    """

    def __init__(self, clock: Clock | None = None, window: validation.Seconds = 15.0) -> None:
        self._make = partial(RollingStatistics, given_or_system(clock), window)
        self._make()  # checks the window now, not at the first execution
        self._entries: dict[str, RollingStatistics] = {}

    def __repr__(self) -> str:
        return f"<StatisticsListener of {', '.join(map(repr, self._entries)) or 'no executions'}>"

    def find(self, name: str) -> RollingStatistics | None:
        """The live statistics of *name*; None if no execution of that name was counted."""
        return self._entries.get(name)

    def find_all(self) -> tuple[RollingStatistics, ...]:
        """The live statistics of every name, in the order in which they were first counted."""
        return tuple(self._entries.values())

    def snapshot(self) -> dict[str, RetryStatistics]:
        """A copy of the statistics, by name."""
        return {entry.name: entry.snapshot() for entry in self.find_all()}

    def on_error(self, context: RetryContext, exception: BaseException) -> None:
        if context.name:
            stateless = context.key is None
            kind: Kind = "rejected" if isinstance(exception, Rejected) else "error"
            self._entry(context.name).increment(*(("started",) if stateless else ()), kind)

    def close(self, context: RetryContext, exception: BaseException | None) -> None:
        if not context.name:
            return
        entry = self._entry(context.name)
        entry.increment(*_end(context, exception))
        seen = context.attributes
        entry.update_attributes({key: seen[key] for key in CIRCUIT_ATTRIBUTES if key in seen})

    def _entry(self, name: str) -> RollingStatistics:
        found = self._entries.get(name)
        # setdefault is atomic: two threads get the same entry.
        return found or self._entries.setdefault(name, self._make(name=name))


def _end(context: RetryContext, exception: BaseException | None) -> Iterator[Kind]:
    """The kinds that the end of an execution counts for."""
    if context.keeps_context or not context.exhausted:
        yield "started"
    if context.recovered:
        yield "recovery"
    elif context.exhausted:
        yield "abort"
    elif context.closed and context.stop_reason in ("guard", "rejected"):
        yield "rejected"
    elif context.closed and (exception is None or isinstance(exception, Exception)):
        yield "complete"

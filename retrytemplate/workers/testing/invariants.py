"""The observations of a simulated cluster, and the invariants that it checks."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from retrytemplate.workers import events

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from retrytemplate.workers.message import DeadLetter


@frozen
class ClusterReport:
    """The result of a simulation.

    :param acknowledged: messages that were processed.
    :param letters: the dead letters.
    :param remaining: messages that are still in the queue.
    :param crashes: crashes of workers, by the key that caused it; None: from outside.
    :param attributed: crashes that were attributed, by key.
    :param suspects: number of messages that became suspects.
    :param exclusive_seconds: time in exclusive attempts, of all workers.
    :param latencies: seconds from sending to acknowledgement, sorted.
    :param elapsed: virtual seconds.
    :param events: all events of the runtimes, with their time.
    :param violations: a text for each invariant that did not hold.
    """

    acknowledged: int
    letters: Sequence[DeadLetter]
    remaining: int
    crashes: Counter[Any]
    attributed: Counter[Any]
    suspects: int
    exclusive_seconds: float
    latencies: Sequence[float]
    elapsed: float
    events: Sequence[tuple[float, Any]] = field(repr=False)
    violations: Sequence[str] = ()

    def percentile(self, percent: float) -> float:
        """The latency that this percentage of the acknowledged messages does not exceed."""
        if not self.latencies:
            raise ValueError("cannot compute a percentile: no message was acknowledged")
        place = round(percent / 100 * (len(self.latencies) - 1))
        return self.latencies[place]

    def raise_for_violations(self) -> None:
        """Raise an ``AssertionError`` that lists the violations, if there are any."""
        if self.violations:
            raise AssertionError("; ".join(self.violations[:10]))


STOP_MARGIN = 1.0
"""Seconds by which a shutdown may exceed its limits."""
WARM_UP = 5.0
COMPARED = 5.0
"""Seconds of full load that the throughput is measured for, at least, before and after."""
LEAST_THROUGHPUT = 0.8
"""Of the throughput before the first crash, the share that the throughput afterwards must have."""


@define
class Observations:
    """The observations from outside of the runtimes: at the queue, the cache and the gate.

    :param hit: keys whose exclusive attempt ended with a crash or stall from outside: rightly
        attributed.
    :param lost: keys that were claimed in a crash, a stall or an outage: they may become suspects.
    :param successes: by key, until when its success is remembered.
    :param samples: of the run under full load: the time and the acknowledged messages.
    """

    max_crashes: int = 2
    keeps_events: bool = True
    crashes: Counter[Any] = field(factory=Counter)
    attributed: Counter[Any] = field(factory=Counter)
    hit: set[Any] = field(factory=set)
    lost: set[Any] = field(factory=set)
    successes: dict[Any, float] = field(factory=dict)
    ends: set[int] = field(factory=set)
    latencies: array[float] = field(factory=lambda: array("d"))
    suspects: set[Any] = field(factory=set)
    exclusive_seconds: float = 0.0
    events: list[tuple[float, Any]] = field(factory=list)
    violations: list[str] = field(factory=list)
    samples: list[tuple[float, int]] = field(factory=list)
    disturbed: tuple[float, float] | None = None
    now: float = 0.0

    def violated(self, invariant: str, text: str) -> None:
        """Note a violation."""
        self.violations.append(f"{invariant}: {text}")

    def succeeded(self, key: str, until: float, now: float) -> None:
        """A success was recorded, and is remembered for a time."""
        if self.successes.get(key, now) > now:
            self.violated("I2", f"{key} succeeded again while its success was remembered")
        self.successes[key] = until

    def ended(self, key: str, fence: int) -> None:
        """A claim was ended by its holder; a fence belongs to one claim only."""
        if fence in self.ends:
            self.violated("I7", f"{key} was ended twice with fence {fence}")
        self.ends.add(fence)

    def acknowledged(self, key: str, latency: float) -> None:
        """A message was removed from the queue after its success."""
        if key not in self.successes:
            self.violated("I1", f"{key} was acknowledged without a success")
        self.latencies.append(latency)

    def event(self, time: float, event: Any, stop_limit: float) -> None:
        """A runtime published an event."""
        if self.keeps_events:
            self.events.append((time, event))
        kind = type(event)
        if kind is events.MessageSettled:
            return
        self.now = time
        if kind is events.MessageCrashAttributed:
            self.attributed[event.key] += 1
            if event.key not in self.crashes and event.key not in self.hit:
                self.violated("I5", f"a crash was attributed to {event.key}, a bystander")
        elif kind is events.MessageSuspected:
            self.disturbed_now()
            self.suspects.add(event.key)
            if event.key not in self.lost:
                self.violated("I6", f"{event.key} is a suspect without a crash")
        elif kind is events.MessageExclusive:
            self.disturbed_now()
            self.exclusive_seconds += event.ran
        elif kind is events.WorkerStopped:
            elapsed = event.report["elapsed"]
            if elapsed > stop_limit + STOP_MARGIN:
                self.violated("I8", f"a shutdown took {elapsed:g} s, its limit is {stop_limit:g} s")

    def interrupted(self, claims: Mapping[Any, str], inside: Mapping[Any, bool]) -> None:
        """A worker crashed or stalled: its claims may be lost.

        :param inside: by task, whether its attempt is exclusive, unless the message is the cause.
        """
        self.disturbed_now()
        self.lost.update(claims.values())
        self.hit.update(
            claims[task] for task, exclusive in inside.items() if exclusive and task in claims
        )

    def crashed(self, key: Any, copies: int) -> None:
        """A worker crashed, because of this key or, with None, from outside."""
        self.crashes[key] += 1
        most = (1 + self.max_crashes) * (1 + copies)  # a copy begins with its own first attempt
        if key is not None and self.crashes[key] > most and key not in self.hit:
            self.violated("I3", f"{key} crashed {self.crashes[key]} workers")

    def disturbed_now(self) -> None:
        """The throughput may be lower until now."""
        first = self.now if self.disturbed is None else self.disturbed[0]
        self.disturbed = first, self.now

    def sample(self, time: float, is_loaded: bool) -> None:
        """Note the progress; *is_loaded*: messages wait in the queue."""
        self.now = time
        if is_loaded:
            self.samples.append((time, len(self.latencies)))

    def finish(self, sent: Iterable[str], letters: Sequence[DeadLetter], rest: set[str]) -> None:
        """Check what holds at the end."""
        dead = {letter.message.id for letter in letters}
        for key in sent:
            if key not in self.successes and key not in dead and key not in rest:
                self.violated("I1", f"{key} is lost")
        for letter in letters:
            key = letter.message.id
            if letter.phase == "crash" and key not in self.crashes and key not in self.hit:
                self.violated("I4", f"{key}, a bystander, was dead-lettered")
        self._check_throughput()

    def _check_throughput(self) -> None:
        """I11, if the queue was full for long enough before and after the faults."""
        if self.disturbed is None:
            return
        begin, end = self.disturbed
        before = _rate([each for each in self.samples if WARM_UP <= each[0] <= begin])
        after = _rate([each for each in self.samples if each[0] >= end + WARM_UP])
        if before and after is not None and after < LEAST_THROUGHPUT * before:
            self.violated(
                "I11", f"{after:.3g} messages/s after the faults, {before:.3g} before them"
            )


def _rate(samples: Sequence[tuple[float, int]]) -> float | None:
    """Messages per second; None: the time is too short."""
    if not samples or samples[-1][0] - samples[0][0] < COMPARED:
        return None
    (begin, first), (end, last) = samples[0], samples[-1]
    return (last - first) / (end - begin)

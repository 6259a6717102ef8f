"""The observations of a simulated cluster, and the invariants that it checks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from retrytemplate.workers import events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retrytemplate.workers.message import DeadLetter

__all__ = ["ClusterReport", "Observations"]


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


@define
class Observations:
    """The observations from outside of the runtimes: at the queue, the cache and the gate."""

    max_crashes: int = 2
    crashes: Counter[Any] = field(factory=Counter)
    attributed: Counter[Any] = field(factory=Counter)
    hit: set[Any] = field(factory=set)
    """Keys whose exclusive attempt ended with a crash from outside: rightly attributed."""
    successes: Counter[Any] = field(factory=Counter)
    ends: Counter[Any] = field(factory=Counter)
    latencies: list[float] = field(factory=list)
    suspects: set[Any] = field(factory=set)
    exclusive_seconds: float = 0.0
    events: list[tuple[float, Any]] = field(factory=list)
    violations: list[str] = field(factory=list)

    def violated(self, invariant: str, text: str) -> None:
        """Note a violation."""
        self.violations.append(f"{invariant}: {text}")

    def succeeded(self, key: str, fence: int) -> None:
        """A success was recorded."""
        self.successes[key] += 1
        if self.successes[key] > 1:
            self.violated("I2", f"{key} succeeded {self.successes[key]} times")
        self.ended(key, fence)

    def ended(self, key: str, fence: int) -> None:
        """A claim was ended by its holder."""
        self.ends[key, fence] += 1
        if self.ends[key, fence] > 1:
            self.violated("I7", f"{key} was ended twice with fence {fence}")

    def event(self, time: float, event: Any) -> None:
        """A runtime published an event."""
        self.events.append((time, event))
        if isinstance(event, events.MessageCrashAttributed):
            self.attributed[event.key] += 1
            if event.key not in self.crashes and event.key not in self.hit:
                self.violated("I5", f"a crash was attributed to {event.key}, a bystander")
        elif isinstance(event, events.MessageSuspected):
            self.suspects.add(event.key)
        elif isinstance(event, events.MessageExclusive):
            self.exclusive_seconds += event.ran

    def crashed(self, key: Any) -> None:
        """A worker crashed, because of this key or, with None, from outside."""
        self.crashes[key] += 1
        if key is not None and self.crashes[key] > 1 + self.max_crashes and key not in self.hit:
            self.violated("I3", f"{key} crashed {self.crashes[key]} workers")

    def finish(self, sent: int, acknowledged: int, letters: Any, remaining: int) -> None:
        """Check what holds at the end."""
        if acknowledged + len(letters) + remaining != sent:
            self.violated("I1", f"{sent} sent, {acknowledged} + {len(letters)} + {remaining} left")
        for letter in letters:
            key = letter.message.id
            if letter.phase == "crash" and key not in self.crashes and key not in self.hit:
                self.violated("I4", f"{key}, a bystander, was dead-lettered")

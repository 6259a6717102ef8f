"""Counts and events of a hedge."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import define, field, frozen

from retrytemplate._internal.locks import Monitor
from retrytemplate.control.events import ControlEvent, Listeners, notify_listeners


@frozen(kw_only=True)
class HedgeStarted(ControlEvent):
    """A hedge was started.  Reported in its own task or thread.

    :param number: of the call; the first hedge is number 2.
    :param error: what the one before failed with; None: it is slow.
    """

    number: int
    error: BaseException | None


@frozen(kw_only=True)
class HedgeWon(ControlEvent):
    """A hedge returned before the call itself.

    :param number: of the one that did, of ``started`` in all.
    """

    number: int
    started: int


@frozen(kw_only=True)
class HedgeRefused(ControlEvent):
    """A hedge was due and was not started; none is tried again for this call.

    :param error: why: of the budget, of a full pool, or of a guard such as a kill switch.
    """

    error: Exception


@frozen(kw_only=True)
class AttemptFailed(ControlEvent):
    """A call failed, and its failure is not the one that the caller gets.

    :param error: its failure, without the cancellation of the call.
    """

    number: int
    error: BaseException


@frozen(kw_only=True)
class AttemptAbandoned(ControlEvent):
    """A call still runs in its thread, and no caller waits for it."""

    number: int


@frozen(kw_only=True)
class HedgeSnapshot:
    """State and counts of a hedge.

    :param delay: seconds until a hedge is started, now; None: none is.
    :param calls: calls so far, and the ``hedges`` that were started for them.
    :param won: calls that a hedge has answered.
    :param rejected: calls that got no hedge, or no further one, when it was due.
    :param abandoned: calls that still ran in their threads when another had answered.
    """

    name: str
    delay: float | None
    calls: int
    hedges: int
    won: int
    rejected: int
    abandoned: int


@define(eq=False)
class HedgeRecorder:
    """Counts for all calls of a hedge, and notifies its listeners, outside of the monitor."""

    name: str
    listeners: Listeners
    _counts: Counter[str] = field(factory=Counter)
    _monitor: Monitor = field(factory=Monitor)

    def on_started(self, number: int, after: BaseException | None) -> None:
        if number == 1:
            self._count("calls")
        else:
            self._count("hedges")
            self._notify(HedgeStarted, number=number, error=after)

    def on_won(self, number: int, started: int) -> None:
        if number > 1:
            self._count("won")
            self._notify(HedgeWon, number=number, started=started)

    def on_rejected(self, error: Exception) -> None:
        self._count("rejected")
        self._notify(HedgeRefused, error=error)

    def on_abandoned(self, number: int) -> None:
        self._count("abandoned")
        self._notify(AttemptAbandoned, number=number)

    def on_failed(self, number: int, error: BaseException) -> None:
        self._notify(AttemptFailed, number=number, error=error)

    def snapshot(self, delay: float | None) -> HedgeSnapshot:
        return self._monitor.read(self._shown, delay)

    def _shown(self, delay: float | None) -> HedgeSnapshot:
        counts = self._counts
        return HedgeSnapshot(
            name=self.name,
            delay=delay,
            calls=counts["calls"],
            hedges=counts["hedges"],
            won=counts["won"],
            rejected=counts["rejected"],
            abandoned=counts["abandoned"],
        )

    def _count(self, what: str) -> None:
        self._monitor.post(self._add, what)

    def _add(self, what: str) -> None:
        self._counts[what] += 1

    def _notify(self, event: Any, **fields: Any) -> None:
        notify_listeners(self.listeners, [event(name=self.name, **fields)])

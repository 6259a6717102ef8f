"""What a hedge counts and tells."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from retrytemplate.control.events import ControlEvent, tell

if TYPE_CHECKING:
    from retrytemplate.control.race import Runner

__all__ = [
    "CallLeftBehind",
    "CallLost",
    "HedgeRefused",
    "HedgeSnapshot",
    "HedgeStarted",
    "HedgeWon",
    "Steward",
]


@frozen(kw_only=True)
class HedgeStarted(ControlEvent):
    """The same is asked once more.  Told where it runs: in its own task or thread.

    :param number: of the call; the first hedge is number 2.
    :param error: what the one before failed with; None: it is slow.
    """

    number: int
    error: BaseException | None


@frozen(kw_only=True)
class HedgeWon(ControlEvent):
    """A hedge answered, and the call itself had not.

    :param number: of the one that did, of ``started`` in all.
    """

    number: int
    started: int


@frozen(kw_only=True)
class HedgeRefused(ControlEvent):
    """A hedge was due and was not started; none is tried again for this call.

    :param error: why: the budget's, or that of a pool that takes no more calls.
    """

    error: Exception


@frozen(kw_only=True)
class CallLost(ControlEvent):
    """A call failed, and it is not this failure that its caller gets, if he gets one.

    :param error: what it was, without the cancellation of the call.
    """

    number: int
    error: BaseException


@frozen(kw_only=True)
class CallLeftBehind(ControlEvent):
    """A call still runs in its thread, and nobody waits for it any more."""

    number: int


@frozen(kw_only=True)
class HedgeSnapshot:
    """How a hedge stands.

    :param delay: seconds until a hedge is started, now; None: none is.
    :param calls: calls so far, and the ``hedges`` that were started for them.
    :param won: calls that a hedge has answered.
    :param refused: calls that got no hedge, or no further one, when it was due.
    :param left_behind: calls that still ran in their threads when another had answered.
    """

    name: str
    delay: float | None
    calls: int
    hedges: int
    won: int
    refused: int
    left_behind: int


@define(eq=False)
class Steward:
    """Counts for all calls of a hedge, and tells its listeners, without holding the lock."""

    name: str
    listeners: tuple[Any, ...]
    _calls: int = 0
    _hedges: int = 0
    _won: int = 0
    _refused: int = 0
    _left_behind: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)

    def began(self, runner: Runner) -> None:
        first = runner.number == 1
        with self._lock:
            self._calls += first
            self._hedges += not first
        if not first:
            self._tell(HedgeStarted, number=runner.number, error=runner.after)

    def won(self, runner: Runner, started: int) -> None:
        if runner.number > 1:
            with self._lock:
                self._won += 1
            self._tell(HedgeWon, number=runner.number, started=started)

    def refused(self, error: Exception) -> None:
        with self._lock:
            self._refused += 1
        self._tell(HedgeRefused, error=error)

    def left_behind(self, runner: Runner) -> None:
        with self._lock:
            self._left_behind += 1
        self._tell(CallLeftBehind, number=runner.number)

    def lost(self, runner: Runner, error: BaseException) -> None:
        self._tell(CallLost, number=runner.number, error=error)

    def snapshot(self, delay: float | None) -> HedgeSnapshot:
        with self._lock:
            return HedgeSnapshot(
                name=self.name,
                delay=delay,
                calls=self._calls,
                hedges=self._hedges,
                won=self._won,
                refused=self._refused,
                left_behind=self._left_behind,
            )

    def _tell(self, event: Any, **said: Any) -> None:
        tell(self.listeners, [event(name=self.name, **said)])

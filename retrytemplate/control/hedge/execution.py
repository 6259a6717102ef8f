"""Rules of one hedged call, and its account with the budget."""

from __future__ import annotations

from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate._engine.context import current_context
from retrytemplate._internal.awaitables import is_awaitable
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.control._predicates import but_cancelled, ending
from retrytemplate.control._strategy import refuse_awaitable
from retrytemplate.control.budget.budget import COUNTED, RetryBudget
from retrytemplate.errors import RetryBudgetExhaustedError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from retrytemplate._engine.deadline import Deadline
    from retrytemplate.clock import Clock
    from retrytemplate.control.hedge.events import Steward

__all__ = ["Account", "Race", "Runner"]


if TYPE_CHECKING:
    Start = Callable[["Runner"], Any]


@define(eq=False)
class Runner:
    """One of the calls.

    :param number: from 1, which is the call itself; the others are hedges.
    :param after: the failure that it follows; None: the others are slow.
    :param began: when the function was called; None: it was not.
    :param ended: when that was over; then there is an ``error``, or a ``value``.
    :param stop: a flag for a function in a thread that wants to know when nobody waits any more.
    :param has_failed: before anybody told it to stop.
    :param abandoned: its thread still ran when the race was over.
    """

    race: Race
    number: int
    after: BaseException | None = None
    began: float | None = None
    ended: float | None = None
    value: Any = None
    error: BaseException | None = None
    stop: threading.Event | None = None
    has_failed: bool = False
    abandoned: bool = False

    @property
    def was_made(self) -> bool:
        """Whether the function was called."""
        return self.began is not None or self.abandoned

    def run(self) -> None:
        """Make the call in this thread, whatever comes of it."""
        race = self.race
        given = {} if self.stop is None else {"stop": self.stop}
        try:
            self._begin()
            self.value = race.fn(*race.args, **race.kwargs, **given)
            refuse_awaitable(self.value, race.fn)
        except BaseException as exc:
            self.error = exc
        self.ended = race.clock.monotonic()

    async def run_async(self) -> None:
        """Make the call in this task, whatever comes of it: a cancellation is told like the rest.

        Whoever has cancelled it waits for its end, and goes on with that.
        """
        race = self.race
        try:
            self._begin()
            self.value = race.fn(*race.args, **race.kwargs)
            if is_awaitable(self.value):
                self.value = await self.value
        except GeneratorExit:  # its loop is gone
            raise
        except BaseException as exc:
            self.error = exc
        self.ended = race.clock.monotonic()

    def _begin(self) -> None:
        self.began = self.race.clock.monotonic()
        self.race.account.cover()
        self.race.steward.began(self)


@define(eq=False)
class Race:
    """One call and its hedges.

    :param delay: seconds until the next one is started; None: there are no hedges.
    :param left: how many may still be started.
    :param covers: whether a failure is one that another call may mend.
    :param winner: the first that answered; ``error``: what ended the race instead.  With neither,
        when it is over, all have failed.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    delay: float | None
    left: int
    covers: Callable[[BaseException], Any]
    deadline: Deadline | None
    account: Account
    clock: Clock
    steward: Steward
    runners: list[Runner] = field(factory=list)
    winner: Runner | None = None
    error: BaseException | None = None
    is_open: bool = True
    barred: Exception | None = None  # by a guard around it: no further call is to be made
    _won: float = 0.0
    _heard: int = 0
    _hedge_is_next: bool = False

    # While it is open.

    def begin(self, start: Start) -> None:
        """Start the call itself, if there is time left for it."""
        if self._is_late():
            self._end(self._deadline_error("the deadline is over: the call is not made"))
            return
        self.runners.append(Runner(self, 1))
        try:
            start(self.runners[0])
        except Exception as exc:  # of a pool that was shut down; a cancellation is none
            self.runners.clear()
            self._end(exc)

    def patience(self) -> float:
        """Seconds to wait for somebody to end; then comes a hedge, or the deadline."""
        hedge = self.delay if self.left and self.delay is not None else inf
        end = inf if self.deadline is None else self.deadline.remaining()
        self._hedge_is_next = hedge < end
        return min(hedge, end)

    def may_hedge(self, ended: Sequence[Runner]) -> bool:
        """Whether one more may have to be started: nobody has answered, and some are left."""
        return bool(self.left) and all(runner.error is not None for runner in ended)

    def go_on(self, ended: Sequence[Runner], start: Start) -> None:
        """Hear those that have ended, who has answered first; none: the patience is over."""
        for runner in ended:
            runner.has_failed = runner.error is not None
        for runner in sorted(ended, key=attrgetter("has_failed")):
            if self.is_open:
                self._hear(runner, start)
        if not ended and self._hedge_is_next:
            self._hedge(start, None)
        elif not ended:
            message = "the deadline is over: nobody has answered in time"
            self._end(self._deadline_error(message, outcome_unknown=True))

    def _hear(self, runner: Runner, start: Start) -> None:
        self._heard += 1
        error = runner.error
        if error is None:
            self.winner, self.is_open = runner, False
            self._won = self.clock.monotonic()
            return
        self.error = error if is_never_retried(error) else ending(self.covers, error)
        self.is_open = self.error is None
        if self.is_open:
            self._hedge(start, error)
            self.is_open = self._heard < len(self.runners)

    def _hedge(self, start: Start, after: BaseException | None) -> None:
        """Start one more, if there may be one and it is granted."""
        if not self.left or self._is_late():
            return
        if self.barred is not None:
            self._refused(self.barred)
            return
        try:
            self.account.withdraw(after)
        except RetryBudgetExhaustedError as refusal:
            self._refused(refusal)
            return
        runner = Runner(self, len(self.runners) + 1, after)
        self.runners.append(runner)
        self.left -= 1
        try:
            start(runner)
        except Exception as exc:  # of a pool that was shut down; a cancellation is none
            self.runners.remove(runner)
            self.account.refund(after)
            self._refused(exc)

    def _refused(self, error: Exception) -> None:
        self.left = 0
        self.steward.refused(error)

    def _end(self, error: BaseException) -> None:
        self.error, self.is_open = error, False

    def _is_late(self) -> bool:
        return self.deadline is not None and self.deadline.expired()

    def _deadline_error(self, message: str, *, outcome_unknown: bool = False) -> Exception:
        assert self.deadline is not None
        error = self.deadline.error(message, outcome_unknown=outcome_unknown)
        for _, failure in self.failures()[:1]:
            error.__cause__ = failure
        return error

    # When it is over, and the lanes are empty.

    def __enter__(self) -> None:
        """Around the lanes."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._settle()
        if exception is not None:  # nobody asks what came of it
            self.forget()

    def _settle(self) -> None:
        """Give back what was not used, and tell of the failures that nobody will see.

        :raises BaseException: one of them was to end the program.
        """
        for runner in self.runners[1:]:
            if not runner.was_made:
                self.account.refund(runner.after)
        if self.is_open or self.winner is not None or self.error is not None:
            for runner in self._here():
                self.lost(runner)
        for _, error in self.failures():
            if not isinstance(error, Exception):
                try:
                    raise error
                finally:
                    self.forget()
                    del error

    def lost(self, runner: Runner) -> None:
        """Tell of the failure of one that has not won."""
        error = but_cancelled(runner.error)
        if error is not None and runner.error is not self.error:
            self.steward.lost(runner, error)

    @property
    def started(self) -> int:
        """How many calls were made."""
        return sum(runner.was_made for runner in self.runners)

    def failures(self) -> list[tuple[int, BaseException]]:
        """What the calls have raised, each with its number; to be stopped is no failure."""
        raised = [(each.number, but_cancelled(each.error)) for each in self._here()]
        return [(number, error) for number, error in raised if error is not None]

    def pace(self) -> float:
        """Seconds that the first call took that has not failed, or had taken when another won.

        From the winners alone one would learn that no call is ever slow.
        """
        for runner in self.runners:
            if runner.began is not None and not runner.has_failed:
                until = self._won
                if runner is self.winner and runner.ended is not None:
                    until = runner.ended
                return max(0.0, until - runner.began)
        raise AssertionError("nobody has answered")

    def forget(self) -> None:
        """Let go of all that ran and was raised: that leads back here, and would be cycles."""
        for runner in self._here():
            runner.error = runner.after = None
        self.winner = self.error = self.barred = None
        self.runners = []

    def _here(self) -> list[Runner]:
        return [runner for runner in self.runners if not runner.abandoned]


@define(eq=False)
class Account:
    """Of one call, with a budget and those above it; without one everything is free."""

    budget: RetryBudget | None
    _all: frozenset[RetryBudget] = field(init=False)
    _counted: frozenset[RetryBudget] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._all = frozenset(_with_parents(self.budget))
        self._counted = (
            self._all - COUNTED.get() - frozenset(_of_templates()) if self._all else self._all
        )
        for each in self._counted:
            each._earn()

    def cover(self) -> None:
        """In the context of one of the calls: a template in it does not count it once more."""
        if self._all:
            COUNTED.set(COUNTED.get() | self._all)

    def withdraw(self, failure: BaseException | None) -> None:
        """Pay for a hedge.

        :raises RetryBudgetExhaustedError: there is not enough.
        """
        if self.budget is not None:
            self.budget.withdraw(failure)

    def refund(self, failure: BaseException | None) -> None:
        """The hedge was not made."""
        if self.budget is not None:
            self.budget.refund(failure)

    def succeeded(self) -> None:
        """The call did: that brings something back, once."""
        for each in self._counted:
            each._reward(each._refund)


def _with_parents(budget: RetryBudget | None) -> Iterator[RetryBudget]:
    while budget is not None:
        yield budget
        budget = budget.parent


def _of_templates() -> Iterator[RetryBudget]:
    """The budgets of the templates around: they have counted the call."""
    context = current_context()
    while context is not None:
        for admit in context._plan.admit:
            guard = getattr(admit, "__self__", None)
            if isinstance(guard, RetryBudget):
                yield from _with_parents(guard)
        context = context.parent

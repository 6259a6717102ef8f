"""Rules of one hedged call, and its account with the budget."""

from __future__ import annotations

from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate._engine.context import current_context
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.control._predicates import terminal_error, without_cancellation
from retrytemplate.control._strategy import apply, apply_async
from retrytemplate.control.budget.budget import COUNTED, RetryBudget
from retrytemplate.errors import RetryBudgetExhaustedError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from retrytemplate._engine.deadline import Deadline
    from retrytemplate.clock import Clock
    from retrytemplate.control.hedge.events import HedgeRecorder

    Start = Callable[["HedgeAttempt"], Any]


@define(eq=False)
class HedgeAttempt:
    """One of the calls.

    :param number: from 1, which is the call itself; the others are hedges.
    :param after: the failure that it follows; None: the others are slow.
    :param began: when the function was called; None: it was not.
    :param ended: when that was over; then there is an ``error``, or a ``value``.
    :param stop: a flag for a function in a thread: set when no caller waits for it.
    :param has_failed: whether it failed before it was stopped.
    :param abandoned: its thread still ran when the race was over.
    """

    execution: HedgedExecution
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
        """Make the call in this thread, and keep its result or error."""
        execution = self.execution
        given = {} if self.stop is None else {"stop": self.stop}
        try:
            self._begin()
            self.value = apply(execution.fn, *execution.args, **execution.kwargs, **given)
        except BaseException as exc:
            self.error = exc
        self.ended = execution.clock.monotonic()

    async def run_async(self) -> None:
        """Make the call in this task; a cancellation is recorded like an error.

        The task that has cancelled it waits for its end, and raises the cancellation.
        """
        execution = self.execution
        try:
            self._begin()
            self.value = await apply_async(execution.fn, *execution.args, **execution.kwargs)
        except GeneratorExit:  # its loop is gone
            raise
        except BaseException as exc:  # _on_result() ends the call with a cancellation
            self.error = exc
        self.ended = execution.clock.monotonic()

    def _begin(self) -> None:
        self.began = self.execution.clock.monotonic()
        self.execution.budget_account.mark_counted()
        self.execution.recorder.on_started(self.number, self.after)


@define(eq=False)
class HedgedExecution:
    """One call and its hedges.

    :param delay: seconds until the next one is started; None: there are no hedges.
    :param hedges_remaining: how many may still be started.
    :param matches: whether a failure is one that another call may mend.
    :param winner: the first that answered; ``error``: what ended the race instead.  With neither,
        when it is over, all have failed.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    delay: float | None
    hedges_remaining: int
    matches: Callable[[BaseException], Any]
    deadline: Deadline | None
    budget_account: HedgeBudget
    clock: Clock
    recorder: HedgeRecorder
    attempts: list[HedgeAttempt] = field(factory=list)
    winner: HedgeAttempt | None = None
    error: BaseException | None = None
    is_open: bool = True
    # By a guard around it: no further call is to be made.
    hedging_blocked_by: Exception | None = None
    _won_at: float = 0.0
    _results: int = 0
    _hedge_is_next: bool = False

    # While it is open.

    def begin(self, start: Start) -> None:
        """Start the call itself if time is left."""
        if self._is_deadline_over():
            self._end(self._deadline_error("the deadline is over: the call is not made"))
            return
        self.attempts.append(HedgeAttempt(self, 1))
        try:
            start(self.attempts[0])
        except Exception as exc:  # of a pool that was shut down; not a cancellation
            self.attempts.clear()
            self._end(exc)

    def next_timeout(self) -> float:
        """Seconds to wait for a call to end; then a hedge is started, or the deadline passes."""
        hedge = self.delay if self.hedges_remaining and self.delay is not None else inf
        end = inf if self.deadline is None else self.deadline.remaining()
        self._hedge_is_next = hedge < end
        return min(hedge, end)

    def may_hedge(self, ended: Sequence[HedgeAttempt]) -> bool:
        """Whether one more may have to be started: no call has answered, and hedges remain."""
        return bool(self.hedges_remaining) and all(attempt.error is not None for attempt in ended)

    def on_completed(self, ended: Sequence[HedgeAttempt], start: Start) -> None:
        """Record the calls that ended, successes first; without calls, the time to wait is over."""
        for attempt in ended:
            attempt.has_failed = attempt.error is not None
        for attempt in sorted(ended, key=attrgetter("has_failed")):
            if self.is_open:
                self._on_result(attempt, start)
        if not ended and self._hedge_is_next:
            self._hedge(start, None)
        elif not ended:
            message = "the deadline is over: no call has answered in time"
            self._end(self._deadline_error(message, outcome_unknown=True))

    def _on_result(self, attempt: HedgeAttempt, start: Start) -> None:
        self._results += 1
        error = attempt.error
        if error is None:
            self.winner, self.is_open = attempt, False
            self._won_at = self.clock.monotonic()
            return
        self.error = error if is_never_retried(error) else terminal_error(self.matches, error)
        self.is_open = self.error is None
        if self.is_open:
            self._hedge(start, error)
            self.is_open = self._results < len(self.attempts)

    def _hedge(self, start: Start, after: BaseException | None) -> None:
        """Start a hedge if one may be started and the budget grants it."""
        if not self.hedges_remaining or self._is_deadline_over():
            return
        if self.hedging_blocked_by is not None:
            self._on_hedge_rejected(self.hedging_blocked_by)
            return
        try:
            self.budget_account.withdraw(after)
        except RetryBudgetExhaustedError as refusal:
            self._on_hedge_rejected(refusal)
            return
        attempt = HedgeAttempt(self, len(self.attempts) + 1, after)
        self.attempts.append(attempt)
        self.hedges_remaining -= 1
        try:
            start(attempt)
        except Exception as exc:  # of a pool that was shut down; not a cancellation
            self.attempts.remove(attempt)
            self.budget_account.refund(after)
            self._on_hedge_rejected(exc)

    def _on_hedge_rejected(self, error: Exception) -> None:
        self.hedges_remaining = 0
        self.recorder.on_rejected(error)

    def _end(self, error: BaseException) -> None:
        self.error, self.is_open = error, False

    def _is_deadline_over(self) -> bool:
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

    def __exit__(self, _: object, exception: BaseException | None, *__: object) -> None:
        self._finalize()
        if exception is not None:  # its results are not used
            self.release_references()

    def _finalize(self) -> None:
        """Refund unused hedges, and report the failures that the caller does not get.

        :raises BaseException: one of them was to end the program.
        """
        for attempt in self.attempts[1:]:
            if not attempt.was_made:
                self.budget_account.refund(attempt.after)
        if self.is_open or self.winner is not None or self.error is not None:
            for attempt in self._attempts_in_reach():
                self.lost(attempt)
        for _, error in self.failures():
            if not isinstance(error, Exception):
                try:
                    raise error
                finally:
                    self.release_references()
                    del error

    def lost(self, attempt: HedgeAttempt) -> None:
        """Report the failure of a call that has not won."""
        error = without_cancellation(attempt.error)
        if error is not None and attempt.error is not self.error:
            self.recorder.on_failed(attempt.number, error)

    @property
    def started(self) -> int:
        """Number of calls that were made."""
        return sum(attempt.was_made for attempt in self.attempts)

    def failures(self) -> list[tuple[int, BaseException]]:
        """The failures of the calls with their numbers, without cancellations."""
        raised = [
            (each.number, without_cancellation(each.error)) for each in self._attempts_in_reach()
        ]
        return [(number, error) for number, error in raised if error is not None]

    def latency_sample(self) -> float:
        """The duration of the first call that has not failed, until it ended or another one won.

        With the durations of winners alone, the quantile would not contain slow calls.
        """
        for attempt in self.attempts:
            if attempt.began is not None and not attempt.has_failed:
                until = self._won_at
                if attempt is self.winner and attempt.ended is not None:
                    until = attempt.ended
                return max(0.0, until - attempt.began)
        raise AssertionError("every call has failed")

    def release_references(self) -> None:
        """Drop the references to attempts and errors, which form cycles with this object."""
        for attempt in self._attempts_in_reach():
            attempt.error = attempt.after = None
        self.winner = self.error = self.hedging_blocked_by = None
        self.attempts = []

    def _attempts_in_reach(self) -> list[HedgeAttempt]:
        return [attempt for attempt in self.attempts if not attempt.abandoned]


@define(eq=False)
class HedgeBudget:
    """Of one call, with a budget and those above it; without one everything is free."""

    budget: RetryBudget | None
    _budgets: frozenset[RetryBudget] = field(init=False)
    _counted: frozenset[RetryBudget] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._budgets = frozenset(_with_parents(self.budget))
        self._counted = self._budgets and self._budgets - COUNTED.get() - {*_of_templates()}
        for each in self._counted:
            each._deposit()

    def mark_counted(self) -> None:
        """In the context of one of the calls: a template in it does not count it once more."""
        if self._budgets:
            COUNTED.set(COUNTED.get() | self._budgets)

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

    def on_success(self) -> None:
        """The call did: that brings something back, once."""
        for each in self._counted:
            each._credit_success(each._refund)


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

"""The hedge: while a call is slow, it is made again, and the first result counts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar, overload

from attrs import Factory, field, frozen

from retrytemplate._engine.deadline import Deadline
from retrytemplate._internal.formatting import format_count, format_limit
from retrytemplate._internal.validation import (
    check_at_least_one,
    check_delay,
    check_methods,
    check_text,
    checked_by,
    instance_of,
    to_seconds,
)
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.control._enclosing import check_enclosing_guards, check_enclosing_guards_async
from retrytemplate.control._failures import combine_failures
from retrytemplate.control._fields import Observed
from retrytemplate.control._predicates import exception_predicate
from retrytemplate.control._strategy import StrategyBase, returns_result
from retrytemplate.control.budget.budget import RetryBudget
from retrytemplate.control.hedge.delay import Quantile
from retrytemplate.control.hedge.events import HedgeRecorder
from retrytemplate.control.hedge.execution import HedgeBudget, HedgedExecution
from retrytemplate.control.hedge.runners import ThreadPoolRunner, task_runner
from retrytemplate.errors import MisuseError
from retrytemplate.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import ParamSpec

    from retrytemplate.control.hedge.events import HedgeSnapshot
    from retrytemplate.control.hedge.execution import HedgeAttempt

    P = ParamSpec("P")

T = TypeVar("T")


@frozen
class HedgeOutcome(Outcome[T]):
    """The result of a hedged call; ``attempts`` is the number of calls that were started.

    :param source: the number of the call that won, from 1; None: all failed.
    :param failures: the exceptions of failed calls, in the order in which the calls were started.
    """

    source: int | None = None
    failures: tuple[BaseException, ...] = ()

    @property
    def hedged(self) -> bool:
        """Whether the call was made more than once."""
        return self.attempts > 1


def _delay(name: str, value: Any) -> None:
    if not isinstance(value, Quantile):
        try:
            check_delay(name, value)
        except (TypeError, ValueError) as exc:
            raise type(exc)(str(exc).replace(", got", ", or a Quantile, got", 1)) from None


def _idempotent(name: str, value: Any) -> None:
    if value is not True:
        kind = ValueError if value is False else TypeError
        raise kind(
            f"{name} must be True, got {value!r}: a hedge makes the same call more than once, at "
            "the same time; one that must not happen twice cannot be hedged"
        )


def _pool(name: str, value: Any) -> None:
    if value is None:
        return
    check_methods(name, value, "submit")
    processes = sys.modules.get("concurrent.futures.process")
    if processes is not None and isinstance(value, processes.ProcessPoolExecutor):
        raise TypeError(
            f"{name} must run threads, got {value!r}: deadline and context do not travel to "
            "another process"
        )


@frozen(eq=False)
class Hedge(Observed, StrategyBase):
    """Starts further calls while the first one is slow; the first result counts.

    :param delay: seconds after which a hedge is started, or a ``Quantile`` that learns them.
    :param max_hedges: hedges of one call, each the delay after the one before, or at once when
        one has failed.
    :param idempotent: True: the call may be made more than once.  Required.
    :param on: failures that another call may mend: exception classes, a predicate, or an
        ``ExceptionClassifier``.  What else is raised ends the call at once.
    :param budget: a ``RetryBudget`` that has to grant each hedge, the same that retries are paid
        from.
    :param executor: the pool whose threads ``call`` needs; asynchronous calls need none.
    :param name: in events.
    :param listeners: notified of hedges and their results.
    :param clock: measures how long calls take.
    :raises ValueError: for ``idempotent=False``, or a number is out of its range.

    When another has answered, tasks are cancelled and awaited, nothing of them is left; threads are
    left behind, with their ``stop`` flag set.  When all fail, the first call's exception is raised:
    with the others' in its notes, and as a group as its cause.

    Source: J. Dean, L. A. Barroso, The Tail at Scale.

    >>> import asyncio
    >>> answers = iter([60.0, 0.0])
    >>> async def ask(city):
    ...     await asyncio.sleep(next(answers))
    ...     return f"rain in {city}"
    >>> weather = Hedge(delay=0.01, idempotent=True)
    >>> outcome = asyncio.run(weather.outcome_async(ask, "Oslo"))
    >>> outcome.value, outcome.source, outcome.attempts
    ('rain in Oslo', 2, 2)
    """

    delay: float | Quantile = field(
        default=0.05, converter=to_seconds, validator=checked_by(_delay)
    )
    max_hedges: int = field(default=1, validator=checked_by(check_at_least_one))
    idempotent: bool = field(kw_only=True, validator=checked_by(_idempotent))
    on: Any = field(default=(Exception,), kw_only=True)
    budget: RetryBudget | None = field(
        default=None,
        kw_only=True,
        validator=instance_of((RetryBudget, type(None)), "a RetryBudget or None"),
    )
    executor: Any = field(default=None, kw_only=True, validator=checked_by(_pool))
    name: str = field(default="hedge", kw_only=True, validator=checked_by(check_text))
    _is_failure: Callable[[BaseException], bool] = field(
        init=False,
        repr=False,
        default=Factory(lambda self: exception_predicate("on", self.on), takes_self=True),
    )
    _recorder: HedgeRecorder = field(
        init=False,
        repr=False,
        default=Factory(lambda self: HedgeRecorder(self.name, self.listeners), takes_self=True),
    )

    # Calls.  In threads a function may get a ``stop`` that its caller does not give: no ParamSpec.

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call the function in a thread of the pool, and once more where it takes long.

        :raises MisuseError: there is no pool, or it is shut down.
        :raises DeadlineExceededError: the enclosing deadline passes first.
        """
        return self.outcome(fn, *args, **kwargs).unwrap()

    @returns_result
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The same for an asynchronous function, in tasks."""
        return (await self.outcome_async(fn, *args, **kwargs)).unwrap()

    def outcome(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> HedgeOutcome[T]:
        """Call the function; return the outcome with the call that won, raise no Exception."""
        if self.executor is None:
            raise self._without_a_pool()
        began, execution = self.clock.monotonic(), self._new_execution(fn, args, kwargs)
        with execution, ThreadPoolRunner(self.executor, execution) as runner:
            execution.begin(runner.start)
            while execution.is_open:
                ended = runner.wait(execution.next_timeout())
                if execution.may_hedge(ended):
                    execution.hedging_blocked_by = _guard_rejection()
                execution.on_completed(ended, runner.start)
            runner.close()  # here and at the end of the block: a signal interrupts one of them
        return self._build_outcome(execution, began)

    @overload
    async def outcome_async(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> HedgeOutcome[T]: ...

    @overload
    async def outcome_async(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> HedgeOutcome[T]: ...

    async def outcome_async(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> HedgeOutcome[Any]:
        """The same for an asynchronous function, in tasks."""
        began, execution = self.clock.monotonic(), self._new_execution(fn, args, kwargs)
        with execution:
            async with task_runner() as runner:
                execution.begin(runner.start)
                while execution.is_open:
                    ended = await runner.wait(execution.next_timeout())
                    if execution.may_hedge(ended):
                        execution.hedging_blocked_by = await _guard_rejection_async()
                    execution.on_completed(ended, runner.start)
        return self._build_outcome(execution, began)

    def snapshot(self) -> HedgeSnapshot:
        """The present counts and delay."""
        return self._recorder.snapshot(self._delay())

    def describe(self) -> str:
        """Its effect on a call, with its numbers."""
        if isinstance(self.delay, Quantile):
            late = f"longer than {self.delay.q:.0%} of the calls"
        else:
            late = f"longer than {format_limit(self.delay)}"
        return (
            f"a call that takes {late} is made again, at most "
            f"{format_count(self.max_hedges, 'time')}; the first result counts"
        )

    def max_calls(self) -> float:
        """The call and its hedges."""
        return 1 + self.max_hedges

    def worst_case(self, inside: float, call: float, late: float) -> float:
        """The longest call after the last hedge was started."""
        # A failed call is followed at once by the next one, a slow call after the delay.
        later = inside if isinstance(self.delay, Quantile) else min(self.delay, inside)
        return inside + self.max_hedges * later

    # What both have in common.

    def _delay(self) -> float | None:
        return self.delay.value() if isinstance(self.delay, Quantile) else self.delay

    def _new_execution(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> HedgedExecution:
        seconds = self._delay()
        return HedgedExecution(
            fn,
            args,
            kwargs,
            delay=seconds,
            hedges_remaining=0 if seconds is None else self.max_hedges,
            matches=self._is_failure,
            deadline=Deadline.current(),
            budget_account=HedgeBudget(self.budget),
            clock=self.clock,
            recorder=self._recorder,
        )

    def _build_outcome(self, execution: HedgedExecution, began: float) -> HedgeOutcome[Any]:
        value, error, who, failures = None, execution.error, None, execution.failures()
        if execution.winner is not None:
            value, who = execution.winner.value, execution.winner.number
            self._on_answer(execution, execution.winner)
        elif error is None:
            (_, first), *rest = failures
            others = [(f"call {number}", each) for number, each in rest]
            error = combine_failures(first, others, "the hedges")
            del first, others, rest
        started = execution.started
        execution.release_references()
        if error is not None and is_never_retried(error):
            try:
                raise error
            finally:
                del error, failures
        elapsed = self.clock.monotonic() - began
        raised = tuple(each for _, each in failures)
        return HedgeOutcome(value, error, started, (), elapsed, source=who, failures=raised)

    def _on_answer(self, execution: HedgedExecution, winner: HedgeAttempt) -> None:
        execution.budget_account.on_success()
        if isinstance(self.delay, Quantile):
            self.delay.record(execution.latency_sample())
        self._recorder.on_won(winner.number, execution.started)

    def _function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        if self.executor is None:
            raise self._without_a_pool()
        return super()._function(fn)

    def _without_a_pool(self) -> MisuseError:
        return MisuseError(
            f"the hedge {self.name!r} has no threads for a second call; pass "
            "executor=ThreadPoolExecutor(...), or use call_async()"
        )


# The guards around a hedge reject one more call; the calls in progress continue.


def _guard_rejection() -> Exception | None:
    try:
        check_enclosing_guards()
    except Exception as exc:
        return exc
    return None


async def _guard_rejection_async() -> Exception | None:
    try:
        await check_enclosing_guards_async()
    except Exception as exc:
        return exc
    return None

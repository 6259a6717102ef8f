"""How long one attempt may take, and what is done about it: cut, passed on, or abandoned."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._checks import checked_by, duration, instance_of, is_awaitable, span
from retrytemplate.context import CURRENT, entered, leave
from retrytemplate.cut import cut_after
from retrytemplate.deadline import Deadline, guarded
from retrytemplate.errors import AttemptTimeoutError

if TYPE_CHECKING:
    from retrytemplate.context import Cell
    from retrytemplate.engine import Effect, Execution

__all__ = [
    "AttemptTimeout",
    "bound_async",
    "bound_sync",
    "exceeded",
    "limit_of",
    "limited_cell",
    "takes_stop",
]


@frozen
class AttemptTimeout:
    """The limit of each attempt; a template takes a plain number of seconds for it, too.

    :param seconds: the limit.  It never exceeds what an enclosing ``Deadline`` has left.
    :param in_thread: synchronous code cannot be cut from outside.  False: the limit is in force as
        a ``Deadline`` for clients that ask for what is left, and is looked at when the attempt
        ends.
        True: the attempt runs in a thread of its own which is abandoned at the limit; a function
        with a parameter ``stop`` that the call leaves free gets a ``threading.Event`` that is set
        then.
    :raises ValueError: for a limit that is not above 0.
    :raises TypeError: for what is no time.

    An attempt that took longer fails with ``AttemptTimeoutError``.  Asynchronous attempts are
    cancelled at the limit, whatever ``in_thread`` says.

    >>> AttemptTimeout(0.8, in_thread=True).abandoned
    0
    """

    seconds: float = field(converter=duration, validator=checked_by(span))
    in_thread: bool = field(
        default=False, kw_only=True, validator=instance_of(bool, "True or False")
    )
    _abandoned: list[int] = field(factory=lambda: [0], init=False, repr=False, eq=False)

    @property
    def abandoned(self) -> int:
        """How many attempts were left behind in their threads so far."""
        return self._abandoned[0]


def limit_of(execution: Execution) -> tuple[float, bool]:
    """The seconds that the attempt may take, and whether it is the deadline that says so."""
    timeout, deadline = execution.plan.attempt_timeout, execution.deadline
    if deadline is None:
        return timeout.seconds, False
    left = deadline.remaining()
    if timeout is None or left <= timeout.seconds:
        return left, True
    return timeout.seconds, False


def exceeded(execution: Execution, limit: float, by_deadline: bool) -> Exception:
    """The error of an attempt that took longer than its limit."""
    deadline = execution.deadline
    if not by_deadline or deadline is None:
        return AttemptTimeoutError(f"the attempt took longer than {limit:g} seconds")
    message = "the deadline passed during an attempt: its outcome is unknown"
    error = deadline.error(message, outcome_unknown=True)
    error.__cause__ = execution.context.last_exception
    return error


async def bound_async(execution: Execution, effect: Effect) -> Any:
    """Make an attempt that knows its limit and is cancelled at it."""
    limit, by_deadline = limit_of(execution)
    function, arguments = effect
    value: Any = None
    clock = execution.plan.clock
    cell = limited_cell(execution, limit, entered())
    token = CURRENT.set(cell)
    try:
        began = clock.monotonic()
        cut = cut_after(limit)
        with cut:
            value = function(*arguments)
            if is_awaitable(value):
                value = await value
        late = clock.monotonic() - began > limit  # the cut was not heard, or came too late
    finally:
        leave(cell, token)
    if cut.fired or late:
        raise exceeded(execution, limit, by_deadline)
    return value


def bound_sync(execution: Execution, effect: Effect) -> Any:
    """Make an attempt that knows its limit, and look at the clock when it ends."""
    limit, by_deadline = limit_of(execution)
    clock = execution.plan.clock
    timeout = execution.plan.attempt_timeout
    function, arguments = effect
    cell = limited_cell(execution, limit, entered())
    token = CURRENT.set(cell)
    try:
        if timeout is not None and timeout.in_thread:
            return _in_thread(execution, effect, limit, by_deadline)
        began = clock.monotonic()
        value = function(*arguments)
        if clock.monotonic() - began > limit:
            raise exceeded(execution, limit, by_deadline)
        return value
    finally:
        leave(cell, token)


def limited_cell(execution: Execution, limit: float, outer: Cell | None) -> Cell:
    """The cell of an attempt with a limit: what is called in it inherits what is left."""
    deadline = _LimitOfAttempt.after(limit, clock=execution.plan.clock)
    return [
        execution.context,
        None,
        guarded(deadline, execution.plan.inherited),
        outer,
        None,
    ]


class _LimitOfAttempt(Deadline):
    """What runs out of its time has failed this attempt: another one may follow."""

    def _error(self, message: str, outcome_unknown: bool) -> AttemptTimeoutError:
        return AttemptTimeoutError(message)


_threads = itertools.count(1)


def _in_thread(execution: Execution, effect: Effect, limit: float, by_deadline: bool) -> Any:
    """Run the attempt in a thread, in a copy of this context; leave it behind at the limit."""
    import threading
    from contextvars import copy_context

    function, arguments = effect
    timeout: Any = execution.plan.attempt_timeout
    stop, done = threading.Event(), threading.Event()
    outcome: list[Any] = [None, None]
    keywords = {"stop": stop} if takes_stop(function, arguments) else {}

    def attempt(outcome: list[Any]) -> None:
        try:
            outcome[0] = function(*arguments, **keywords)
        except BaseException as exc:
            outcome[1] = exc
        finally:
            del outcome  # whose exception's traceback holds this frame
            done.set()

    thread = threading.Thread(
        target=copy_context().run,
        args=(attempt, outcome),
        name=f"retrytemplate-attempt-{next(_threads)}",
        daemon=True,
    )
    try:
        thread.start()
        done.wait(min(limit, threading.TIMEOUT_MAX))
    finally:  # also when a signal ends the wait
        left_behind = not done.is_set() and thread.is_alive()
        if left_behind:
            stop.set()
            timeout._abandoned[0] += 1
    if left_behind:
        raise exceeded(execution, limit, by_deadline)
    thread.join()
    value, error = outcome
    if error is not None:
        try:
            raise error
        finally:
            del error, outcome
    return value


def takes_stop(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a parameter ``stop`` can be given by name, and the call leaves it free."""
    from inspect import Parameter, signature

    try:
        parameters = signature(function)
        bound = parameters.bind_partial(*arguments, **_keywords(function)).arguments
    except (TypeError, ValueError):
        return False
    stop = parameters.parameters.get("stop")
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return stop is not None and stop.kind in by_name and "stop" not in bound


def _keywords(function: Any) -> dict[str, Any]:
    """What a partial gives by name already: its signature has that as a mere default."""
    given: dict[str, Any] = {}
    while True:
        inner = getattr(function, "__wrapped__", None)  # of a decorator: it has its signature
        if inner is None:
            if not isinstance(function, partial):
                return given
            given, inner = function.keywords | given, function.func
        function = inner

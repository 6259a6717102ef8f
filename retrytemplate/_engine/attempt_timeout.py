"""The limit of one attempt: cancelled, abandoned in a thread, or reported when it overran."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._engine.deadline import Deadline, with_inherited_guards
from retrytemplate._engine.frames import CURRENT, enclosing_frame, exit_frame
from retrytemplate._internal.awaitables import is_awaitable
from retrytemplate._internal.cancel_scope import cancel_after
from retrytemplate._internal.validation import (
    check_late_result,
    check_span,
    checked_by,
    instance_of,
    to_seconds,
)
from retrytemplate._internal.values import Value
from retrytemplate.errors import AttemptTimeoutError

if TYPE_CHECKING:
    from typing import Literal

    from retrytemplate._engine.execution_state import Effect, ExecutionState
    from retrytemplate._engine.frames import ExecutionFrame

__all__ = [
    "AttemptTimeout",
    "accepts_stop",
    "attempt_limit",
    "is_discarded",
    "limit_error",
    "limited_frame",
    "record_overrun",
    "run_limited",
    "run_limited_async",
]


@frozen(eq=False, repr=False)
class AttemptTimeout(Value):
    """The limit of each attempt; a template takes a plain number of seconds for it, too.

    :param seconds: the limit, above 0.  It never exceeds what an enclosing ``Deadline`` has left.
    :param in_thread: how a synchronous attempt is limited; default False.  False: the limit is in
        force as a ``Deadline`` for clients that read the remaining time; it ends no attempt.
        True: the attempt runs in a thread of its own which is abandoned at the limit; a function
        with a parameter ``stop`` that the call leaves free gets a ``threading.Event`` that is set
        then.
    :param on_late_result: how a value is used that an attempt returned after the limit, because
        nothing could cancel it.  ``"return"``, the default: the attempt succeeded; the overrun is
        logged as a warning and reported to ``on_overrun`` of the listeners.  ``"discard"``: the
        attempt failed with ``AttemptTimeoutError`` and may be repeated; for work without effects.
    :raises ValueError: ``seconds`` is not above 0, or ``on_late_result`` is another text.

    An attempt that is cancelled or abandoned fails with ``AttemptTimeoutError``.  Asynchronous
    attempts are cancelled at the limit, whatever ``in_thread`` says.  An attempt that raises after
    the limit fails with its own error.

    >>> AttemptTimeout(0.8, in_thread=True).abandoned
    0
    """

    seconds: float = field(converter=to_seconds, validator=checked_by(check_span))
    in_thread: bool = field(
        default=False, kw_only=True, validator=instance_of(bool, "True or False")
    )
    on_late_result: Literal["return", "discard"] = field(
        default="return", kw_only=True, validator=checked_by(check_late_result)
    )
    _abandoned: list[int] = field(factory=lambda: [0], init=False, repr=False, eq=False)

    @property
    def abandoned(self) -> int:
        """Number of abandoned attempts so far."""
        return self._abandoned[0]


def attempt_limit(execution: ExecutionState) -> tuple[float, bool]:
    """The limit of the attempt in seconds, and whether it comes from the deadline."""
    timeout, deadline = execution.plan.attempt_timeout, execution.deadline
    if deadline is None:
        return timeout.seconds, False
    left = deadline.remaining()
    if timeout is None or left <= timeout.seconds:
        return left, True
    return timeout.seconds, False


def limit_error(
    execution: ExecutionState,
    limit: float,
    by_deadline: bool,
    cancellation: BaseException | None = None,
) -> Exception:
    """The error of an attempt that was cancelled, abandoned or discarded at its limit.

    :param cancellation: what the attempt raised; its traceback shows where the attempt hung.
    """
    deadline = execution.deadline
    if not by_deadline or deadline is None:
        late = AttemptTimeoutError(f"the attempt took longer than {limit:g} seconds")
        late.__cause__ = cancellation
        return late
    message = "the deadline passed during an attempt: its outcome is unknown"
    error = deadline.error(message, outcome_unknown=True)
    error.__cause__ = execution.context.last_exception
    return error


# An attempt that returned is a success, however late: repeating it would repeat its effect.


def record_overrun(execution: ExecutionState, limit: float, elapsed: float) -> None:
    """Let the engine report an attempt that returned after its limit.

    :raises AttemptTimeoutError: the template discards the value.
    """
    execution.overrun = None
    if elapsed <= limit:
        return
    timeout = execution.plan.attempt_timeout
    if timeout is not None and is_discarded(timeout, elapsed):
        raise limit_error(execution, timeout.seconds, False)
    execution.overrun = limit, elapsed


def is_discarded(timeout: Any, elapsed: float) -> bool:
    """Whether a value returned after *elapsed* seconds is discarded by this limit."""
    seconds: float = timeout.seconds
    return elapsed > seconds and timeout.on_late_result == "discard"


async def run_limited_async(execution: ExecutionState, effect: Effect) -> Any:
    """Make an attempt that is cancelled at its limit."""
    limit, by_deadline = attempt_limit(execution)
    function, arguments = effect
    value: Any = None
    clock = execution.plan.clock
    frame = limited_frame(execution, limit, enclosing_frame())
    token = CURRENT.set(frame)
    try:
        began = clock.monotonic()
        cancel_scope = cancel_after(limit)
        cancel_scope.__enter__()
        try:
            value = function(*arguments)
            if is_awaitable(value):
                value = await value
        except BaseException as exc:
            if cancel_scope.__exit__(type(exc), exc, exc.__traceback__):
                raise limit_error(execution, limit, by_deadline, exc)  # noqa: B904  # sets the cause
            raise
        cancel_scope.__exit__(None, None, None)
        elapsed = clock.monotonic() - began
    finally:
        exit_frame(frame, token)
    if cancel_scope.expired:
        raise limit_error(execution, limit, by_deadline)
    record_overrun(execution, limit, elapsed)
    return value


def run_limited(execution: ExecutionState, effect: Effect) -> Any:
    """Make an attempt that knows its limit."""
    limit, by_deadline = attempt_limit(execution)
    clock = execution.plan.clock
    timeout = execution.plan.attempt_timeout
    function, arguments = effect
    frame = limited_frame(execution, limit, enclosing_frame())
    token = CURRENT.set(frame)
    try:
        if timeout is not None and timeout.in_thread:
            return _in_thread(execution, effect, limit, by_deadline)
        began = clock.monotonic()
        value = function(*arguments)
        record_overrun(execution, limit, clock.monotonic() - began)
        return value
    finally:
        exit_frame(frame, token)


def limited_frame(
    execution: ExecutionState, limit: float, outer: ExecutionFrame | None
) -> ExecutionFrame:
    """The frame of an attempt with a limit; calls inside inherit the remaining time."""
    deadline = _AttemptDeadline._begun(limit, execution.plan.monotonic_source)
    return [
        execution.context,
        None,
        with_inherited_guards(deadline, execution.plan.inheritable_guards),
        outer,
        None,
    ]


class _AttemptDeadline(Deadline):
    """Deadline of one attempt: its expiry fails the attempt, and another one may follow."""

    def _error(self, message: str, outcome_unknown: bool) -> AttemptTimeoutError:
        return AttemptTimeoutError(message)


_threads = itertools.count(1)


def _in_thread(execution: ExecutionState, effect: Effect, limit: float, by_deadline: bool) -> Any:
    """Run the attempt in a thread, in a copy of this context; abandon it at the limit."""
    import threading
    from contextvars import copy_context

    from retrytemplate._internal.threads import Threads, uninterrupted

    function, arguments = effect
    timeout: Any = execution.plan.attempt_timeout
    stop = threading.Event()
    keywords = {"stop": stop} if accepts_stop(function, arguments) else {}
    values: list[Any] = []

    def attempt() -> None:
        values.append(function(*arguments, **keywords))

    threads = Threads(
        f"retrytemplate-attempt-{next(_threads)}", [partial(copy_context().run, attempt)]
    )
    try:
        threads.start()
        in_time = threads.wait(min(limit, threading.TIMEOUT_MAX))
        if not in_time:
            uninterrupted(stop.set)
    except BaseException:  # a signal ends the wait
        if not threads.wait(0):
            uninterrupted(stop.set)
            timeout._abandoned[0] += 1
        raise
    if not in_time:
        timeout._abandoned[0] += 1
        raise limit_error(execution, limit, by_deadline)
    threads.check()
    return values[0]


def accepts_stop(function: Any, arguments: tuple[Any, ...]) -> bool:
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
    """The keyword arguments that a partial binds; its signature has them as defaults."""
    given: dict[str, Any] = {}
    while True:
        inner = getattr(function, "__wrapped__", None)  # of a decorator: it has its signature
        if inner is None:
            if not isinstance(function, partial):
                return given
            given, inner = function.keywords | given, function.func
        function = inner

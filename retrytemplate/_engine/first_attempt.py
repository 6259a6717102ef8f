"""First attempts without the engine: the fast path of an execution that succeeds at once."""

from __future__ import annotations

from contextlib import suppress
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.attempt_timeout import warn_of_overrun
from retrytemplate._engine.context import (
    CONTEXT,
    CURRENT,
    DEADLINE,
    OUTER,
    OWNER,
    PLAN,
    STARTED,
    RetryContext,
    close_context,
    context_of,
    exit_frame,
    first_context,
    reset_frame,
)
from retrytemplate._engine.drivers import (
    ASYNC,
    PLAIN,
    SYNC,
    awaitable_error,
    is_awaitable,
    perform,
    perform_async,
)
from retrytemplate._engine.entry import (
    check_call,
    prepare,
    run_from_start,
    warn_unbounded,
    without_keywords,
)
from retrytemplate._engine.execution import Execution
from retrytemplate._engine.failure_rules import RECOVER, after_failure, explain_callback_error
from retrytemplate.caches.memory import MemoryRetryContextCache, NewClaim
from retrytemplate.caches.worker_id import next_number, worker_name
from retrytemplate.errors import RetryError
from retrytemplate.state import RetryState

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import ExecutionFrame
    from retrytemplate._engine.deadline import Deadline
    from retrytemplate._engine.execution import Driver, Steps
    from retrytemplate._engine.plan import ExecutionPlan
    from retrytemplate.caches.base import Claim

__all__ = [
    "call_async",
    "finish_inline_success",
    "inline_time_limit",
    "retry_after_inline_failure",
    "retry_after_inline_failure_async",
    "run",
    "run_async",
    "run_under_deadline",
    "run_under_deadline_async",
]


_get, _set, _reset = CURRENT.get, CURRENT.set, CURRENT.reset


def run(
    owner: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] | None,
    recovery: Callable[[RetryContext], Any] | None = None,
    state: RetryState | None = None,
) -> Any:
    """Run one execution in this thread; the first attempt is made right here where that can be."""
    plan, outer = owner._plan, _get()
    if state is None:
        state = owner.state
    if plan.direct_first_attempt and (outer is None or outer[DEADLINE] is None):
        if state is None:
            if plan.inline_first_attempt:
                return _run_inline(owner, plan, outer, function, arguments, recovery)
            return _run_with_hooks(owner, plan, outer, function, arguments, recovery)
        if (
            plan.inline_first_attempt
            and type(state) is RetryState
            and state.tracked
            and type(plan.cache) is MemoryRetryContextCache
        ):
            return _run_stateful(owner, plan, outer, function, arguments, recovery, state)
    elif outer is not None and state is None:
        limit = inline_time_limit(plan, outer[DEADLINE], of_this_task=False)
        if limit:
            check_call(function, recovery)
            return run_under_deadline(owner, limit, function, arguments, recovery)
    return run_from_start(prepare(owner, function, arguments, recovery, state, SYNC))


def _run_inline(
    owner: Any,
    plan: ExecutionPlan,
    outer: ExecutionFrame | None,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] | None,
    recovery: Callable[[RetryContext], Any] | None,
) -> Any:
    """A stateless execution whose first attempt nobody has to be told or asked about."""
    check_call(function, recovery)
    context = RetryContext(owner, outer, plan)
    context._function = function
    context.attempt = 1
    if recovery is not None:
        context._recovery = recovery
    frame: ExecutionFrame = [context, owner, None, outer, plan]
    token = None
    try:
        token = _set(frame)
        try:
            if arguments is None:
                arguments = (context,)
                context._is_exposed = True
            value = function(*arguments)
        except Exception as exc:
            frame.append(explain_callback_error(function, context, arguments, exc))
        except BaseException:
            context.closed = True
            raise
        else:
            context.closed = True
            if type(value) not in PLAIN:
                _reject_awaitable(function, value)
            return value
        return retry_after_inline_failure(frame, function, arguments, {})
    finally:
        if token is None:  # a signal came before anybody had it
            reset_frame(token, outer)
        else:
            _reset(token)


def _run_with_hooks(
    owner: Any,
    plan: ExecutionPlan,
    outer: ExecutionFrame | None,
    function: Any,
    arguments: tuple[Any, ...] | None,
    recovery: Callable[[RetryContext], Any] | None,
) -> Any:
    """A stateless execution with listeners or guards: the engine is for what does not go well."""
    if not callable(function) or recovery is not None:
        check_call(function, recovery)
    if plan.unbounded:
        warn_unbounded(plan)
    context = RetryContext(owner, outer, plan)
    context._function = function
    context._is_exposed = True
    if arguments is None:
        arguments = (context,)
    value: Any = None
    failure: BaseException | None = None
    pending_close_hooks = iter(plan.close)
    token = None
    try:
        token = _set([context, owner, plan.guard_scope, outer, plan])
        try:
            value = _first_attempt_with_hooks(plan, context, function, arguments)
        except BaseException as exc:
            failure = exc
        if context.closed:
            try:
                for hook in pending_close_hooks:
                    result = hook(context, None)
                    if result is not None:
                        _reject_awaitable(hook, result)
            except BaseException as exc:
                failure = exc
            else:
                context._release_exceptions()
                return value
        if recovery is None:
            recovery = owner.recovery
        execution = Execution(plan, context, function, arguments, recovery, SYNC)
        steps = _continue_in_engine(execution, value, failure, pending_close_hooks)
        failure = None
        return perform(steps)
    except BaseException as exc:
        if token is None or context.closed:
            raise
        # A signal, before the engine had it in hand: what was opened is closed.
        execution = Execution(plan, context, function, arguments, recovery, SYNC)
        execution.reject_by_guard(exc)
        return perform(execution.run())
    finally:
        if token is None:  # a signal came before anybody had it
            reset_frame(token, outer)
        else:
            _reset(token)


def _first_attempt_with_hooks(
    plan: ExecutionPlan,
    context: RetryContext,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Any:
    """Open the execution and make its first attempt; the context is closed if all went well."""
    for hook in plan.open:
        result = hook(context)
        if result is False:
            return None
        if result is not None:
            _reject_awaitable(hook, result)
    context._is_opened = True
    if context.gave_up:
        return None
    for admit in plan.admit:
        result = admit(context)
        if result is not None:
            _reject_awaitable(admit, result)
    context.attempt = 1
    context._started_at = plan.monotonic_source.now()
    for hook in plan.before_attempt:
        result = hook(context)
        if result is not None:
            _reject_awaitable(hook, result)
    value = function(*arguments)
    if type(value) not in PLAIN:
        _reject_awaitable(function, value)
    for hook in plan.on_success:
        result = hook(context, value)
        if result is not None:
            _reject_awaitable(hook, result)
    context.closed = True
    return value


def _continue_in_engine(
    execution: Execution, value: Any, failure: BaseException | None, pending_close_hooks: Any
) -> Steps:
    """What the engine does after a first attempt that did not go well, or was not made."""
    context = execution.context
    if context.closed:
        return execution.finish_success(value, failure, pending_close_hooks)
    if context.attempt:
        execution.started = context._started_at
        return execution.run(failure)
    if not context._is_opened:
        execution.reject_by_listener(failure)
    elif failure is not None:
        execution.reject_by_guard(failure)
    return execution.run()


def _reject_awaitable(function: Callable[..., Any], value: Any) -> None:
    if is_awaitable(value):
        raise awaitable_error(function, value)


def _run_stateful(
    owner: Any,
    plan: ExecutionPlan,
    outer: ExecutionFrame | None,
    function: Any,
    arguments: tuple[Any, ...] | None,
    recovery: Callable[[RetryContext], Any] | None,
    state: RetryState,
) -> Any:
    """A stateful execution with a cache in memory: a key that never failed needs no engine."""
    if not callable(function) or recovery is not None:
        check_call(function, recovery)
    if plan.unbounded:
        warn_unbounded(plan)
    cache = plan.cache
    context = RetryContext(owner, outer, plan)
    context._function = function
    context._is_exposed = True
    context._state = state
    if arguments is None:
        arguments = (context,)
    failure: BaseException | None = None
    key, number = plan.scope + state.encoded, next_number()
    token = None
    try:
        token = _set([context, owner, None, outer, plan])
        claim: Claim = NewClaim(key, number)
        if state.force_refresh or not cache.take(claim):
            claim = cache.begin(key, worker=worker_name(number), fresh=state.force_refresh)
        context._claim = claim
        if claim.record is None:
            context.attempt = 1
            context._started_at = plan.monotonic_source.now()
            try:
                value = function(*arguments)
            except Exception as exc:
                failure = exc
            else:
                if type(value) not in PLAIN:
                    _reject_awaitable(function, value)
                context.closed = True
                if state.remember is None and not state.force_refresh:
                    cache.end(claim)
                else:
                    cache.succeed(claim, remember=state.remember)
                context._ended_at = plan.monotonic_source.now()
                return value
        if recovery is None:
            recovery = owner.recovery
        execution = Execution(plan, context, function, arguments, recovery, SYNC)
        execution.cache = cache
        if failure is not None:
            execution.started = context._started_at
        steps = execution.run(failure)
        failure = None
        return perform(steps)
    except BaseException as exc:
        held = context._claim
        if held is None and not isinstance(exc, RetryError):
            # A signal: it may have been taken.  The same worker may begin again.
            with suppress(RetryError):
                held = cache.begin(key, worker=worker_name(number))
        if held is not None and cache.holds(held):  # else the engine has seen to it
            context.closed = True
            cache.release(held)
        if context._started_at is not None and not hasattr(context, "_ended_at"):
            context._ended_at = plan.monotonic_source.now()
        raise
    finally:
        if token is None:  # a signal came before anybody had it
            reset_frame(token, outer)
        else:
            _reset(token)


def retry_after_inline_failure(
    frame: ExecutionFrame, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Go on after an inline first attempt that failed, in this thread."""
    failure = frame.pop()
    if type(failure) is TypeError:
        check_call(function, None)
    context = _ensure_context(frame, function)
    if not context._plan.policy_only:
        steps = _engine_execution(frame, function, args, kwargs, SYNC).run(failure)
        del failure  # kept here, it would live as long as the attempts after it
        return perform(steps)
    while True:
        ended = after_failure(context, failure)
        if ended is not None:
            break
        try:
            value = function(*args, **kwargs)
        except BaseException as exc:
            failure = exc
        else:
            del failure  # its traceback holds this frame: left here, that would be a cycle
            context.closed = True
            context._release_exceptions()
            if type(value) not in PLAIN:
                _reject_awaitable(function, value)
            return value
    del failure
    if ended is RECOVER:
        return perform(_engine_execution(frame, function, args, kwargs, SYNC).recover())
    try:
        raise ended
    finally:
        del ended


async def retry_after_inline_failure_async(
    frame: ExecutionFrame, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Go on after an inline first attempt that failed, in this task."""
    failure = frame.pop()
    if type(failure) is TypeError:
        check_call(function, None)
    context = _ensure_context(frame, function)
    if not context._plan.policy_only:
        steps = _engine_execution(frame, function, args, kwargs, ASYNC).run(failure)
        del failure
        return await perform_async(steps)
    while True:
        ended = after_failure(context, failure)
        if ended is not None:
            break
        try:
            value = await function(*args, **kwargs)
        except BaseException as exc:
            failure = exc
        else:
            del failure
            context.closed = True
            context._release_exceptions()
            return value
    del failure
    if ended is RECOVER:
        return await perform_async(
            _engine_execution(frame, function, args, kwargs, ASYNC).recover()
        )
    try:
        raise ended
    finally:
        del ended


def _ensure_context(frame: ExecutionFrame, function: Callable[..., Any]) -> RetryContext:
    """The context of an inline execution that needs it from now on."""
    context: RetryContext | None = frame[CONTEXT]
    if context is None:
        context = frame[CONTEXT] = RetryContext(frame[OWNER], frame[OUTER], frame[PLAN])
        context._function = function
    context.attempt = 1
    if context._plan.unbounded:
        warn_unbounded(context._plan)
    return context


def _engine_execution(
    frame: ExecutionFrame, function: Callable[..., Any], args: Any, kwargs: Any, driver: Driver
) -> Execution:
    function, args = without_keywords(function, args, kwargs)
    context = frame[CONTEXT]
    recovery = context._recovery
    if recovery is None:
        recovery = frame[OWNER].recovery
    return Execution(context._plan, context, function, args, recovery, driver)


def finish_inline_success(frame: ExecutionFrame, function: Callable[..., Any], value: Any) -> None:
    """Close the context of an inline success that somebody asked for; refuse an awaitable."""
    close_context(frame)
    _reject_awaitable(function, value)


if TYPE_CHECKING:
    Recovery = Callable[[RetryContext], Any] | None


def inline_time_limit(
    plan: ExecutionPlan, deadline: Deadline | None, *, of_this_task: bool
) -> float:
    """The seconds for a first attempt that nobody else has to be asked about; else 0.

    :param of_this_task: whether the deadline has to be one that cuts the task that runs here.
    """
    if deadline is None or deadline.inherited_guards or not plan.inline_first_attempt:
        return 0.0
    if of_this_task and (
        deadline.cancel_scope is None or not deadline.cancel_scope.is_current_task()
    ):
        return 0.0
    return deadline.remaining_after()


def run_under_deadline(
    owner: Any,
    limit: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] | None,
    recovery: Recovery,
) -> Any:
    """Run one execution in this thread."""
    frame = _new_frame(owner, function)
    if arguments is None:
        arguments = (context_of(frame),)
    failure: Exception | None = None
    token = None
    try:
        token = CURRENT.set(frame)
        try:
            value = function(*arguments)
        except Exception as exc:
            failure = exc
        except BaseException:
            _finish_frame(frame)
            raise
        else:
            if type(value) not in PLAIN and is_awaitable(value):
                _finish_frame(frame)
                raise awaitable_error(function, value)
            _finish_success(frame, limit)
            return value
        steps = _continue_after_failure(frame, function, arguments, recovery, failure, SYNC)
        failure = None
        return perform(steps)
    finally:
        reset_frame(token, frame[OUTER])


async def run_under_deadline_async(
    owner: Any,
    limit: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] | None,
    recovery: Recovery,
) -> Any:
    """The same in a task, which the deadline cuts by itself."""
    frame = _new_frame(owner, function)
    if arguments is None:
        arguments = (context_of(frame),)
    failure: Exception | None = None
    token = CURRENT.set(frame)
    try:
        try:
            value = function(*arguments)
            kind = type(value)
            if kind is CoroutineType or (kind not in PLAIN and is_awaitable(value)):
                value = await value
        except Exception as exc:
            failure = exc
        except BaseException:
            _finish_frame(frame)
            raise
        else:
            _finish_success(frame, limit)
            return value
        steps = _continue_after_failure(frame, function, arguments, recovery, failure, ASYNC)
        failure = None
        return await perform_async(steps)
    finally:
        try:
            CURRENT.reset(token)
        except ValueError:  # a suspended coroutine is closed from another context
            exit_frame(frame, token)


def _new_frame(owner: Any, function: Callable[..., Any]) -> ExecutionFrame:
    outer: Any = CURRENT.get()
    plan = owner._plan
    return [None, owner, outer[DEADLINE], outer, plan, function, plan.monotonic_source.now()]


def _finish_success(frame: ExecutionFrame, limit: float) -> None:
    """End an execution whose first attempt returned, and report it if that was too late."""
    elapsed = frame[PLAN].monotonic_source.now() - frame[STARTED]
    if elapsed > limit:
        warn_of_overrun(frame[CONTEXT] or first_context(frame), limit, elapsed)
    _finish_frame(frame)


def _finish_frame(frame: ExecutionFrame) -> None:
    """The execution is over, and time stands still for whoever holds its context."""
    context = frame[CONTEXT]
    close_context(frame)
    if context is not None:
        context._release_exceptions()


def _continue_after_failure(
    frame: ExecutionFrame,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    recovery: Recovery,
    failure: Exception,
    driver: Driver,
) -> Steps:
    """The rules after a first attempt that failed."""
    context = frame[CONTEXT]
    if context is None:
        context = first_context(frame)
    if recovery is None:
        recovery = frame[OWNER].recovery
    execution = Execution(frame[PLAN], context, function, arguments, recovery, driver)
    execution.deadline, execution.started = frame[DEADLINE], frame[STARTED]
    return execution.run(failure)


async def run_async(
    owner: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] | None,
    recovery: Callable[[RetryContext], Any] | None = None,
    state: RetryState | None = None,
) -> Any:
    """Run one execution in this task, from the beginning."""
    outer = _get()
    if outer is not None and state is None and owner.state is None:
        limit = inline_time_limit(owner._plan, outer[DEADLINE], of_this_task=True)
        if limit:
            check_call(function, recovery)
            return await run_under_deadline_async(owner, limit, function, arguments, recovery)
    execution, frame = prepare(owner, function, arguments, recovery, state, ASYNC)
    token = _set(frame)
    try:
        return await perform_async(execution.run())
    finally:
        exit_frame(frame, token)


async def call_async(owner: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function, asynchronous or not, with retry in this task."""
    return await run_async(owner, *without_keywords(function, args, kwargs))

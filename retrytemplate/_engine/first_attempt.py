"""First attempts without the engine: the fast path of an execution that succeeds at once."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.context import RetryContext, first_context
from retrytemplate._engine.deadline import inline_limit
from retrytemplate._engine.drivers import (
    ASYNC,
    PLAIN,
    SYNC,
    awaitable_error,
    finish_closed,
    is_awaitable,
    perform,
    perform_async,
    reject_awaitable,
)
from retrytemplate._engine.entry import (
    check_call,
    prepare,
    run_from_start,
    run_from_start_async,
    warn_unbounded,
    without_keywords,
)
from retrytemplate._engine.execution import Execution
from retrytemplate._engine.failure_rules import RECOVER, after_failure, explain_callback_error
from retrytemplate._engine.first_success import finish_frame, finish_success
from retrytemplate._engine.frames import (
    CONTEXT,
    CURRENT,
    DEADLINE,
    PLAN,
    exit_frame,
    reset_frame,
)
from retrytemplate._engine.settings import check_recovery
from retrytemplate.caches.memory import MemoryRetryContextCache, NewClaim
from retrytemplate.caches.worker_id import next_number, worker_name
from retrytemplate.errors import RetryError
from retrytemplate.listeners.defaults import INFO
from retrytemplate.state import RetryState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retrytemplate._engine.execution_state import Driver, Steps
    from retrytemplate._engine.frames import ExecutionFrame
    from retrytemplate._engine.plan import ExecutionPlan
    from retrytemplate.caches.base import Claim

    Recovery = Callable[[RetryContext], Any] | None

__all__ = [
    "finish_inline_success",
    "retry_after_failure",
    "retry_after_failure_async",
    "run",
    "run_async",
]

NO_KEYWORDS: dict[str, Any] = {}
_get, _set, _reset = CURRENT.get, CURRENT.set, CURRENT.reset


def run(
    owner: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...] | None,  # None: the function gets the context
    kwargs: Mapping[str, Any] = NO_KEYWORDS,
    recovery: Recovery = None,
    state: RetryState | None = None,
) -> Any:
    """Run one execution in this thread, its first attempt without the engine if possible."""
    plan, outer = owner._plan, _get()
    deadline = None if outer is None else outer[DEADLINE]
    limit = inf if deadline is None else inline_limit(deadline, plan, of_this_task=False)
    state = owner.state if state is None else state
    if state is not None or not plan.inline_first_attempt or limit == 0.0:
        return _run_otherwise(owner, function, args, kwargs, recovery, state, outer)
    frame: ExecutionFrame = [None, owner, deadline, outer, plan, function]
    is_timed = deadline is not None or plan.times_first_attempt
    if is_timed:
        frame.append(plan.monotonic_source.now())
    if recovery is not None:
        _set_recovery(frame, recovery)
    if args is None:
        context = frame[CONTEXT] or first_context(frame)
        context._is_exposed = True
        args = (context,)
    try:
        token = _set(frame)
    except BaseException:  # a signal, once it was set
        reset_frame(None, outer)
        raise
    try:
        value = function(*args, **kwargs)
    except Exception as exc:
        frame += (exc,)  # no call, for a signal may come after one
    except BaseException as exc:  # retry_after_failure() raises a cancellation again
        if not plan.notifies_end:
            _reset(token)
            finish_frame(frame)
            raise
        frame += (exc,)
    else:
        _reset(token)
        if is_timed or type(value) not in PLAIN:
            finish_inline_success(frame, function, value, limit)
        elif frame[CONTEXT] is not None:
            frame[CONTEXT].closed = True
        return value
    try:
        return retry_after_failure(frame, function, args, kwargs)
    finally:
        _reset(token)


async def run_async(
    owner: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] = NO_KEYWORDS,
    recovery: Recovery = None,
    state: RetryState | None = None,
) -> Any:
    """The same in a task; what can be awaited is awaited."""
    plan, outer = owner._plan, _get()
    deadline = None if outer is None else outer[DEADLINE]
    limit = inf if deadline is None else inline_limit(deadline, plan, of_this_task=True)
    is_stateful = state is not None or owner.state is not None
    if is_stateful or not plan.inline_first_attempt or limit == 0.0:
        function, args = without_keywords(function, args, kwargs)
        prepared = prepare(owner, function, args, recovery, state, ASYNC)
        return await run_from_start_async(prepared)
    frame = [None, owner, deadline, outer, plan, function]
    if deadline is not None or plan.times_first_attempt:
        frame.append(plan.monotonic_source.now())
    if recovery is not None:
        _set_recovery(frame, recovery)
    if args is None:
        context = frame[CONTEXT] or first_context(frame)
        context._is_exposed = True
        args = (context,)
    token = _set(frame)
    try:
        try:
            value = function(*args, **kwargs)
            kind = type(value)
            if kind is CoroutineType or (kind not in PLAIN and is_awaitable(value)):
                value = await value
        except Exception as exc:
            frame.append(exc)
        except BaseException as exc:  # a cancellation, which retry_after_failure_async() raises
            if not plan.notifies_end:
                finish_frame(frame)
                raise
            frame.append(exc)
        else:
            finish_success(frame, limit)
            return value
        return await retry_after_failure_async(frame, function, args, kwargs)
    finally:
        try:
            _reset(token)
        except ValueError:  # a suspended coroutine is closed from another context
            exit_frame(frame, token)


def _set_recovery(frame: ExecutionFrame, recovery: Recovery) -> None:
    check_recovery(recovery)
    first_context(frame)._recovery = recovery


def finish_inline_success(
    frame: ExecutionFrame, function: Callable[..., Any], value: Any, limit: float = inf
) -> None:
    """Close the context of an inline success; reject an awaitable."""
    plan = frame[PLAN]
    if (plan.notifies_end or plan.on_first_success) and is_awaitable(value):
        frame.append(awaitable_error(function, value))
        retry_after_failure(frame, function, (), NO_KEYWORDS)  # raises it
    finish_success(frame, limit)
    reject_awaitable(function, value)


def retry_after_failure(
    frame: ExecutionFrame, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Continue after an inline first attempt that failed, in this thread."""
    steps = _engine_steps(frame, function, args, kwargs, SYNC)
    if steps is not None:
        return perform(steps)
    failure, context = frame.pop(), frame[CONTEXT]
    while (ended := after_failure(context, failure)) is None:
        try:
            value = function(*args, **kwargs)
        except BaseException as exc:
            failure = exc
        else:
            del failure  # its traceback holds this frame: left here, that would be a cycle
            context.closed = True
            context._release_exceptions()
            if type(value) not in PLAIN:
                reject_awaitable(function, value)
            return value
    del failure
    if ended is RECOVER:
        return perform(_execution(frame, function, args, kwargs, SYNC).recover())
    try:
        raise ended
    finally:
        del ended


async def retry_after_failure_async(
    frame: ExecutionFrame, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """The same in a task."""
    steps = _engine_steps(frame, function, args, kwargs, ASYNC)
    if steps is not None:
        return await perform_async(steps)
    failure, context = frame.pop(), frame[CONTEXT]
    while (ended := after_failure(context, failure)) is None:
        try:
            value = function(*args, **kwargs)
            if type(value) is CoroutineType or is_awaitable(value):
                value = await value
        except BaseException as exc:  # after_failure() returns a cancellation to be raised again
            failure = exc
        else:
            del failure
            context.closed = True
            context._release_exceptions()
            return value
    del failure
    if ended is RECOVER:
        return await perform_async(_execution(frame, function, args, kwargs, ASYNC).recover())
    try:
        raise ended
    finally:
        del ended


def _engine_steps(
    frame: ExecutionFrame, function: Callable[..., Any], args: Any, kwargs: Any, driver: Driver
) -> Steps | None:
    """The steps after an inline first attempt; None where only the policy decides."""
    context: RetryContext = frame[CONTEXT] or first_context(frame)
    plan, deadline = frame[PLAN], frame[DEADLINE]
    if plan.unbounded and deadline is None:
        warn_unbounded(plan)
    if type(frame[-1]) is TypeError:
        check_call(function, None)
        frame[-1] = explain_callback_error(function, context, args, frame[-1])
    if plan.policy_only and deadline is None and not plan.log.is_enabled(INFO):
        return None
    if plan.measured:
        context._is_exposed = True  # to the listeners
    execution = _execution(frame, function, args, kwargs, driver)
    execution.deadline, execution.started = deadline, context._started_at
    failure = frame.pop()
    steps = execution.run(failure)
    return finish_closed(steps, failure) if isinstance(failure, GeneratorExit) else steps


def _execution(
    frame: ExecutionFrame, function: Callable[..., Any], args: Any, kwargs: Any, driver: Driver
) -> Execution:
    """Create the engine of an execution whose first attempt was made without it."""
    function, args = without_keywords(function, args, kwargs)
    context = frame[CONTEXT]
    return Execution(frame[PLAN], context, function, args, context._recovery, driver)


def _run_otherwise(
    owner: Any,
    function: Any,
    arguments: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any],
    recovery: Recovery,
    state: Any,
    outer: ExecutionFrame | None,
) -> Any:
    """Run one execution in this thread whose first attempt cannot be inline.

    With hooks, or with a key in memory, the engine continues after a failure.
    """
    if kwargs:
        function, arguments = without_keywords(function, arguments, kwargs)
    plan = owner._plan
    if (
        not plan.direct_first_attempt
        or (outer is not None and outer[DEADLINE] is not None)
        or (
            state is not None
            and not (
                plan.is_unobserved
                and type(state) is RetryState
                and type(plan.cache) is MemoryRetryContextCache
                and state.tracked
            )
        )
    ):
        return run_from_start(prepare(owner, function, arguments, recovery, state, SYNC))
    if not callable(function) or recovery is not None:
        check_call(function, recovery)
    if plan.unbounded:
        warn_unbounded(plan)
    context = RetryContext(owner, outer, plan)
    context._function = function
    context._is_exposed = True
    if arguments is None:
        arguments = (context,)
    token = None
    try:
        token = _set([context, owner, plan.guard_scope, outer, plan])
        if state is None:
            return _run_with_hooks(plan, context, function, arguments, recovery)
        context._state = state
        return _run_with_key(plan, context, function, arguments, recovery, state)
    finally:
        if token is None:  # interrupted before the assignment
            reset_frame(token, outer)
        else:
            _reset(token)


def _run_with_hooks(
    plan: ExecutionPlan,
    context: RetryContext,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    recovery: Recovery,
) -> Any:
    """Run a stateless execution with listeners or guards."""
    value: Any = None
    failure: BaseException | None = None
    pending_hooks = iter(plan.success_hooks)
    try:
        try:
            value = _first_attempt_with_hooks(plan, context, function, arguments)
        except BaseException as exc:
            failure = exc
        if context.closed:
            try:
                for hook in pending_hooks:
                    result = hook(context, None)
                    if result is not None:
                        reject_awaitable(hook, result)
            except BaseException as exc:
                failure = exc
            else:
                context._release_exceptions()
                return value
        execution = Execution(plan, context, function, arguments, recovery, SYNC)
        steps = _continue_in_engine(execution, value, failure, pending_hooks)
        failure = None
        return perform(steps)
    except BaseException as exc:
        if context.closed:
            raise
        # Interrupted before the engine took over: the listeners that were opened are closed.
        execution = Execution(plan, context, function, arguments, recovery, SYNC)
        execution.reject_by_guard(exc)
        return perform(execution.run())


def _first_attempt_with_hooks(
    plan: ExecutionPlan,
    context: RetryContext,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Any:
    """Open the execution and make its first attempt; the context is closed after a success."""
    for hook in plan.open:
        result = hook(context)
        if result is False:
            return None
        if result is not None:
            reject_awaitable(hook, result)
    context._is_opened = True
    if context.gave_up:
        return None
    for admit in plan.admit:
        result = admit(context)
        if result is not None:
            reject_awaitable(admit, result)
    context.attempt = 1
    context._started_at = plan.monotonic_source.now()
    for hook in plan.before_attempt:
        result = hook(context)
        if result is not None:
            reject_awaitable(hook, result)
    value = function(*arguments)
    if type(value) not in PLAIN:
        reject_awaitable(function, value)
    for hook in plan.on_success:
        result = hook(context, value)
        if result is not None:
            reject_awaitable(hook, result)
    context.closed = True
    return value


def _continue_in_engine(
    execution: Execution, value: Any, failure: BaseException | None, pending_hooks: Any
) -> Steps:
    """The steps of the engine after a first attempt that failed, or was not made."""
    context = execution.context
    if context.closed:
        return execution.finish_success(value, failure, pending_hooks)
    if context.attempt:
        execution.started = context._started_at
        return execution.run(failure)
    if not context._is_opened:
        execution.reject_by_listener(failure)
    elif failure is not None:
        execution.reject_by_guard(failure)
    return execution.run()


def _run_with_key(
    plan: ExecutionPlan,
    context: RetryContext,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    recovery: Recovery,
    state: RetryState,
) -> Any:
    """Run a stateful execution with a cache in memory: a key that never failed needs no engine."""
    cache = plan.cache
    failure: BaseException | None = None
    key, number = plan.scope + state.encoded, next_number()
    try:
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
                    reject_awaitable(function, value)
                context.closed = True
                if state.remember is None and not state.force_refresh:
                    cache.end(claim)
                else:
                    cache.succeed(claim, remember=state.remember)
                context._ended_at = plan.monotonic_source.now()
                return value
        execution = Execution(plan, context, function, arguments, recovery, SYNC)
        execution.cache = cache
        if failure is not None:
            execution.started = context._started_at
        steps = execution.run(failure)
        failure = None
        return perform(steps)
    except BaseException as exc:
        if context._claim is None and not isinstance(exc, RetryError):
            # Interrupted: the key may have been taken.  The same worker may begin again.
            with suppress(RetryError):
                context._claim = cache.begin(key, worker=worker_name(number))
        _release_key(plan, context)
        raise


def _release_key(plan: ExecutionPlan, context: RetryContext) -> None:
    """Release a key that the execution still holds when an exception leaves it."""
    claim = context._claim
    if claim is not None and plan.cache.holds(claim):  # else the engine has released it
        context.closed = True
        plan.cache.release(claim)
    if context._started_at is not None and not hasattr(context, "_ended_at"):
        context._ended_at = plan.monotonic_source.now()

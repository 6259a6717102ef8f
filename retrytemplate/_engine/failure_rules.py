"""Rules after a failed attempt: classify it, count it, decide whether to retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._engine.final_error import final_exception, finalize_error, recording_error
from retrytemplate._internal.imports import is_library_module
from retrytemplate.classify.exceptions import (
    KNOWN_RETRYABLE_TYPES,
    is_control_flow,
    is_never_retried,
    iter_leaf_exceptions,
)
from retrytemplate.errors import (
    AttemptLostError,
    AttemptTimeoutError,
    CacheUnavailableError,
    DeadlineExceededError,
    KillSwitchActiveError,
    MisuseError,
    RecordedFailure,
    Rejected,
    RetryBudgetExhaustedError,
    RetryError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import RetryContext
    from retrytemplate.history import StopReason
    from retrytemplate.policies.base import RetryPolicy

__all__ = [
    "RECOVER",
    "after_failure",
    "decide_retry",
    "explain_callback_error",
    "explain_signature_error",
    "guard_reason",
    "is_kill_switch_rejection",
    "is_passthrough",
    "is_unlisted_library_error",
    "passthrough_reason",
    "stop_reason",
    "takes_context",
]


# Errors of this library that an attempt may end with of itself: a store that is away, in the
# attempt's own complete_in(), is no rejection.
ATTEMPT_ERRORS = (AttemptTimeoutError, AttemptLostError, CacheUnavailableError)
# Tested with issubclass(): isinstance() is twice as slow where it returns False.
POSSIBLY_UNLISTED = (RetryError, BaseExceptionGroup)


def is_kill_switch_rejection(policy: RetryPolicy, exception: BaseException) -> bool:
    """Whether a kill switch rejected the call, and no rule names this rejection."""
    is_rejected = any(
        isinstance(each, KillSwitchActiveError) for each in iter_leaf_exceptions(exception)
    )
    return is_rejected and is_unlisted_library_error(policy, exception, None)


def is_passthrough(policy: RetryPolicy, failure: BaseException) -> bool:
    """Whether a failure passes through uncounted; never one of ``KNOWN_RETRYABLE_TYPES``."""
    return is_never_retried(failure) or is_kill_switch_rejection(policy, failure)


def decide_retry(
    policy: RetryPolicy,
    context: RetryContext,
    failure: BaseException,
    result_error: BaseException | None = None,
) -> bool:
    """Query the policy once, while the exception object exists."""
    failures = context.retry_count
    allowed = policy.allows(failures, failure)
    if allowed and issubclass(type(failure), POSSIBLY_UNLISTED):
        allowed = not is_unlisted_library_error(policy, failure, result_error)
    if not allowed and policy.forbids_recovery(failures, failure):
        context.no_recovery = True
    return allowed


def is_unlisted_library_error(
    policy: RetryPolicy, failure: BaseException, result_error: BaseException | None
) -> bool:
    """Errors of this library raised by others are retried only where a rule names them.

    Nor is a group that holds one, unless a rule is for the group.
    """
    if isinstance(failure, BaseExceptionGroup):
        return not policy.matches_library_error(failure) and any(
            is_unlisted_library_error(policy, leaf, result_error)
            for leaf in iter_leaf_exceptions(failure)
        )
    return (
        isinstance(failure, RetryError)
        and not isinstance(failure, ATTEMPT_ERRORS)
        and failure is not result_error
        and not policy.matches_library_error(failure)
    )


def stop_reason(policy: RetryPolicy, context: RetryContext) -> StopReason:
    """Why the attempts have ended: the caller gave up, the last failure rules a retry out, or the
    policy's own reason.
    """
    if context.gave_up:
        return "gave_up"
    failure, failures = context._last_failure, context.retry_count
    try:
        is_possible = issubclass(type(failure), POSSIBLY_UNLISTED)
        if is_possible and not isinstance(failure, RecordedFailure | None):
            for leaf in iter_leaf_exceptions(failure):
                if isinstance(leaf, Rejected | DeadlineExceededError) and (
                    is_unlisted_library_error(policy, failure, None)
                ):
                    return "rejected" if isinstance(leaf, Rejected) else "deadline"
        plan = context._plan
        if plan.needs_state:
            state, now = context._policy_state, plan.monotonic_source.now()
            stateful: Any = policy
            reason: StopReason = stateful.stop_reason_from(state, failures, failure, now)
            return reason
        return policy.stop_reason(failures, failure)
    except Exception:  # a policy of the user's: the failure itself is to leave
        return "terminated"


def passthrough_reason(failure: BaseException) -> StopReason | None:
    """Why a failure was re-raised unchanged; None: the execution was cancelled."""
    parts = list(iter_leaf_exceptions(failure))
    if any(not isinstance(each, Exception) or is_control_flow(type(each)) for each in parts):
        return None
    stopped = all(not isinstance(each, MisuseError) for each in parts)
    return "rejected" if stopped else "not_retryable"


def guard_reason(rejection: BaseException) -> StopReason | None:
    """Why a guard's error ended the execution; None: it is no rejection."""
    if isinstance(rejection, RetryBudgetExhaustedError):
        return "budget_exhausted"
    return "guard" if isinstance(rejection, Rejected) else None


def explain_callback_error(
    function: Callable[..., Any], context: RetryContext, arguments: Any, failure: BaseException
) -> BaseException:
    """The error of a function without parameters that was passed to ``execute``; no retry."""
    if type(failure) is not TypeError or not arguments or arguments[0] is not context:
        return failure
    return explain_signature_error(function, failure, "that execute() gives it: use call()")


def explain_signature_error(
    function: Callable[..., Any], failure: BaseException, which: str
) -> BaseException:
    """The failure, or the error that the function cannot be called with a context.

    :param which: context.
    """
    traceback = failure.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is not None and not is_library_module(
        traceback.tb_frame.f_globals.get("__name__")
    ):
        return failure  # raised inside the function
    if takes_context(function):
        return failure
    name = getattr(function, "__qualname__", repr(function))
    error = MisuseError(f"{name} cannot take the context {which}")
    error.__cause__ = failure
    return error


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether it can be called with a context, by its signature."""
    from inspect import signature

    try:
        signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # it has no signature
        pass
    return True


RECOVER = object()


def after_failure(context: RetryContext, failure: BaseException) -> Any:
    """The rules after a failure of a stateless execution without hooks, guards and delays.

    What ``Execution._handle_failure`` does in such an execution, as one step on plain state:
    nearly every failing call is one.  Returns None when another attempt is due, RECOVER when it
    is the recovery's turn, else the exception that leaves.
    """
    plan = context._plan
    policy = plan.policy
    error: BaseException | None = None
    if type(failure) not in KNOWN_RETRYABLE_TYPES and is_passthrough(policy, failure):
        error = failure
        context._stop_reason = passthrough_reason(failure)
    else:
        started = None if context._last_failure is None else context._last_stamp[2]
        context._count_failure(failure, started, plan.monotonic_source.now())
        try:
            # As decide_retry(), without the call: it is made for nearly every failed attempt.
            failures = context.retry_count
            if policy.allows(failures, failure) and not (
                issubclass(type(failure), POSSIBLY_UNLISTED)
                and is_unlisted_library_error(policy, failure, None)
            ):
                if not context.gave_up:
                    context.attempt += 1
                    return None
            elif policy.forbids_recovery(failures, failure):
                context.no_recovery = True
        except Exception as exc:
            error = recording_error(exc, failure)
            context._stop_reason = "terminated"
    if error is None:
        recovery = context._recovery
        if recovery is None:
            recovery = context._owner.recovery
        if recovery is not None and not context.no_recovery:
            return RECOVER
        context.exhausted = True
        if context._is_exposed or context.retry_count > 1:  # else nothing shows it
            context._stop_reason = stop_reason(policy, context)
        error = final_exception(context)
    context.closed = True
    finalize_error(context, error, for_good=error is not failure or context.exhausted)
    return error

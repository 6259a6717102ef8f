"""The key of an execution: claim it, save failures and shared records, release it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.final_error import (
    COMPLETED,
    NOT_STARTED,
    RETAINED,
    recording_error,
    set_note,
    with_cause,
    with_context,
)
from retrytemplate._internal.cancel_scope import UnfinishedStepError, deferred_step
from retrytemplate._internal.failure_text import summary, type_name
from retrytemplate.caches.snapshot import mutable_state, refresh, restore, snapshot
from retrytemplate.caches.worker_id import worker_name
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.errors import (
    AttemptLostError,
    CacheUnavailableError,
    ExclusiveRequiredError,
    LeaseLostError,
    RetryContextCacheFullError,
    RetryError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.execution_state import Effect, ExecutionState, Steps
    from retrytemplate.caches.base import Claim

__all__ = [
    "finish_claim",
    "load",
    "mark_recovering",
    "notify_store_error",
    "reacquire_claim",
    "release_after_error",
    "save",
    "update_shared_record",
]

LOST = type_name(AttemptLostError)


def load(execution: ExecutionState) -> Steps:
    """Take the key's claim and what the cache remembers under it."""
    plan, context, cache = execution.plan, execution.context, execution.cache
    if cache is not None:
        state: Any = context._state
        if plan.keeps_context:
            error = yield from _load_shared(execution, state.force_refresh)
        elif context._claim is None:
            worker = worker_name(exclusive=state.exclusive is True)
            begin = partial(cache.begin, worker=worker, fresh=state.force_refresh)
            error = yield from _acquire(execution, begin, plan.scope + state.encoded)
        else:  # held already: the first attempt might have been an inline one
            error = None
        if error is None:
            if not plan.keeps_context:
                _resume(execution)
            return
        if not _continue_unguarded(execution, error):
            execution.disposition, execution.error = NOT_STARTED, error
            return
        execution.store_error = error  # notified after ``open``
    if plan.needs_state:
        execution.start_policy_state()


def _is_suspect(execution: ExecutionState, claim: Claim) -> bool:
    """Whether an attempt of the key was lost, this time or earlier."""
    record = claim.record
    if claim.lost is not None or record is None:
        return claim.lost is not None
    if any(each.type_name == LOST for each in record.history):
        return True
    # The history drops records in its middle; the policy's state may know of one.
    plan, policy = execution.plan, execution.policy
    is_own = plan.needs_state and record.fingerprint == plan.fingerprint
    return is_own and policy.has_lost_attempt(record.policy_state)


def _resume(execution: ExecutionState) -> None:
    """Restore the context from the record of the claim."""
    plan, context = execution.plan, execution.context
    claim: Any = context._claim
    state: Any = context._state
    if state.exclusive is False and _is_suspect(execution, claim):
        execution.disposition = NOT_STARTED
        execution.error = ExclusiveRequiredError(
            f"{claim.key!r} has a lost attempt: its next one must run with exclusive=True"
        )
        return
    record = claim.record
    if record is not None:
        restore(context, record)
    if record is None or record.fingerprint != plan.fingerprint:
        if plan.needs_state:
            execution.start_policy_state()
        elif record is not None:
            context._retry_allowed = execution.policy.allows(
                context.retry_count, context.last_exception
            )
    else:
        execution.is_state_restored = True


def _load_shared(execution: ExecutionState, fresh: bool) -> Steps:
    try:
        yield from update_shared_record(execution, lambda: None, first=True, fresh=fresh)
    except BaseException as exc:
        if execution.is_abandoned(exc):
            raise
        return exc
    return None


def _acquire(execution: ExecutionState, begin: Callable[..., Any], key: str) -> Steps:
    """Take the key's claim; return what prevents it."""
    execution.pending_claim = begin, (key,)
    claim, error = yield _shielded(execution, execution.pending_claim)
    if error is None:
        execution.context._claim = claim
    if not _is_interruption(error):
        execution.pending_claim = None
    return execution.cancellation or error


def _shielded(execution: ExecutionState, step: Effect) -> Effect:
    """A step on the key that no cancellation interrupts: it sets ``execution.cancellation``."""
    return execution.driver.shielded(step, execution, execution.cache)


def _perform_final_step(execution: ExecutionState, step: Effect) -> Steps:
    """Perform a step that ends a claim, without waiting if the execution was closed."""
    if isinstance(execution.error, GeneratorExit):
        return (yield deferred_step(execution.cache, step))
    return (yield _shielded(execution, step))


def _is_interruption(error: BaseException | None) -> bool:
    """Whether a signal or a cancellation interrupted the cache: its effect is not known."""
    return error is not None and not isinstance(error, RetryError | GeneratorExit)


def _continue_unguarded(execution: ExecutionState, error: BaseException) -> bool:
    """Whether the execution continues without its key, which the store cannot keep now."""
    wanted = getattr(execution.cache, "on_store_error", "raise")
    if wanted != "run_unguarded" or not isinstance(error, CacheUnavailableError):
        return False
    execution.cache = execution.context._claim = None
    execution.context._unguarded = True
    return True


def notify_store_error(execution: ExecutionState, store_error: BaseException) -> Steps:
    """Notify the listeners of a store error; an exception of one of them is raised."""
    execution.store_error = store_error
    raised = yield from execution.call_hooks(
        execution.plan.on_store_error, execution.context, store_error
    )
    if raised is not None:
        raise execution.mark_internal(with_context(execution.last_failure or store_error, raised))


def reacquire_claim(execution: ExecutionState) -> Steps:
    """Count the next attempt in place, before it runs."""
    context = execution.context
    held: Any = context._claim
    begin = partial(execution.cache.begin, worker=held.worker)
    error = yield from _acquire(execution, begin, held.key)
    taken: Any = context._claim
    if taken is not held and not _is_claim_unchanged(held, taken):
        context._claim = held
        yield from _perform_final_step(execution, (execution.cache.release, (taken,)))
        error = error or LeaseLostError(f"{held.key!r} was taken over between two attempts")
    if error is not None:
        yield from _handle_uncounted_attempt(
            execution, error, "no further attempt could be counted"
        )


def _is_claim_unchanged(held: Claim, taken: Claim) -> bool:
    """Whether no other execution held the key since the failure was saved."""
    record = taken.record
    return (
        taken.lost is None
        and record is not None
        and (record.version, record.fence) == (held.version, held.fence)
    )


def save(execution: ExecutionState) -> Steps:
    """Write the failure down, still holding the key."""
    context = execution.context
    claim: Any = context._claim
    try:
        record = snapshot(context, execution.plan.fingerprint, "idle", held=True)
    except Exception as exc:
        execution.disposition, execution.error = (
            RETAINED,
            recording_error(exc, context._last_failure),
        )
        return
    _, error = yield _shielded(execution, (execution.cache.fail, (claim, record)))
    if execution.cancellation is not None:
        execution.is_failure_saved = error is None or isinstance(error, CacheUnavailableError)
        raise execution.mark_internal(execution.cancellation)
    if error is None:
        execution.is_failure_saved = True
    elif isinstance(error, CacheUnavailableError):
        execution.is_failure_saved = True  # the end tries it again
        yield from _handle_uncounted_attempt(execution, error, "the failure could not be recorded")
    elif isinstance(error, LeaseLostError) and claim.completed:
        _end_with_failure(execution, "the attempt was completed before it failed")
    elif isinstance(error, LeaseLostError) or is_never_retried(error):
        raise execution.mark_internal(with_cause(error, context._last_failure))
    else:
        execution.disposition, execution.error = (
            RETAINED,
            recording_error(error, context._last_failure),
        )


def _handle_uncounted_attempt(execution: ExecutionState, error: BaseException, what: str) -> Steps:
    """The store is unavailable between attempts: raise the failure, or continue unguarded."""
    away = isinstance(error, CacheUnavailableError)
    if _continue_unguarded(execution, error):
        pass
    elif away and execution.last_failure is not None:
        _end_with_failure(execution, f"{what}: {summary(error)}")
    else:
        raise execution.mark_internal(with_cause(error, execution.context._last_failure))
    yield from notify_store_error(execution, error)


def _end_with_failure(execution: ExecutionState, note: str) -> None:
    """End with the callback's own failure."""
    execution.disposition, execution.error = RETAINED, execution.last_failure
    if execution.last_failure is not None:
        set_note(execution.last_failure, note)


def mark_recovering(execution: ExecutionState) -> Steps:
    """Write down that it is the recovery's turn: should it die, it is its turn again.

    Where the store is away, or full, it is its turn all the same: should it die then, the attempt
    counts as lost, and none is left.
    """
    context = execution.context
    record = snapshot(context, execution.plan.fingerprint, "recovering", held=True)
    step = execution.cache.fail, (context._claim, record)
    _, error = yield _shielded(execution, step)
    if execution.cancellation is not None:
        raise execution.mark_internal(execution.cancellation)
    if error is not None:
        if not isinstance(error, CacheUnavailableError | RetryContextCacheFullError):
            raise execution.mark_internal(error)
        yield from notify_store_error(execution, error)
    execution.phase = "recovering"


def update_shared_record(
    execution: ExecutionState, step: Callable[[], Any], *, first: bool = False, fresh: bool = False
) -> Steps:
    """Apply a step to the shared record: compare-and-set, again until it was the latest.

    If the store becomes unavailable, the execution continues with its own context.
    """
    context, plan, cache = execution.context, execution.plan, execution.cache
    state: Any = context._state
    key = plan.scope + state.encoded
    answer: Any = None
    done = False
    while not done:
        record, error = yield cache.peek, (key,)
        version = 0 if record is None else record.version
        if error is None:
            if record is None or fresh:
                execution.start_policy_state()
            else:
                (restore if first else refresh)(context, record)
                execution.is_state_restored = True
        answer = step()
        if error is None:
            updated = snapshot(context, plan.fingerprint, "idle", held=False, version=version)
            done, error = yield cache.swap, (key, updated, version)
        if error is not None:
            if first or not isinstance(error, CacheUnavailableError):
                raise execution.mark_internal(error)
            execution.cache = None
            yield from notify_store_error(execution, error)
            break
    execution.shared_snapshot = mutable_state(context)
    return answer


def finish_claim(execution: ExecutionState) -> Steps:
    """End the claim as the end of the execution requires."""
    context = execution.context
    if execution.pending_claim is not None:
        # A signal cut in, and it is not known whether the key was taken: the same worker may
        # begin again.
        claim, error = yield from _perform_final_step(execution, execution.pending_claim)
        if error is None:
            context._claim = claim
    if context._claim is not None:
        if execution.disposition != COMPLETED or not context._claim.completed:
            yield from _end_claim(execution)
    elif (
        execution.plan.keeps_context
        and execution.shared_snapshot != mutable_state(context)
        and not isinstance(execution.error, GeneratorExit)
    ):
        yield from update_shared_record(execution, lambda: None)


def release_after_error(execution: ExecutionState, cause: BaseException) -> Steps:
    """The record could not be made: release the key and set the error."""
    if execution.context._claim is not None:
        yield from _perform_final_step(
            execution, (execution.cache.release, (execution.context._claim,))
        )
    error = execution.error
    is_final = is_never_retried(cause)
    execution.error = with_context(error, cause) if is_final else recording_error(cause, error)
    execution.value = None


def _end_claim(execution: ExecutionState) -> Steps:
    step = _final_step(execution)
    _, error = yield from _perform_final_step(execution, step)
    if error is None or isinstance(error, UnfinishedStepError):
        return
    if _is_interruption(error):
        yield from _perform_final_step(execution, step)  # it is not known whether the step was made
    failure, away = execution.error, isinstance(error, CacheUnavailableError)
    if is_never_retried(error) or (failure is None and not away):
        execution.value, execution.error = None, with_context(failure, error)
        return
    if failure is not None:
        set_note(failure, f"the key could not be left as it should be: {summary(error)}")
    if execution.store_error is not None:
        return
    plan, context = execution.plan, execution.context
    raised = yield from execution.call_hooks(plan.on_store_error, context, error)
    if raised is not None:
        execution.value, execution.error = None, with_context(failure or error, raised)


def _final_step(execution: ExecutionState) -> Effect:
    """The last step on the key: save the recovery phase, complete, retain or release it."""
    context, fingerprint = execution.context, execution.plan.fingerprint
    cache, claim = execution.cache, context._claim
    if execution.phase == "recovering":
        return cache.fail, (claim, snapshot(context, fingerprint, "recovering", held=False))
    if execution.disposition == COMPLETED:
        remember = context._remember if execution.error is None else None
        succeed = cache.succeed if remember is None else partial(cache.succeed, remember=remember)
        return succeed, (claim,)
    if execution.is_failure_saved:
        return cache.fail, (claim, snapshot(context, fingerprint, "idle", held=False))
    return cache.release, (claim,)

"""What an execution does with its key: take it, write down what failed, share it, give it back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.final_error import (
    ABSENT,
    DONE,
    KEPT,
    from_cause,
    instead_of,
    put_note,
    terminated,
)
from retrytemplate._internal.cancel_scope import UnfinishedStepError, left_to
from retrytemplate.caches.snapshot import changeable, refresh, restore, snapshot
from retrytemplate.caches.worker_id import worker_name
from retrytemplate.classify.exceptions import is_hard
from retrytemplate.errors import (
    CacheUnavailableError,
    LeaseLostError,
    RetryContextCacheFullError,
    RetryError,
)
from retrytemplate.history import summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.execution import Effect, Execution, Steps
    from retrytemplate.caches.base import Claim

__all__ = [
    "begin_again",
    "let_go",
    "load",
    "mark_recovering",
    "save",
    "settle",
    "share",
    "tell_of",
]


def load(execution: Execution) -> Steps:
    """Take the key's claim and what the cache remembers under it."""
    plan, context, cache = execution.plan, execution.context, execution.cache
    if cache is not None:
        state: Any = context._state
        if plan.keeps_context:
            error = yield from _load_shared(execution, state.force_refresh)
        elif context._claim is None:
            begin = partial(cache.begin, worker=worker_name(), fresh=state.force_refresh)
            error = yield from _take(execution, begin, plan.scope + state.encoded)
        else:  # held already: the first attempt might have been an inline one
            error = None
        if error is None:
            if not plan.keeps_context:
                _resume(execution)
            return
        if not _goes_unguarded(execution, error):
            execution.end, execution.error = ABSENT, error
            return
        execution.trouble = error  # to be told when the listeners have been asked
    if plan.needs_state:
        execution.start_policy()


def _resume(execution: Execution) -> None:
    """Let the context know what the claim's record remembers."""
    plan, context = execution.plan, execution.context
    claim = context._claim
    record = None if claim is None else claim.record
    if record is not None:
        restore(context, record)
    if record is None or record.fingerprint != plan.fingerprint:
        if plan.needs_state:
            execution.start_policy()
        elif record is not None:
            context._retry_allowed = execution.policy.allows(
                context.retry_count, context.last_exception
            )
    else:
        execution.resumed = True


def _load_shared(execution: Execution, fresh: bool) -> Steps:
    try:
        yield from share(execution, lambda: None, first=True, fresh=fresh)
    except BaseException as exc:
        if execution.is_dropped(exc):
            raise
        return exc
    return None


def _take(execution: Execution, begin: Callable[..., Any], key: str) -> Steps:
    """Take the key's claim; return what prevents it."""
    execution.taking = begin, (key,)
    claim, error = yield _shielded(execution, execution.taking)
    if error is None:
        execution.context._claim = claim
    if not _cut_in(error):
        execution.taking = None
    return execution.cut or error


def _shielded(execution: Execution, step: Effect) -> Effect:
    """A step on the key that no cancellation interrupts: ``execution.cut`` is set instead."""
    return execution.ways.shielded(step, execution, execution.cache)


def _ended(execution: Execution, step: Effect) -> Steps:
    """Make a step that ends a claim; nothing is waited for where the execution was closed."""
    if isinstance(execution.error, GeneratorExit):
        return (yield left_to(execution.cache, step))
    return (yield _shielded(execution, step))


def _cut_in(error: BaseException | None) -> bool:
    """Whether a signal or a cancellation cut in: it is not known what the cache did."""
    return error is not None and not isinstance(error, RetryError | GeneratorExit)


def _goes_unguarded(execution: Execution, error: BaseException) -> bool:
    """Whether the execution goes on without its key, which the store cannot keep now."""
    wanted = getattr(execution.cache, "on_store_error", "raise")
    if wanted != "run_unguarded" or not isinstance(error, CacheUnavailableError):
        return False
    execution.cache = execution.context._claim = None
    execution.context._unguarded = True
    return True


def tell_of(execution: Execution, trouble: BaseException) -> Steps:
    """Tell the listeners what the store failed to do; what one of them raises is raised."""
    execution.trouble = trouble
    raised = yield from execution.tell(execution.plan.on_store_error, execution.context, trouble)
    if raised is not None:
        raise execution.raising(instead_of(execution.last or trouble, raised))


def begin_again(execution: Execution) -> Steps:
    """Count the next attempt in place, before it runs."""
    context = execution.context
    held: Any = context._claim
    begin = partial(execution.cache.begin, worker=held.worker)
    error = yield from _take(execution, begin, held.key)
    taken: Any = context._claim
    if taken is not held and not _goes_on(held, taken):
        context._claim = held
        yield from _ended(execution, (execution.cache.release, (taken,)))
        error = error or LeaseLostError(f"{held.key!r} was taken over between two attempts")
    if error is not None:
        yield from _uncounted(execution, error, "no further attempt could be counted")


def _goes_on(held: Claim, taken: Claim) -> bool:
    """Whether nobody has had the key since the failure was written down under it."""
    record = taken.record
    return (
        taken.lost is None
        and record is not None
        and (record.version, record.fence) == (held.version, held.fence)
    )


def save(execution: Execution) -> Steps:
    """Write the failure down, still holding the key."""
    context = execution.context
    claim: Any = context._claim
    try:
        record = snapshot(context, execution.plan.fingerprint, "idle", held=True)
    except Exception as exc:
        execution.end, execution.error = KEPT, terminated(exc, context._last)
        return
    _, error = yield _shielded(execution, (execution.cache.fail, (claim, record)))
    if execution.cut is not None:
        execution.saved = error is None or isinstance(error, CacheUnavailableError)
        raise execution.raising(execution.cut)
    if error is None:
        execution.saved = True
    elif isinstance(error, CacheUnavailableError):
        execution.saved = True  # the end tries it again
        yield from _uncounted(execution, error, "the failure could not be recorded")
    elif isinstance(error, LeaseLostError) and claim.completed:
        _leave(execution, "the attempt was completed before it failed")
    elif isinstance(error, LeaseLostError) or is_hard(error):
        raise execution.raising(from_cause(error, context._last))
    else:
        execution.end, execution.error = KEPT, terminated(error, context._last)


def _uncounted(execution: Execution, error: BaseException, what: str) -> Steps:
    """The store is away between two attempts: the failure leaves, unless they go on unguarded."""
    away = isinstance(error, CacheUnavailableError)
    if _goes_unguarded(execution, error):
        pass
    elif away and execution.last is not None:
        _leave(execution, f"{what}: {summary(error)}")
    else:
        raise execution.raising(from_cause(error, execution.context._last))
    yield from tell_of(execution, error)


def _leave(execution: Execution, note: str) -> None:
    """End with the callback's own failure."""
    execution.end, execution.error = KEPT, execution.last
    if execution.last is not None:
        put_note(execution.last, note)


def mark_recovering(execution: Execution) -> Steps:
    """Write down that it is the recovery's turn: should it die, it is its turn again.

    Where the store is away, or full, it is its turn all the same: should it die then, the attempt
    counts as lost, and none is left.
    """
    context = execution.context
    record = snapshot(context, execution.plan.fingerprint, "recovering", held=True)
    step = execution.cache.fail, (context._claim, record)
    _, error = yield _shielded(execution, step)
    if execution.cut is not None:
        raise execution.raising(execution.cut)
    if error is not None:
        if not isinstance(error, CacheUnavailableError | RetryContextCacheFullError):
            raise execution.raising(error)
        yield from tell_of(execution, error)
    execution.phase = "recovering"


def share(
    execution: Execution, step: Callable[[], Any], *, first: bool = False, fresh: bool = False
) -> Steps:
    """Apply a step to the shared record: compare-and-set, again until it was the latest.

    Where the store goes away under way, the execution goes on with what it knows.
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
                execution.start_policy()
            else:
                (restore if first else refresh)(context, record)
                execution.resumed = True
        answer = step()
        if error is None:
            updated = snapshot(context, plan.fingerprint, "idle", held=False, version=version)
            done, error = yield cache.swap, (key, updated, version)
        if error is not None:
            if first or not isinstance(error, CacheUnavailableError):
                raise execution.raising(error)
            execution.cache = None
            yield from tell_of(execution, error)
            break
    execution.marks = changeable(context)
    return answer


def settle(execution: Execution) -> Steps:
    """Leave the key as the execution's end wants it."""
    context = execution.context
    if execution.taking is not None:
        # A signal cut in, and it is not known whether the key was taken: the same worker may
        # begin again.
        claim, error = yield from _ended(execution, execution.taking)
        if error is None:
            context._claim = claim
    if context._claim is not None:
        if execution.end != DONE or not context._claim.completed:
            yield from _end_claim(execution)
    elif (
        execution.plan.keeps_context
        and execution.marks != changeable(context)
        and not isinstance(execution.error, GeneratorExit)
    ):
        yield from share(execution, lambda: None)


def let_go(execution: Execution, cause: BaseException) -> Steps:
    """The record could not be made: give the key back as it was, and say so."""
    if execution.context._claim is not None:
        yield from _ended(execution, (execution.cache.release, (execution.context._claim,)))
    make = instead_of if is_hard(cause) else _unrecorded
    execution.value, execution.error = None, make(execution.error, cause)


def _unrecorded(failure: BaseException | None, cause: BaseException) -> BaseException:
    return terminated(cause, failure)


def _end_claim(execution: Execution) -> Steps:
    step = _last_step(execution)
    _, error = yield from _ended(execution, step)
    if error is None or isinstance(error, UnfinishedStepError):
        return
    if _cut_in(error):
        yield from _ended(execution, step)  # it is not known whether the step was made
    failure, away = execution.error, isinstance(error, CacheUnavailableError)
    if is_hard(error) or (failure is None and not away):
        execution.value, execution.error = None, instead_of(failure, error)
        return
    if failure is not None:
        put_note(failure, f"the key could not be left as it should be: {summary(error)}")
    if execution.trouble is not None:
        return
    plan, context = execution.plan, execution.context
    raised = yield from execution.tell(plan.on_store_error, context, error)
    if raised is not None:
        execution.value, execution.error = None, instead_of(failure or error, raised)


def _last_step(execution: Execution) -> Effect:
    """What becomes of the key."""
    context, fingerprint = execution.context, execution.plan.fingerprint
    cache, claim = execution.cache, context._claim
    if execution.phase == "recovering":
        return cache.fail, (claim, snapshot(context, fingerprint, "recovering", held=False))
    if execution.end == DONE:
        remember = context._remember if execution.error is None else None
        succeed = cache.succeed if remember is None else partial(cache.succeed, remember=remember)
        return succeed, (claim,)
    if execution.saved:
        return cache.fail, (claim, snapshot(context, fingerprint, "idle", held=False))
    return cache.release, (claim,)

"""What an execution does with its key: take it, write down what failed, share it, give it back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from retrytemplate.caches.keeping import marks, refresh, restore, snapshot
from retrytemplate.caches.worker import worker_name
from retrytemplate.endings import ABSENT, DONE, KEPT, from_cause, instead_of, terminated, told
from retrytemplate.verdicts import is_hard

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.engine import Execution, Steps

__all__ = ["begin_again", "let_go", "load", "mark_recovering", "save", "settle", "share"]


def load(execution: Execution) -> Steps:
    """Take the key's claim and what the cache remembers under it."""
    plan, context = execution.plan, execution.context
    cache, state = execution.cache, context._state
    if cache is None or state is None:
        if plan.needs_state:
            execution.start_policy()
        return
    if plan.keeps_context:
        try:
            yield from share(execution, lambda: None, first=True, fresh=state.force_refresh)
        except GeneratorExit:
            raise
        except BaseException as exc:
            execution.end, execution.error = ABSENT, exc
        return
    claim = context._claim  # held already, if the first attempt might have been an inline one
    if claim is None:
        begin = partial(cache.begin, worker=worker_name(), fresh=state.force_refresh)
        claim, error = yield begin, (plan.scope + state.encoded,)
        if error is not None:
            execution.end, execution.error = ABSENT, error
            return
        context._claim = claim
    record = claim.record
    if record is not None:
        restore(context, record)
    if record is None or record.fingerprint != plan.fingerprint:
        if plan.needs_state:
            execution.start_policy()
        elif record is not None:
            context._verdict = execution.policy.allows(context.retry_count, context.last_exception)
    elif plan.needs_state:
        execution.show()


def begin_again(execution: Execution) -> Steps:
    """Count the next attempt in place, before it runs."""
    held: Any = execution.context._claim
    begin = partial(execution.cache.begin, worker=held.worker)
    claim, error = yield begin, (held.key,)
    if error is not None:
        raise from_cause(error, execution.context._last)
    execution.context._claim = claim


def save(execution: Execution) -> Steps:
    """Write the failure down, still holding the key."""
    context = execution.context
    try:
        record = snapshot(context, execution.plan.fingerprint, "idle", held=True)
    except Exception as exc:
        execution.end, execution.error = KEPT, terminated(exc, context._last)
        return
    _, error = yield execution.cache.fail, (context._claim, record)
    if error is None:
        execution.saved = True
    elif is_hard(error):
        raise error
    else:
        execution.end, execution.error = KEPT, terminated(error, context._last)


def mark_recovering(execution: Execution) -> Steps:
    """Write down that it is the recovery's turn: should it die, it is its turn again."""
    context = execution.context
    record = snapshot(context, execution.plan.fingerprint, "recovering", held=True)
    _, error = yield execution.cache.fail, (context._claim, record)
    if error is not None and (is_hard(error) or execution.saved):
        raise error
    execution.phase = "recovering"


def share(
    execution: Execution, step: Callable[[], Any], *, first: bool = False, fresh: bool = False
) -> Steps:
    """Apply a step to the shared record: compare-and-set, again until it was the latest."""
    context, plan = execution.context, execution.plan
    state = context._state
    key = plan.scope + (state.encoded if state is not None else "")
    while True:
        record, error = yield execution.cache.peek, (key,)
        if error is not None:
            raise error
        version = 0 if record is None else record.version
        if record is None or fresh:
            context._verdict = True
            context._policy_state = execution.policy.start(plan.monotonic())
            execution.show()
        else:
            (restore if first else refresh)(context, record)
            execution.show()
        answer = step()
        updated = snapshot(context, plan.fingerprint, "idle", held=False, version=version)
        done, error = yield execution.cache.swap, (key, updated, version)
        if error is not None:
            raise error
        if done:
            execution.marks = marks(context)
            return answer


def settle(execution: Execution) -> Steps:
    """Leave the key as the execution's end wants it."""
    context = execution.context
    if context._claim is not None:
        if execution.end != DONE or not context._claim.completed:
            yield from _end_claim(execution)
    elif execution.plan.keeps_context and execution.marks != marks(context):
        yield from share(execution, lambda: None)


def let_go(execution: Execution, cause: BaseException) -> Steps:
    """The record could not be made: give the key back as it was, and say so."""
    if execution.context._claim is not None:
        yield execution.cache.release, (execution.context._claim,)
    make = instead_of if is_hard(cause) else _unrecorded
    execution.value, execution.error = None, make(execution.error, cause)


def _unrecorded(failure: BaseException | None, cause: BaseException) -> BaseException:
    return terminated(cause, failure)


def _end_claim(execution: Execution) -> Steps:
    context, plan = execution.context, execution.plan
    cache, claim, state = execution.cache, context._claim, context._state
    if execution.phase == "recovering":
        record = snapshot(context, plan.fingerprint, "recovering", held=False)
        _, error = yield cache.fail, (claim, record)
    elif execution.end == DONE:
        remember = None if execution.error is not None or state is None else state.remember
        succeed = cache.succeed if remember is None else partial(cache.succeed, remember=remember)
        _, error = yield succeed, (claim,)
    elif execution.saved:
        record = snapshot(context, plan.fingerprint, "idle", held=False)
        _, error = yield cache.fail, (claim, record)
    else:
        _, error = yield cache.release, (claim,)
    if error is not None:
        if execution.error is None or is_hard(error):
            execution.value, execution.error = None, instead_of(execution.error, error)
        else:
            told(execution.error, f"the key could not be left as it should be: {error!r}")

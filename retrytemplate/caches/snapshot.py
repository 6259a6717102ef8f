"""Conversion of a live context to its record, and back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from attrs import evolve

from retrytemplate._internal.failure_text import to_recorded_failure
from retrytemplate.caches.worker_id import host_name, parse_worker_id
from retrytemplate.errors import AttemptLostError, RecordedFailure
from retrytemplate.history import RESTORED, AttemptRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import RetryContext
    from retrytemplate.caches.record import Phase, Record

__all__ = ["load", "mutable_state", "refresh", "restore", "snapshot"]


def load() -> None:
    """Import the modules that keep failures.

    A template and a cache in memory call this when they are made.  Imported with the first failure,
    a module would be incomplete for a signal handler that interrupts its import.
    """
    from retrytemplate.caches import bounded, record, record_limit, record_schema  # noqa: F401  # loads them


def snapshot(
    context: RetryContext,
    fingerprint: str,
    phase: Phase,
    *,
    held: bool,
    version: int | None = None,
) -> Record:
    """The context as a record: text and JSON values, no live object.

    :param held: whether the claim continues (the next attempt follows in place, or recovery).
    :raises TypeError: an attribute is no JSON value.
    :raises ValueError: the attributes and states alone exceed the record limit of the cache.
    """
    from retrytemplate.caches.record import Record, json_copy

    last, claim, cache = context._last_failure, context._claim, context._plan.cache
    redact = getattr(cache, "redact", None)
    if last is not None and context._last_stamp is not RESTORED:
        context._keep(_serializable_history(context._records(), last, redact))
    record = Record(
        phase=phase,
        name=None if context.name is None else str(context.name),
        failures=context.retry_count,
        attempts=context.attempt,
        retry_allowed=bool(context._retry_allowed),
        no_recovery=bool(context.no_recovery),
        gave_up=bool(context.gave_up),
        max_attempts=_count(context.max_attempts),
        last=None if last is None else _redacted(to_recorded_failure(last), redact),
        history=context._restored_history,
        attributes=json_copy(context._attributes),
        policy_state=context._policy_state,
        backoff_state=context._backoff_state,
        backoff_started=context._backoff_started,
        not_before=context._not_before,
        fingerprint=fingerprint,
        version=(version or (0 if claim is None else claim.version)) + 1,
        fence=0 if claim is None else claim.fence,
        worker=claim.worker if held and claim is not None else None,
    )
    limit = getattr(cache, "record_limit", None)
    if limit is None:
        return record
    from retrytemplate.caches.record_limit import truncate_to_limit

    return truncate_to_limit(record, limit)


def _count(number: Any) -> int | None:
    """The number as an int; None: it is not a finite number >= 0."""
    try:
        return int(number) if number >= 0 else None
    except (TypeError, ValueError, OverflowError):
        return None


def _serializable_history(
    records: tuple[AttemptRecord, ...], last: BaseException, redact: Callable[[str], str] | None
) -> tuple[AttemptRecord, ...]:
    """The records as a cache keeps them; the last one with its traceback."""
    from retrytemplate.caches.record import brief, describe

    *earlier, latest = (
        evolve(record, message=brief(record.message, redact), **_here()) for record in records
    )
    return (*earlier, evolve(latest, traceback=describe(last, redact), **_place_of(last)))


def _place_of(failure: BaseException) -> dict[str, Any]:
    """Where the attempt ran: a lost one where its worker did, not where it was missed."""
    if not isinstance(failure, AttemptLostError):
        return _here()
    host, process = parse_worker_id(failure.worker or "")
    return {"host": host, "process": process}


def _here() -> dict[str, Any]:
    return {"host": host_name(), "process": os.getpid()}


def _redacted(failure: RecordedFailure, redact: Callable[[str], str] | None) -> RecordedFailure:
    from retrytemplate.caches.record import brief

    cause = failure.cause
    return RecordedFailure(  # a new object each time: raising one must not mark the kept one
        failure.type_name,
        brief(failure.message, redact),
        None if cause is None else _redacted(cause, redact),
    )


def mutable_state(context: RetryContext) -> Any:
    """A copy of the mutable state of a context, without failures and the policy's state."""
    from retrytemplate.caches.record import json_copy

    # A deep copy: what changes in place inside an attribute counts, too.
    return (
        context.gave_up,
        context.name,
        context._backoff_state,
        context._not_before,
        json_copy(context._attributes),
    )


def restore(context: RetryContext, record: Record) -> None:
    """Restore the context of a new execution from the record of its key."""
    refresh(context, record)
    context.name = record.name
    context._backoff_state = record.backoff_state
    context._backoff_started = record.backoff_started
    context._not_before = record.not_before
    context._restored_history = record.history
    if record.attributes:
        from retrytemplate.caches.record import json_copy

        context._attributes = json_copy(record.attributes)


def refresh(context: RetryContext, record: Record) -> None:
    """Update a context from a stored record: failures, decision of the policy, states."""
    context.retry_count = record.failures
    context.gave_up = context.gave_up or record.gave_up
    context.no_recovery = record.no_recovery
    if record.max_attempts is not None:
        context.max_attempts = record.max_attempts
    if context._last_failure is None:
        context._last_failure = None if record.last is None else _redacted(record.last, None)
        context._last_stamp, context._repeat_count = RESTORED, 0
    context._retry_allowed = record.retry_allowed
    context._policy_state = record.policy_state

"""A key's reservation in a context cache: taken, completed or failed, each by compare-and-set.

Steps are generators of effects; ``retrytemplate._engine.drivers`` performs them.
"""

from __future__ import annotations

import json
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate._engine.final_error import with_context
from retrytemplate.caches.record import Record, json_value
from retrytemplate.caches.record_limit import truncate_to_limit
from retrytemplate.caches.worker_id import worker_name
from retrytemplate.errors import (
    AlreadyCompletedError,
    CacheUnavailableError,
    IdempotencyKeyReusedError,
    LeaseLostError,
    MisuseError,
    Rejected,
    RetryError,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from retrytemplate.caches.record import Phase

    # Of effects, to a result and an error.
    Steps = Generator[tuple[Any, tuple[Any, ...]], tuple[Any, BaseException | None], Any]

MISSING: Any = object()
"""Instead of a result."""

# Attributes of the record of an operation.
RESULT, UNKNOWN, FINGERPRINT = "result", "outcome_unknown", "fingerprint"


def is_unknown(error: BaseException) -> bool:
    """Whether an effect may have happened although this was raised.

    Not if it is a rejection, or declares that no effect happened; a template's error has a cause.
    """
    try:
        unknown = getattr(error, "outcome_unknown", not isinstance(error, Rejected))
    except Exception:  # as without the attribute
        return True
    if unknown is not False:
        return True
    cause = error.__cause__ if isinstance(error, RetryError) else None
    return cause is not None and is_unknown(cause)


def most_severe(error: BaseException, problem: BaseException | None) -> BaseException:
    """The error to raise: a later signal or cancellation, else the first error."""
    if problem is None or isinstance(problem, Exception):
        return error
    return with_context(error, problem)


def fingerprint_hash(fingerprint: Any) -> str | None:
    """The stored hash of a fingerprint."""
    if fingerprint is None:
        return None
    value = json_value("fingerprint", fingerprint)
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@define(eq=False, repr=False)
class Reservation:
    """The claim on a key, and the known attempts under it.

    :param ttl: seconds for which the result is remembered.
    :param lease: seconds of the claim; None: the cache's own.
    """

    key: str
    _cache: Any
    _ttl: float
    _lease: float | None
    failures: int = field(default=0, init=False)
    unknown: bool = field(default=False, init=False)
    # A cancellation during a shielded step.
    cancellation: BaseException | None = field(default=None, init=False)
    _fingerprint: str | None = field(default=None, init=False)
    _claim: Any = field(default=None, init=False)
    # The step that takes the key; None: its result is known.
    _pending_claim: Any = field(default=None, init=False)
    _released: bool = field(default=False, init=False)

    @property
    def fence(self) -> int | None:
        """The claim's; None: it was completed before."""
        return None if self._claim is None else self._claim.fence

    @property
    def is_over(self) -> bool:
        """Whether nothing is held; an end in a transaction is undone if that rolls back."""
        if self._claim is None:
            return self._pending_claim is None
        return self._claim.completed or self._released

    # -- the beginning ---------------------------------------------------------------------------

    def reserve(self, fingerprint: Any, driver: Any) -> Steps:
        """Reserve the key, or find its result."""
        self._fingerprint = fingerprint_hash(fingerprint)
        begin = partial(self._cache.begin, worker=worker_name(), lease=self._lease), (self.key,)
        error = yield from self._begin(begin, driver)
        if isinstance(error, AlreadyCompletedError):
            record, problem = yield self._cache.peek, (self.key,)
            if problem is not None or record is not None:
                return self._load_result(record, problem)
            error = yield from self._begin(begin, driver)  # it was remembered until just now
        if error is None:
            error = yield from self._resume(driver)
        return MISSING, error

    def _begin(self, begin: Any, driver: Any) -> Steps:
        self._pending_claim = begin
        claim, error = yield self._shielded(begin, driver)
        if error is None:
            self._claim, self._pending_claim = claim, None
        elif isinstance(error, Exception | GeneratorExit):
            self._pending_claim = None
        return self._take_cancellation() or error

    def _shielded(self, step: Any, driver: Any) -> Any:
        """The step, which no cancellation interrupts: ``cancellation`` is set instead."""
        return driver.shielded(step, self, self._cache)

    def _take_cancellation(self) -> BaseException | None:
        cancellation, self.cancellation = self.cancellation, None
        return cancellation

    def _load_result(self, record: Record | None, error: BaseException | None) -> Any:
        """The result, and what speaks against it."""
        if error is not None or record is None:
            return MISSING, error
        error = self._check_record(record) or self._other_request(record)
        attributes = record.attributes or {}
        if error is None and RESULT not in attributes:
            error = CacheUnavailableError(f"the record under {self.key!r} has no result")
        if error is not None:
            return MISSING, error
        try:
            return json_value(RESULT, attributes[RESULT]), None
        except TypeError as exc:
            return MISSING, CacheUnavailableError(f"the record under {self.key!r}: {exc}")

    def _check_record(self, record: Record) -> BaseException | None:
        """The error of a record that is not from an operation."""
        attributes = record.attributes or {}
        kept = attributes.get(UNKNOWN), attributes.get(FINGERPRINT)
        if isinstance(kept[0], bool) and isinstance(kept[1], str | None):
            return None
        return CacheUnavailableError(f"the record under {self.key!r} is not from an operation")

    def _other_request(self, record: Record) -> BaseException | None:
        first = (record.attributes or {}).get(FINGERPRINT)
        if first is None or self._fingerprint is None or first == self._fingerprint:
            return None
        return IdempotencyKeyReusedError(f"{self.key!r} was begun with another request")

    def _resume(self, driver: Any) -> Steps:
        """Take the record over, and store the changes before the effect."""
        claim, record = self._claim, self._claim.record
        first = None
        if record is not None:
            error = self._check_record(record) or self._other_request(record)
            if error is not None:
                return error
            self.failures, self.unknown = record.failures, record.attributes[UNKNOWN]
            first = record.attributes.get(FINGERPRINT)
        lost = claim.lost is not None
        self.failures, self.unknown = self.failures + lost, self.unknown or lost
        is_new = first is None and self._fingerprint is not None
        self._fingerprint = first or self._fingerprint
        if not lost and not is_new:
            return None
        held = self._record("attempting", self.failures, held=True)
        _, error = yield self._shielded((self._cache.fail, (claim, held)), driver)
        return self._take_cancellation() or error

    # -- the end ---------------------------------------------------------------------------------

    def complete(self, value: Any, connection: Any, driver: Any) -> Steps:
        """Record the result, as JSON values."""
        if self.is_over:
            return None, self._ended()
        try:
            value = json_value(f"the result of the operation {self.key!r}", value)
            record = self._record("done", self.failures, json_value(RESULT, value))
        except (TypeError, ValueError) as exc:
            return None, exc
        succeed = partial(self._cache.succeed, remember=self._ttl, record=record)
        if connection is not None:
            succeed = partial(succeed, connection=connection)
        error = yield from self._write(succeed, self._claim, driver=driver)
        if connection is not None and error is None:
            self._claim.completed, self._released = True, False
        return value, error

    def fail(self, unknown: bool, driver: Any) -> Steps:
        """Record a failed attempt: the next one may begin."""
        if self.is_over:
            return None, self._ended()
        self.unknown = self.unknown or unknown
        record = self._record("idle", self.failures + 1)
        return None, (yield from self._write(self._cache.fail, self._claim, record, driver=driver))

    def release(self, driver: Any) -> Steps:
        """Release the key without a change: nothing was done."""
        if self.is_over:
            return None, None
        if self._pending_claim is not None:
            # It is unknown whether the key was taken: the same worker may begin again.
            self._claim, problem = yield self._shielded(self._pending_claim, driver)
            self._pending_claim = None
            if self._claim is None:
                return None, problem
        return None, (yield from self._write(self._cache.release, self._claim, driver=driver))

    def undo(self, driver: Any) -> Steps:
        """Release a key whose completion was rolled back; returns the error of the store."""
        return None, (yield from self._write(self._cache.succeed, self._claim, driver=driver))

    def _ended(self) -> MisuseError:
        return MisuseError(f"{self.key!r} was released: start it again")

    def _write(self, step: Any, *arguments: Any, driver: Any) -> Steps:
        """Perform a step that ends the claim; return its error."""
        effect = self._shielded((step, arguments), driver)
        _, error = yield effect
        last = error
        if error is not None and not isinstance(error, Exception | GeneratorExit):
            _, last = yield effect  # a signal: it is not known whether the step was made
        self._released = last is None or isinstance(last, LeaseLostError)
        return self._take_cancellation() or error

    def _record(
        self, phase: Phase, failures: int, result: Any = MISSING, *, held: bool = False
    ) -> Record:
        attributes: dict[str, Any] = {UNKNOWN: self.unknown}
        if self._fingerprint is not None:
            attributes[FINGERPRINT] = self._fingerprint
        if result is not MISSING:
            attributes[RESULT] = result
        claim = self._claim
        record = Record(
            phase=phase,
            failures=failures,
            attempts=self.failures + 1,
            attributes=attributes,
            version=claim.version + 1,
            fence=claim.fence,
            worker=claim.worker if held else None,
        )
        limit = getattr(self._cache, "record_limit", None)
        try:
            return record if limit is None else truncate_to_limit(record, limit)
        except ValueError as exc:
            raise ValueError(f"the operation {self.key!r} cannot be kept: {exc}") from exc

"""Decide whether a redelivered message is retried, by its failures and the crashes it caused.

A process that crashes takes every message in flight with it, and only one of them caused the crash.
A lost attempt counts if it ran alone (``AttemptLostError.exclusive``); another one only makes the
message a suspect, whose next attempts run alone.  So a message is dead-lettered after at most
1 + ``max_crashes`` crashes.  A message beside it is not, unless other causes crash its process
during its exclusive attempts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

from retrytemplate._internal import validation
from retrytemplate.classify.exceptions import ExceptionClassifier
from retrytemplate.control.classification.failure_kind import TRANSIENT_ERRORS
from retrytemplate.errors import AttemptLostError, AttemptTimeoutError, UnacceptableResultError
from retrytemplate.policies.base import JSON, RetryPolicy, StatefulRetryPolicy, as_stateful
from retrytemplate.policies.simple import check_retryable, types_or_predicate
from retrytemplate.workers.message import Reject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retrytemplate.history import StopReason

# "listed": an exception in retry_on; "rejected": in not_on, or a Reject; else "unlisted".
Verdict = Literal["listed", "rejected", "unlisted"]

FAILURES, CRASHES, ALLOWED, INNER, LOST = range(5)
DEFAULTS = 5, TRANSIENT_ERRORS, (), "retry"


class RetryRequested(UnacceptableResultError):
    """The handler returned ``Retry``; ``delay`` is the requested one, or None."""

    def __init__(self, reason: str, delay: float | None) -> None:
        super().__init__(reason or "the handler returned Retry")
        self.delay = delay


def _check_retry_on(name: str, value: Any) -> None:
    if not isinstance(value, ExceptionClassifier):
        check_retryable(name, value)


def _check_types(name: str, value: Any) -> None:
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be an exception class or a tuple of them, got {value!r}")
    check_retryable(name, value)


AT_LEAST_ONE = validation.checked_by(validation.check_at_least_one)


@frozen(eq=False, repr=False)
class RedeliveryPolicy(StatefulRetryPolicy):
    """How often a message is delivered again after a failed attempt, and after a crash.

    :param max_attempts: attempts including the first, default 5, at least 1.  Lost attempts do not
        count.
    :param retry_on: expected failures: exception classes, a predicate or an
        ``ExceptionClassifier``; default ``TRANSIENT_ERRORS``.
    :param not_on: classes of failures that dead-letter the message at once; default: none.  Of two
        classes the one nearer to the exception decides.
    :param on_unlisted: "retry", the default, counts an exception in neither as a failed attempt,
        and logs it as an error; "reject" dead-letters the message at once.
    :param max_crashes: crashes attributed to the message before it is dead-lettered, default 2, at
        least 1.
    :param policy: decides on exceptions in place of the arguments above; lost attempts are not
        passed to it.
    :raises ValueError: if a number is too small, or ``policy`` is given with another setting.

    >>> from retrytemplate import AttemptLostError
    >>> policy = RedeliveryPolicy(max_attempts=3, max_crashes=1)
    >>> state = policy.record(policy.start(0.0), ConnectionError(), 0.0)
    >>> state = policy.record(state, AttemptLostError("lost beside others"), 0.0)
    >>> policy.decide(state, 0.0)[0]
    True
    >>> state = policy.record(state, AttemptLostError("lost alone", exclusive=True), 0.0)
    >>> policy.decide(state, 0.0)[0]
    False
    """

    _max_attempts: int = field(default=5, alias="max_attempts", validator=AT_LEAST_ONE)
    retry_on: Any = field(
        default=TRANSIENT_ERRORS,
        converter=types_or_predicate,
        validator=validation.checked_by(_check_retry_on),
        kw_only=True,
    )
    not_on: tuple[type[Exception], ...] = field(
        default=(),
        converter=types_or_predicate,
        validator=validation.checked_by(_check_types),
        kw_only=True,
    )
    on_unlisted: Literal["retry", "reject"] = field(
        default="retry",
        validator=validation.checked_by(validation.check_choice, "retry", "reject"),
        kw_only=True,
    )
    max_crashes: int = field(default=2, validator=AT_LEAST_ONE, kw_only=True)
    policy: RetryPolicy | None = field(
        default=None,
        validator=validation.instance_of((RetryPolicy, type(None)), "a RetryPolicy or None"),
        kw_only=True,
    )
    _rules: ExceptionClassifier = field(init=False, eq=False, repr=False)
    _is_listed: Callable[[BaseException], Any] = field(init=False, eq=False, repr=False)
    _inner: StatefulRetryPolicy | None = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        settings = (self._max_attempts, self.retry_on, self.not_on, self.on_unlisted)
        if self.policy is not None and settings != DEFAULTS:
            raise ValueError(
                "policy must be given without max_attempts, retry_on, not_on and on_unlisted"
            )
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else ()
        rules = dict.fromkeys(kinds, True) | dict.fromkeys(self.not_on, False)
        listed = self.retry_on
        if kinds:
            listed = _never
        elif isinstance(listed, ExceptionClassifier):
            listed = listed.classify
        inner = None if self.policy is None else as_stateful(self.policy)
        object.__setattr__(self, "_rules", ExceptionClassifier(rules))
        object.__setattr__(self, "_is_listed", listed)
        object.__setattr__(self, "_inner", inner)

    @property
    def max_attempts(self) -> int | None:
        return self._max_attempts if self.policy is None else self.policy.max_attempts

    @property
    def attempt_limit(self) -> int | None:
        return None  # lost attempts are made again

    def verdict(self, failure: BaseException) -> Verdict:
        """Whether a failure of the handler is in ``retry_on``, in ``not_on``, or in neither.

        A group is in ``retry_on`` if all its members are, in ``not_on`` if one is.
        """
        verdicts = set(map(self._verdict, self._rules.parts(failure)))
        if "rejected" in verdicts:
            return "rejected"
        return "unlisted" if "unlisted" in verdicts else "listed"

    def _verdict(self, failure: BaseException) -> Verdict:
        if isinstance(failure, Reject):
            return "rejected"
        found, value = self._rules.explicit(failure)
        if found:
            return "listed" if value else "rejected"
        expected = isinstance(failure, RetryRequested | AttemptTimeoutError)
        return "listed" if expected or self._is_listed(failure) else "unlisted"

    def start(self, now: float) -> JSON:
        return [0, 0, True, None if self._inner is None else self._inner.start(now), False]

    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        failures, crashes, allowed, inner, lost = state
        if isinstance(failure, AttemptLostError):
            return [failures, crashes + bool(failure.exclusive), allowed, inner, True]
        failures += 1
        if self._inner is None or isinstance(failure, Reject):
            allowed = failures < self._max_attempts and self._is_retried(failure)
        else:
            inner = self._inner.record(inner, failure, now)
        return [failures, crashes, allowed, inner, lost]

    def _is_retried(self, failure: BaseException) -> bool:
        verdict = self.verdict(failure)
        return verdict == "listed" or (verdict == "unlisted" and self.on_unlisted == "retry")

    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        failures, crashes, allowed, inner, lost = state
        if self._inner is not None:
            decided, inner = self._inner.decide(inner, now)
            allowed, state = allowed and decided, [failures, crashes, allowed, inner, lost]
        return allowed and crashes < self.max_crashes, state

    def matches_library_error(self, failure: BaseException) -> bool:
        # Without a policy, each failure of a handler is decided here.
        return self.policy is None or self.policy.matches_library_error(failure)

    def names(self, failure: BaseException) -> bool:
        """Whether a rule names the class of this error, which is one of the library's own."""
        if self.policy is not None:
            return self.policy.matches_library_error(failure)
        listed = self.retry_on
        return self._rules.names(failure) or (
            isinstance(listed, ExceptionClassifier)
            and listed.names(failure)
            and bool(listed.classify(failure))
        )

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        if self._inner is not None and state[ALLOWED] and state[CRASHES] < self.max_crashes:
            return self._inner.stop_reason_from(state[INNER], state[FAILURES], failure, now)
        exhausted = state[ALLOWED] or state[FAILURES] >= self._max_attempts
        return "attempts_exhausted" if exhausted else "not_retryable"

    def has_lost_attempt(self, state: JSON) -> bool:
        return bool(state[LOST])

    def failures(self, state: JSON) -> int | None:
        """The failed attempts, without those that were lost."""
        return int(state[FAILURES])

    def attributes(self, state: JSON) -> Mapping[str, JSON]:
        return {"crashes": state[CRASHES]} if state[CRASHES] else {}


def _never(failure: BaseException) -> bool:
    return False

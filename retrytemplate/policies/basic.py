"""Policies with one rule: always, never, a number of attempts, a predicate, a time limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from retrytemplate._internal import validation
from retrytemplate.classify.exceptions import ExceptionClassifier
from retrytemplate.policies.base import JSON, MaxAttemptsMixin, RetryPolicy, StatefulRetryPolicy
from retrytemplate.policies.exception_rules import ExceptionRules

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.history import StopReason

__all__ = [
    "AlwaysRetryPolicy",
    "InactivePolicy",
    "MaxAttemptsRetryPolicy",
    "NeverRetryPolicy",
    "PredicateRetryPolicy",
    "TimeoutRetryPolicy",
]


@frozen(eq=False, repr=False)
class AlwaysRetryPolicy(RetryPolicy):
    """Allow another attempt after every failure.

    Limit it with a deadline, or with ``AlwaysRetryPolicy() & TimeoutRetryPolicy(60)``.

    Source: ``org.springframework.retry.policy.AlwaysRetryPolicy``.

    >>> AlwaysRetryPolicy().allows(1_000_000, ValueError())
    True
    """

    @property
    def never_ends(self) -> bool:
        return True

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        return True


@frozen(eq=False, repr=False)
class NeverRetryPolicy(RetryPolicy):
    """Allow the first attempt only.

    Source: ``org.springframework.retry.policy.NeverRetryPolicy``.

    >>> policy = NeverRetryPolicy()
    >>> policy.allows(0, None), policy.allows(1, ValueError())
    (True, False)
    """

    @property
    def attempt_limit(self) -> int | None:
        return 1

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        return failures == 0


@frozen(eq=False, repr=False)
class InactivePolicy(NeverRetryPolicy):
    """The policy of every template while retries are switched off; see ``set_active``."""

    def stop_reason(self, failures: int, failure: BaseException | None) -> StopReason:
        return "inactive"


@frozen(eq=False, repr=False)
class MaxAttemptsRetryPolicy(MaxAttemptsMixin):
    """Allow a number of attempts, for every exception.

    :param max_attempts: attempts including the first, default 3, at least 1; or a callable that
        returns the number, called once per execution.
    :raises ValueError: if ``max_attempts`` is below 1.

    Source: ``org.springframework.retry.policy.MaxAttemptsRetryPolicy``.

    >>> policy = MaxAttemptsRetryPolicy(2)
    >>> policy.allows(1, ValueError()), policy.allows(2, ValueError())
    (True, False)
    """

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        limit = self._max_attempts
        if callable(limit):
            return self.resolved().allows(failures, failure)
        return failures < limit


@frozen(eq=False, repr=False)
class PredicateRetryPolicy(RetryPolicy):
    """Allow another attempt after every failure that a predicate accepts, without a limit.

    :param predicate: takes the exception, returns whether to retry it.  For an exception group it
        is called with each leaf and must accept all of them.  Lost attempts and rejected results
        are retried without a call.  It may be the ``classify`` method of an
        ``ExceptionClassifier``, whose rules then apply.

    Source: ``PredicateRetryPolicy`` and ``BinaryExceptionClassifierRetryPolicy`` of
    ``org.springframework.retry.policy``.

    >>> policy = PredicateRetryPolicy(lambda error: "deadlock" in str(error))
    >>> policy.allows(1, OSError("deadlock found")), policy.allows(1, OSError("disk full"))
    (True, False)
    """

    predicate: Callable[[BaseException], Any] = field(
        validator=validation.checked_by(validation.check_function)
    )
    _rules: ExceptionRules = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        classifier = getattr(self.predicate, "__self__", None)
        if isinstance(classifier, ExceptionClassifier) and self.predicate == classifier.classify:
            rules = ExceptionRules(classifier)
        else:
            rules = ExceptionRules(ExceptionClassifier({}), self.predicate)
        object.__setattr__(self, "_rules", rules)

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        return failure is None or self._rules.is_retryable(failure)

    def matches_library_error(self, failure: BaseException) -> bool:
        return self._rules.classifier.names(failure)


@frozen(eq=False, repr=False)
class TimeoutRetryPolicy(StatefulRetryPolicy):
    """Allow another attempt within *timeout* seconds after the start.

    The time is checked between attempts only: neither an attempt nor a wait is cancelled.  For a
    limit that cancels, use a ``Deadline``.  In a stateful execution the time runs from the first
    delivery.

    :param timeout: seconds or a ``timedelta``, at least 0; or a callable that returns it, called
        once per execution.
    :raises ValueError: if ``timeout`` is below 0.

    Source: ``org.springframework.retry.policy.TimeoutRetryPolicy``.

    >>> policy = TimeoutRetryPolicy(30.0)
    >>> started = policy.start(100.0)
    >>> policy.decide(started, 130.0)[0], policy.decide(started, 130.1)[0]
    (True, False)
    """

    timeout: Any = field(
        converter=validation.to_seconds,
        validator=validation.NumberOrCallable(validation.check_limit),
    )

    def start(self, now: float) -> JSON:
        return now

    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        return state

    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        if callable(self.timeout):
            return self.resolved().decide(state, now)
        return now - state <= self.timeout, state

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        return "time_limit"

    @property
    def dynamic(self) -> bool:
        return callable(self.timeout)

    def resolved(self) -> TimeoutRetryPolicy:
        return evolve(self, **validation.read_numbers(self)) if self.dynamic else self

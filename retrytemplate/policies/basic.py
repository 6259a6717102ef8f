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
    "MaxAttemptsRetryPolicy",
    "NeverRetryPolicy",
    "PredicateRetryPolicy",
    "TimeoutRetryPolicy",
]


@frozen(eq=False, repr=False)
class AlwaysRetryPolicy(RetryPolicy):
    """Another attempt after every failure.

    Bound it: with a deadline, or ``AlwaysRetryPolicy() & TimeoutRetryPolicy(60)``.

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
    """The first attempt and no other.

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
class MaxAttemptsRetryPolicy(MaxAttemptsMixin):
    """A number of attempts, whatever the exception.

    :param max_attempts: attempts in all, the first included; or a callable that gives the number,
        read once per execution.
    :raises ValueError: for fewer than one attempt.

    Source: ``org.springframework.retry.policy.MaxAttemptsRetryPolicy``.

    >>> policy = MaxAttemptsRetryPolicy(2)
    >>> policy.allows(1, ValueError()), policy.allows(2, ValueError())
    (True, False)
    """

    _max_attempts: int | Callable[[], int] = field(
        default=3,
        alias="max_attempts",
        validator=validation.NumberOrCallable(validation.check_at_least_one),
    )

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        limit = self._max_attempts
        if callable(limit):
            return self.resolved().allows(failures, failure)
        return failures < limit


@frozen(eq=False, repr=False)
class PredicateRetryPolicy(RetryPolicy):
    """Another attempt after every failure that the predicate says yes to.  It sets no limit.

    :param predicate: takes the exception.  It is asked about each leaf of a group, and all must get
        a yes; it is not asked about lost attempts and refused results, which are retried.  The
        ``classify`` of an ``ExceptionClassifier`` will do; its rules then count as such.

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
    """Another attempt as long as no more than *timeout* seconds have passed since the start.

    It looks at the clock between attempts only: it cuts neither an attempt nor a sleep short.  For
    a limit that does, use a ``Deadline``.  In a stateful execution the time runs on from the first
    delivery.

    :param timeout: seconds or a ``timedelta``, from 0; or a callable that gives them, read once per
        execution.
    :raises ValueError: for a time below 0.

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

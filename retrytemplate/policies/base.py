"""Base classes of retry policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from retrytemplate._internal import validation
from retrytemplate._internal.values import JSON, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from retrytemplate.history import StopReason
    from retrytemplate.policies.composite import CompositeRetryPolicy
    from retrytemplate.policies.result import ResultRetryPolicy

__all__ = [
    "JSON",
    "MaxAttemptsMixin",
    "RetryPolicy",
    "StatefulRetryPolicy",
    "as_stateful",
]


class RetryPolicy(Value):
    """Decides whether another attempt is made.  Immutable; all that changes is in the context.

    Override ``allows`` to decide from the number of failures and the last failure.  A policy that
    needs more (the time, counts per class) derives from ``StatefulRetryPolicy``.

    ``a & b`` allows an attempt when both do, ``a | b`` when either does.

    >>> class Twice(RetryPolicy):
    ...     def allows(self, failures, failure):
    ...         return failures < 2
    >>> Twice().allows(1, OSError()), Twice().allows(2, OSError())
    (True, False)

    Source: ``org.springframework.retry.RetryPolicy``.
    """

    keeps_context: bool = False
    """Whether the record is kept after success and exhaustion, shared and without a claim."""

    @property
    def needs_state(self) -> bool:
        """Whether ``start``, ``record`` and ``decide`` are used instead of ``allows``."""
        return False

    @property
    def max_attempts(self) -> int | None:
        """The number of attempts that the policy declares, for display; None if unknown."""
        return None

    @property
    def attempt_limit(self) -> int | None:
        """The number of attempts that is never exceeded; None if unknown."""
        return self.max_attempts

    @property
    def never_ends(self) -> bool:
        """Whether the policy always allows another attempt."""
        return False

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        """Whether another attempt may be made.

        :param failures: failures so far; 0 before the first attempt.
        :param failure: the last failure; None before the first attempt.
        """
        raise NotImplementedError(f"{type(self).__name__} must override allows()")

    def stop_reason(self, failures: int, failure: BaseException | None) -> StopReason:
        """Why ``allows`` returned False; called once at the end of a failed execution.

        The default: ``"attempts_exhausted"`` from ``attempt_limit`` failures on, and if not even
        the first attempt was allowed; else ``"not_retryable"``.

        :param failures: failures so far.
        :param failure: the last failure; None before the first attempt; a ``RecordedFailure`` if it
            happened in an earlier delivery.

        >>> from retrytemplate import SimpleRetryPolicy
        >>> policy = SimpleRetryPolicy(3, retry_on=OSError)
        >>> policy.stop_reason(3, OSError()), policy.stop_reason(1, ValueError())
        ('attempts_exhausted', 'not_retryable')
        """
        limit = self.attempt_limit
        if failure is None or (limit is not None and failures >= limit):
            return "attempts_exhausted"
        return "not_retryable"

    def forbids_recovery(self, failures: int, failure: BaseException) -> bool:
        """Whether the failure is raised without recovery; called after ``allows`` was False."""
        return False

    def matches_library_error(self, failure: BaseException) -> bool:
        """Whether a rule names the class of this error, which is one of the library's own."""
        return False

    @property
    def dynamic(self) -> bool:
        """Whether the policy has numbers that are read at run time."""
        return type(self).resolved is not RetryPolicy.resolved

    def resolved(self) -> RetryPolicy:
        """The policy with every run-time number read; the policy itself if it has none."""
        return self

    def result_rules(self) -> tuple[ResultRetryPolicy, ...]:
        """The rules on results in this policy and its members."""
        return ()

    def __and__(self, other: RetryPolicy) -> CompositeRetryPolicy:
        from retrytemplate.policies.composite import combine

        return combine(self, other, optimistic=False)

    def __or__(self, other: RetryPolicy) -> CompositeRetryPolicy:
        from retrytemplate.policies.composite import combine

        return combine(self, other, optimistic=True)


@frozen(eq=False, repr=False)
class MaxAttemptsMixin(RetryPolicy):
    """Base of the policies that are given a number of attempts."""

    _max_attempts: int | Callable[[], int] = field(
        default=3,
        alias="max_attempts",
        validator=validation.NumberOrCallable(validation.check_at_least_one),
    )

    @property
    def max_attempts(self) -> int | None:
        return None if callable(self._max_attempts) else self._max_attempts

    @property
    def dynamic(self) -> bool:
        return callable(self._max_attempts)

    def stop_reason(self, failures: int, failure: BaseException | None) -> StopReason:
        # Called by every execution that fails: without the properties of the base class.
        limit = self._max_attempts
        if failure is None or (not callable(limit) and failures >= limit):
            return "attempts_exhausted"
        return "not_retryable"

    def resolved(self) -> Self:
        return evolve(self, **validation.read_numbers(self)) if self.dynamic else self


class StatefulRetryPolicy(RetryPolicy, ABC):
    """A policy with its own state: a JSON value in the execution's context.

    Methods are pure: they take the state and the time ``now`` (seconds), and return the next state.

    >>> class ForAMinute(StatefulRetryPolicy):
    ...     def start(self, now):
    ...         return now
    ...     def record(self, state, failure, now):
    ...         return state
    ...     def decide(self, state, now):
    ...         return now - state < 60, state
    >>> policy = ForAMinute()
    >>> policy.decide(policy.start(5.0), 64.0), policy.decide(policy.start(5.0), 65.0)
    ((True, 5.0), (False, 5.0))
    """

    @property
    def needs_state(self) -> bool:
        return True

    @abstractmethod
    def start(self, now: float) -> JSON:
        """The state at the start of an execution; if stateful, at the first one of the key."""

    @abstractmethod
    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        """The state after a failure.  Only this method sees the exception."""

    @abstractmethod
    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        """Whether an attempt may be made, and the next state.

        Called before every attempt, and after every failure that is not re-raised.
        """

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        raise TypeError(f"{type(self).__name__} is stateful; call decide(), not allows()")

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        """Why ``decide`` returned False, as ``stop_reason`` does for ``allows``.

        :param state: the state after ``decide``.
        :param failures: failures so far.
        :param failure: the last failure; None before the first attempt.
        :param now: the time, in seconds.
        """
        return self.stop_reason(failures, failure)

    def recovery_forbidden(self, state: JSON) -> bool:
        """Whether the failure is raised without recovery; called after ``decide`` was False."""
        return False

    def has_lost_attempt(self, state: JSON) -> bool:
        """Whether the state has a lost attempt, also one that the history has dropped.

        With True, a stateful execution with ``exclusive=False`` is rejected.
        """
        return False

    def failures(self, state: JSON) -> int | None:
        """The number of failures that the context shows; None for its own count."""
        return None

    def attributes(self, state: JSON) -> Mapping[str, JSON]:
        """The part of the state that is shown in the context's attributes."""
        return {}


class StatelessPolicyAdapter(StatefulRetryPolicy):
    """Keeps the decisions of a policy without state: ``[failures, allowed, no recovery]``.

    It decides in ``record``, the only method that gets the exception.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy

    def start(self, now: float) -> JSON:
        return [0, bool(self.policy.allows(0, None)), False]

    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        failures = state[0] + 1
        allowed = bool(self.policy.allows(failures, failure))
        forbidden = not allowed and bool(self.policy.forbids_recovery(failures, failure))
        return [failures, allowed, forbidden]

    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        return state[1], state

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        return self.policy.stop_reason(state[0], failure)

    def recovery_forbidden(self, state: JSON) -> bool:
        return bool(state[2])


def as_stateful(policy: RetryPolicy) -> StatefulRetryPolicy:
    """The policy itself if it keeps state, else an adapter that does."""
    if isinstance(policy, StatefulRetryPolicy) and policy.needs_state:
        return policy
    return StatelessPolicyAdapter(policy)

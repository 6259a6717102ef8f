"""Combine policies: all of them, or any of them, must allow an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from retrytemplate._internal import validation
from retrytemplate.policies.base import JSON, RetryPolicy, StatefulRetryPolicy, as_stateful

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from retrytemplate.history import StopReason
    from retrytemplate.policies.result import ResultRetryPolicy

__all__ = ["CompositeRetryPolicy", "combine"]


def _members(value: Iterable[RetryPolicy]) -> Any:
    try:
        return tuple(value)
    except TypeError:
        return value


def _some_policies(instance: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(each, RetryPolicy) for each in value):
        raise TypeError(f"policies must be RetryPolicy objects, got {value!r}")
    if not value:
        raise ValueError("policies must hold at least one policy, got none")


@frozen(eq=False, repr=False)
class CompositeRetryPolicy(StatefulRetryPolicy):
    """Allow an attempt when all members allow it; if *optimistic*, when any member does.

    Every member records every failure, and decides every time.  ``a & b`` and ``a | b`` create a
    composite; a longer chain of one operator creates a single flat composite.

    :param policies: the members, at least one.
    :param optimistic: whether one member that allows the attempt is enough; default False.
    :raises ValueError: if there is no member.
    :raises TypeError: if a member is not a policy.

    Source: ``org.springframework.retry.policy.CompositeRetryPolicy``.

    >>> from retrytemplate.policies import MaxAttemptsRetryPolicy, PredicateRetryPolicy
    >>> busy = PredicateRetryPolicy(lambda error: "busy" in str(error))
    >>> policy = MaxAttemptsRetryPolicy(3) & busy
    >>> policy.allows(1, OSError("busy")), policy.allows(1, OSError("gone")), policy.max_attempts
    (True, False, 3)
    """

    policies: tuple[RetryPolicy, ...] = field(converter=_members, validator=_some_policies)
    optimistic: bool = field(default=False, validator=validation.instance_of(bool, "True or False"))
    _needs_state: bool = field(init=False, eq=False, repr=False)
    _parts: tuple[StatefulRetryPolicy, ...] = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_needs_state", any(each.needs_state for each in self.policies))
        object.__setattr__(self, "_parts", tuple(map(as_stateful, self.policies)))

    @property
    def needs_state(self) -> bool:
        return self._needs_state

    @property
    def max_attempts(self) -> int | None:
        """The smallest number that a member declares, also of an optimistic composite."""
        declared = [each.max_attempts for each in self.policies]
        return min((number for number in declared if number is not None), default=None)

    @property
    def attempt_limit(self) -> int | None:
        limits = [each.attempt_limit for each in self.policies]
        known = [number for number in limits if number is not None]
        if self.optimistic:
            return max(known) if len(known) == len(limits) else None
        return min(known, default=None)

    @property
    def never_ends(self) -> bool:
        endless = [each.never_ends for each in self.policies]
        return any(endless) if self.optimistic else all(endless)

    def result_rules(self) -> tuple[ResultRetryPolicy, ...]:
        return tuple(rule for each in self.policies for rule in each.result_rules())

    def _combine(self, answers: list[bool]) -> bool:
        return any(answers) if self.optimistic else all(answers)

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        return self._combine([each.allows(failures, failure) for each in self.policies])

    def _deciding_reason(self, reasons: list[StopReason]) -> StopReason | None:
        """The reason of the first member that rejected; if optimistic, of the first limit."""
        if self.optimistic:
            reasons = [each for each in reasons if each != "not_retryable"] or reasons
        return reasons[0] if reasons else None

    def stop_reason(self, failures: int, failure: BaseException | None) -> StopReason:
        reasons: list[StopReason] = [
            each.stop_reason(failures, failure)
            for each in self.policies
            if not each.allows(failures, failure)
        ]
        return self._deciding_reason(reasons) or super().stop_reason(failures, failure)

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        reasons: list[StopReason] = [
            part.stop_reason_from(own, failures, failure, now)
            for part, own in zip(self._parts, state, strict=True)
            if not part.decide(own, now)[0]
        ]
        return self._deciding_reason(reasons) or super().stop_reason(failures, failure)

    def forbids_recovery(self, failures: int, failure: BaseException) -> bool:
        return any(
            not each.allows(failures, failure) and each.forbids_recovery(failures, failure)
            for each in self.policies
        )

    def matches_library_error(self, failure: BaseException) -> bool:
        return any(each.matches_library_error(failure) for each in self.policies)

    def start(self, now: float) -> JSON:
        return [part.start(now) for part in self._parts]

    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        return [
            part.record(own, failure, now) for part, own in zip(self._parts, state, strict=True)
        ]

    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        answers = [part.decide(own, now) for part, own in zip(self._parts, state, strict=True)]
        return self._combine([allowed for allowed, _ in answers]), [own for _, own in answers]

    def recovery_forbidden(self, state: JSON) -> bool:
        return any(
            part.recovery_forbidden(own) for part, own in zip(self._parts, state, strict=True)
        )

    def has_lost_attempt(self, state: JSON) -> bool:
        return any(part.has_lost_attempt(own) for part, own in zip(self._parts, state, strict=True))

    def attributes(self, state: JSON) -> Mapping[str, JSON]:
        shown: dict[str, JSON] = {}
        for part, own in zip(self._parts, state, strict=True):
            shown.update(part.attributes(own))
        return shown

    @property
    def dynamic(self) -> bool:
        return any(each.dynamic for each in self.policies)

    def resolved(self) -> CompositeRetryPolicy:
        if not self.dynamic:
            return self
        return evolve(self, policies=tuple(each.resolved() for each in self.policies))


def combine(left: RetryPolicy, right: RetryPolicy, *, optimistic: bool) -> CompositeRetryPolicy:
    """The flat composite of two policies, for the operators ``&`` and ``|``."""
    members: list[RetryPolicy] = []
    for side in (left, right):
        if type(side) is CompositeRetryPolicy and side.optimistic is optimistic:
            members.extend(side.policies)
        else:
            members.append(side)
    return CompositeRetryPolicy(members, optimistic)

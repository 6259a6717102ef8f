"""A policy per class of exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from retrytemplate._internal import validation
from retrytemplate.classify.exceptions import ExceptionClassifier, copy_class_mapping
from retrytemplate.policies.base import JSON, RetryPolicy, StatefulRetryPolicy, as_stateful
from retrytemplate.policies.basic import NeverRetryPolicy
from retrytemplate.policies.exception_rules import is_count_only

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from retrytemplate.history import StopReason
    from retrytemplate.policies.result import ResultRetryPolicy

__all__ = ["ExceptionClassifierRetryPolicy"]


def _policy_map(value: Any) -> Any:
    if isinstance(value, ExceptionClassifier):
        return value
    policies = copy_class_mapping(value, "policies must map exception classes to policies")
    for kind, policy in policies.items():
        if not isinstance(policy, RetryPolicy):
            raise TypeError(
                f"policies must map to RetryPolicy objects, got {policy!r} for {kind!r}"
            )
    return policies


@frozen(eq=False, repr=False)
class ExceptionClassifierRetryPolicy(StatefulRetryPolicy):
    """Use the policy of the exception's nearest class.

    The first attempt is always allowed.  Each failure selects a policy by its class; only that
    policy records the failure, and only it decides.  So each policy counts its own failures, and
    its time starts when it is first selected.  A policy object that is in the map twice has one
    count for both classes.

    The leaves of an exception group usually select one policy.  If they select several, each
    decides about its leaf, and the first that rejects is final.  Lost attempts and rejected results
    select no policy: every policy counts them.

    :param policies: exception classes and their policies; or an ``ExceptionClassifier`` whose
        values are policies, or False for no retry.
    :param default: the policy if no class matches; default ``NeverRetryPolicy()``.
    :param traverse_causes: whether to look at the chain of ``__cause__`` if no class matches the
        exception; default False.
    :raises TypeError: if a key is not an exception class, or a value not a policy.
    :raises ValueError: if a classifier is given together with ``default`` or ``traverse_causes``.

    Source: ``org.springframework.retry.policy.ExceptionClassifierRetryPolicy``.

    >>> from retrytemplate.policies import SimpleRetryPolicy
    >>> policy = ExceptionClassifierRetryPolicy({TimeoutError: SimpleRetryPolicy(5)})
    >>> state = policy.record(policy.start(0.0), TimeoutError(), 0.0)
    >>> policy.decide(state, 0.0)[0]
    True
    >>> policy.decide(policy.record(state, ValueError(), 0.0), 0.0)[0]
    False
    """

    policies: Mapping[type[BaseException], RetryPolicy] | ExceptionClassifier = field(
        converter=_policy_map, hash=False
    )
    default: RetryPolicy = field(
        factory=NeverRetryPolicy, validator=validation.instance_of(RetryPolicy, "a RetryPolicy")
    )
    traverse_causes: bool = field(
        default=False, validator=validation.instance_of(bool, "True or False")
    )
    _classifier: ExceptionClassifier = field(init=False, eq=False, repr=False)
    _values: tuple[Any, ...] = field(init=False, eq=False, repr=False)
    _members: tuple[RetryPolicy, ...] = field(init=False, eq=False, repr=False)
    _parts: tuple[StatefulRetryPolicy, ...] = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        choice = self._make_classifier()
        # By identity: one object has one state, two equal ones have two.
        values = tuple({id(each): each for each in choice.values()}.values())
        object.__setattr__(self, "_classifier", choice)
        object.__setattr__(self, "_values", values)
        self._set_members(tuple(NeverRetryPolicy() if each is False else each for each in values))

    def _make_classifier(self) -> ExceptionClassifier:
        if not isinstance(self.policies, ExceptionClassifier):
            return ExceptionClassifier(self.policies, self.default, self.traverse_causes)
        if self.traverse_causes or self.default != NeverRetryPolicy():
            raise ValueError(
                "default and traverse_causes must be left out when policies is a classifier: set "
                "them on the classifier"
            )
        for each in self.policies.values():
            if each is not False and not isinstance(each, RetryPolicy):
                raise TypeError(
                    f"policies must map to RetryPolicy objects or False, got {each!r} as a value "
                    f"of {self.policies!r}"
                )
        return self.policies

    def _set_members(self, members: tuple[RetryPolicy, ...]) -> None:
        object.__setattr__(self, "_members", members)
        object.__setattr__(self, "_parts", tuple(map(as_stateful, members)))

    def _member_index(self, failure: BaseException) -> str:
        value = self._classifier.classify(failure)
        for at, each in enumerate(self._values):
            if each is value:
                return str(at)
        raise LookupError(f"{self._classifier!r} returned {value!r}, which is not in its values()")

    @property
    def never_ends(self) -> bool:
        return all(each.never_ends for each in self._members)

    def start(self, now: float) -> JSON:
        return {"chosen": None, "members": {}}

    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        if is_count_only(failure) and not self._classifier.names(failure):
            return self._record_with(state, map(str, range(len(self._parts))), failure, now)
        choices = [(part, self._member_index(part)) for part in self._classifier.parts(failure)]
        if len({index for _, index in choices}) == 1:
            return self._choose(state, self._member_index(failure), failure, now)
        recorded = state
        for part, index in choices:
            recorded = self._choose(recorded, index, part, now)
            if not self.decide(recorded, now)[0]:
                return self._choose(state, index, part, now)
        return {**recorded, "chosen": choices[0][1]}

    def _choose(self, state: JSON, index: str, failure: BaseException, now: float) -> JSON:
        return {**self._record_with(state, (index,), failure, now), "chosen": index}

    def _record_with(
        self, state: JSON, indices: Iterable[str], failure: BaseException, now: float
    ) -> JSON:
        members = dict(state["members"])
        for index in indices:
            part = self._parts[int(index)]
            own = members[index] if index in members else part.start(now)
            members[index] = part.record(own, failure, now)
        return {**state, "members": members}

    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        members = dict(state["members"])
        allowed = not members
        for index in self._consulted(state):
            answer, members[index] = self._parts[int(index)].decide(members[index], now)
            allowed = allowed or answer
        return allowed, {**state, "members": members}

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        for index in self._consulted(state):
            if not isinstance(self._members[int(index)], NeverRetryPolicy):
                part, own = self._parts[int(index)], state["members"][index]
                return part.stop_reason_from(own, failures, failure, now)
        return "not_retryable"

    def recovery_forbidden(self, state: JSON) -> bool:
        return any(
            self._parts[int(index)].recovery_forbidden(state["members"][index])
            for index in self._consulted(state)
        )

    def _consulted(self, state: JSON) -> tuple[str, ...]:
        """The selected policy; before the first selection all that recorded lost attempts."""
        return tuple(state["members"]) if state["chosen"] is None else (state["chosen"],)

    def matches_library_error(self, failure: BaseException) -> bool:
        return self._classifier.names(failure) or any(
            each.matches_library_error(failure) for each in self._members
        )

    def result_rules(self) -> tuple[ResultRetryPolicy, ...]:
        return tuple(rule for each in self._members for rule in each.result_rules())

    @property
    def dynamic(self) -> bool:
        return any(each.dynamic for each in self._members)

    def resolved(self) -> ExceptionClassifierRetryPolicy:
        if not self.dynamic:
            return self
        members = tuple(each.resolved() for each in self._members)
        if isinstance(self.policies, ExceptionClassifier):
            made = evolve(self)
            made._set_members(members)
            return made
        read = {id(each): now for each, now in zip(self._members, members, strict=True)}
        policies = {kind: read[id(each)] for kind, each in self.policies.items()}
        return evolve(self, policies=policies, default=read[id(self.default)])

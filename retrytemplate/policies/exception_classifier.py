"""Another policy for each kind of exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from retrytemplate._internal import validation
from retrytemplate.classify.exceptions import ExceptionClassifier, by_class
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
    policies = by_class(value, "policies must map exception classes to policies")
    for kind, policy in policies.items():
        if not isinstance(policy, RetryPolicy):
            raise TypeError(
                f"policies must map to RetryPolicy objects, got {policy!r} for {kind!r}"
            )
    return policies


@frozen(eq=False, repr=False)
class ExceptionClassifierRetryPolicy(StatefulRetryPolicy):
    """The policy of the exception's nearest class decides, by the failures that it was chosen for.

    The first attempt is always allowed.  After each failure the latest one chooses; only the chosen
    policy is told of it, and only it is asked.  So each has a count and a clock of its own, which
    begin when it is first chosen.  A policy object that stands in the map twice counts once for
    both.

    A group must choose one policy for all its leaves; else each leaf's choice is asked about its
    leaf, and the first that refuses decides.  Lost attempts and refused results choose nothing:
    they count with every policy.

    :param policies: exception classes and their policies; or an ``ExceptionClassifier`` whose
        values are policies, or False for no retry; it has a default and causes of its own.
    :param default: the policy where no class matches.
    :param traverse_causes: where no class matches the exception, look at its ``__cause__`` and on.
    :raises TypeError: for a key that is no exception class, or a value that is no policy.

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
    _choice: ExceptionClassifier = field(init=False, eq=False, repr=False)
    _values: tuple[Any, ...] = field(init=False, eq=False, repr=False)
    _members: tuple[RetryPolicy, ...] = field(init=False, eq=False, repr=False)
    _parts: tuple[StatefulRetryPolicy, ...] = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        choice = self._make_choice()
        # By identity: one object has one state, two equal ones have two.
        values = tuple({id(each): each for each in choice.values()}.values())
        object.__setattr__(self, "_choice", choice)
        object.__setattr__(self, "_values", values)
        self._use(tuple(NeverRetryPolicy() if each is False else each for each in values))

    def _make_choice(self) -> ExceptionClassifier:
        if not isinstance(self.policies, ExceptionClassifier):
            return ExceptionClassifier(self.policies, self.default, self.traverse_causes)
        if self.traverse_causes or self.default != NeverRetryPolicy():
            raise ValueError(
                "default and traverse_causes must be left out beside a classifier: it has its own"
            )
        for each in self.policies.values():
            if each is not False and not isinstance(each, RetryPolicy):
                raise TypeError(
                    f"policies must give RetryPolicy objects or False, got {each!r} as a value of "
                    f"{self.policies!r}"
                )
        return self.policies

    def _use(self, members: tuple[RetryPolicy, ...]) -> None:
        object.__setattr__(self, "_members", members)
        object.__setattr__(self, "_parts", tuple(map(as_stateful, members)))

    def _place(self, failure: BaseException) -> str:
        value = self._choice.classify(failure)
        for at, each in enumerate(self._values):
            if each is value:
                return str(at)
        raise LookupError(f"{self._choice!r} gave {value!r}, which is none of its values()")

    @property
    def never_ends(self) -> bool:
        return all(each.never_ends for each in self._members)

    def start(self, now: float) -> JSON:
        return {"chosen": None, "members": {}}

    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        if is_count_only(failure) and not self._choice.names(failure):
            return self._told(state, map(str, range(len(self._parts))), failure, now)
        choices = [(part, self._place(part)) for part in self._choice.parts(failure)]
        if len({place for _, place in choices}) == 1:
            return self._choose(state, self._place(failure), failure, now)
        told = state
        for part, place in choices:
            told = self._choose(told, place, part, now)
            if not self.decide(told, now)[0]:
                return self._choose(state, place, part, now)
        return {**told, "chosen": choices[0][1]}

    def _choose(self, state: JSON, place: str, failure: BaseException, now: float) -> JSON:
        return {**self._told(state, (place,), failure, now), "chosen": place}

    def _told(self, state: JSON, places: Iterable[str], failure: BaseException, now: float) -> JSON:
        members = dict(state["members"])
        for place in places:
            part = self._parts[int(place)]
            own = members[place] if place in members else part.start(now)
            members[place] = part.record(own, failure, now)
        return {**state, "members": members}

    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        members = dict(state["members"])
        allowed = not members
        for place in self._asked(state):
            answer, members[place] = self._parts[int(place)].decide(members[place], now)
            allowed = allowed or answer
        return allowed, {**state, "members": members}

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        for place in self._asked(state):
            if not isinstance(self._members[int(place)], NeverRetryPolicy):
                part, own = self._parts[int(place)], state["members"][place]
                return part.stop_reason_from(own, failures, failure, now)
        return "not_retryable"

    def recovery_forbidden(self, state: JSON) -> bool:
        return any(
            self._parts[int(place)].recovery_forbidden(state["members"][place])
            for place in self._asked(state)
        )

    def _asked(self, state: JSON) -> tuple[str, ...]:
        """The chosen policy; where nothing has chosen yet all that were told of lost attempts."""
        return tuple(state["members"]) if state["chosen"] is None else (state["chosen"],)

    def matches_library_error(self, failure: BaseException) -> bool:
        return self._choice.names(failure) or any(
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
            made._use(members)
            return made
        read = {id(each): now for each, now in zip(self._members, members, strict=True)}
        policies = {kind: read[id(each)] for kind, each in self.policies.items()}
        return evolve(self, policies=policies, default=read[id(self.default)])

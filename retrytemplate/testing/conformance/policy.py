"""The kit for retry policies."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from retrytemplate.history import STOP_REASONS
from retrytemplate.policies import AlwaysRetryPolicy, NeverRetryPolicy, TimeoutRetryPolicy
from retrytemplate.policies.base import RetryPolicy, StatefulRetryPolicy
from retrytemplate.testing.conformance.base import (
    FrozenConformance,
    Probe,
    as_json,
    check_same,
    json_round_trip,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Script = list[tuple[BaseException, float]]

__all__ = ["PolicyConformance"]

START = 1000.0
STEPS = (0.0, 0.25, 1.0, 7.0, 60.0)
VERY_LONG = 1e12


class Answer(NamedTuple):
    """The decision of a policy after one failure (or before the first)."""

    allowed: Any
    recovery_forbidden: Any
    state: Any


def answers(
    policy: RetryPolicy,
    script: Script,
    travel: Callable[[Any], Any] = lambda state: state,
    *,
    times: int = 1,
) -> Iterator[Answer]:
    """Pass the failures of a script to a policy, like a template does.

    :param times: the number of calls at each step; the last result counts.
    """
    if isinstance(policy, StatefulRetryPolicy) and policy.needs_state:
        yield from _stateful_answers(policy, script, travel, times)
        return
    yield Answer(policy.allows(0, None), False, None)
    for count, (failure, _) in enumerate(script, 1):
        allowed = policy.allows(count, failure)
        forbidden = not allowed and policy.forbids_recovery(count, failure)
        yield Answer(allowed, forbidden, None)


def _stateful_answers(
    policy: StatefulRetryPolicy, script: Script, travel: Callable[[Any], Any], times: int
) -> Iterator[Answer]:
    allowed, state = _decided(policy, travel(policy.start(START)), START, times)
    yield Answer(allowed, False, state)
    for failure, now in script:
        state = travel(policy.record(travel(state), failure, now))
        allowed, state = _decided(policy, state, now, times)
        yield Answer(allowed, not allowed and policy.recovery_forbidden(state), state)


def _decided(policy: StatefulRetryPolicy, state: Any, now: float, times: int) -> tuple[Any, Any]:
    for _ in range(times - 1):
        _, state = policy.decide(state, now)
    return policy.decide(state, now)


def _reason(
    policy: RetryPolicy, state: Any, failures: int, failure: BaseException | None, now: float
) -> Any:
    if isinstance(policy, StatefulRetryPolicy) and policy.needs_state:
        return policy.stop_reason_from(state, failures, failure, now)
    return policy.stop_reason(failures, failure)


class PolicyConformance(FrozenConformance):
    """Tests for a ``RetryPolicy``: its decisions depend on its arguments only.

    >>> from retrytemplate import RetryPolicy
    >>> class UpTo(RetryPolicy):
    ...     def allows(self, failures, failure):
    ...         return failures < 3
    >>> class TestUpTo(PolicyConformance):
    ...     def make(self):
    ...         return UpTo()
    >>> TestUpTo().run_all()
    {}
    """

    @abstractmethod
    def make(self) -> RetryPolicy:
        """A new policy, equal to every other that this makes."""

    def scripts(self) -> list[Script]:
        """The sequences of failures, with their times, that are passed to the policy."""
        tried = list(self.failures_to_try)
        found = [[(failure, START + step) for _ in range(6)] for failure in tried for step in STEPS]
        for first in range(len(tried)):
            turn = tried[first:] + tried[:first]
            now, script = START, []
            for number, failure in enumerate(turn * 2):
                now += STEPS[number % len(STEPS)]
                script.append((failure, now))
            found.append(script)
        return found

    def test_it_is_a_policy(self) -> None:
        policy = self.make()
        assert isinstance(policy, RetryPolicy), f"{policy!r} does not derive from RetryPolicy"
        assert type(policy.needs_state) is bool
        if policy.needs_state:
            assert isinstance(policy, StatefulRetryPolicy), "state needs a StatefulRetryPolicy"

    def test_the_first_attempt_is_allowed(self) -> None:
        assert next(answers(self.make(), [])).allowed, "nothing has failed yet"

    def test_a_verdict_is_true_or_false(self) -> None:
        for script in self.scripts():
            for answer in answers(self.make(), script):
                assert type(answer.allowed) is bool, f"got {answer.allowed!r}"
                assert type(answer.recovery_forbidden) is bool, f"got {answer.recovery_forbidden!r}"

    def test_the_same_course_of_events_gets_the_same_verdicts(self) -> None:
        policy = self.make()
        for script in self.scripts():
            first = list(answers(policy, script))
            check_same(list(answers(policy, script)), first, "the same policy, queried again")
            check_same(list(answers(self.make(), script)), first, "an equal policy")

    def test_executions_do_not_mix(self) -> None:
        policy = self.make()
        scripts = self.scripts()
        alone = [list(answers(self.make(), script)) for script in scripts]
        under_way = [answers(policy, script) for script in scripts]
        together: list[list[Answer]] = [[] for _ in scripts]
        for _ in range(max(map(len, scripts)) + 1):
            for walk, seen in zip(under_way, together, strict=True):
                seen.extend(answer for answer in [next(walk, None)] if answer is not None)
        check_same(together, alone, "one execution's failures show in another's verdicts")

    def test_the_state_is_json_and_decides_alike_elsewhere(self) -> None:
        policy = self.make()
        for script in self.scripts():
            here = list(answers(policy, script))
            for answer in here:
                as_json(answer.state)
            elsewhere = list(answers(self.make(), script, json_round_trip))
            check_same(
                elsewhere, here, "the state that was written and read back decides otherwise"
            )

    def test_a_state_is_never_changed_in_place(self) -> None:
        policy = self.make()
        if not (isinstance(policy, StatefulRetryPolicy) and policy.needs_state):
            return
        for script in self.scripts():
            state, before = self._state(policy.start(START))
            for failure, now in script:
                fresh = policy.record(state, failure, now)
                assert as_json(state) == before, "record() changed the state that it was given"
                state, before = self._state(fresh)
                verdict = policy.decide(state, now)
                assert as_json(state) == before, "decide() changed the state that it was given"
                assert policy.decide(state, now) == verdict, "the same state, queried again"
                state, before = self._state(verdict[1])

    def _state(self, state: Any) -> tuple[Any, str]:
        return state, as_json(state)

    def test_asking_twice_is_asking_once(self) -> None:
        policy = self.make()
        for script in self.scripts():
            twice = [answer.allowed for answer in answers(policy, script, times=2)]
            check_same(
                twice,
                self._verdicts(policy, script),
                "decide() is called after a failure and before an attempt: it must not count",
            )

    def test_a_stop_reason_is_one_of_the_words(self) -> None:
        policy = self.make()
        for script in self.scripts():
            for count, answer in enumerate(answers(policy, script)):
                if answer.allowed:
                    continue
                failure, now = script[count - 1] if count else (None, START)
                reason = _reason(policy, answer.state, count, failure, now)
                assert reason in STOP_REASONS, f"stop_reason must be one of them, got {reason!r}"
                again = _reason(self.make(), answer.state, count, failure, now)
                check_same(again, reason, "an equal policy gives another reason")

    def _results(self, policy: RetryPolicy) -> list[list[Answer]]:
        return [list(answers(policy, script)) for script in self.scripts()]

    def _use(self, policy: RetryPolicy, failure: BaseException) -> Any:
        return list(answers(policy, [(failure, START)]))

    def test_declared_numbers_of_attempts_are_counts(self) -> None:
        policy = self.make().resolved()
        for number in (policy.max_attempts, policy.attempt_limit):
            assert number is None or (type(number) is int and number >= 1), f"got {number!r}"

    def test_there_is_no_attempt_after_the_limit(self) -> None:
        policy = self.make().resolved()
        limit = policy.attempt_limit
        if limit is None or limit > 1000:
            return
        for failure in self.failures_to_try:
            *_, last = answers(policy, [(failure, START)] * limit)
            assert not last.allowed, f"attempt_limit is {limit}, but another attempt is allowed"

    def test_reading_its_numbers_does_not_change_its_verdicts(self) -> None:
        policy = self.make()
        assert type(policy.dynamic) is bool
        read = policy.resolved()
        assert isinstance(read, RetryPolicy)
        for script in self.scripts():
            check_same(
                self._verdicts(read, script),
                self._verdicts(policy, script),
                "with its numbers read",
            )

    def test_it_decides_alike_as_a_member_of_a_tree(self) -> None:
        policy = self.make()
        trees = {
            "policy & always": policy & AlwaysRetryPolicy(),
            "policy | never": policy | NeverRetryPolicy(),
            "policy & a member with state": policy & TimeoutRetryPolicy(VERY_LONG),
        }
        for script in self.scripts():
            alone = self._verdicts(policy, script)
            for name, tree in trees.items():
                check_same(self._verdicts(tree, script), alone, f"{name} decides otherwise")

    def _verdicts(self, policy: RetryPolicy, script: Script) -> list[bool]:
        return [answer.allowed for answer in answers(policy, script)]

    def test_its_properties_have_the_right_types(self) -> None:
        policy = self.make()
        assert type(policy.keeps_context) is bool
        assert isinstance(policy.result_rules(), tuple)
        for failure in (*self.failures_to_try, Probe()):
            assert type(policy.matches_library_error(failure)) is bool
        if isinstance(policy, StatefulRetryPolicy) and policy.needs_state:
            for script in self.scripts():
                for answer in answers(policy, script):
                    count = policy.failures(answer.state)
                    assert count is None or (type(count) is int and count >= 0), f"got {count!r}"
                    as_json(dict(policy.attributes(answer.state)))

    def test_the_failures_that_it_shows_have_happened(self) -> None:
        policy = self.make()
        if not (isinstance(policy, StatefulRetryPolicy) and policy.needs_state):
            return
        for script in self.scripts():
            for happened, answer in enumerate(answers(policy, script)):
                shown = policy.failures(answer.state)
                assert shown is None or shown <= happened, f"{shown} failures after {happened}"

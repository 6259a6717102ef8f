"""Any tree of policies against a naive model that reads the whole history each time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AlwaysRetryPolicy,
    CompositeRetryPolicy,
    ExceptionClassifierRetryPolicy,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    PredicateRetryPolicy,
    ResultRetryPolicy,
    RetryPolicy,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from tests.policies.driving import Driven


class A(Exception):
    pass


class B(A):
    pass


class C(B):
    pass


class D(Exception):
    pass


KINDS = (A, B, C, D)
LISTED = (*KINDS, Exception)

Failure = tuple[type[Exception], int]
"""A class, and when it failed."""

Model = Callable[[list[Failure], int, int], bool]
"""From the failures so far, the start and the time to the verdict."""


@frozen
class Pair:
    """A policy, and its expected decisions."""

    policy: RetryPolicy
    model: Model

    def __repr__(self) -> str:
        return repr(self.policy)


def nearest(kind, listed):
    """The index of the nearest base class in the list, or None."""
    above = [each for each in listed if issubclass(kind, each)]
    return max(above, key=lambda each: len(each.__mro__)) if above else None


def simple(limit, retried, fatal):
    def model(failures, start, now):
        if len(failures) >= limit:
            return False
        if not failures:
            return True
        decisive = nearest(failures[-1][0], [*retried, *fatal])
        return decisive in retried and decisive not in fatal

    policy = SimpleRetryPolicy(limit, retry_on=tuple(retried), not_on=tuple(fatal))
    return Pair(policy, model)


def max_attempts(limit):
    return Pair(MaxAttemptsRetryPolicy(limit), lambda failures, *times: len(failures) < limit)


def timeout(seconds):
    return Pair(TimeoutRetryPolicy(seconds), lambda failures, start, now: now - start <= seconds)


def predicate(kinds):
    return Pair(
        PredicateRetryPolicy(lambda error: isinstance(error, tuple(kinds))),
        lambda failures, *times: not failures or issubclass(failures[-1][0], tuple(kinds)),
    )


def composite(members, optimistic):
    def model(*known):
        answers = {member.model(*known) for member in members}
        return True in answers if optimistic else False not in answers

    return Pair(CompositeRetryPolicy([each.policy for each in members], optimistic), model)


def chooser(choices, default):
    def model(failures, start, now):
        if not failures:
            return True

        def chosen(kind):
            return choices.get(nearest(kind, choices), default)

        mine = chosen(failures[-1][0])
        counted = [failure for failure in failures if chosen(failure[0]) is mine]
        return mine.model(counted, counted[0][1], now)

    policies = {kind: pair.policy for kind, pair in choices.items()}
    return Pair(ExceptionClassifierRetryPolicy(policies, default.policy), model)


def judging_results(inner):
    return Pair(ResultRetryPolicy(bool, inner.policy), inner.model)


some_kinds = st.lists(st.sampled_from(LISTED), unique=True, max_size=3)
leaf = st.one_of(
    st.builds(simple, st.integers(1, 5), some_kinds, some_kinds),
    st.builds(max_attempts, st.integers(1, 5)),
    st.builds(timeout, st.integers(0, 12)),
    st.builds(predicate, some_kinds),
    st.builds(lambda: Pair(NeverRetryPolicy(), lambda failures, *times: not failures)),
    st.builds(lambda: Pair(AlwaysRetryPolicy(), lambda *known: True)),
)


def branch(tree):
    return st.one_of(
        st.builds(composite, st.lists(tree, min_size=1, max_size=3), st.booleans()),
        st.builds(chooser, st.dictionaries(st.sampled_from(LISTED), tree, max_size=3), tree),
        st.builds(judging_results, tree),
    )


trees = st.recursive(leaf, branch, max_leaves=6)
histories = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4)), max_size=8)


@given(trees, histories, st.integers(0, 4))
def test_decision_of_any_tree_equals_that_of_the_model(tree, history, pause):
    driven = Driven(tree.policy, now=100)
    failures: list[Failure] = []
    assert driven.allowed() == tree.model(failures, 100, driven.now)
    for kind, passing in history:
        driven.fail(kind(), after=passing)
        failures.append((kind, driven.now))
        assert driven.allowed() == tree.model(failures, 100, driven.now)
        assert driven.allowed(after=pause) == tree.model(failures, 100, driven.now)


@given(trees, trees, histories)
def test_operators_combine_by_and_and_or(left, right, history):
    both, either = Driven(left.policy & right.policy), Driven(left.policy | right.policy)
    failures: list[Failure] = []
    for kind, passing in history:
        for driven in (both, either):
            driven.fail(kind(), after=passing)
        failures.append((kind, both.now))
        answers = [side.model(failures, 0, both.now) for side in (left, right)]
        assert both.allowed() == all(answers)
        assert either.allowed() == any(answers)


@given(trees, histories)
def test_attempt_limit_of_a_tree_is_never_exceeded(tree, history):
    limit = tree.policy.attempt_limit
    driven = Driven(tree.policy)
    for kind, passing in history:
        driven.fail(kind(), after=passing)
        assert limit is None or driven.failures < limit or not driven.allowed()


@pytest.mark.statement("S2-28")
@given(trees, histories)
def test_one_tree_serves_two_concurrent_executions(tree, history):
    """The objects hold no state, so executions do not affect each other."""
    alone, first, second = Driven(tree.policy), Driven(tree.policy), Driven(tree.policy)
    for kind, passing in history:
        second.fail(D(), after=1).allowed()
        first.fail(kind(), after=passing)
        alone.fail(kind(), after=passing)
    assert first.state == alone.state
    assert first.allowed() == alone.allowed()

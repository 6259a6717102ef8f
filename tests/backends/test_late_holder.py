"""A holder stalls between two attempts past its lease; another worker takes the key."""

import pytest

from retrytemplate import (
    FixedBackoff,
    LeaseLostError,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.testing import VirtualClock

KEY = "w/s:m1"
STATE = RetryState("m1", rollback_for=lambda error: False)
FAILS = RetryState("m1")


class Meanwhile(RetryListener):
    def __init__(self, what):
        self.what = what
        self.done = False

    def on_backoff(self, context, delay):
        if not self.done:
            self.done = True
            self.what()


def late(store, meanwhile, calls):
    template = RetryTemplate(
        SimpleRetryPolicy(3),
        FixedBackoff(1.0),
        cache=store.cache(),
        name="w",
        listeners=[Meanwhile(meanwhile)],
        clock=VirtualClock(),
    )

    def fails(context):
        calls.append(context.attempt)
        raise ConnectionError

    with pytest.raises(LeaseLostError):
        template.execute(fails, state=STATE)


@pytest.fixture
def other(store):
    return RetryTemplate(SimpleRetryPolicy(9), cache=store.cache(), name="w")


def test_late_holder_makes_no_attempt_after_success_of_another(store, other):
    calls = []

    def succeeds():
        store.age(31)
        other.execute(lambda context: None, state=FAILS)

    late(store, succeeds, calls)
    assert calls == [1]
    assert store.row(KEY) is None


def test_late_holder_keeps_the_count_of_another_failure(store, other):
    calls = []

    def fails():
        store.age(31)
        with pytest.raises(ZeroDivisionError):
            other.execute(lambda context: 1 / 0, state=FAILS)

    late(store, fails, calls)
    assert calls == [1]
    assert other.cache.peek(KEY).failures == 2


def test_late_holder_leaves_the_key_to_a_lost_attempt(store, other):
    calls = []

    def dies():
        store.age(31)
        other.cache.begin(KEY, worker="host:1:dead-1")
        store.age(31)

    late(store, dies, calls)
    assert calls == [1]
    seen = other.execute(
        lambda context: (context.attempt, [r.type_name for r in context.history]), state=FAILS
    )
    assert seen == (3, ["ConnectionError", "retrytemplate.errors.AttemptLostError"])

"""The maximum size of a key's record in a store."""

import pytest

from retrytemplate import RetryState, RetryTemplate, SimpleRetryPolicy, TerminatedRetryError
from retrytemplate.caches.record import to_text

LIMIT = 8192
KEY = "charge/s:order-17"


@pytest.fixture
def template(store):
    cache = store.cache(record_limit=LIMIT)
    return RetryTemplate(SimpleRetryPolicy(50), name="charge", cache=cache)


def left_by(template, callback):
    state = RetryState("order-17")
    with pytest.raises(Exception) as left:
        template.execute(callback, state=state)
    return left.value


def fails(context):
    raise ValueError("no price " * 2000)


def test_key_that_fails_repeatedly_stays_within_the_limit(store, template):
    for _ in range(20):
        assert type(left_by(template, fails)) is ValueError
    record = template.cache.peek(KEY)

    assert len(store.row(KEY)["record"]) == len(to_text(record)) <= LIMIT
    assert (record.failures, record.history[-1].number) == (20, 20)


def test_too_large_attribute_is_rejected_and_key_released(template):
    def grows(context):
        context.attributes["orders"] = "x" * LIMIT
        raise ValueError("no price")

    left_by(template, fails)
    left = left_by(template, grows)

    assert type(left) is TerminatedRetryError
    assert "attribute 'orders' of a stateful context takes 8206 bytes" in str(left.__cause__)
    assert template.cache.peek(KEY).failures == 1
    assert type(left_by(template, fails)) is ValueError


def test_attempts_in_place_are_bounded(template):
    state = RetryState("order-17", rollback_for=())

    def three_in_place(context):
        if context.attempt == 4:
            record = template.cache.peek(KEY)
            assert (record.failures, len(to_text(record)) <= LIMIT) == (3, True)
            return "paid"
        raise ValueError("no price " * 2000)

    assert template.execute(three_in_place, state=state) == "paid"

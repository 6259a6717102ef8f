"""Conversion of a live context to its record: noticed changes and kept values."""

import pytest

from retrytemplate import (
    AttemptLostError,
    CircuitBreakerRetryPolicy,
    ExhaustedRetryError,
    MemoryRetryContextCache,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.caches.record import Record
from retrytemplate.testing import VirtualClock

CIRCUIT = RetryState("circuit", rollback_for=())


def fails(context):
    raise ValueError("x")


def breaker():
    policy = CircuitBreakerRetryPolicy(SimpleRetryPolicy(2))
    cache = MemoryRetryContextCache()
    return RetryTemplate(policy, name="bank", cache=cache, clock=VirtualClock())


# -- the shared record of a circuit --------------------------------------------------------------


def test_circuit_attribute_changed_in_place_by_a_success_is_stored():
    template = breaker()
    template.execute(lambda context: context.attributes.update(seen=[]), state=CIRCUIT)
    template.execute(lambda context: context.attributes["seen"].append(17), state=CIRCUIT)

    assert template.execute(lambda context: context.attributes["seen"], state=CIRCUIT) == [17]


def test_success_without_changes_writes_nothing_at_its_end():
    template = breaker()
    template.execute(lambda context: context.attributes.update(seen=[]), state=CIRCUIT)

    def writes(callback):
        key = template.scoped_key("circuit")
        before = template.cache.peek(key).version
        template.execute(callback, state=CIRCUIT)
        return template.cache.peek(key).version - before

    reading = writes(lambda context: context.attributes["seen"])
    assert writes(lambda context: context.attributes["seen"].append(17)) == reading + 1


def test_refreshed_circuit_begins_without_its_old_state():
    template, refreshed = breaker(), RetryState("circuit", force_refresh=True, rollback_for=())
    for _ in range(2):
        with pytest.raises(ExhaustedRetryError):
            template.execute(fails, state=CIRCUIT)
    with pytest.raises(ExhaustedRetryError):
        template.execute(lambda context: "open", state=CIRCUIT)

    assert template.execute(lambda context: "closed", state=refreshed) == "closed"
    assert template.execute(lambda context: "closed", state=CIRCUIT) == "closed"


def test_circuit_success_counts_as_attempt_and_not_as_failure():
    template = breaker()
    template.execute(lambda context: context.attributes.update(seen=17), state=CIRCUIT)

    record = template.cache.peek(template.scoped_key("circuit"))
    assert (record.attempts, record.failures) == (1, 0)


# -- the record of a key -------------------------------------------------------------------------


def test_each_failed_delivery_counts_as_attempt_and_failure():
    template = RetryTemplate(SimpleRetryPolicy(5), clock=VirtualClock())
    for number in (1, 2, 3):
        with pytest.raises(ValueError, match="x"):
            template.execute(fails, state=RetryState("order-17"))
        record = template.cache.peek(template.scoped_key("order-17"))
        assert (record.attempts, record.failures) == (number, number)


@pytest.mark.parametrize("number", [7, 0])
def test_max_attempts_of_a_context_is_kept(number):
    def callback(context):
        shown.append(context.max_attempts)
        context.max_attempts = number
        raise ValueError("x")

    shown = []
    template = RetryTemplate(SimpleRetryPolicy(3), clock=VirtualClock())
    for _ in range(2):
        with pytest.raises(ValueError, match="x"):
            template.execute(callback, state=RetryState("order-17"))
    assert shown == [3, number]


def test_lost_attempt_without_worker_has_no_host_or_process():
    def callback(context):
        raise AttemptLostError("on another machine")

    template = RetryTemplate(SimpleRetryPolicy(3), clock=VirtualClock())
    with pytest.raises(AttemptLostError):
        template.execute(callback, state=RetryState("order-17"))
    (lost,) = template.cache.peek(template.scoped_key("order-17")).history
    assert (lost.host, lost.process) == ("", None)


def test_record_with_a_count_and_no_failure_is_valid():
    template = RetryTemplate(SimpleRetryPolicy(3), clock=VirtualClock())
    claim = template.cache.begin(template.scoped_key("order-17"), worker="another")
    template.cache.fail(claim, Record(failures=3, attempts=3))

    with pytest.raises(ExhaustedRetryError, match="no attempt was made"):
        template.execute(fails, state=RetryState("order-17"))

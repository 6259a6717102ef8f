"""Tests of code that retries: without waiting, repeatable, and on the path of production."""

import asyncio
import time

import pytest
import trio

from retrytemplate import (
    AlwaysRetryPolicy,
    ExponentialBackoff,
    FixedBackoff,
    RetryTemplate,
    SimpleRetryPolicy,
    SystemClock,
    TimeoutRetryPolicy,
    clock,
)
from retrytemplate.testing import Recorder, ScriptedRandom, VirtualClock, no_waiting, run, run_trio

HOUR = 3600.0


@pytest.fixture(autouse=True)
def real_waiting_is_a_failure(monkeypatch):
    def wait(delay):
        raise AssertionError(f"a real wait of {delay} seconds")

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr(clock, "_offset", clock._offset)


# As if in another module, imported long ago.
charge_template = RetryTemplate(SimpleRetryPolicy(4), ExponentialBackoff(initial=HOUR, maximum=1e9))


@charge_template.wrap
def charge(answers):
    return answers.pop(0)()


@charge_template.wrap
async def charge_async(answers):
    await asyncio.sleep(0)
    return answers.pop(0)()


def refusing():
    raise ConnectionError("try again")


def answers(failures):
    return [refusing] * failures + [lambda: "charged"]


@pytest.mark.statement("S0-62")
def test_injected_clock_records_the_exact_delays():
    virtual = VirtualClock()
    template = charge_template.with_(clock=virtual)
    assert template.call(answers(3).pop(-1)) == "charged"
    assert template.outcome(refusing).attempts == 4
    assert virtual.sleeps == [HOUR, 2 * HOUR, 4 * HOUR]


@pytest.mark.statement("S0-62")
def test_decorator_made_at_import_does_not_wait():
    with no_waiting() as skipped:
        assert charge(answers(3)) == "charged"
    assert skipped.sleeps == [HOUR, 2 * HOUR, 4 * HOUR]


@pytest.mark.statement("S0-62")
def test_asynchronous_decorator_made_at_import_does_not_wait():
    with no_waiting() as skipped:
        assert asyncio.run(charge_async(answers(2))) == "charged"
    assert skipped.sleeps == [HOUR, 2 * HOUR]


def test_attempts_block_does_not_wait():
    left = answers(2)
    with no_waiting() as skipped:
        for attempt in charge_template.attempts():
            with attempt:
                left.pop(0)()
    assert skipped.sleeps == [HOUR, 2 * HOUR]


def test_time_limit_ends_retries_without_waits():
    template = RetryTemplate(TimeoutRetryPolicy(10 * HOUR), FixedBackoff(HOUR))
    with no_waiting() as skipped:
        assert not template.outcome(refusing).ok
    assert len(skipped.sleeps) in (10, 11)  # real time passes besides the skipped delays


def test_retries_without_end_can_be_bounded_in_a_test():
    template = RetryTemplate(AlwaysRetryPolicy(), FixedBackoff(HOUR))
    with no_waiting(VirtualClock(interrupt_at=5)):
        assert template.outcome(refusing).attempts == 5


@pytest.mark.statement("S0-63")
def test_time_limits_are_exact_on_an_injected_clock():
    virtual = VirtualClock()
    template = RetryTemplate(TimeoutRetryPolicy(3.0), FixedBackoff(1.0), clock=virtual)
    outcome = template.outcome(refusing)
    # Allowed up to and at 3 s; the last sleep is the one after which it is too late.
    assert (outcome.attempts, outcome.elapsed) == (4, 4.0)


@pytest.mark.statement("S0-63")
def test_duration_of_a_call_can_be_simulated():
    virtual = VirtualClock()

    def slow():
        virtual.advance(2.0)
        refusing()

    template = RetryTemplate(TimeoutRetryPolicy(3.0), clock=virtual)
    outcome = template.outcome(slow)
    assert (outcome.attempts, outcome.elapsed) == (2, 4.0)
    assert [record.duration for record in outcome.history] == [2.0, 2.0]


@pytest.mark.statement("S0-63")
def test_elapsed_time_ends_with_the_call():
    virtual = VirtualClock()
    left = answers(2)

    def slow():
        virtual.advance(5.0)
        return left.pop(0)()

    outcome = RetryTemplate(backoff=FixedBackoff(1.0), clock=virtual).outcome(slow)
    assert (outcome.value, outcome.elapsed) == ("charged", 17.0)


@pytest.mark.statement("S0-63")
@pytest.mark.parametrize(
    ("jitter", "delays"),
    [("full", [0.5, 0.5, 3.0]), ("equal", [0.75, 1.25, 3.5]), ("spring", [1.5, 2.5, 3.5])],
)
def test_jitter_is_exact_with_injected_random_numbers(jitter, delays):
    virtual = VirtualClock()
    template = RetryTemplate(
        SimpleRetryPolicy(4),
        ExponentialBackoff(initial=1.0, maximum=4.0, jitter=jitter),
        clock=virtual,
        random=ScriptedRandom([0.5, 0.25, 0.75]),
    )
    template.outcome(refusing)
    assert virtual.sleeps == delays


@pytest.mark.statement("S0-63")
def test_attempt_timeout_is_exact_on_a_virtual_loop():
    async def hangs():
        await asyncio.sleep(HOUR)  # virtual seconds

    virtual = VirtualClock()
    template = RetryTemplate(attempt_timeout=0.5, backoff=FixedBackoff(1.0), clock=virtual)
    outcome = run(template.outcome_async(hangs), clock=virtual)
    assert (outcome.attempts, type(outcome.exception).__name__) == (3, "AttemptTimeoutError")
    assert virtual.monotonic() == 3.5


@pytest.mark.statement("S0-63")
def test_attempt_timeout_is_exact_in_a_virtual_run_of_trio():
    async def hangs():
        await trio.sleep(HOUR)  # virtual seconds

    virtual = VirtualClock()
    template = RetryTemplate(attempt_timeout=0.5, backoff=FixedBackoff(1.0), clock=virtual)
    outcome = run_trio(template.outcome_async, hangs, clock=virtual)
    assert (outcome.attempts, type(outcome.exception).__name__) == (3, "AttemptTimeoutError")
    assert virtual.monotonic() == 3.5


def events_of(template, **settings):
    """The events of one failing call, as comparable values."""
    recorder = Recorder()
    changed = template.with_(
        listeners=[recorder], random=ScriptedRandom([0.9, 0.1, 0.4]), **settings
    )
    changed.outcome(refusing)
    return [(event.hook, event.attempt, repr(event.value)) for event in recorder.events]


@pytest.mark.statement("S0-64")
def test_run_without_waits_uses_the_path_of_production(monkeypatch):
    template = RetryTemplate(SimpleRetryPolicy(3), ExponentialBackoff(initial=HOUR, jitter="full"))
    really = []
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", really.append)
        in_production = events_of(template)
    with no_waiting() as skipped:
        switched_off = events_of(template)
    virtual = VirtualClock()
    on_virtual_time = events_of(template, clock=virtual)
    assert in_production == switched_off == on_virtual_time
    assert really == skipped.sleeps == virtual.sleeps
    assert [value for hook, _, value in in_production if hook == "on_backoff"] == list(
        map(repr, really)
    )
    assert len(really) == 2


class NoOpSleep(SystemClock):
    """The sample's sleep: it does nothing, and no time passes."""

    def monotonic(self):
        return 17.0

    def sleep(self, delay):
        pass

    async def sleep_async(self, delay):
        pass


@pytest.mark.statement("S0-65")
@pytest.mark.parametrize("backoff", [FixedBackoff(0.0), FixedBackoff(0.2)])
def test_two_failures_and_a_value_take_three_calls_and_no_time(backoff):
    calls = []

    def work():
        calls.append(len(calls) + 1)
        if len(calls) < 3:
            raise ValueError(f"call {len(calls)}")
        return "ok"

    template = RetryTemplate(
        SimpleRetryPolicy(3, retry_on=ValueError), backoff=backoff, clock=NoOpSleep()
    )
    outcome = template.outcome(work)
    assert (calls, outcome.value, outcome.attempts, outcome.elapsed) == ([1, 2, 3], "ok", 3, 0.0)
    calls.clear()
    outcome = asyncio.run(template.outcome_async(work))
    assert (calls, outcome.value, outcome.attempts, outcome.elapsed) == ([1, 2, 3], "ok", 3, 0.0)

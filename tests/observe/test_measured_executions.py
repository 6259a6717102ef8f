"""Measurements of executions: durations, outcomes, retries, failures."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from retrytemplate import (
    Deadline,
    FixedBackoff,
    Guard,
    MemoryRetryContextCache,
    MisuseError,
    Rejected,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
)
from retrytemplate.control import CircuitBreaker
from retrytemplate.observe import InMemoryMetrics, Observer
from retrytemplate.testing import VirtualClock
from tests.support.failing_cache import Down

POLICY = SimpleRetryPolicy(3, retry_on=OSError)


class Failing:
    """Takes 2 seconds; fails a number of times, then returns."""

    def __init__(self, clock, times, error=OSError):
        self.clock, self.times, self.error = clock, times, error

    def __call__(self):
        self.clock.advance(2.0)
        self.times -= 1
        if self.times >= 0:
            raise self.error("down")
        return "value"


class Observed:
    """A template with an observer of metrics."""

    def __init__(self, observer=None, **settings):
        self.clock = VirtualClock()
        self.metrics = InMemoryMetrics()
        values = {"policy": POLICY, "backoff": FixedBackoff(0.5), "name": "charge"} | settings
        options = observer or {}
        self.template = RetryTemplate(
            listeners=[Observer(metrics=[self.metrics], **options)], clock=self.clock, **values
        )

    def failing(self, times, error=OSError):
        return Failing(self.clock, times, error)

    def shown(self, name):
        """Counts, or the number and sum of durations, by label values."""
        values = self.metrics.read(name)
        return {
            key: value if isinstance(value, float) else (value.count, value.sum)
            for key, value in values.items()
        }


def call(made: Observed, function: Callable[[], object]):
    made.template.outcome(function)


def call_async(made: Observed, function: Callable[[], object]):
    async def asynchronous():
        return function()

    asyncio.run(made.template.outcome_async(asynchronous))


both = pytest.mark.parametrize("outcome_of", [call, call_async])


@both
def test_success_at_first_attempt_has_its_duration(outcome_of):
    made = Observed()
    outcome_of(made, made.failing(0))
    assert made.shown("call.duration") == {("charge", "success"): (1, 2.0)}
    assert made.shown("attempt.duration") == {("charge", "success"): (1, 2.0)}
    assert made.shown("retries") == {}


@both
@pytest.mark.statement("S0-50")
@pytest.mark.statement("S0-51")
def test_success_at_third_attempt_is_two_retries(outcome_of):
    made = Observed()
    outcome_of(made, made.failing(2))
    assert made.shown("call.duration") == {("charge", "success_after_retry"): (1, 7.0)}
    assert made.shown("attempt.duration") == {
        ("charge", "error"): (2, 4.0),
        ("charge", "success"): (1, 2.0),
    }
    assert made.shown("retries") == {("charge", "OSError"): 2.0}
    assert made.shown("backoff.time") == {("charge",): 1.0}
    assert made.shown("call.failures") == {}


@both
@pytest.mark.statement("S0-50")
def test_failed_call_is_counted_with_reason_and_error(outcome_of):
    made = Observed()
    outcome_of(made, made.failing(9))
    assert made.shown("call.duration") == {("charge", "failed"): (1, 7.0)}
    assert made.shown("attempt.duration") == {("charge", "error"): (3, 6.0)}
    assert made.shown("call.failures") == {("charge", "attempts_exhausted", "OSError"): 1.0}


@pytest.mark.statement("S0-50")
def test_first_attempt_success_ratio_can_be_read():
    made = Observed()
    for times in (0, 0, 0, 1):
        made.template.outcome(made.failing(times))
    calls = {outcome: count for (_, outcome), (count, _) in made.shown("call.duration").items()}
    assert calls == {"success": 3, "success_after_retry": 1}


def test_function_without_a_template_name_is_the_template():
    made = Observed(name=None)
    made.template.outcome(len, 17)
    assert made.shown("call.failures") == {("len", "not_retryable", "TypeError"): 1.0}


def test_recovered_call_has_its_outcome():
    made = Observed()
    made.template.bind(recovery=lambda context: "other").call(made.failing(9))
    assert made.shown("call.duration") == {("charge", "recovered"): (1, 7.0)}
    assert made.shown("call.failures") == {}


def test_call_rejected_by_a_component_has_a_rejected_attempt():
    made = Observed()
    breaker = CircuitBreaker("billing")
    breaker.force_open(by="ada", reason="incident 17")
    made.template.outcome(breaker.call, len, "abc")
    assert made.shown("call.duration") == {("charge", "rejected"): (1, 0.0)}
    assert made.shown("attempt.duration") == {("charge", "rejected"): (1, 0.0)}


def test_call_rejected_by_a_guard_has_no_attempt():
    class Closed(Guard):
        def admit(self, context):
            raise Rejected("closed")

    made = Observed(guards=[Closed()])
    made.template.outcome(made.failing(0))
    assert made.shown("call.duration") == {("charge", "rejected"): (1, 0.0)}
    assert made.shown("attempt.duration") == {}


def test_cancelled_call_has_its_outcome_and_no_attempt():
    made = Observed()

    async def main():
        task = asyncio.ensure_future(made.template.execute_async(lambda _: asyncio.sleep(60)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    assert made.shown("call.duration") == {("charge", "cancelled"): (1, 0.0)}
    assert made.shown("attempt.duration") == {}


def test_redelivered_key_counts_each_delivery_once():
    made = Observed(cache=MemoryRetryContextCache(), backoff=FixedBackoff(0.0))
    fails = made.failing(2)
    for _ in range(3):
        made.template.bind(state=RetryState("order-17")).outcome(fails)
    assert made.shown("call.duration") == {
        ("charge", "redelivered"): (2, 4.0),
        ("charge", "success_after_retry"): (1, 2.0),
    }
    assert made.shown("attempt.duration") == {
        ("charge", "error"): (2, pytest.approx(4.0)),
        ("charge", "success"): (1, 2.0),
    }
    assert made.shown("retries") == {("charge", "OSError"): 2.0}
    assert made.shown("backoff.time") == {}


def test_redelivery_for_the_recovery_makes_no_attempt():
    made = Observed(cache=MemoryRetryContextCache(), policy=SimpleRetryPolicy(1))
    bound = made.template.bind(state=RetryState("order-17"), recovery=lambda context: None)
    for _ in range(2):
        bound.outcome(made.failing(9))
    assert made.shown("attempt.duration") == {("charge", "error"): (1, pytest.approx(2.0))}
    assert {outcome for _, outcome in made.shown("call.duration")} == {"redelivered", "recovered"}


def test_key_in_progress_is_a_rejected_call():
    made = Observed(cache=MemoryRetryContextCache())
    bound = made.template.bind(state=RetryState("order-17"))
    bound.call(lambda: bound.outcome(made.failing(0)))
    assert made.shown("call.duration") == {
        ("charge", "rejected"): (1, 0.0),
        ("charge", "success"): (1, 0.0),
    }


def test_uncounted_failure_after_a_retry_has_the_time_of_its_attempt():
    made = Observed()
    errors = iter([OSError, MisuseError])
    made.template.outcome(made.failing(2, lambda text: next(errors)(text)))
    assert made.shown("attempt.duration") == {("charge", "error"): (2, 4.0)}


def test_lost_attempt_is_counted():
    cache = Down(lambda step, record: False)
    made = Observed(cache=cache, backoff=FixedBackoff(0.0))
    bound = made.template.bind(state=RetryState("order-17"))
    bound.outcome(made.failing(1))
    cache.lost = "gone:1"  # as if a second delivery had crashed
    bound.call(made.failing(0))
    assert made.shown("attempt.lost") == {("charge",): 1.0}
    assert made.shown("attempt.duration")["charge", "success"] == (1, 2.0)


def test_overrun_is_counted():
    made = Observed(attempt_timeout=1.0)
    made.template.call(made.failing(0))
    assert made.shown("attempt.overruns") == {("charge",): 1.0}


@pytest.mark.statement("S1-132")
async def test_timed_out_attempt_is_counted():
    made = Observed(attempt_timeout=0.001, policy=SimpleRetryPolicy(2))

    async def slow():
        await asyncio.Event().wait()

    await made.template.outcome_async(slow)
    operation = f"{__name__}.test_timed_out_attempt_is_counted.<locals>.slow"
    assert made.shown("timeouts") == {
        (operation, "attempt", "true"): 1.0,
        (operation, "attempt", "false"): 1.0,
    }


@both
@pytest.mark.statement("S1-39")
@pytest.mark.statement("S1-140")
def test_remaining_time_is_recorded_at_each_attempt(outcome_of):
    made = Observed(observer={"deadlines": True})
    with Deadline(10.0, clock=made.clock):
        outcome_of(made, made.failing(1))
    [((operation, dependency), recorded)] = made.shown("deadline.remaining").items()
    assert operation.rpartition(".")[2] in ("Failing", "asynchronous")
    assert (dependency, recorded) == ("charge", (2, 10.0 + 7.5))


def test_without_a_deadline_no_remaining_time_is_recorded():
    made = Observed(observer={"deadlines": True})
    made.template.call(made.failing(0))
    assert made.shown("deadline.remaining") == {}


def test_label_is_the_name_that_a_call_sets():
    made = Observed()

    def rename():
        current_context().name = "charge-eu"

    made.template.call(rename)
    assert made.shown("call.duration") == {("charge-eu", "success"): (1, 0.0)}


def block(made, fails):
    with suppress(OSError):
        for attempt in made.template.attempts():
            with attempt:
                fails()


def block_async(made, fails):
    async def main():
        with suppress(OSError):
            async for attempt in made.template.attempts():
                with attempt:
                    fails()

    asyncio.run(main())


@pytest.mark.parametrize("use", [block, block_async])
@pytest.mark.parametrize(
    ("times", "outcomes"),
    [(0, {"success": 1}), (2, {"success_after_retry": 1}), (9, {"failed": 1})],
)
def test_block_is_measured_as_a_call(use, times, outcomes):
    made = Observed()
    use(made, made.failing(times))
    shown = {outcome: number for (_, outcome), (number, _) in made.shown("call.duration").items()}
    assert shown == outcomes
    attempts = made.shown("attempt.duration").values()
    assert sum(number for number, _ in attempts) == min(times, 2) + 1
    assert sum(total for _, total in attempts) == 2.0 * (min(times, 2) + 1)

"""A rate limiter: admission, waiting, rejection and events; and that no permit is lost."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import count

import pytest
import trio

from retrytemplate import (
    BackoffInterruptedError,
    Deadline,
    FixedBackoff,
    KillSwitchActiveError,
    MisuseError,
    RateLimitedError,
    RetryAfterBackoff,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.clock import SystemClock
from retrytemplate.control import (
    Bulkhead,
    CallDelayed,
    CallRejected,
    ControlListener,
    KillSwitch,
    Pipeline,
    RateLimiter,
    RateLimiterSnapshot,
    Strategy,
    Timeout,
)
from retrytemplate.testing import VirtualClock, no_waiting
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.support.event_loops import LOOPS

loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])


class Recording(ControlListener):
    """Collects the events."""

    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)


def limiter_of(clock=None, **settings):
    settings = {"permits": 1, "per": 1.0, "max_wait": 60.0} | settings
    return RateLimiter("billing", clock=clock or VirtualClock(), **settings)


def free(limiter):
    shown = limiter.snapshot()
    return shown.available, shown.waiting


def until(condition):
    """Wait until the condition holds."""
    over = threading.Event()
    for _ in range(int(JOIN_TIMEOUT / 0.001)):
        if condition():
            return
        over.wait(0.001)
    raise AssertionError("not reached")


# -- admission and rejection -----------------------------------------------------------------------


@pytest.mark.statement("S3-31")
def test_call_without_a_permit_is_rejected_with_the_exact_time():
    clock = VirtualClock()
    limiter = limiter_of(clock, permits=4, per=2.0, burst=2, max_wait=0.0)
    assert [limiter.call(int, "17"), limiter.call(int, "18")] == [17, 18]
    with pytest.raises(RateLimitedError, match="has no permit: the next one is free in") as raised:
        limiter.call(int)
    assert (raised.value.name, raised.value.retry_after) == ("billing", 0.5)
    clock.advance(0.5)
    assert limiter.call(int, "19") == 19


def test_wrapped_calls_take_permits_on_the_system_clock():
    limiter = RateLimiter("billing", permits=2, per=3600)
    wrapped = limiter.wrap(lambda text: int(text))

    @limiter.wrap
    async def waits():
        return 17

    assert wrapped("17") == 17
    assert asyncio.run(waits()) == 17
    for call in (lambda: wrapped("17"), lambda: asyncio.run(waits()), limiter.acquire):
        with pytest.raises(RateLimitedError):
            call()
    shown = limiter.snapshot()
    assert (shown.admitted, shown.rejected, shown.available) == (2, 3, 0)


def test_limiter_is_a_strategy_and_rejects_unawaited_results():
    limiter = limiter_of(permits=10)
    assert isinstance(limiter, Strategy)

    async def fn():
        return 17

    for call in (limiter.call, lambda fn: limiter.wrap(lambda: fn())()):
        with pytest.raises(MisuseError, match=r"use call_async\(\)"):
            call(fn)
    assert asyncio.run(limiter.call_async(fn)) == 17
    assert asyncio.run(limiter.call_async(int, "17")) == 17


def test_tokens_are_the_cost_of_a_call():
    limiter = limiter_of(permits=100, max_wait=0.0)
    limiter.acquire(99)
    assert [limiter.try_acquire(2), limiter.try_acquire(), limiter.try_acquire()] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("tokens", [0, -1, 11, 1.5, "1", True + 10])
def test_tokens_out_of_range_are_rejected(tokens):
    limiter = limiter_of(permits=100, burst=10)
    for call in (limiter.acquire, limiter.try_acquire):
        with pytest.raises((ValueError, TypeError), match="tokens must be"):
            call(tokens)
    with pytest.raises((ValueError, TypeError), match="tokens must be"):
        limiter.guard(tokens=tokens)
    assert free(limiter) == (10, 0)


def test_snapshot_has_all_counts():
    limiter = limiter_of(permits=2, per=4.0, max_wait=3.0)
    for _ in range(3):
        limiter.acquire()
    with pytest.raises(RateLimitedError):
        limiter.acquire(2)
    assert limiter.snapshot() == RateLimiterSnapshot(
        name="billing",
        permits=2,
        per=4.0,
        burst=2,
        available=0,
        waiting=0,
        keys=0,
        admitted=3,
        delayed=1,
        rejected=1,
        evicted=0,
    )


# -- waiting ---------------------------------------------------------------------------------------


def test_thread_waits_exactly_until_its_permit_is_due():
    clock = VirtualClock()
    limiter = limiter_of(clock, permits=4, burst=2)
    for _ in range(5):
        limiter.acquire()
    assert clock.sleeps == [0.25, 0.25, 0.25]


@loops
def test_tasks_wait_exactly_and_in_the_order_of_their_arrival(loop):
    clock, made = VirtualClock(), []
    limiter = limiter_of(clock, permits=4, burst=2)
    numbers = count()

    async def work():
        number = next(numbers)
        await limiter.acquire_async()
        made.append((number, clock.monotonic()))

    loop.run_virtually(lambda: in_order(loop, [work] * 6), clock)
    assert made == [(0, 0.0), (1, 0.0), (2, 0.25), (3, 0.5), (4, 0.75), (5, 1.0)]


async def cut_after(loop, function, seconds):
    """Await the function, and cancel it after that time."""
    if loop is LOOPS[0]:
        with suppress(TimeoutError):
            await asyncio.wait_for(function(), seconds)
    else:
        with trio.move_on_after(seconds):
            await function()


async def in_order(loop, functions):
    """Start the functions in this order, also in trio."""
    turns = [loop.event() for _ in functions]

    async def started(number, function):
        if number:
            await turns[number].wait()
        if number + 1 < len(turns):
            turns[number + 1].set()
        await function()

    await loop.together(
        *(
            lambda number=number, function=function: started(number, function)
            for number, function in enumerate(functions)
        )
    )


def test_skipped_waits_of_the_system_clock_take_no_time():
    limiter = RateLimiter("billing", permits=1, per=60.0, max_wait=600.0)
    with no_waiting() as clock:
        limiter.acquire()
        limiter.acquire()

        async def main():
            await limiter.acquire_async()

        asyncio.run(main())
    assert [round(each) for each in clock.sleeps] == [60, 60]


@loops
def test_limiter_with_a_clock_of_its_own_sleeps_on_it(loop):
    clock = VirtualClock()
    limiter = limiter_of(clock)

    async def main():
        await limiter.acquire_async()
        await limiter.acquire_async()

    loop.run(main)
    assert clock.sleeps == [1.0]


def test_wait_longer_than_max_wait_is_rejected_at_once():
    clock = VirtualClock()
    limiter = limiter_of(clock, max_wait=timedelta(seconds=2))
    limiter.acquire()
    limiter.pause(1.5)
    with pytest.raises(RateLimitedError) as raised:
        limiter.acquire()
    assert (raised.value.retry_after, clock.sleeps, free(limiter)) == (2.5, [], (0, 0))


@pytest.mark.parametrize(("seconds", "floor"), [(0.9, 0.0), (1.4, 0.5)])
def test_wait_that_the_deadline_cannot_cover_is_rejected(seconds, floor):
    clock = VirtualClock()
    limiter = limiter_of(clock)
    limiter.acquire()
    with Deadline(60.0, clock=clock, floor=floor), Deadline(seconds, clock=clock):
        limiter_floor = limiter
        if floor:
            with Deadline(seconds, floor=floor, clock=clock), pytest.raises(RateLimitedError):
                limiter_floor.acquire()
        else:
            with pytest.raises(RateLimitedError):
                limiter.acquire()
    assert (clock.sleeps, limiter.snapshot().waiting) == ([], 0)
    with Deadline(1.5, floor=floor, clock=clock):
        limiter.acquire()
    assert clock.sleeps == [1.0]


def test_call_that_waits_is_stopped_by_a_kill_switch():
    switch = KillSwitch()

    class Stopping(VirtualClock):
        def sleep(self, delay):
            super().sleep(delay)
            reason = "charged twice, incident 9"
            switch.stop(segment="billing", reason=reason, by="kim", permanent=True)

    limiter = limiter_of(Stopping())
    pipeline = Pipeline(switch.guard(segment="billing"), limiter)
    pipeline.call(int)
    with pytest.raises(KillSwitchActiveError):
        pipeline.call(int)
    assert limiter.snapshot().waiting == 0


def test_interrupted_sleep_ends_the_wait_and_returns_the_permit():
    clock = VirtualClock(interrupt_at=1)
    limiter = limiter_of(clock)
    limiter.acquire()
    with pytest.raises(BackoffInterruptedError, match=r"wait for a permit .* was interrupted"):
        limiter.acquire()
    clock.advance(1.0)
    assert free(limiter) == (1, 0)


def test_stop_event_of_the_clock_ends_the_wait():
    stop = threading.Event()
    limiter = limiter_of(SystemClock(stop=stop), per=3600.0, max_wait=3600.0)
    limiter.acquire()
    stop.set()
    with pytest.raises(BackoffInterruptedError):
        limiter.acquire()
    with pytest.raises(BackoffInterruptedError):
        asyncio.run(limiter.acquire_async())


# -- cancellation ----------------------------------------------------------------------------------


@loops
def test_cancelled_task_returns_its_permit_and_others_move_forward(loop):
    clock, made = VirtualClock(), []
    limiter = limiter_of(clock)

    async def work():
        await limiter.acquire_async()
        made.append(clock.monotonic())

    async def gives_up():
        await cut_after(loop, limiter.acquire_async, 0.5)

    async def main():
        await limiter.acquire_async()
        await in_order(loop, [gives_up, work, work])

    loop.run_virtually(main, clock)
    assert made == [1.0, 2.0]
    assert limiter.snapshot().waiting == 0


@loops
@pytest.mark.parametrize("steps", range(4))
def test_task_cancelled_at_any_point_loses_no_permit(loop, steps):
    clock, turns = VirtualClock(), count()
    limiter = limiter_of(clock)

    async def main():
        await limiter.acquire_async()
        await loop.cancelled(limiter.acquire_async, lambda: next(turns) >= steps)

    loop.run_virtually(main, clock)
    assert limiter.snapshot().waiting == 0
    limiter.acquire()
    assert sum(clock.sleeps) <= 1.0
    assert clock.monotonic() == 1.0


def test_interrupted_thread_returns_its_permit():
    clock = VirtualClock(interrupt_at=1, interrupt_with=KeyboardInterrupt)
    limiter = limiter_of(clock)
    limiter.acquire()
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire()
    limiter.acquire()
    assert clock.sleeps == [1.0, 1.0]
    assert clock.monotonic() == 1.0


def test_permit_of_a_closed_loop_passes_to_the_next_waiter():
    limiter = RateLimiter("billing", permits=1, per=3600.0, max_wait=9 * 3600.0)
    limiter.acquire()

    async def wait():
        await limiter.acquire_async()

    loop = asyncio.new_event_loop()
    left = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    left._log_destroy_pending = False
    loop.close()
    limiter.resize(permits=2)
    assert limiter.snapshot().waiting == 0


# -- threads and tasks -----------------------------------------------------------------------------


def test_threads_take_exactly_the_permits_of_the_burst(switching):
    limiter = RateLimiter("billing", permits=500, per=3600 * 500.0)
    wrapped = limiter.wrap(lambda: 17)

    def work(number):
        taken = 0
        for _ in range(60):
            with suppress(RateLimitedError):
                taken += limiter.try_acquire() if number % 2 else wrapped() == 17
        return taken

    with ThreadPoolExecutor(32) as pool:
        assert sum(pool.map(work, range(32))) == 500
    assert limiter.snapshot().admitted == 500


def test_threads_and_tasks_of_both_loops_share_one_order():
    limiter = RateLimiter("billing", permits=1, per=3600.0, max_wait=99 * 3600.0)
    functions = [
        limiter.acquire,
        lambda: LOOPS[0].run(limiter.acquire_async),
        lambda: LOOPS[1].run(limiter.acquire_async),
    ]
    limiter.acquire()
    with ThreadPoolExecutor(6) as pool:
        futures = []
        for number in range(6):
            futures.append(pool.submit(functions[number % 3]))
            until(lambda number=number: limiter.snapshot().waiting == number + 1)
        queue = list(limiter._admission.limits.single.queue)
        kinds = [type(each.waiter) for each in queue]
        dues = [each.due - queue[0].due for each in queue]
        limiter.resize(per=1e-6)
        for each in futures:
            each.result(JOIN_TIMEOUT)
    assert kinds[:3] == kinds[3:]
    assert len(set(kinds)) == 3
    assert dues == [pytest.approx(3600.0 * number) for number in range(6)]
    assert (limiter.snapshot().admitted, limiter.snapshot().waiting) == (7, 0)


@pytest.mark.stress
@loops
def test_thousand_tasks_cancelled_at_random_keep_the_count(loop):
    from random import Random

    clock, random, made = VirtualClock(), Random(17), []
    limiter = limiter_of(clock, permits=10, max_wait=1000.0)

    async def work():
        await limiter.acquire_async()
        made.append(clock.monotonic())

    async def given_up():
        await cut_after(loop, work, random.uniform(0, 40))

    async def main():
        await loop.together(*[work] * 900, *[given_up] * 100)

    loop.run_virtually(main, clock)
    assert 900 <= len(made) <= 1000
    assert made == sorted(made)
    assert all(
        late - early >= 1.0 - 1e-6 for early, late in zip(made[10:], made[20:], strict=False)
    )
    assert limiter.snapshot().waiting == 0


# -- pause and resize ------------------------------------------------------------------------------


def test_pause_holds_back_all_calls_and_leaves_no_burst():
    clock = VirtualClock()
    limiter = limiter_of(clock, permits=10, max_wait=0.0)
    limiter.pause(30.0)
    limiter.pause(5.0)  # a shorter one ends no longer one
    with pytest.raises(RateLimitedError) as raised:
        limiter.acquire()
    assert raised.value.retry_after == pytest.approx(30.1)
    clock.advance(30.11)
    assert [limiter.try_acquire() for _ in range(2)] == [True, False]


@loops
def test_pause_holds_back_calls_that_wait(loop):
    clock, made = VirtualClock(), []
    limiter = limiter_of(clock)

    async def work():
        await limiter.acquire_async()
        made.append(clock.monotonic())

    async def pauses():
        await clock.sleep_async(0.5)
        limiter.pause(10.0)

    async def main():
        await limiter.acquire_async()
        await in_order(loop, [work, work, pauses])

    loop.run_virtually(main, clock)
    assert made == [11.5, 12.5]


@loops
def test_pause_rejects_calls_that_cannot_wait_so_much_longer(loop):
    clock = VirtualClock()
    limiter = limiter_of(clock, max_wait=5.0)

    async def work():
        with pytest.raises(RateLimitedError) as raised:
            await limiter.acquire_async()
        return clock.monotonic(), raised.value.retry_after

    async def main():
        await limiter.acquire_async()
        results = []

        async def waits():
            results.append(await work())

        async def pauses():
            await clock.sleep_async(0.5)
            limiter.pause(10.0)

        await in_order(loop, [waits, pauses])
        return results

    assert loop.run_virtually(main, clock) == [(0.5, 11.0)]
    assert (limiter.snapshot().waiting, limiter.snapshot().rejected) == (0, 1)


@loops
def test_higher_rate_admits_waiting_calls_earlier(loop):
    clock, made = VirtualClock(), []
    limiter = limiter_of(clock, per=10.0, burst=1)

    async def work():
        await limiter.acquire_async()
        made.append(clock.monotonic())

    async def resizes():
        await clock.sleep_async(1.0)
        limiter.resize(per=1.0)

    async def main():
        await limiter.acquire_async()
        await in_order(loop, [work, work, resizes])

    loop.run_virtually(main, clock)
    assert made == [pytest.approx(1.9), pytest.approx(2.9)]


def test_resize_of_the_longest_wait_applies_to_later_calls():
    clock = VirtualClock()
    limiter = RateLimiter("billing", permits=1, per=10.0, clock=clock)
    limiter.acquire()
    with pytest.raises(RateLimitedError):
        limiter.acquire()
    limiter.resize(max_wait=10.0)
    began = clock.monotonic()
    limiter.acquire()
    assert (clock.monotonic() - began, limiter.max_wait, limiter.permits) == (10.0, 10.0, 1)


def test_resize_changes_the_given_settings_only():
    limiter = limiter_of(permits=10, per=2.0)
    limiter.resize(permits=20)
    assert (limiter.permits, limiter.per, limiter.burst) == (20, 2.0, None)
    assert limiter.snapshot().burst == 20
    limiter.resize(burst=3, per=timedelta(seconds=1))
    assert (limiter.permits, limiter.per, limiter.burst, limiter.snapshot().burst) == (
        20,
        1.0,
        3,
        3,
    )


@pytest.mark.parametrize("given", [{"permits": 0}, {"per": 0}, {"burst": 0}, {"per": float("inf")}])
def test_resize_to_a_wrong_number_changes_nothing(given):
    limiter = limiter_of(permits=10)
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(given))} must be"):
        limiter.resize(**given)
    assert (limiter.permits, limiter.per, limiter.burst) == (10, 1.0, None)


def test_setting_of_a_limiter_cannot_be_assigned():
    limiter = limiter_of()
    with pytest.raises(AttributeError, match=r"use resize\(\)"):
        limiter.permits = 3


# -- keys ------------------------------------------------------------------------------------------


def test_each_key_has_a_limit_and_so_have_calls_without_a_key():
    limiter = limiter_of(per_key=True, max_wait=0.0)
    for key in ("kim", ("lee", 3), None):
        limiter.acquire(key=key)
        with pytest.raises(RateLimitedError):
            limiter.acquire(key=key)
    assert limiter.snapshot().keys == 3


def test_key_without_a_limit_per_key_is_a_misuse():
    limiter = limiter_of()
    for call in (limiter.acquire, limiter.try_acquire, limiter.guard):
        with pytest.raises(MisuseError, match="one limit for all keys"):
            call(key="kim")
    with pytest.raises(MisuseError, match="one limit for all keys"):
        asyncio.run(limiter.acquire_async(key="kim"))


def test_snapshot_counts_keys_in_use_and_evicted_ones():
    clock = VirtualClock()
    limiter = limiter_of(clock, per_key=True, max_keys=2)
    for key in "abc":
        limiter.acquire(key=key)
    assert (limiter.snapshot().keys, limiter.snapshot().evicted) == (2, 1)
    clock.advance(60.0)
    assert limiter.snapshot().keys == 0


# -- as a guard ------------------------------------------------------------------------------------


class Down(Exception):
    """The error of a failing call."""


def failing():
    raise Down


def test_guard_takes_a_permit_for_each_attempt_and_none_for_a_recovery():
    clock = VirtualClock()
    limiter = limiter_of(clock, permits=10)
    template = RetryTemplate(
        SimpleRetryPolicy(3), FixedBackoff(0), guards=[limiter.guard()], clock=clock
    )
    assert template.bind(recovery=lambda context: "kept").call(failing) == "kept"
    assert limiter.snapshot().admitted == 3
    assert asyncio.run(template.call_async(int, "17")) == 17
    assert limiter.snapshot().admitted == 4


def test_guard_makes_each_attempt_wait_and_rejects_the_first_one():
    clock = VirtualClock()
    limiter = limiter_of(clock, max_wait=1.0)
    template = RetryTemplate(
        SimpleRetryPolicy(3), FixedBackoff(0.25), guards=[limiter.guard()], clock=clock
    )
    assert template.outcome(failing).attempts == 3
    assert clock.monotonic() == 2.0
    limiter.pause(60.0)
    outcome = template.outcome(int)
    assert (type(outcome.exception), outcome.attempts) == (RateLimitedError, 0)


@loops
def test_guard_of_a_task_waits_without_blocking_the_loop(loop):
    clock = VirtualClock()
    limiter = limiter_of(clock)
    template = RetryTemplate(guards=[limiter.guard()], clock=clock)
    seen = []

    async def call():
        await template.call_async(lambda: seen.append(clock.monotonic()))

    loop.run_virtually(lambda: loop.together(call, call, call), clock)
    assert seen == [0.0, 1.0, 2.0]


def test_guard_has_a_cost_and_a_key_of_the_context():
    limiter = limiter_of(permits=10, per_key=True, max_wait=0.0)
    guard = limiter.guard(tokens=6, key=lambda context: context.name)
    for name in ("a", "b"):
        RetryTemplate(guards=[guard], name=name).call(int)
    assert isinstance(
        RetryTemplate(guards=[guard], name="a").outcome(int).exception, RateLimitedError
    )
    assert limiter.try_acquire(4, key="a")
    RetryTemplate(guards=[limiter.guard(key="c")]).call(int)
    assert not limiter.try_acquire(10, key="c")


def test_rejection_named_by_a_rule_is_retried_when_a_permit_is_free():
    clock = VirtualClock()
    limiter = limiter_of(clock, max_wait=0.0)
    limiter.acquire()
    template = RetryTemplate(
        SimpleRetryPolicy(2, retry_on=RateLimitedError),
        RetryAfterBackoff(FixedBackoff(9.0), jitter=0.0),
        clock=clock,
    )
    assert template.call(limiter.call, int, "17") == 17
    assert clock.sleeps == [1.0]
    assert RetryTemplate(clock=clock).outcome(limiter.call, int).attempts == 1


# -- events ----------------------------------------------------------------------------------------


def test_events_have_the_wait_of_a_delay_and_the_error_of_a_rejection():
    listener = Recording()
    limiter = limiter_of(max_wait=1.0, listeners=[listener])
    limiter.acquire()
    limiter.acquire()
    limiter.pause(5.0)
    with pytest.raises(RateLimitedError) as raised:
        limiter.acquire()
    assert listener.events == [
        CallDelayed(name="billing", wait=1.0),
        CallRejected(name="billing", error=raised.value),
    ]


# -- in a pipeline ---------------------------------------------------------------------------------


def rules(*layers):
    return [each.rule for each in Pipeline(*layers).lint()]


def test_pipeline_describes_the_rate_and_adds_the_wait():
    pipeline = Pipeline(limiter_of(permits=50, burst=10, max_wait=0.5))
    assert "50 calls per 1 s, at most 10 at the same moment, the next wait up to 0.5 s" in (
        pipeline.explain()
    )
    assert pipeline.worst_case(attempt_duration=1.0) == 1.5
    keyed = limiter_of(permits=1, per_key=True, max_wait=0)
    assert (
        keyed.describe() == "1 call per 1 s for each key, at most 1 at the same moment, none waits"
    )


def test_limiter_inside_a_bulkhead_is_reported_if_calls_wait():
    assert rules(Bulkhead("b"), limiter_of()) == ["rate-limiter-inside-bulkhead"]
    assert rules(limiter_of(), Bulkhead("b")) == []
    assert rules(Bulkhead("b"), limiter_of(max_wait=0)) == []


def test_wait_longer_than_the_limit_around_it_is_reported():
    template = RetryTemplate(
        SimpleRetryPolicy(1, retry_on=ConnectionError), attempt_timeout=2.0, name="charge"
    )
    assert "max-wait-exceeds-limit" in rules(Timeout(30.0), template, limiter_of(max_wait=3.0))
    assert "max-wait-exceeds-limit" not in rules(Timeout(30.0), template, limiter_of(max_wait=1.0))
    assert rules(Timeout(1.0), limiter_of(max_wait=3.0))[0] == "max-wait-exceeds-limit"


def test_pipeline_takes_a_permit_for_each_attempt_of_a_template_outside():
    limiter = limiter_of(permits=10, max_wait=0.0)
    template = RetryTemplate(SimpleRetryPolicy(3), FixedBackoff(0))
    assert Pipeline(template, limiter).outcome(failing).attempts == 3
    assert limiter.snapshot().admitted == 3


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": ""}, "name must be a non-blank str"),
        ({"permits": 0}, "permits must be"),
        ({"permits": 0.5}, "permits must be"),
        ({"permits": 10**400}, "permits must be"),
        ({"per": 0}, "per must be"),
        ({"per": float("inf")}, "per must be"),
        ({"burst": 0}, "burst must be"),
        ({"per": 1e-300, "permits": 10**300}, "permits, per and burst must be closer"),
        ({"max_wait": -1}, "max_wait must be"),
        ({"max_wait": float("inf")}, "max_wait must be"),
        ({"per_key": 1}, "per_key must be True or False"),
        ({"max_keys": 0}, "max_keys must be"),
        ({"listeners": [17]}, "listeners"),
        ({"clock": 17}, "clock must be"),
    ],
)
def test_limiter_with_wrong_settings_is_rejected(given, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        RateLimiter(**{"name": "billing", **given})


@pytest.mark.parametrize("seconds", [-1, float("inf"), "30"])
def test_pause_of_a_wrong_length_is_rejected(seconds):
    with pytest.raises((TypeError, ValueError), match="seconds must be"):
        limiter_of().pause(seconds)

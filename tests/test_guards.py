"""Guards: when they are called, and for which attempts."""

import asyncio
import weakref
from dataclasses import dataclass

import pytest

from retrytemplate import (
    AttemptTimeout,
    Deadline,
    FixedBackoff,
    Guard,
    KillSwitchActiveError,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    current_context,
)
from retrytemplate.testing import VirtualClock


class Stop(Guard):
    """Rejects from the moment it is on, in nested templates as well."""

    inherited = True

    def __init__(self):
        self.on = False
        self.queries = 0

    def admit(self, context):
        self.queries += 1
        if self.on:
            raise KillSwitchActiveError("stopped")


class Fault(Exception):
    """The error of the innermost calls."""


def by_call(template, fn):
    return template.call(fn)


def by_execute(template, fn):
    return template.execute(lambda context: fn())


def by_wrap(template, fn):
    return template.wrap(fn)()


def by_block(template, fn):
    for attempt in template.attempts():
        with attempt:
            attempt.result = fn()
    return attempt.result


def by_state(template, fn):
    return template.execute(lambda context: fn(), state=RetryState.untracked())


RETRYING = [by_call, by_execute, by_wrap, by_block]
DRIVERS = [*RETRYING, by_state]


async def call_async(template, fn):
    return await template.call_async(fn)


async def execute_async(template, fn):
    return await template.execute_async(lambda context: fn())


async def wrap_async(template, fn):
    return await template.wrap(fn)()


async def block_async(template, fn):
    async for attempt in template.attempts():
        async with attempt:
            attempt.result = await fn()
    return attempt.result


ASYNC_DRIVERS = [call_async, execute_async, wrap_async, block_async]


@pytest.fixture
def stop():
    return Stop()


@pytest.fixture
def calls(stop):
    """The calls of the innermost function: it always fails; the third call enables the stop."""
    made = []

    def fail():
        made.append(current_context())
        if len(made) == 3:
            stop.on = True
        raise Fault

    return made, fail


@pytest.mark.parametrize("inner_driver", RETRYING)
@pytest.mark.parametrize("outer_driver", DRIVERS)
def test_inherited_guard_is_called_before_attempts_of_inner_templates(
    stop, calls, outer_driver, inner_driver
):
    made, fail = calls
    outer, inner = RetryTemplate(guards=[stop]), RetryTemplate(SimpleRetryPolicy(10))
    with pytest.raises(KillSwitchActiveError):
        outer_driver(outer, lambda: inner_driver(inner, fail))
    assert len(made) == 3
    assert stop.queries == 1 + 4  # the one outside, and before each attempt inside


@pytest.mark.parametrize("inner_driver", ASYNC_DRIVERS)
@pytest.mark.parametrize("outer_driver", ASYNC_DRIVERS)
def test_inherited_guard_is_called_in_tasks(stop, calls, outer_driver, inner_driver):
    made, fail = calls
    outer, inner = RetryTemplate(guards=[stop]), RetryTemplate(SimpleRetryPolicy(10))

    async def failing():
        fail()

    async def inside():
        return await inner_driver(inner, failing)

    with pytest.raises(KillSwitchActiveError):
        asyncio.run(outer_driver(outer, inside))
    assert len(made) == 3


@pytest.mark.parametrize("driver", DRIVERS)
def test_first_inner_attempt_may_be_rejected(stop, driver):
    def work():
        stop.on = True
        return driver(RetryTemplate(), pytest.fail)

    with pytest.raises(KillSwitchActiveError):
        RetryTemplate(guards=[stop]).call(work)


@pytest.mark.parametrize("policy", [SimpleRetryPolicy(3), TimeoutRetryPolicy(60)], ids=["a", "b"])
@pytest.mark.parametrize("inner_driver", RETRYING)
def test_inner_rejection_is_not_recovered_outside(stop, calls, policy, inner_driver):
    _, fail = calls
    inner = RetryTemplate(SimpleRetryPolicy(10))
    recovered = []
    between = RetryTemplate(policy, recovery=recovered.append)
    outer = RetryTemplate(policy, guards=[stop], recovery=recovered.append)
    with pytest.raises(KillSwitchActiveError):
        outer.call(between.call, lambda: inner_driver(inner, fail))
    assert not recovered


def test_group_with_an_inner_rejection_is_not_recovered(stop):
    def work():
        stop.on = True
        stopped = RetryTemplate().outcome(pytest.fail).exception
        raise ExceptionGroup("two at once", [Fault(), stopped])

    recovered = []
    with pytest.raises(ExceptionGroup):
        RetryTemplate(guards=[stop], recovery=recovered.append).call(work)
    assert not recovered


def test_rule_that_names_the_rejection_makes_it_a_failure(stop):
    def work():
        stop.on = True
        RetryTemplate().call(pytest.fail)

    policy = SimpleRetryPolicy(1, KillSwitchActiveError)
    outer = RetryTemplate(policy, guards=[stop], recovery=lambda context: "later")
    assert outer.call(work) == "later"


def test_delivery_stopped_inside_keeps_its_state(stop, calls):
    _, fail = calls
    recovered = []
    outer = RetryTemplate(guards=[stop], recovery=recovered.append).bind(state=RetryState("17"))
    inner = RetryTemplate(SimpleRetryPolicy(10))
    for _ in range(3):
        with pytest.raises(KillSwitchActiveError):
            outer.call(inner.call, fail)
    assert not recovered
    stop.on = False
    assert outer.execute(lambda context: (context.attempt, context.retry_count)) == (1, 0)


def test_inherited_guard_is_called_through_other_templates(stop, calls):
    made, fail = calls
    between, inner = RetryTemplate(), RetryTemplate(SimpleRetryPolicy(10))
    with pytest.raises(KillSwitchActiveError):
        RetryTemplate(guards=[stop]).call(between.call, inner.call, fail)
    assert len(made) == 3


@pytest.mark.parametrize("driver", RETRYING)
def test_enclosing_deadline_changes_nothing(stop, calls, driver):
    made, fail = calls
    inner = RetryTemplate(SimpleRetryPolicy(10))

    def inside():
        with Deadline(50):
            assert Deadline.current().remaining() <= 50
            return driver(inner, fail)

    with Deadline(100), pytest.raises(KillSwitchActiveError):
        driver(RetryTemplate(guards=[stop]), inside)
    assert len(made) == 3


@pytest.mark.parametrize("timeout", [50.0, AttemptTimeout(50.0, in_thread=True)])
@pytest.mark.parametrize("driver", RETRYING[:3])
def test_attempt_timeout_changes_nothing(stop, calls, driver, timeout):
    made, fail = calls
    inner = RetryTemplate(SimpleRetryPolicy(10))
    outer = RetryTemplate(guards=[stop], attempt_timeout=timeout)
    with pytest.raises(KillSwitchActiveError):
        driver(outer, lambda: driver(inner, fail))
    assert len(made) == 3


def test_limit_of_each_block_changes_nothing(stop, calls):
    made, fail = calls
    outer = RetryTemplate(guards=[stop], attempt_timeout=50.0)
    with pytest.raises(KillSwitchActiveError):
        by_block(outer, lambda: RetryTemplate(SimpleRetryPolicy(10)).call(fail))
    assert len(made) == 3


def test_guard_is_no_deadline(stop):
    def work():
        assert Deadline.current() is None
        with Deadline(7.0) as deadline:
            assert deadline.remaining() > 6
            assert not deadline.is_shortened
        clock = VirtualClock()
        waiting = RetryTemplate(SimpleRetryPolicy(2), FixedBackoff(1e9), clock=clock)
        assert waiting.outcome(int, "x").attempts == 2
        return clock.sleeps

    assert RetryTemplate(guards=[stop]).call(work) == [1e9]


def test_kept_deadline_keeps_no_other_object(stop):
    kept = []

    def work():
        kept.append(Deadline.current())

    def around(context):
        with Deadline(50):
            RetryTemplate(guards=[stop], attempt_timeout=50.0).call(work)
        return weakref.ref(context)

    assert RetryTemplate().execute(around)() is None
    assert kept[0].remaining() > 40


def test_guard_of_both_templates_is_called_by_each(stop):
    template = RetryTemplate(guards=[stop])
    assert template.call(template.call, int, "17") == 17
    assert stop.queries == 2


@dataclass
class Switch(Guard):
    """Equal to every other object with the same state."""

    inherited = True
    on: bool = False

    def admit(self, context):
        if self.on:
            raise KillSwitchActiveError("stopped")


def test_equal_guard_is_called_as_well():
    outer, inner = Switch(), Switch()

    def work():
        inner.on = True
        return RetryTemplate().call(pytest.fail)

    with pytest.raises(KillSwitchActiveError):
        RetryTemplate(guards=[outer]).call(RetryTemplate(guards=[inner]).call, work)


def test_guard_that_is_not_inherited_is_not_called_inside(stop):
    stop.inherited = False
    assert RetryTemplate(guards=[stop]).call(RetryTemplate().call, int, "17") == 17
    assert stop.queries == 1


@pytest.mark.parametrize("driver", DRIVERS)
def test_guard_is_not_called_after_its_template_ends(stop, driver):
    RetryTemplate(guards=[stop]).call(int, "17")
    assert driver(RetryTemplate(), lambda: 17) == 17
    assert stop.queries == 1


class Both(Guard):
    """Supports synchronous and asynchronous calls, and records which one was used."""

    def __init__(self, *, inherited=False):
        self.inherited = inherited
        self.queries = []

    def admit(self, context):
        self.queries.append("admit")

    async def admit_async(self, context):
        await asyncio.sleep(0)
        self.queries.append("admit_async")


def test_asynchronous_guard_is_awaited_in_async_code():
    guard = Both()
    template = RetryTemplate(guards=[guard])
    asyncio.run(template.call_async(int, "17"))
    assert guard.queries == ["admit_async"]


def test_guard_is_called_directly_in_synchronous_code():
    guard = Both()
    RetryTemplate(guards=[guard]).call(int, "17")
    assert guard.queries == ["admit"]


def test_inherited_guard_is_awaited_as_the_inner_template_requires():
    guard = Both(inherited=True)

    async def inside():
        await RetryTemplate().call_async(int, "17")
        RetryTemplate().call(int, "17")

    asyncio.run(RetryTemplate(guards=[guard]).call_async(inside))
    assert guard.queries == ["admit_async", "admit_async", "admit"]

"""Executions whose parts the garbage collector closes in any order."""

import types

import pytest

from retrytemplate import (
    FixedBackoff,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate._engine.execution_state import Torn
from retrytemplate.testing import Recorder


@types.coroutine
def suspension():
    yield


def hook(name):
    """A listener whose hook of this name never returns."""

    async def waits(self, *arguments):
        await suspension()

    return [type("Waiting", (RetryListener,), {name: waits})()]


class EndlessSleep:
    """A clock whose asynchronous sleep never returns."""

    def time(self):
        return 0.0

    monotonic = time

    def sleep(self, seconds):
        raise AssertionError

    async def sleep_async(self, seconds):
        await suspension()


def inner_generator(coroutine):
    """The innermost generator of the engine, in which the coroutine is suspended."""
    while coroutine.cr_code.co_name != "perform_async":
        coroutine = coroutine.cr_await
    return innermost(coroutine.cr_frame.f_locals["steps"])


def innermost(steps):
    while isinstance(steps.gi_yieldfrom, types.GeneratorType):
        steps = steps.gi_yieldfrom
    return steps


@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({"listeners": hook("before_attempt")}, 0),
        ({"listeners": hook("on_error")}, 1),
        ({"backoff": FixedBackoff(1.0), "clock": EndlessSleep()}, 1),
    ],
    ids=["before_attempt", "on_error", "backoff"],
)
def test_coroutine_whose_inner_generator_is_closed_first_starts_no_attempt(settings, calls):
    made = []

    def fails():
        made.append(1)
        raise ValueError

    coroutine = RetryTemplate(SimpleRetryPolicy(3), **settings).call_async(fails)
    coroutine.send(None)
    inner_generator(coroutine).close()
    coroutine.close()
    assert len(made) == calls


@pytest.mark.parametrize("state", [None, RetryState("m1", remember=60.0)])
def test_block_whose_inner_generator_is_closed_first_is_no_success(state):
    template = RetryTemplate(SimpleRetryPolicy(3), listeners=[Recorder()])
    loop = template.attempts(state=state)

    def items():
        for attempt in loop:
            with attempt:
                yield attempt.attempt

    suspended = items()
    next(suspended)
    innermost(loop._driver.steps).close()
    suspended.close()
    assert [type(each) for each in template.listeners[0].values("close")] == [Torn]
    assert template.cache.peek("s:m1") is None


async def raises_when_closed():
    try:
        await suspension()
    finally:
        raise RuntimeError("no running event loop")  # as a cleanup in the collector may


@pytest.mark.parametrize("state", [None, RetryState("m1", remember=60.0)])
def test_attempt_whose_cleanup_raises_is_no_success(state):
    template = RetryTemplate(SimpleRetryPolicy(3), listeners=[Recorder()])
    coroutine = template.bind(state=state).call_async(raises_when_closed)
    coroutine.send(None)
    inner_generator(coroutine).close()
    with pytest.raises((GeneratorExit, RuntimeError)):
        coroutine.throw(GeneratorExit())
    [ended] = template.listeners[0].values("close")
    assert ended is not None
    assert template.cache.peek("s:m1") is None


def test_backoff_whose_inner_generator_is_closed_first_keeps_its_failure():
    def fails():
        raise ValueError

    template = RetryTemplate(
        SimpleRetryPolicy(3), FixedBackoff(1.0), clock=EndlessSleep(), listeners=[Recorder()]
    )
    coroutine = template.call_async(fails)
    coroutine.send(None)
    inner_generator(coroutine).close()
    coroutine.close()
    assert [type(each) for each in template.listeners[0].values("close")] == [ValueError]

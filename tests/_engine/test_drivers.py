"""Executions whose parts the garbage collector closes in any order."""

import types

import pytest

from retrytemplate import FixedBackoff, RetryListener, RetryTemplate, SimpleRetryPolicy


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
    steps = coroutine.cr_frame.f_locals["steps"]
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

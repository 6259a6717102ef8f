"""Frequent complaints about other retry libraries: one test for each.

Some are held in full elsewhere:

| pain | held by |
|---|---|
| tests wait for real | ``tests/testing/test_users_tests.py`` |
| Retry-After is do-it-yourself | ``tests/backoff/test_retry_after*.py`` |
| tracebacks are hidden | ``tests/_engine/test_wrapping.py``, at its end |
| generators are silently not retried | ``tests/_engine/test_wrapping.py`` |
| decorated functions become untyped | ``tests/typing/`` |
| memory of failed attempts is kept | ``tests/test_no_leaks.py`` |
| logging is too loud by default | ``tests/listeners/test_logging.py`` |
| shared breaker state is wrong | ``tests/control/breaker/redis/``, "Pain 20" |
| half-open lets everybody in | ``tests/control/breaker/test_concurrency.py`` |
| ... from all processes | ``tests/control/breaker/redis/``, "Pain 21" |
"""

import ast
import asyncio
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import retrytemplate
from retrytemplate import (
    AttemptTimeoutError,
    Deadline,
    DeadlineExceededError,
    ExponentialBackoff,
    FixedBackoff,
    ResultRetryPolicy,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    UnacceptableResultError,
)
from retrytemplate.testing import AsyncRecorder, ScriptedRandom, VirtualClock, run
from tests.support.runners import Script, every_driver, made


def test_hung_attempt_does_not_prevent_the_retry():
    clock = VirtualClock()
    template = made(3, attempt_timeout=2.0, clock=clock)
    calls = []

    @template.wrap
    async def fetch():
        calls.append(clock.monotonic())
        if len(calls) < 3:
            await clock.sleep_async(10**6)
        return "answer"

    assert run(fetch(), clock=clock) == "answer"
    assert calls == [0.0, 2.0, 4.0]


def test_attempt_timeouts_stay_within_the_total_limit():
    clock = VirtualClock()
    template = made(9, attempt_timeout=50.0, clock=clock)

    async def fetch():
        async with Deadline(120.0, clock=clock):
            await template.call_async(clock.sleep_async, 10**6)

    with pytest.raises(DeadlineExceededError):
        run(fetch(), clock=clock)
    assert clock.monotonic() == 120.0


@pytest.mark.parametrize("cut", [True, False], ids=["cancelled", "notified"])
def test_total_limit_ends_the_call(cut):
    clock = VirtualClock()
    template = made(99, delay=2.0, clock=clock)

    async def attempt():
        await clock.sleep_async(1.0)
        raise OSError

    async def body():
        deadline = Deadline(5.5, clock=clock)
        if cut:
            async with deadline:
                await template.call_async(attempt)
        else:
            with deadline:
                await template.call_async(attempt)

    with pytest.raises(DeadlineExceededError) as caught:
        run(body(), clock=clock)
    assert isinstance(caught.value.__cause__, OSError)
    assert clock.monotonic() == 4.0, "1 + 2 + 1: a further wait does not fit"


async def test_one_retried_function_used_concurrently_keeps_its_state():
    numbers = {"a": [], "b": []}

    @made(3).wrap
    async def shared(name):
        numbers[name].append(retrytemplate.current_context().attempt)
        await asyncio.sleep(0)
        if len(numbers[name]) < 3:
            raise OSError
        return name

    assert await asyncio.gather(shared("a"), shared("b")) == ["a", "b"]
    assert numbers == {"a": [1, 2, 3], "b": [1, 2, 3]}


def test_number_of_attempts_of_one_call_is_available():
    template = made(3)
    left = ["x", "x", "1"]

    assert template.outcome(int, "1").attempts == 1
    assert template.outcome(lambda: int(left.pop(0))).attempts == 3
    with pytest.raises(ValueError) as caught:
        template.call(int, "x")
    assert "3 attempts failed" in caught.value.__notes__[0]


@every_driver
def test_delay_may_depend_on_the_exception_without_a_class(driver):
    def delay(failures, exception):
        return 0.0 if isinstance(exception, ConnectionError) else 10.0 * failures

    template = made(4, backoff=FixedBackoff(delay))
    driver(template, Script(TimeoutError(), ConnectionError(), TimeoutError(), "value"))
    assert [each for each in template.clock.sleeps if each] == [10.0, 30.0]


@every_driver
def test_caller_gets_the_real_error(driver):
    failure = OSError("the real one")
    with pytest.raises(OSError) as caught:
        driver(made(3), Script(failure))
    assert caught.value is failure
    assert (failure.__cause__, failure.__context__) == (None, None)


def test_retrying_all_but_one_type_swallows_no_cancellation():
    calls = []
    template = made(policy=SimpleRetryPolicy(1000, not_on=KeyError))

    @template.wrap
    async def fetch():
        calls.append(1)
        await asyncio.Event().wait()

    async def body():
        await asyncio.wait_for(fetch(), 1.0)

    with pytest.raises(TimeoutError) as caught:
        run(body(), clock=template.clock)
    assert not isinstance(caught.value, AttemptTimeoutError)
    assert calls == [1]


def test_functions_removed_in_later_pythons_are_not_called():
    going = {"iscoroutinefunction", "get_event_loop", "get_event_loop_policy"}
    package = Path(retrytemplate.__file__).parent
    used = {
        f"{path.name}: asyncio.{node.attr}"
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in going
        and ast.unparse(node.value) == "asyncio"
    }
    assert used == set()


def test_run_time_value_is_read_at_every_call():
    settings = {"attempts": 2, "delay": 1.0}
    template = made(
        policy=SimpleRetryPolicy(lambda: settings["attempts"]),
        backoff=FixedBackoff(lambda: settings["delay"]),
    )

    @template.wrap
    def fetch():
        raise OSError

    for attempts, delay in ((2, 1.0), (4, 5.0)):
        settings.update(attempts=attempts, delay=delay)
        template.clock.sleeps.clear()
        with pytest.raises(OSError):
            fetch()
        assert template.clock.sleeps == [delay] * (attempts - 1)


def test_full_jitter_with_a_time_limit_does_not_end_too_early():
    clock = VirtualClock()
    template = RetryTemplate(
        TimeoutRetryPolicy(10.0),
        ExponentialBackoff(initial=1.0, maximum=4.0, jitter="full"),
        clock=clock,
        random=ScriptedRandom([0.01, 0.02, 0.05, 0.9], cycle=True),
    )

    assert template.outcome(int, "x").attempts > 9
    assert clock.monotonic() > 10.0


async def test_listeners_may_be_asynchronous():
    recorder = AsyncRecorder()

    @made(2, listeners=[recorder]).wrap
    async def fetch():
        raise OSError

    with pytest.raises(OSError):
        await fetch()
    assert recorder.hooks[0] == "open"
    assert len(recorder.errors) == 2
    assert recorder.hooks[-1] == "close"


def test_trio_works_without_a_given_sleep():
    calls = []

    @RetryTemplate(backoff=FixedBackoff(60.0)).wrap
    async def fetch():
        calls.append(trio.current_time())
        if len(calls) < 3:
            raise OSError
        return "answer"

    assert trio.run(fetch, clock=MockClock(autojump_threshold=0)) == "answer"
    assert [round(call - calls[0]) for call in calls] == [0, 60, 120]


class TryAgain(Exception):
    """Raised by a callback that wants another attempt."""


@every_driver
def test_request_for_another_attempt_keeps_the_last_error(driver):
    policy = SimpleRetryPolicy(3, TryAgain)
    last = TryAgain("still not there")
    callback = Script(TryAgain("not yet"), TryAgain("not yet"), last)

    with pytest.raises(TryAgain) as caught:
        driver(made(policy=policy), callback)
    assert caught.value is last
    assert callback.calls == 3


@every_driver
def test_rejected_result_is_in_the_last_error(driver):
    policy = ResultRetryPolicy(lambda status: status == 202, SimpleRetryPolicy(3))
    with pytest.raises(UnacceptableResultError, match="202") as caught:
        driver(made(policy=policy), Script(202))
    assert caught.value.result == 202
    assert caught.value.attempts == 3

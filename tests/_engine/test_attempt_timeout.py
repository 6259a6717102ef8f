"""The limit of one attempt: cancelled, abandoned in a thread, or reported when it overran."""

import asyncio
import contextvars
import threading
import traceback
import types
from contextlib import suppress
from datetime import timedelta
from functools import partial
from inspect import signature
from queue import SimpleQueue

import pytest

from retrytemplate import (
    AttemptTimeout,
    AttemptTimeoutError,
    Deadline,
    DeadlineExceededError,
    LoggingListener,
    MisuseError,
    RetryListener,
    RetryState,
    SystemClock,
    current_context,
)
from retrytemplate._internal.threads import Threads
from retrytemplate.testing import AsyncRecorder, Recorder, run, run_trio
from tests.support.gc_probe import left_by
from tests.support.runners import Script, every_driver, in_block, in_thread, made
from tests.support.signal_injection import InterruptsOnly

PATIENCE = 30.0
"""Longest wait, in real seconds, for a step of a thread that takes no time."""


def in_a_thread(seconds=PATIENCE):
    return AttemptTimeout(seconds, in_thread=True)


# -- returned after the limit ----------------------------------------------------------------------


def late_by(template, seconds):
    """A callback that takes longer than its limit and returns; it counts its calls."""
    calls = []

    def callback(context=None):
        calls.append(template.clock.monotonic())
        template.clock.advance(seconds)
        return f"charge {len(calls)}"

    return callback, calls


def discarding(seconds):
    return AttemptTimeout(seconds, on_late_result="discard")


@every_driver
@pytest.mark.parametrize("limits", [{"attempt_timeout": 2.0}, {}], ids=["timeout", "deadline"])
def test_late_attempt_that_returned_is_used_and_not_repeated(driver, limits, caplog):
    template = made(3, **limits)
    callback, calls = late_by(template, 2.5)
    with Deadline(60.0 if limits else 2.0, clock=template.clock):
        assert driver(template, callback) == "charge 1"
    assert calls == [0.0]
    assert [record.name for record in caplog.records] == ["retrytemplate"]


@pytest.mark.parametrize("kept", ["call", "wrap", "execute", "outcome", "bound", "stateful"])
def test_late_synchronous_call_is_kept_by_every_entry_point(kept):
    template = made(3, attempt_timeout=2.0, name="charges")
    callback, calls = late_by(template, 2.5)
    entry_points = {
        "call": lambda: template.call(callback),
        "wrap": template.wrap(callback),
        "execute": lambda: template.execute(callback),
        "outcome": lambda: template.outcome(callback).unwrap(),
        "bound": lambda: template.bind(label="charge").call(callback),
        "stateful": lambda: template.execute(callback, state=RetryState("order-17")),
    }
    assert entry_points[kept]() == "charge 1"
    assert calls == [0.0]


@pytest.mark.parametrize("runs", [run, run_trio])
@pytest.mark.parametrize("limits", [{"attempt_timeout": 2.0}, {}], ids=["timeout", "deadline"])
def test_late_synchronous_function_in_async_template_is_kept(runs, limits):
    template = made(3, **limits)
    callback, calls = late_by(template, 2.5)

    async def body():
        with Deadline(60.0 if limits else 2.0, clock=template.clock):
            plain = await template.call_async(callback)
        async with Deadline(60.0 if limits else 2.0, clock=template.clock):
            return plain, await template.call_async(callback)

    main = body() if runs is run else body
    assert runs(main, clock=template.clock) == ("charge 1", "charge 2")
    assert calls == [0.0, 2.5]


@pytest.mark.parametrize("limits", [{"attempt_timeout": 2.0}, {}], ids=["timeout", "deadline"])
def test_late_first_item_of_a_generator_is_kept(limits):
    template, begun = made(3, **limits), []

    @template.wrap
    def rows():
        begun.append(template.clock.monotonic())
        template.clock.advance(2.5)
        yield "first"
        yield "second"

    with Deadline(60.0 if limits else 2.0, clock=template.clock):
        assert list(rows()) == ["first", "second"]
    assert begun == [0.0]


@every_driver
def test_overrun_is_reported_to_listeners_in_reverse_before_success(driver):
    template = made(3, attempt_timeout=2.0)
    reported, recorder = [], Recorder()
    for name in "ab":
        template.register_listener(
            Overruns(lambda *seen, name=name: reported.append((name, *seen)))
        )
    template.register_listener(recorder)
    assert driver(template, late_by(template, 2.5)[0]) == "charge 1"
    assert reported == [("b", 1, 2.0, 2.5), ("a", 1, 2.0, 2.5)]
    assert recorder.hooks == [
        "open",
        "before_attempt",
        "on_overrun",
        "on_success",
        "on_first_success",
        "close",
    ]
    assert recorder.values("on_overrun") == [(2.0, 2.5)]


class Overruns(RetryListener):
    """Calls a function with the arguments of ``on_overrun``."""

    def __init__(self, function):
        self.function = function

    def on_overrun(self, context, limit, elapsed):
        return self.function(context.attempt, limit, elapsed)


def test_overrun_of_a_deadline_is_reported_with_the_remaining_time():
    template, reported = made(3), []
    template.register_listener(Overruns(lambda *seen: reported.append(seen)))
    with Deadline(2.0, clock=template.clock):
        template.clock.advance(0.5)
        assert template.call(late_by(template, 2.0)[0]) == "charge 1"
    assert reported == [(1, 1.5, 2.0)]


@every_driver
def test_overrun_is_reported_for_its_own_attempt_alone(driver):
    recorder = Recorder()
    template = made(3, attempt_timeout=2.0, listeners=[recorder])
    durations = iter([(2.5, OSError()), (2.25, None)])

    def callback(context):
        seconds, error = next(durations)
        template.clock.advance(seconds)
        if error is not None:
            raise error
        return context.attempt

    assert driver(template, callback) == 2
    assert recorder.values("on_overrun") == [(2.0, 2.25)]


@every_driver
@pytest.mark.parametrize("seconds", [1.5, 2.0])
def test_attempt_within_its_limit_is_no_overrun(driver, seconds, caplog):
    recorder = Recorder()
    template = made(3, attempt_timeout=2.0, listeners=[recorder])
    assert driver(template, late_by(template, seconds)[0]) == "charge 1"
    assert recorder.values("on_overrun") == []
    assert caplog.records == []


@every_driver
def test_error_in_on_overrun_is_logged_and_the_value_returned(driver, caplog):
    events = []
    template = made(3, attempt_timeout=2.0)
    template.register_listener(Overruns(lambda *seen: events.append(seen)))
    template.register_listener(Overruns(lambda *seen: 1 / 0))
    callback, calls = late_by(template, 2.5)
    assert driver(template, callback) == "charge 1"
    assert len(events) == len(calls) == 1
    failed, _ = caplog.records
    assert failed.getMessage() == (
        "the hook Overruns.on_overrun raised an exception, which is ignored"
    )
    assert failed.exc_info[0] is ZeroDivisionError


def test_asynchronous_on_overrun_in_synchronous_use_is_logged(caplog):
    async def awaited(*seen):
        """Not awaited."""

    template = made(1, attempt_timeout=2.0, listeners=[Overruns(awaited)])
    assert template.call(late_by(template, 2.5)[0]) == "charge 1"
    assert caplog.records[0].exc_info[0] is MisuseError


def test_asynchronous_on_overrun_is_awaited():
    recorder = AsyncRecorder()
    template = made(1, attempt_timeout=2.0, listeners=[recorder])
    run(template.call_async(late_by(template, 2.5)[0]), clock=template.clock)
    assert recorder.values("on_overrun") == [(2.0, 2.5)]


@pytest.mark.parametrize("deadline", [False, True])
def test_overrun_is_logged_as_one_plain_warning(deadline, caplog):
    template = made(3, name="charge", **({} if deadline else {"attempt_timeout": 2.0}))
    with Deadline(2.0 if deadline else 60.0, clock=template.clock):
        template.call(late_by(template, 2.125)[0])
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("retrytemplate", "WARNING")
    assert record.getMessage() == (
        f"charge ({__name__}.late_by.<locals>.callback): attempt 1 returned after 2.12 s, "
        "over its limit of 2 s; its value is used"
    )


def test_overrun_is_logged_once_with_a_logging_listener(caplog):
    template = made(3, name="charge", attempt_timeout=2.0, listeners=[LoggingListener()])
    template.call(late_by(template, 2.5)[0])
    (record,) = caplog.records
    assert (record.event, record.template, record.attempt) == ("attempt.overrun", "charge", 1)
    assert record.levelname == "WARNING"


@pytest.mark.parametrize("driver", [in_thread, in_block])
def test_discarded_late_value_is_a_failed_attempt(driver):
    recorder = Recorder()
    template = made(3, attempt_timeout=discarding(2.0), listeners=[recorder])
    durations = iter([2.5, 3.0, 2.0])

    def callback(context):
        template.clock.advance(next(durations))
        return context.attempt

    assert driver(template, callback) == 3, "up to the limit is not too long"
    assert [type(error) for error in recorder.errors] == [AttemptTimeoutError] * 2
    assert recorder.values("on_overrun") == []


@pytest.mark.parametrize("runs", [run, run_trio])
def test_discarded_late_value_of_sync_function_in_async_template_fails(runs):
    template = made(2, attempt_timeout=discarding(2.0))
    callback, calls = late_by(template, 2.5)

    async def body():
        return type((await template.outcome_async(callback)).exception)

    main = body() if runs is run else body
    assert runs(main, clock=template.clock) is AttemptTimeoutError
    assert len(calls) == 2


def test_error_of_a_discarded_value_names_the_limit():
    limit = discarding(timedelta(milliseconds=1500))
    template = made(1, attempt_timeout=limit)
    with pytest.raises(AttemptTimeoutError, match=r"the attempt took longer than 1\.5 seconds"):
        template.execute(lambda context: template.clock.advance(2.0))


def test_outer_deadline_discards_no_value_of_a_discarding_template():
    template = made(1, attempt_timeout=discarding(2.0))
    with Deadline(1.5, clock=template.clock):
        assert template.call(late_by(template, 1.75)[0]) == "charge 1"


@pytest.mark.parametrize(
    ("value", "error"), [("drop", ValueError), (None, TypeError), (True, TypeError)]
)
def test_unknown_on_late_result_is_rejected(value, error):
    with pytest.raises(error, match=f"on_late_result must be 'return' or 'discard', got {value!r}"):
        AttemptTimeout(1.0, on_late_result=value)


@pytest.mark.parametrize("on_late_result", ["return", "discard"])
def test_attempt_that_raises_late_fails_with_its_own_error(on_late_result):
    recorder = Recorder()
    limit = AttemptTimeout(2.0, on_late_result=on_late_result)
    template = made(2, attempt_timeout=limit, listeners=[recorder])
    failure = OSError("its own")

    def callback(context):
        if context.attempt == 1:
            template.clock.advance(3.0)
            raise failure
        return "value"

    assert template.execute(callback) == "value"
    assert recorder.errors == [failure]


@pytest.mark.parametrize("limits", [{"attempt_timeout": 2.0}, {}], ids=["timeout", "deadline"])
def test_late_success_leaves_no_garbage(limits, caplog):
    template = made(1, **limits)

    def call():
        caplog.clear()
        with Deadline(60.0 if limits else 2.0, clock=template.clock):
            template.call(template.clock.advance, 2.5)

    assert left_by(call) == 0


@pytest.mark.statement("S1-32")
@pytest.mark.parametrize(
    ("deadline", "error"),
    [(1.5, DeadlineExceededError), (2.0, DeadlineExceededError), (2.5, AttemptTimeoutError)],
)
def test_attempt_error_names_the_nearer_of_limit_and_deadline(deadline, error):
    template = made(1, attempt_timeout=2.0)

    async def callback(context):
        assert Deadline.current().remaining() == min(deadline, 2.0)
        await template.clock.sleep_async(2.25)

    async def body():
        with Deadline(deadline, clock=template.clock):
            await template.execute_async(callback)

    with pytest.raises(error) as caught:
        run(body(), clock=template.clock)
    assert type(caught.value) is error


@pytest.mark.statement("S0-15")
@pytest.mark.parametrize("nested", [False, True], ids=["", "nested"])
@every_driver
def test_deadline_error_within_an_attempt_limit_fails_that_attempt(driver, nested):
    template = made(2, attempt_timeout=1.0)

    def callback(context):
        if context.attempt == 1:
            template.clock.advance(0.97)
            left = Deadline.after(9.0, clock=template.clock) if nested else Deadline.current()
            left.ensure(minimum=0.05)
        return context.attempt

    assert driver(template, callback) == 2
    with (
        Deadline(0.99, kind="request", clock=template.clock),
        pytest.raises(DeadlineExceededError) as caught,
    ):
        driver(template, callback)
    assert caught.value.kind == "request"


def test_nested_wait_beyond_the_outer_attempt_limit_is_retried_outside():
    outer = made(2, attempt_timeout=1.0)
    inner = made(9, delay=0.75, clock=outer.clock)
    calls = []

    def fails():
        calls.append(outer.clock.monotonic())
        raise OSError

    outcome = outer.outcome(inner.call, fails)
    assert type(outcome.exception) is AttemptTimeoutError
    assert calls == [0.0, 0.75, 0.75, 1.5]


def test_deadline_error_during_an_attempt_has_the_last_failure_as_cause():
    template, failure = made(9), OSError("before")

    async def callback(context):
        if context.attempt == 1:
            raise failure
        await template.clock.sleep_async(2.0)

    async def body():
        with Deadline(1.0, clock=template.clock):
            await template.execute_async(callback)

    with pytest.raises(DeadlineExceededError) as caught:
        run(body(), clock=template.clock)
    assert "during an attempt" in str(caught.value)
    assert caught.value.__cause__ is failure


@every_driver
def test_limit_of_an_attempt_ends_with_it(driver):
    template = made(1, attempt_timeout=2.0)
    recovered = driver(template, Script(OSError()), recovery=lambda context: Deadline.current())
    assert recovered is None


@types.coroutine
def old_fetch():
    yield


async def fetch():
    raise AssertionError("not awaited")


@pytest.mark.parametrize(
    "timeout", [None, 2.0, AttemptTimeout(30.0, in_thread=True)], ids=["none", "plain", "thread"]
)
@pytest.mark.parametrize("function", [fetch, partial(fetch), old_fetch], ids=["", "partial", "old"])
def test_function_with_an_awaitable_in_synchronous_use_is_named(timeout, function):
    template = made(2, attempt_timeout=timeout)
    with (
        Deadline(60.0, clock=template.clock),
        pytest.raises(MisuseError, match=r"^(old_)?fetch returned an awaitable"),
    ):
        template.call(function)


# -- cut -----------------------------------------------------------------------------------------


@pytest.mark.statement("S0-10")
def test_attempt_after_a_cut_one_has_the_whole_limit():
    async def body(template):
        ended = []

        async def hangs():
            left = Deadline.current().remaining()
            try:
                await template.clock.sleep_async(60.0)
            finally:
                ended.append((left, template.clock.monotonic()))

        outcome = await template.outcome_async(hangs)
        return ended, type(outcome.exception)

    expected = ([(2.0, 2.0), (2.0, 4.0)], AttemptTimeoutError)
    template = made(2, attempt_timeout=2.0)
    assert run(body(template), clock=template.clock) == expected
    template = made(2, attempt_timeout=2.0)
    assert run_trio(body, template, clock=template.clock) == expected


@pytest.mark.parametrize("runs", [run, run_trio])
def test_error_of_a_cancelled_attempt_has_the_cancellation_as_its_cause(runs):
    template = made(1, attempt_timeout=2.0)

    async def hangs():
        await template.clock.sleep_async(60.0)

    async def body():
        return (await template.outcome_async(hangs)).exception

    error = runs(body() if runs is run else body, clock=template.clock)
    names = [entry.name for entry in traceback.extract_tb(error.__cause__.__traceback__)]
    assert "hangs" in names


@pytest.mark.parametrize("block", [False, True])
def test_cancelled_attempt_leaves_no_garbage(block):
    template = made(2, attempt_timeout=0.0001, clock=SystemClock())

    async def cut():
        with suppress(AttemptTimeoutError):
            if not block:
                await template.call_async(asyncio.Event().wait)
            else:
                async for attempt in template.attempts():
                    async with attempt:
                        await asyncio.Event().wait()

    async def in_a_task():
        await asyncio.ensure_future(cut())

    with asyncio.Runner() as runner:
        assert left_by(lambda: runner.run(in_a_task())) == 0


@pytest.mark.statement("S0-24")
@pytest.mark.parametrize("first", ["limit", "cancel"])
@pytest.mark.parametrize("limits", [{"attempt_timeout": 2.0}, {}], ids=["timeout", "deadline"])
def test_outer_cancellation_at_the_limit_wins(first, limits):
    async def body(template):
        attempts = []

        async def hangs():
            attempts.append("attempt")
            await template.clock.sleep_async(60.0)

        async def call():
            with Deadline(60.0 if limits else 2.0, clock=template.clock):
                await template.call_async(hangs)

        loop = asyncio.get_running_loop()
        at = loop.time() + 2.0
        if first == "cancel":
            loop.call_at(at, lambda: task.cancel())
        task = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        if first == "limit":
            loop.call_at(at, task.cancel)
        (result,) = await asyncio.gather(task, return_exceptions=True)
        return attempts, type(result)

    template = made(3, attempt_timeout=2.0) if limits else made(3)
    expected = (["attempt"], asyncio.CancelledError)
    assert run(body(template), clock=template.clock) == expected
    assert template.clock.monotonic() == 2.0


@pytest.mark.statement("S0-24")
@pytest.mark.parametrize("seconds", [2.0, 1.0])
def test_outer_trio_scope_that_ends_with_the_limit_wins(seconds):
    import trio

    async def body(template):
        attempts = []

        async def hangs():
            attempts.append("attempt")
            await template.clock.sleep_async(60.0)

        with trio.move_on_after(seconds) as scope:
            await template.call_async(hangs)
        return attempts, scope.cancelled_caught

    template = made(3, attempt_timeout=2.0)
    assert run_trio(body, template, clock=template.clock) == (["attempt"], True)


@pytest.mark.statement("S0-24")
def test_attempt_cut_by_the_template_is_retried():
    async def body(template):
        return await template.call_async(succeeds_the_second_time, template.clock, [])

    async def succeeds_the_second_time(clock, attempts):
        attempts.append("attempt")
        if len(attempts) == 1:
            await clock.sleep_async(60.0)
        return "value"

    template = made(2, attempt_timeout=2.0)
    assert run(body(template), clock=template.clock) == "value"
    template = made(2, attempt_timeout=2.0)
    assert run_trio(body, template, clock=template.clock) == "value"


@pytest.mark.parametrize("deadline", [1.0, 5.0])
def test_asynchronous_attempt_is_cut_at_the_nearer_limit(deadline):
    async def body(template):
        with Deadline(deadline, clock=template.clock):
            return await template.outcome_async(template.clock.sleep_async, 60.0)

    expected = DeadlineExceededError if deadline == 1.0 else AttemptTimeoutError
    template = made(1, attempt_timeout=2.0)
    outcome = run(body(template), clock=template.clock)
    assert (type(outcome.exception), template.clock.monotonic()) == (expected, min(deadline, 2.0))
    template = made(1, attempt_timeout=2.0)
    outcome = run_trio(body, template, clock=template.clock)
    assert (type(outcome.exception), template.clock.monotonic()) == (expected, min(deadline, 2.0))


@types.coroutine
def old_coroutine():
    yield from asyncio.sleep(0).__await__()
    return "value"


@pytest.mark.parametrize("limits", [{"attempt_timeout": 2.0}, {}], ids=["timeout", "deadline"])
def test_awaitable_generator_is_awaited(limits):
    async def body(template):
        with Deadline(5.0, clock=template.clock):
            return await template.call_async(old_coroutine)

    template = made(1, **limits)
    assert run(body(template), clock=template.clock) == "value"


def test_function_that_awaits_nothing_has_a_limit():
    template = made(1, attempt_timeout=2.0)
    assert run(template.call_async(lambda: "value"), clock=template.clock) == "value"


# -- in a thread of its own ----------------------------------------------------------------------


def test_attempt_in_its_thread_returns_its_value():
    limit, threads = in_a_thread(), []

    def callback(context):
        threads.append(threading.current_thread())
        return "value"

    assert made(attempt_timeout=limit).execute(callback) == "value"
    assert threads[0] is not threading.current_thread()
    assert threads[0].daemon, "left behind, it must not hold up the end of the process"
    assert not threads[0].is_alive()
    assert limit.abandoned == 0


def test_each_attempt_has_a_thread_with_its_own_name():
    names = []

    def fails():
        names.append(threading.current_thread().name)
        raise OSError

    assert made(3, attempt_timeout=in_a_thread()).outcome(fails).attempts == 3
    assert len(set(names)) == 3
    assert all(name.startswith("retrytemplate-attempt-") for name in names)


@pytest.mark.parametrize("error", [OSError("its own"), KeyboardInterrupt()], ids=repr)
def test_error_in_the_thread_is_raised_by_the_attempt(error):
    def fails():
        raise error

    with pytest.raises(type(error)) as caught:
        made(2, attempt_timeout=in_a_thread()).call(fails)
    assert caught.value is error


def test_failure_in_a_thread_leaves_no_garbage():
    def fails():
        raise OSError

    def call():
        with suppress(OSError):
            template.call(fails)

    template = made(2, attempt_timeout=in_a_thread())
    assert left_by(call) == 0


def test_failure_in_an_abandoned_thread_leaves_no_garbage():
    threads = SimpleQueue()

    def fails(stop):
        threads.put(threading.current_thread())
        stop.wait()
        raise OSError

    def call():
        with suppress(AttemptTimeoutError):
            template.call(fails)
        threads.get().join()

    template = made(1, attempt_timeout=AttemptTimeout(0.001, in_thread=True))
    assert left_by(call) == 0


def test_thread_has_the_context_variables_of_the_caller():
    colour = contextvars.ContextVar("colour")
    colour.set("blue")

    def callback(context):
        assert current_context() is context
        return colour.get(), Deadline.current() is not None

    assert made(attempt_timeout=in_a_thread()).execute(callback) == ("blue", True)


def test_attempt_in_a_thread_at_its_limit_is_abandoned_and_signalled():
    stopped = threading.Semaphore(0)

    def hangs(context, stop):
        if stop.wait(PATIENCE):
            stopped.release()

    limit = in_a_thread(0.01)
    with pytest.raises(AttemptTimeoutError, match=r"longer than 0\.01 seconds"):
        made(2, attempt_timeout=limit).execute(hangs)
    assert limit.abandoned == 2
    for _ in range(2):
        assert stopped.acquire(timeout=PATIENCE)


def test_value_of_an_abandoned_attempt_is_dropped():
    released, late = threading.Event(), threading.Event()

    def callback(context):
        if context.attempt > 1:
            return "value"
        released.wait(PATIENCE)
        late.set()
        return "too late"

    limit = in_a_thread(0.01)
    template = made(99, attempt_timeout=limit)
    try:
        assert template.execute(callback) == "value"
    finally:
        released.set()
    assert late.wait(PATIENCE)
    assert limit.abandoned >= 1


def test_deadline_limits_an_attempt_in_its_thread():
    limit = in_a_thread()
    template = made(1, attempt_timeout=limit)

    def hangs(stop):
        stop.wait(PATIENCE)

    with Deadline(0.01, clock=template.clock), pytest.raises(DeadlineExceededError):
        template.call(hangs)
    assert limit.abandoned == 1


def test_stop_event_is_passed_to_functions_that_accept_it():
    template = made(1, attempt_timeout=in_a_thread())
    assert template.call(lambda stop=None: stop.is_set()) is False
    assert template.call(lambda *others: others) == ()
    assert template.call(int, "17") == 17
    assert template.call(dict) == {}, "its signature cannot be read"


def copy_range(start, stop):
    return start, stop


def given_no_name(stop=5, /):
    return stop


class Range:
    def __call__(self, start, stop=None):
        return start, stop


@pytest.mark.parametrize(
    ("function", "arguments", "keywords", "value"),
    [
        (copy_range, (1, 5), {}, (1, 5)),
        (copy_range, (1,), {"stop": 5}, (1, 5)),
        (partial(copy_range, 1), (5,), {}, (1, 5)),
        (partial(copy_range, stop=5), (1,), {}, (1, 5)),
        (partial(copy_range, stop=5), (), {"start": 1}, (1, 5)),
        (made(1).wrap(partial(copy_range, stop=5)), (1,), {}, (1, 5)),
        (Range(), (1, 5), {}, (1, 5)),
        (Range(), (1,), {"stop": 5}, (1, 5)),
        (given_no_name, (), {}, 5),
        (lambda **stop: stop, (), {}, {}),
    ],
)
def test_parameter_stop_given_or_positional_only_is_left_unchanged(
    function, arguments, keywords, value
):
    template = made(1, attempt_timeout=in_a_thread())
    assert template.call(function, *arguments, **keywords) == value
    assert template.wrap(function, nested=True)(*arguments, **keywords) == value


def test_stop_event_is_passed_beside_the_given_arguments():
    template = made(1, attempt_timeout=in_a_thread())
    for call in (
        lambda: template.call(copy_range, 1),
        lambda: template.call(copy_range, start=1),
        lambda: template.call(partial(copy_range, 1)),
        lambda: template.call(Range(), 1),
    ):
        start, stop = call()
        assert (start, stop.is_set()) == (1, False)


def test_arguments_that_do_not_fit_are_the_functions_own_error():
    with pytest.raises(TypeError, match="copy_range"):
        made(1, attempt_timeout=in_a_thread()).call(copy_range, 1, 5, 9)


def test_interrupted_caller_abandons_and_stops_the_attempt():
    flags, ended = [], threading.Event()

    def hangs(stop):
        flags.append(stop)
        interrupts.send()
        stop.wait(PATIENCE)
        ended.set()

    limit = in_a_thread()
    with InterruptsOnly(Threads.wait) as interrupts, pytest.raises(KeyboardInterrupt):
        made(2, attempt_timeout=limit).call(hangs)
    assert (flags[0].is_set(), limit.abandoned) == (True, 1)
    assert ended.wait(PATIENCE)


def test_attempt_stays_in_the_thread_of_the_caller_by_default():
    assert not AttemptTimeout(1.0).in_thread
    template = made(attempt_timeout=1.0)
    assert template.call(threading.current_thread) is threading.current_thread()


def test_attempt_timeout_takes_all_but_the_seconds_by_keyword():
    seconds, *rest = signature(AttemptTimeout).parameters.values()
    assert (seconds.name, *(each.name for each in rest)) == (
        *("seconds", "in_thread", "on_late_result"),
    )
    assert {each.kind for each in rest} == {seconds.KEYWORD_ONLY}


def test_limits_of_the_same_seconds_are_equal_after_use():
    used = in_a_thread(0.01)
    made(1, attempt_timeout=used).outcome(lambda stop: stop.wait(PATIENCE))
    assert used.abandoned == 1
    assert used == in_a_thread(0.01)
    assert repr(used) == "AttemptTimeout(seconds=0.01, in_thread=True)"

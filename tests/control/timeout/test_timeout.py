"""A timeout: each call has its own limit, and an error that says which limit it was."""

import asyncio
import copy
import logging
from contextlib import suppress
from itertools import count

import pytest

from retrytemplate import (
    AttemptTimeoutError,
    Deadline,
    DeadlineExceededError,
    FixedBackoff,
    LoggingListener,
    MisuseError,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import (
    CircuitBreaker,
    ControlListener,
    NestedRetries,
    Pipeline,
    Strategy,
    TimedOut,
    Timeout,
)
from retrytemplate.testing import VirtualClock, run, run_trio
from tests.support.gc_probe import left_by


def in_asyncio(main, clock):
    return run(main(), clock=clock)


def in_trio(main, clock):
    return run_trio(main, clock=clock)


runs = pytest.mark.parametrize("runs", [in_asyncio, in_trio], ids=["asyncio", "trio"])


@pytest.fixture
def clock():
    return VirtualClock()


@runs
def test_asynchronous_call_is_cancelled_at_the_limit(runs, clock):
    limited = Timeout(2.0, kind="partner read", clock=clock)

    @limited.wrap
    async def slow(seconds):
        await clock.sleep_async(seconds)
        return "in time"

    async def main():
        assert await slow(1.5) == "in time"
        with pytest.raises(DeadlineExceededError) as raised:
            await slow(60)
        assert (raised.value.kind, raised.value.outcome_unknown) == ("partner read", True)
        assert await limited.call_async(slow, 1.5) == "in time"
        return clock.monotonic()

    assert runs(main, clock) == 5.0


@pytest.mark.parametrize("on_timeout", [None, "substitute"])
def test_late_synchronous_call_is_returned_and_reported(on_timeout, clock, caplog):
    listener = Recorded()
    settings = {} if on_timeout is None else {"on_timeout": on_timeout}
    limited = Timeout(2.0, name="prices", listeners=[listener], clock=clock, **settings)
    charge = charging(clock, 2.5)
    assert limited.call(charge) == "charge 1"
    assert limited.wrap(charge)() == "charge 2"
    assert (
        listener.events
        == [
            TimedOut(
                name="prices",
                operation=f"{__name__}.charging.<locals>.charge",
                kind="request",
                limit=2.0,
                elapsed=2.5,
                abandoned=False,
                error=None,
            )
        ]
        * 2
    )
    assert [(each.name, each.levelname, each.getMessage()) for each in caplog.records] == [
        (
            "retrytemplate",
            "WARNING",
            f"prices: {__name__}.charging.<locals>.charge returned after 2.5 s, over its limit "
            "of 2 s; its value is used",
        )
    ] * 2


def charging(clock, seconds):
    """A function that takes *seconds*; it returns the number of its calls."""
    calls = count(1)

    def charge():
        clock.advance(seconds)
        return f"charge {next(calls)}"

    return charge


@runs
@pytest.mark.parametrize("on_timeout", [None, "substitute"])
def test_late_synchronous_call_in_a_task_is_returned_and_reported(runs, on_timeout, clock):
    listener = Recorded()
    settings = {} if on_timeout is None else {"on_timeout": on_timeout}
    limited = Timeout(2.0, listeners=[listener], clock=clock, **settings)

    async def main():
        return await limited.call_async(charging(clock, 2.5))

    assert runs(main, clock) == "charge 1"
    assert [(each.limit, each.elapsed, each.abandoned) for each in listener.events] == [
        (2.0, 2.5, False)
    ]


def test_synchronous_call_within_its_limit_is_not_reported(clock, caplog):
    listener = Recorded()
    limited = Timeout(2.0, listeners=[listener], clock=clock)
    assert limited.call(charging(clock, 2.0)) == "charge 1"
    assert (listener.events, caplog.records) == ([], [])


@pytest.mark.parametrize("layers", ["template", "pipeline"])
@pytest.mark.parametrize("kind", ["call", "wrap", "call_async"])
def test_late_call_inside_a_template_or_pipeline_is_made_once(layers, kind, clock):
    template = RetryTemplate(SimpleRetryPolicy(3), attempt_timeout=1.0, clock=clock)
    strategy = template
    if layers == "pipeline":
        breaker = CircuitBreaker("billing", clock=clock)
        strategy = Pipeline(Timeout(2.0, clock=clock), template, breaker)
    charge = charging(clock, 2.5)
    if kind == "call_async":
        assert run(strategy.call_async(charge), clock=clock) == "charge 1"
    else:
        assert (strategy.call(charge) if kind == "call" else strategy.wrap(charge)()) == "charge 1"
    assert clock.monotonic() == 2.5


@pytest.mark.parametrize("entry", ["call", "wrap"])
def test_overrun_in_a_pipeline_is_logged_with_the_function(entry, clock, caplog):
    pipeline = Pipeline(Timeout(2.0, clock=clock), CircuitBreaker("billing", clock=clock))
    charge = charging(clock, 2.5)
    pipeline.call(charge) if entry == "call" else pipeline.wrap(charge)()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"timeout: {__name__}.charging.<locals>.charge returned")


@pytest.mark.statement("S1-26")
@runs
def test_late_value_that_is_discarded_is_an_error_of_unknown_outcome(runs, clock):
    listener = Recorded()
    limited = Timeout(2.0, on_late_result="discard", listeners=[listener], clock=clock)
    assert limited.call(clock.advance, 2.0) is None
    with pytest.raises(DeadlineExceededError, match="took longer than 2 seconds") as raised:
        limited.call(clock.advance, 2.5)
    assert (raised.value.kind, raised.value.outcome_unknown) == ("request", True)

    async def main():
        with pytest.raises(DeadlineExceededError, match="took longer than 2 seconds"):
            await limited.call_async(clock.advance, 3.0)

    runs(main, clock)
    assert [event.abandoned for event in listener.events] == [True, True]


def test_substitute_replaces_the_value_of_a_call_that_swallowed_its_cancellation():
    async def partial():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "partial"

    limited = Timeout(0.01, on_timeout="other")
    assert asyncio.run(limited.call_async(partial)) == "other"


@runs
def test_substitute_does_not_replace_a_discarded_value(runs, clock):
    limited = Timeout(2.0, on_late_result="discard", on_timeout="other", clock=clock)
    with pytest.raises(DeadlineExceededError, match="took longer than 2 seconds"):
        limited.call(clock.advance, 2.5)

    async def main():
        with pytest.raises(DeadlineExceededError, match="took longer than 2 seconds"):
            await limited.call_async(clock.advance, 3.0)

    runs(main, clock)


def test_outer_deadline_discards_no_value_of_a_discarding_timeout(clock):
    limited = Timeout(2.0, on_late_result="discard", clock=clock)
    with Deadline(1.5, clock=clock):
        assert limited.call(charging(clock, 1.75)) == "charge 1"


@pytest.mark.parametrize("value", ["drop", None])
def test_timeout_rejects_an_unknown_on_late_result(value):
    with pytest.raises((TypeError, ValueError), match="on_late_result must be 'return' or"):
        Timeout(1.0, on_late_result=value)


def test_called_function_inherits_the_limit(clock):
    def inside():
        return Deadline.current().remaining()

    assert Timeout(2.0, clock=clock).call(inside) == 2.0
    assert Timeout(2.0, clock=clock).wrap(inside)() == 2.0
    assert Deadline.current() is None


@pytest.mark.statement("S0-11")
@pytest.mark.statement("S0-12")
@runs
def test_timeout_around_a_retry_limits_all_attempts_and_waits(runs, clock):
    template = RetryTemplate(
        SimpleRetryPolicy(9), FixedBackoff(1.0), attempt_timeout=1.5, clock=clock
    )
    began = []

    async def hangs():
        began.append(clock.monotonic())
        await clock.sleep_async(60)

    async def main():
        with pytest.raises(DeadlineExceededError) as raised:
            await Timeout(5.0, clock=clock).wrap(template.wrap(hangs))()
        return raised.value

    error = runs(main, clock)
    assert began == [0.0, 2.5]
    assert type(error.__cause__) is AttemptTimeoutError
    # A third attempt would have begun with the limit: neither it nor the wait before it is begun.
    assert (clock.monotonic(), error.kind, error.outcome_unknown) == (4.0, "request", False)


@pytest.mark.statement("S1-25")
@runs
def test_nearer_limit_is_named(runs, clock):
    async def main():
        for outer, inner, kind in ((9.0, 2.0, "database"), (2.0, 9.0, "request")):
            with pytest.raises(DeadlineExceededError) as raised:
                await Timeout(outer, kind="request", clock=clock).call_async(
                    Timeout(inner, kind="database", clock=clock).call_async,
                    clock.sleep_async,
                    60,
                )
            assert raised.value.kind == kind

    runs(main, clock)


@pytest.mark.statement("S4-10")
@runs
def test_on_timeout_replaces_the_result(runs, clock):
    def gives_up():
        clock.advance(60)
        raise TimeoutError("the client's own limit, which was the remaining time")

    async def main():
        for on_timeout in ("later", lambda: "later", None):
            limited = Timeout(1.0, on_timeout=on_timeout, clock=clock)
            answer = await limited.call_async(clock.sleep_async, 60)
            assert answer == (None if on_timeout is None else "later")
            assert limited.call(gives_up) == answer
        assert await Timeout(1.0, on_timeout="later", clock=clock).call_async(int, "17") == 17

    runs(main, clock)


def test_on_timeout_applies_to_its_own_limit_only(clock):
    limited = Timeout(9.0, on_timeout="later", clock=clock)

    def inner():
        raise DeadlineExceededError("another's", kind="another")

    with pytest.raises(DeadlineExceededError, match="another's"):
        limited.call(inner)
    shutdown = Deadline(2.0, kind="shutdown", clock=clock)

    def gives_up():
        clock.advance(3.0)
        raise TimeoutError

    with pytest.raises(DeadlineExceededError) as raised, shutdown:
        limited.call(gives_up)
    assert raised.value.kind == "shutdown"


def test_exception_passes_and_unawaited_result_is_rejected(clock):
    with pytest.raises(ZeroDivisionError):
        Timeout(1.0, clock=clock).call(lambda: 1 / 0)

    async def up():
        """Not awaited."""

    with pytest.raises(MisuseError, match=r"use call_async\(\)"):
        Timeout(1.0, clock=clock).call(lambda: up())


@runs
def test_outer_cancellation_passes(runs, clock):
    async def main():
        if runs is in_trio:
            import trio

            with trio.move_on_after(1.0) as scope:
                await Timeout(5.0, clock=clock).call_async(clock.sleep_async, 60)
            return scope.cancelled_caught
        task = asyncio.ensure_future(Timeout(5.0, clock=clock).call_async(clock.sleep_async, 60))
        await clock.sleep_async(1.0)
        task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0].__class__ is (
            asyncio.CancelledError
        )

    assert runs(main, clock)


# -- what is awaited in it -------------------------------------------------------------------------


async def remote_call(clock):
    await clock.sleep_async(60)


@pytest.mark.statement("S1-21")
@pytest.mark.parametrize("what", ["queue", "lock", "remote call"])
def test_single_awaitable_is_limited_in_asyncio(what, clock):
    async def main():
        lock = asyncio.Lock()
        await lock.acquire()
        awaited = {
            "queue": asyncio.Queue().get,
            "lock": lock.acquire,
            "remote call": lambda: remote_call(clock),
        }
        with pytest.raises(DeadlineExceededError):
            await Timeout(2.0, clock=clock).call_async(awaited[what])
        lock.release()
        await asyncio.sleep(0)
        return lock.locked()

    assert run(main(), clock=clock) is False, "a caller that gave up does not hold it"
    assert clock.monotonic() == 2.0


@pytest.mark.statement("S1-21")
@pytest.mark.parametrize("what", ["queue", "lock", "remote call"])
def test_single_awaitable_is_limited_in_trio(what, clock):
    import trio

    async def main():
        lock, (_, receiving) = trio.Lock(), trio.open_memory_channel(1)
        awaited = {
            "queue": receiving.receive,
            "lock": lock.acquire,
            "remote call": lambda: remote_call(clock),
        }
        async with trio.open_nursery() as nursery:
            started = trio.Event()

            async def holds():
                async with lock:
                    started.set()
                    await clock.sleep_async(9.0)

            nursery.start_soon(holds)
            await started.wait()
            with pytest.raises(DeadlineExceededError):
                await Timeout(2.0, clock=clock).call_async(awaited[what])
            ended = clock.monotonic()
        return ended

    assert run_trio(main, clock=clock) == 2.0


@pytest.mark.parametrize("first", ["item", "limit"])
def test_item_that_arrives_at_the_limit_is_returned_or_stays_queued(first, clock):
    async def main():
        queue, loop = asyncio.Queue(), asyncio.get_running_loop()
        at = loop.time() + 2.0
        if first == "item":
            loop.call_at(at, queue.put_nowait, "item")
        getting = asyncio.ensure_future(Timeout(2.0, clock=clock).call_async(queue.get))
        await asyncio.sleep(0)
        if first == "limit":
            loop.call_at(at, queue.put_nowait, "item")
        (got,) = await asyncio.gather(getting, return_exceptions=True)
        assert isinstance(got, DeadlineExceededError | str)
        return [got] * (got == "item") + [queue.get_nowait() for _ in range(queue.qsize())]

    assert run(main(), clock=clock) == ["item"]


def test_item_that_arrived_in_time_is_returned_by_a_late_loop(clock):
    async def main():
        queue = asyncio.Queue()
        getting = asyncio.ensure_future(Timeout(2.0, clock=clock).call_async(queue.get))
        await asyncio.sleep(0)
        queue.put_nowait("item")
        clock.advance(60)  # something blocks the loop
        return await getting

    assert run(main(), clock=clock) == "item"


def test_shielded_task_continues_and_its_owner_gets_the_result(clock):
    async def main():
        async def works():
            await clock.sleep_async(3.0)
            return "value"

        task = asyncio.ensure_future(works())
        with pytest.raises(DeadlineExceededError):
            await Timeout(2.0, clock=clock).call_async(asyncio.shield, task)
        assert not task.done()
        return await task

    assert run(main(), clock=clock) == "value"
    assert clock.monotonic() == 3.0


@pytest.mark.statement("S1-23")
@runs
def test_steps_with_their_own_limits_end_with_the_outer_limit(runs, clock):
    step = Timeout(1.0, kind="step", clock=clock)
    contract = Timeout(1.5, kind="contract", clock=clock)

    async def steps():
        for _ in range(3):
            await step.call_async(clock.sleep_async, 0.875)

    async def main():
        with pytest.raises(DeadlineExceededError) as raised:
            await contract.call_async(steps)
        return raised.value.kind, clock.monotonic()

    assert runs(main, clock) == ("contract", 1.5)


# -- notifications ---------------------------------------------------------------------------------


class Recorded(ControlListener):
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)


@pytest.mark.statement("S1-20")
@runs
def test_caller_waits_for_the_cleanup_and_event_has_both_times(runs, clock):
    listener = Recorded()
    limited = Timeout(1.0, kind="partner read", name="prices", listeners=[listener], clock=clock)

    async def needs_a_while():
        try:
            await clock.sleep_async(60)
        finally:
            await cleanup()

    async def cleanup():
        if runs is in_trio:
            import trio

            with trio.CancelScope(shield=True):
                await clock.sleep_async(2.0)
        else:
            await clock.sleep_async(2.0)

    async def main():
        with pytest.raises(DeadlineExceededError) as raised:
            await limited.call_async(needs_a_while)
        return raised.value, clock.monotonic()

    error, received = runs(main, clock)
    (event,) = listener.events
    assert (event.name, event.kind, event.limit, event.elapsed) == (
        *("prices", "partner read", 1.0, 3.0),
    )
    assert event.operation.endswith("needs_a_while")
    assert (event.error, received) == (error, 3.0)


def test_record_of_a_cut_attempt_includes_its_cleanup(clock):
    template = RetryTemplate(SimpleRetryPolicy(1), attempt_timeout=1.0, clock=clock)

    async def needs_a_while():
        try:
            await clock.sleep_async(60)
        finally:
            await clock.sleep_async(2.0)

    outcome = run(template.outcome_async(needs_a_while), clock=clock)
    (record,) = outcome.history
    assert (record.ended - record.started, record.message) == (
        *(3.0, "the attempt took longer than 1 seconds"),
    )


@pytest.mark.statement("S0-15")
def test_log_and_event_name_the_operation_and_the_limit(clock, caplog):
    listener = Recorded()
    template = RetryTemplate(
        SimpleRetryPolicy(9, retry_on=TimeoutError),
        attempt_timeout=1.5,
        name="charge",
        listeners=[LoggingListener(failure_level="WARNING")],
        clock=clock,
    )
    limited = Timeout(3.25, kind="checkout", name="shop", listeners=[listener], clock=clock)
    wait = limited.call_async(template.wrap(clock.sleep_async), 2.0)
    with caplog.at_level(logging.INFO, logger="retrytemplate"), pytest.raises(TimeoutError):
        run(wait, clock=clock)
    assert len(caplog.records) == 2
    for number, attempt in enumerate(caplog.records, start=1):
        assert (attempt.template, attempt.attempt, attempt.error_message) == (
            *("charge", number, "the attempt took longer than 1.5 seconds"),
        )
        assert attempt.error_type.endswith("AttemptTimeoutError")
    (event,) = listener.events
    assert (event.name, event.kind, event.limit, event.elapsed) == ("shop", "checkout", 3.25, 3.25)
    assert (event.operation, event.abandoned) == (
        "retrytemplate.testing.clock.VirtualClock.sleep_async",
        True,
    )


def test_only_exceeded_limits_of_nested_ones_are_reported(clock):
    listener = Recorded()
    outer = Timeout(9.0, name="outer", listeners=[listener], clock=clock)
    inner = Timeout(2.0, name="inner", listeners=[listener], clock=clock)
    outer.call(inner.call, clock.advance, 3.0)
    assert [event.name for event in listener.events] == ["inner"]
    outer.call(inner.call, clock.advance, 10.0)
    assert [event.name for event in listener.events] == ["inner", "inner", "outer"]


def test_template_that_starts_no_attempt_is_reported_before_the_limit(clock):
    listener = Recorded()
    template = RetryTemplate(SimpleRetryPolicy(9), FixedBackoff(3.0), clock=clock)
    with pytest.raises(DeadlineExceededError):
        Timeout(4.0, listeners=[listener], clock=clock).call(template.wrap(lambda: 1 / 0))
    (event,) = listener.events
    assert (event.limit, event.elapsed) == (4.0, 3.0)
    assert isinstance(event, TimedOut)


@pytest.mark.statement("S1-22")
@runs
def test_clients_own_timeout_differs_from_the_enclosing_limit(runs, clock):
    import httpx

    listener = Recorded()
    limited = Timeout(2.0, kind="request", listeners=[listener], clock=clock)

    async def slow(seconds):
        await clock.sleep_async(seconds)
        raise httpx.ReadTimeout("the client's own")

    async def main():
        with pytest.raises(httpx.ReadTimeout):
            await limited.call_async(slow, 1.0)
        assert not listener.events
        with pytest.raises(httpx.ReadTimeout):
            limited.call(fails_after(1.0))
        with pytest.raises(DeadlineExceededError) as raised:
            limited.call(fails_after(2.0))
        return raised.value

    def fails_after(seconds):
        def fails():
            clock.advance(seconds)
            raise httpx.ReadTimeout("what was left")

        return fails

    error = runs(main, clock)
    assert (error.kind, error.outcome_unknown) == ("request", True)
    assert type(error.__cause__) is httpx.ReadTimeout
    assert [event.error for event in listener.events] == [error]


def test_client_timeout_without_a_text_counts_as_the_limit(clock):
    class Silent(TimeoutError):
        def __str__(self):
            raise ZeroDivisionError

    def slow():
        clock.advance(3)
        raise Silent

    with pytest.raises(DeadlineExceededError, match="the deadline of 2 seconds is over") as raised:
        Timeout(2.0, clock=clock).call(slow)
    assert type(raised.value.__cause__) is Silent


@pytest.mark.parametrize("on_late_result", ["return", "discard"])
def test_late_call_leaves_no_cycle(on_late_result, clock, caplog):
    limited, nested = (
        Timeout(seconds, on_late_result=on_late_result, clock=clock) for seconds in (2.0, 3.0)
    )

    def late(error):
        clock.advance(4)
        if error is not None:
            raise error

    def call():
        caplog.clear()
        for error in (None, TimeoutError):
            with suppress(DeadlineExceededError):
                limited.call(late, error)
            with suppress(DeadlineExceededError):
                nested.call(limited.call, late, error)

    assert left_by(call) == 0


def test_cut_task_leaves_no_cycle():
    limited = Timeout(0.0001)

    async def cut():
        with suppress(DeadlineExceededError):
            await asyncio.ensure_future(limited.call_async(asyncio.Event().wait))

    with asyncio.Runner() as runner:
        assert left_by(lambda: runner.run(cut())) == 0


def test_other_failure_after_the_limit_is_raised_unchanged(clock):
    def fails():
        clock.advance(9.0)
        raise OSError("its own")

    with pytest.raises(OSError, match="its own"):
        Timeout(2.0, clock=clock).call(fails)


@pytest.mark.statement("S1-36")
def test_timeout_has_a_floor(clock):
    template = RetryTemplate(SimpleRetryPolicy(9), clock=clock)
    began = []

    def fails():
        began.append(clock.monotonic())
        clock.advance(0.75)
        raise OSError

    with pytest.raises(DeadlineExceededError):
        Timeout(2.0, floor=0.625, clock=clock).call(template.wrap(fails))
    assert began == [0.0, 0.75]


# -- deadlines with a name -------------------------------------------------------------------------


@pytest.mark.statement("S1-31")
@pytest.mark.statement("S1-33")
def test_call_that_cannot_end_in_time_is_not_started(clock):
    called = []
    with Deadline(1.0, kind="request", clock=clock) as deadline:
        deadline.ensure(minimum=1.0)
        clock.advance(0.96)
        with pytest.raises(DeadlineExceededError, match=r"0\.04 seconds are left") as raised:
            deadline.ensure()
            called.append(1)
        assert (raised.value.kind, raised.value.outcome_unknown) == ("request", False)
        deadline.ensure(minimum=0)
        clock.advance(1.0)
        with pytest.raises(DeadlineExceededError):
            deadline.ensure(minimum=0)
    assert not called


@pytest.mark.statement("S1-130")
@pytest.mark.parametrize(
    "kind",
    [
        *("request", "partner connect", "partner read", "database statement"),
        *("lock acquire", "queue acknowledgement", "shutdown cleanup", "one of my own"),
    ],
)
def test_pickled_error_keeps_its_limit(kind, clock):
    error = Deadline(1.0, kind=kind, clock=clock).error("over", outcome_unknown=True)
    again = copy.copy(error)  # as pickling does
    assert (again.kind, again.outcome_unknown, str(again)) == (kind, True, "over")


def test_attempt_cut_by_the_deadline_has_an_unknown_outcome(clock):
    template = RetryTemplate(SimpleRetryPolicy(3), clock=clock)

    async def main():
        with Deadline(1.0, kind="job", clock=clock):
            for outcome_unknown in (True, False):  # the second one is not begun
                outcome = await template.outcome_async(clock.sleep_async, 2.0)
                error = outcome.exception
                assert (error.kind, error.outcome_unknown) == ("job", outcome_unknown)

    run(main(), clock=clock)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"seconds": 0}, "seconds must be"),
        ({"seconds": "2"}, "seconds must be"),
        ({"kind": ""}, "kind must be a non-blank str"),
        ({"kind": None}, "kind must be a non-blank str"),
        ({"clock": 17}, "clock must"),
        ({"floor": -1}, "floor must be"),
        ({"name": ""}, "name must be a non-blank str"),
        ({"listeners": [17]}, "listeners: each must be"),
        ({"on_timeout": in_asyncio}, None),
    ],
)
def test_timeout_with_wrong_settings_is_rejected(given, problem):
    if problem is None:
        assert isinstance(Timeout(**{"seconds": 1.0, **given}), Strategy)
        return
    with pytest.raises((TypeError, ValueError), match=problem):
        Timeout(**{"seconds": 1.0, **given})


@runs
def test_substitute_that_is_an_awaitable_is_rejected(runs, clock):
    async def later():
        """Not awaited."""

    limited = Timeout(1.0, on_timeout=lambda: later(), clock=clock)

    def gives_up():
        clock.advance(60)
        raise TimeoutError

    async def main():
        with pytest.raises(MisuseError, match="on_timeout must be synchronous"):
            limited.call(gives_up)
        with pytest.raises(MisuseError, match="on_timeout must be synchronous"):
            await limited.call_async(clock.sleep_async, 60)

    runs(main, clock)


def test_on_timeout_must_not_be_asynchronous():
    async def later():
        """Not awaited."""

    with pytest.raises(TypeError, match="must be synchronous"):
        Timeout(1.0, on_timeout=later)
    with pytest.raises(TypeError, match="kind must be"):
        Deadline(1.0, kind=17)
    with pytest.raises((TypeError, ValueError), match="minimum must be"):
        Deadline(1.0).ensure(minimum=-1)


def timed_out(clock, fn, seconds=10.0, layers=()):
    """The retries in the event of a call that exceeds its limit."""
    kept = []

    class Keeps(ControlListener):
        def on_event(self, event):
            kept.append(event.retries)

    limit = Timeout(seconds, clock=clock, listeners=[Keeps()], on_late_result="discard")
    with suppress(Exception):
        limit.call(fn)
    return kept


@pytest.mark.parametrize("attempt_timeout", [None, 5.0])
def test_event_has_the_number_of_retries_inside_the_limit(attempt_timeout):
    clock = VirtualClock()
    template = RetryTemplate(SimpleRetryPolicy(9), clock=clock, attempt_timeout=attempt_timeout)

    def slow():
        clock.advance(4.0)
        raise OSError("down")

    assert timed_out(clock, lambda: template.call(slow)) == [2]


def test_event_of_a_timeout_without_a_retry_has_none():
    clock = VirtualClock()
    template = RetryTemplate(SimpleRetryPolicy(9), clock=clock)
    assert timed_out(clock, lambda: template.call(clock.advance, 11.0)) == [0]


def test_retries_count_in_every_limit_around_them():
    clock = VirtualClock()
    guard = RetryTemplate(SimpleRetryPolicy(9), clock=clock, guards=[NestedRetries()])

    def slow():
        clock.advance(4.0)
        raise OSError("down")

    def inner():
        with Deadline(60.0, clock=clock):
            guard.call(slow)

    assert timed_out(clock, inner) == [2]

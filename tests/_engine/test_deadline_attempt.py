"""Under a deadline the first attempt runs without the engine and has the same result."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrytemplate import (
    Deadline,
    DeadlineExceededError,
    FixedBackoff,
    Guard,
    MisuseError,
    NoBackoff,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
)
from retrytemplate.testing import VirtualClock, run, run_trio
from tests.support.gc_probe import left_by

LIMIT = 10.0


class Interrupting(BaseException):
    """A base exception: never retried or suppressed."""


class Silent(Guard):
    """Does nothing, but forces the engine path because it must be called."""


# How long an attempt takes, its exception (None: none), and whether it reads its context.
steps = st.tuples(
    st.sampled_from([0.0, 1.0, 4.0, LIMIT, LIMIT + 1]),
    st.sampled_from([None, OSError, ValueError, Interrupting]),
    st.booleans(),
)
scripts = st.lists(steps, min_size=1, max_size=4)


class Execution:
    """One execution of a script, and its observable results."""

    def __init__(self, script, attempts, backoff, recovery, guards):
        self.clock = VirtualClock()
        self.script = iter([*script, *[(0.0, None, True)] * 9])
        self.seen = []
        self.template = RetryTemplate(
            SimpleRetryPolicy(attempts, retry_on=OSError),
            backoff,
            recovery=recovery,
            guards=guards,
            clock=self.clock,
        )

    def begin(self):
        seconds, error, looks = next(self.script)
        left = Deadline.current().remaining()
        self.seen.append([self.clock.monotonic(), left])
        if looks:
            context = current_context()
            self.seen[-1].append(context)
            self.seen[-1].append((context.attempt, context.retry_count, context.elapsed))
            self.seen[-1].append([each.type for each in context.history])
        return seconds, error

    def attempt(self):
        seconds, error = self.begin()
        self.clock.advance(seconds)
        return self.end(error)

    async def attempt_async(self):
        seconds, error = self.begin()
        await self.clock.sleep_async(seconds)
        return self.end(error)

    def end(self, error):
        if error is not None:
            raise error("no")
        return "value"

    def shown(self, value, error):
        contexts = [each.pop(2) for each in self.seen if len(each) > 2]
        ended = self.clock.monotonic()
        self.clock.advance(1.0)  # a closed context measures no time
        after = [(each.closed, each.exhausted, each.elapsed, each.attempt) for each in contexts]
        reported = (
            type(error),
            getattr(error, "kind", None),
            getattr(error, "outcome_unknown", None),
        )
        notes = getattr(error, "__notes__", None)
        return value, reported, notes, ended, self.seen, after

    def in_thread(self, driver):
        value = error = None
        with Deadline(LIMIT, kind="request", clock=self.clock):
            try:
                value = driver(self.template)(self.attempt)
            except BaseException as exc:
                error = exc
        return self.shown(value, error)

    def in_task(self, runs, driver):
        async def main():
            async with Deadline(LIMIT, kind="request", clock=self.clock):
                return await driver(self.template)(self.attempt_async)

        value = error = None
        try:
            value = runs(main, self.clock)
        except BaseException as exc:
            error = exc
        return self.shown(value, error)


DRIVERS = {
    "call": lambda template: template.call,
    "wrap": lambda template: lambda fn: template.wrap(fn)(),
    "execute": lambda template: lambda fn: template.execute(lambda context: fn()),
    "bound": lambda template: template.bind(recovery=template.recovery).call,
}
DRIVERS_ASYNC = {
    "call": lambda template: template.call_async,
    "wrap": lambda template: lambda fn: template.wrap(fn)(),
    "execute": lambda template: lambda fn: template.execute_async(lambda context: fn()),
}
RUNS = {
    "asyncio": lambda main, clock: run(main(), clock=clock),
    "trio": lambda main, clock: run_trio(main, clock=clock),
}
backoffs = st.sampled_from([NoBackoff(), FixedBackoff(2.0)])
recoveries = st.sampled_from([None, lambda context: ("recovered", context.retry_count)])


@pytest.mark.parametrize("driver", DRIVERS)
@settings(max_examples=50)
@given(script=scripts, attempts=st.integers(1, 3), backoff=backoffs, recovery=recoveries)
def test_first_attempt_in_a_thread_has_the_same_result(driver, script, attempts, backoff, recovery):
    here, there = (
        Execution(script, attempts, backoff, recovery, guards).in_thread(DRIVERS[driver])
        for guards in ([], [Silent()])
    )
    assert here == there


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("driver", DRIVERS_ASYNC)
@settings(max_examples=50)
@given(script=scripts, attempts=st.integers(1, 3), backoff=backoffs, recovery=recoveries)
def test_first_attempt_in_a_task_has_the_same_result(
    runs, driver, script, attempts, backoff, recovery
):
    here, there = (
        Execution(script, attempts, backoff, recovery, guards).in_task(
            RUNS[runs], DRIVERS_ASYNC[driver]
        )
        for guards in ([], [Silent()])
    )
    assert here == there


# -- which attempts are made so --------------------------------------------------------------------


def template(**settings):
    return RetryTemplate(SimpleRetryPolicy(3, retry_on=OSError), **settings)


def test_first_attempt_has_the_deadline_and_the_next_the_remaining_time():
    clock, seen = VirtualClock(), []

    def attempt():
        seen.append(Deadline.current())
        clock.advance(1.0)
        raise OSError

    with Deadline(LIMIT, clock=clock) as deadline:
        template(clock=clock).outcome(attempt)
        del seen[:]
        with pytest.raises(OSError):
            template(clock=clock).call(attempt)
    assert [each is deadline for each in seen] == [True, False, False]


@pytest.mark.parametrize("runs", RUNS)
def test_synchronous_deadline_in_a_task_lets_the_attempt_cut_itself(runs):
    clock = VirtualClock()

    async def main():
        with Deadline(LIMIT, clock=clock), pytest.raises(DeadlineExceededError):
            await template(clock=clock).call_async(clock.sleep_async, 60.0)

    RUNS[runs](main, clock)
    assert clock.monotonic() == LIMIT


def test_deadline_of_another_task_lets_the_attempt_cut_itself():
    clock = VirtualClock()

    async def child():
        try:
            await template(clock=clock).call_async(clock.sleep_async, 60.0)
        except DeadlineExceededError:
            return clock.monotonic()

    async def main():
        async with Deadline(LIMIT, clock=clock):
            task = asyncio.ensure_future(child())
        return await task

    assert run(main(), clock=clock) == LIMIT


def test_deadline_of_a_loop_in_another_thread_is_accepted():
    async def main():
        async with Deadline(60.0):
            return await asyncio.to_thread(asyncio.run, template().call_async(asyncio.sleep, 0, 17))

    assert asyncio.run(main()) == 17


# -- as everywhere ---------------------------------------------------------------------------------


def test_call_without_a_function_or_with_an_awaitable_is_rejected():
    async def later():
        """Not awaited."""

    with Deadline(LIMIT, clock=VirtualClock()):
        with pytest.raises(TypeError, match="must be callable"):
            template().call(17)
        with pytest.raises(MisuseError, match="returned an awaitable"):
            template().call(lambda: later())
        with pytest.raises(MisuseError, match=r"use call\(\)"):
            template().execute(lambda: 17)


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_call_leaves_no_garbage(failures):
    def fails_so_often():
        calls = []

        def attempt():
            calls.append(1)
            if len(calls) <= failures:
                raise OSError
            return 17

        return attempt

    def call():
        with Deadline(LIMIT):
            try:
                template().call(fails_so_often())
            except OSError:
                assert failures == 3

    assert left_by(call) == 0


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_call_in_a_task_leaves_no_garbage(failures):
    async def fails_so_often(calls):
        calls.append(1)
        if len(calls) <= failures:
            raise OSError
        return 17

    async def main():
        async with Deadline(LIMIT):
            try:
                await template().call_async(fails_so_often, [])
            except OSError:
                assert failures == 3

    with asyncio.Runner() as runner:
        assert left_by(lambda: runner.run(main())) == 0


def test_suspended_call_can_be_closed_from_another_context():
    @template().wrap
    async def waits():
        await asyncio.Event().wait()

    async def main():
        async with Deadline(LIMIT):
            coroutine = waits()
            coroutine.send(None)
            asyncio.get_running_loop().call_soon(coroutine.close)
            await asyncio.sleep(0)
            return current_context()

    assert asyncio.run(main()) is None

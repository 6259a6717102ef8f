"""The times of a context, and when it is closed."""

import asyncio
from contextlib import suppress

import pytest

from retrytemplate import (
    Deadline,
    ExhaustedRetryError,
    RecordedFailure,
    ResultRetryPolicy,
    RetryListener,
    RetryState,
    TimeoutRetryPolicy,
    current_context,
)
from retrytemplate.testing import Recorder, VirtualClock, run
from tests.support.runners import Script, every_driver, made

IN_PLACE = RetryState("key", rollback_for=())


# -- time ----------------------------------------------------------------------------------------

MEASURED = {
    "a listener": {"listeners": [Recorder()]},
    "a timed policy": {"policy": TimeoutRetryPolicy(60.0)},
    "an attempt timeout": {"attempt_timeout": 60.0},
    "a rule for results": {"policy": ResultRetryPolicy(lambda result: result is None)},
}
each_measure = pytest.mark.parametrize("settings", MEASURED.values(), ids=MEASURED)


def lasting(seconds, seen):
    """A callback that takes `seconds`, fails twice, and records the elapsed time of its context."""

    def callback(context):
        context._plan.clock.advance(seconds)
        seen.append(context.elapsed)
        if context.attempt < 3:
            raise ValueError
        return context

    return callback


@each_measure
@every_driver
def test_elapsed_time_with_a_setting_that_reads_it_runs_from_the_start(driver, settings):
    seen = []
    context = driver(made(delay=10.0, **settings), lasting(1.0, seen))
    assert seen == [1.0, 12.0, 23.0]
    assert [record.duration for record in context.history] == [1.0, 1.0]


@every_driver
def test_elapsed_time_with_a_state_runs_from_the_start(driver):
    seen = []
    context = driver(made(delay=10.0, name="timed"), lasting(1.0, seen), state=IN_PLACE)
    assert seen == [1.0, 12.0, 23.0]
    assert [record.duration for record in context.history] == [1.0, 1.0]


@every_driver
def test_elapsed_time_without_a_reader_runs_from_the_first_failure(driver):
    seen = []
    driver(made(delay=10.0), lasting(1.0, seen))
    assert seen == [0.0, 11.0, 22.0]


@every_driver
def test_elapsed_time_under_a_deadline_runs_from_the_start(driver):
    template, seen = made(delay=10.0), []
    with Deadline(60.0, clock=template.clock):
        driver(template, lasting(1.0, seen))
    assert seen == [1.0, 12.0, 23.0]


@every_driver
def test_elapsed_time_after_the_execution_is_constant(driver):
    template = made(delay=10.0, listeners=[Recorder()])
    context = driver(template, lasting(1.0, []))
    template.clock.advance(100.0)
    assert context.elapsed == 23.0


# -- the end -------------------------------------------------------------------------------------


class Raising(RetryListener):
    def on_error(self, context, exception):
        raise LookupError("the listener's own")


ENDS = {
    "a success": {},
    "a late success": {"fails": 1},
    "exhaustion": {"fails": 9},
    "a recovery": {"fails": 9, "recovery": lambda context: "recovered"},
    "an error of a listener": {"fails": 1, "listeners": [Raising()]},
    "an interrupted wait": {"fails": 1, "delay": 1.0, "clock": VirtualClock(interrupt_at=1)},
    "a signal": {"signal": KeyboardInterrupt()},
    "a late signal": {"fails": 1, "signal": KeyboardInterrupt()},
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("listening", [False, True])
@every_driver
def test_context_is_closed_at_the_end_of_its_execution(driver, end, listening):
    settings = dict(ENDS[end])
    steps = [ValueError()] * settings.pop("fails", 0) + [settings.pop("signal", "value")]
    how = {name: settings.pop(name) for name in ["recovery"] if name in settings}
    if listening:
        settings["listeners"] = [*settings.get("listeners", []), Recorder()]
    script, contexts = Script(*steps), []

    def callback(context):
        assert not context.closed
        contexts.append(context)
        return script(context)

    with suppress(Exception, KeyboardInterrupt):
        driver(made(2, **settings), callback, **how)
    assert contexts
    assert all(context.closed for context in contexts)


@pytest.mark.parametrize("steps", [["value"], [ValueError(), "value"], [ValueError()]])
@every_driver
def test_context_of_a_completed_key_is_closed(driver, steps):
    contexts, script = [], Script(*steps)

    def callback(context):
        contexts.append(context)
        return script(context)

    with suppress(ExhaustedRetryError):
        driver(made(2, name="done"), callback, state=IN_PLACE)
    assert contexts[0].closed


@every_driver
def test_context_of_a_kept_key_is_not_closed(driver):
    contexts = []

    def callback(context):
        contexts.append(context)
        raise ValueError

    with pytest.raises(ValueError):
        driver(made(2, name="kept"), callback, state=RetryState("key"))
    assert not contexts[0].closed
    assert repr(contexts[0].last_exception) == repr(RecordedFailure("ValueError", ""))
    assert [record.type_name for record in contexts[0].history] == ["ValueError"]


# -- afterwards ----------------------------------------------------------------------------------


def in_call(template, fn):
    return template.call(fn)


def in_wrap(template, fn):
    return template.wrap(fn)()


def in_wrap_async(template, fn):
    @template.wrap
    async def turn():
        return fn()

    return run(turn(), clock=template.clock)


@pytest.mark.parametrize("enter", [in_call, in_wrap, in_wrap_async])
@pytest.mark.parametrize("asks", ["the recovery", "the function"])
def test_context_kept_after_the_execution_has_its_history(enter, asks):
    kept = []

    def fn():
        if asks == "the function":
            kept.append(current_context())
        template.clock.advance(1.0)
        raise ValueError("text")

    template = made(2, delay=5.0, recovery=lambda context: kept.append(context))
    enter(template, fn)
    template.clock.advance(100.0)
    assert repr(kept[0].last_exception) == repr(RecordedFailure("ValueError", "text"))
    assert [record.message for record in kept[0].history] == ["text", "text"]
    assert kept[0].elapsed == 6.0
    assert kept[0].recovered


def test_task_that_outlives_a_wrapped_coroutine_has_no_open_context():
    async def ask(over):
        await over.wait()
        return current_context()

    async def main():
        over = asyncio.Event()

        @made().wrap
        async def begin():
            return [asyncio.ensure_future(ask(over))]

        tasks = await begin()
        over.set()
        return await tasks[0]

    assert asyncio.run(main()) is None


STATES = {
    "none": (None, False),
    "a key": (RetryState("key"), True),
    "untracked": (RetryState.untracked(), True),
    "in place": (IN_PLACE, False),
    "another class": (RetryState("key", rollback_for=OSError), False),
    "this class": (RetryState("key", rollback_for=ValueError), True),
}


@pytest.mark.parametrize("state", STATES)
@every_driver
def test_context_reports_whether_a_failure_is_rethrown(driver, state):
    given, leaves = STATES[state]
    script, seen = Script(ValueError(), "value"), []

    def callback(context):
        seen.append(context.rethrows(ValueError()))
        return script(context)

    with suppress(ValueError):
        driver(made(2), callback, state=given)
    assert seen == ([True] if leaves else [False, False])

"""``on_first_success`` and ``on_end``: each execution calls exactly one of the two."""

import asyncio
import contextvars
import logging
import time

import pytest

from retrytemplate import (
    AttemptInProgressError,
    BulkheadFullError,
    CircuitBreakerRetryPolicy,
    Deadline,
    Guard,
    MemoryRetryContextCache,
    MisuseError,
    ResultRetryPolicy,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    TerminatedRetryError,
    Veto,
    current_context,
)
from retrytemplate._engine.block import Attempts
from retrytemplate.testing import VirtualClock, run
from tests.support.runners import made


class Cancelled(BaseException):
    """A cancellation."""


class Ends(RetryListener):
    """Records the two end hooks."""

    def __init__(self):
        self.ends = []

    def on_first_success(self, name, elapsed):
        self.ends.append(("first success", name, elapsed))

    def on_end(self, context, exception):
        self.ends.append(("end", exception))

    @property
    def kinds(self):
        return [end[0] for end in self.ends]


class OnlyEnds(RetryListener):
    """Records ``on_end`` only; its attempts are inline and not timed."""

    needs_start_time = False

    def __init__(self):
        self.ends = []

    def on_end(self, context, exception):
        self.ends.append(("end", exception))


class AlsoCloses(Ends):
    """Its first attempt is direct, not inline."""

    def close(self, context, exception):
        self.ends.append(("close", exception))


class AsyncEnds(OnlyEnds):
    async def on_end(self, context, exception):
        await asyncio.sleep(0)
        self.ends.append(("end", exception))


def call(template, fn):
    return template.call(fn)


def wrap(template, fn):
    return template.wrap(fn)()


def wrap_without_result(template, fn):
    """A call whose result is None, which is known not to be awaitable."""
    values = []
    template.wrap(lambda: values.append(fn()))()
    return values[0] if values else None


def execute(template, fn):
    return template.execute(lambda context: fn())


def outcome(template, fn):
    return template.outcome(fn).unwrap()


def bound(template, fn):
    return template.bind(label="bound").call(fn)


def under_a_deadline(template, fn):
    with Deadline(10.0, clock=template.clock):
        return template.call(fn)


def stateful(template, fn):
    return template.execute(lambda context: fn(), state=RetryState("key", rollback_for=()))


def block(template, fn):
    attempts = template.attempts()
    for attempt in attempts:
        with attempt:
            attempts.result = fn()
    return attempts.result


def generator(template, fn):
    @template.wrap
    def items():
        yield fn()

    return next(items())


def awaited(name):
    def enter(template, fn):
        async def work(*_):
            await asyncio.sleep(0)
            return fn()

        return run(ASYNC[name](template, work))

    enter.__name__ = name
    return enter


async def block_async(template, work):
    attempts = template.attempts()
    async for attempt in attempts:
        async with attempt:
            attempts.result = await work()
    return attempts.result


async def generator_async(template, work):
    @template.wrap
    async def items():
        yield await work()

    return await anext(items())


async def outcome_async(template, work):
    return (await template.outcome_async(work)).unwrap()


ASYNC = {
    "call_async": lambda template, work: template.call_async(work),
    "wrap_async": lambda template, work: template.wrap(work)(),
    "execute_async": lambda template, work: template.execute_async(work),
    "outcome_async": outcome_async,
    "block_async": block_async,
    "generator_async": generator_async,
}
ENTRIES = [call, wrap, wrap_without_result, execute, outcome, bound, under_a_deadline, stateful]
ENTRIES += [block, generator]
ENTRIES += map(awaited, ASYNC)
every_entry = pytest.mark.parametrize("enter", ENTRIES, ids=lambda enter: enter.__name__)


def script(*steps):
    """A function that raises the exceptions among the steps, and returns the others."""
    left = list(steps)

    def fn():
        step = left.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    return fn


@every_entry
@pytest.mark.parametrize("kind", [Ends, AlsoCloses])
def test_success_at_once_calls_on_first_success_only(enter, kind):
    listener = kind()
    template = made(name="charge", listeners=[listener])
    assert enter(template, script(17)) == 17
    assert listener.kinds[0] == "first success"
    assert listener.ends[0][1] == ("bound" if enter is bound else "charge")
    assert listener.kinds.count("first success") == 1
    assert "end" not in listener.kinds


@every_entry
@pytest.mark.parametrize("kind", [Ends, OnlyEnds, AlsoCloses])
def test_success_after_a_retry_calls_on_end_only(enter, kind):
    listener = kind()
    assert enter(made(listeners=[listener]), script(OSError(), 17)) == 17
    assert listener.ends[0] == ("end", None)
    assert [kind for kind, *_ in listener.ends].count("end") == 1


@every_entry
@pytest.mark.parametrize("kind", [Ends, OnlyEnds, AlsoCloses])
def test_failure_calls_on_end_with_the_final_exception(enter, kind):
    listener, failures = kind(), [OSError(1), OSError(2)]
    with pytest.raises(Exception) as caught:  # of stateless and stateful executions
        enter(made(2, listeners=[listener]), script(*failures))
    assert listener.ends[0] == ("end", caught.value)
    assert [kind for kind, *_ in listener.ends].count("end") == 1


@every_entry
@pytest.mark.parametrize("kind", [Ends, OnlyEnds, AlsoCloses])
@pytest.mark.parametrize("number", [1, 2])
def test_cancellation_calls_on_end_with_it(enter, kind, number):
    listener, signal = kind(), Cancelled()
    fn = script(*[OSError()] * (number - 1), signal)
    with pytest.raises(Cancelled):
        enter(made(3, listeners=[listener]), fn)
    assert listener.ends[0] == ("end", signal)
    assert [kind for kind, *_ in listener.ends].count("end") == 1


@every_entry
def test_recovery_calls_on_end_without_an_exception(enter):
    listener = Ends()
    template = made(1, listeners=[listener], recovery=lambda context: [17])
    enter(template, script(OSError()))
    assert listener.ends == [("end", None)]


@pytest.mark.parametrize("name", ASYNC)
def test_coroutine_on_end_is_awaited_after_a_cancellation(name):
    listener = AsyncEnds()
    with pytest.raises(Cancelled):
        awaited(name)(made(3, listeners=[listener]), script(Cancelled()))
    assert [kind for kind, _ in listener.ends] == ["end"]


@pytest.mark.parametrize("kind", [OnlyEnds, AsyncEnds])
def test_closed_coroutine_calls_a_synchronous_on_end_only(kind):
    listener = kind()
    coroutine = made(3, listeners=[listener]).wrap(forever)()
    coroutine.send(None)
    coroutine.close()
    assert len(listener.ends) == (1 if kind is OnlyEnds else 0)


class Turn:
    def __await__(self):
        yield


async def forever():
    while True:
        await Turn()


# -- the arguments -------------------------------------------------------------------------------


def test_name_is_that_of_the_function_without_a_template_name():
    listener = Ends()
    template = made(listeners=[listener])
    template.call(int, "17")
    block(template, script(17))
    assert [name for _, name, _ in listener.ends] == ["int", "attempts"]


def test_name_of_a_wrapped_function_is_that_of_the_function():
    listener = Ends()
    template = made(listeners=[listener])
    wrap(template, time.monotonic)
    wrap_without_result(template, script(17))
    awaited("wrap_async")(template, script(17))
    names = [name for _, name, _ in listener.ends]
    assert names[0] == "time.monotonic"
    assert names[1].startswith("test_first_success.py:")
    assert names[2].endswith("awaited.<locals>.enter.<locals>.work")


@pytest.mark.parametrize("enter", [wrap, awaited("wrap_async")], ids=lambda e: e.__name__)
def test_name_that_the_function_gives_its_context_is_used(enter):
    listener, contexts = Ends(), []

    def renames():
        contexts.append(current_context())
        contexts[0].name = "renamed"

    enter(made(name="charge", listeners=[listener]), renames)
    assert [name for _, name, _ in listener.ends] == ["renamed"]
    assert contexts[0].closed


@pytest.mark.parametrize("enter", [wrap, awaited("wrap_async")], ids=lambda e: e.__name__)
def test_no_context_is_made_after_a_timed_success(enter):
    copies = []
    enter(made(listeners=[Ends()]), lambda: copies.append(contextvars.copy_context()))
    assert copies[0].run(current_context) is None


@pytest.mark.parametrize("enter", [call, wrap, execute, outcome, block], ids=lambda e: e.__name__)
@pytest.mark.parametrize("kind", [Ends, AlsoCloses])
def test_elapsed_is_the_duration_of_the_execution(enter, kind):
    listener, clock = kind(), VirtualClock()
    enter(made(listeners=[listener], clock=clock), lambda: clock.advance(2.5))
    assert listener.ends[0][2] == 2.5


@pytest.mark.parametrize("enter", [call, wrap, execute, outcome, block], ids=lambda e: e.__name__)
def test_on_end_has_elapsed_and_history_with_the_first_attempt(enter):
    seen, clock = [], VirtualClock()

    class Times(RetryListener):
        def on_end(self, context, exception):
            seen.extend([context.elapsed, [record.duration for record in context.history]])

    def fails():
        clock.advance(2.0)
        raise OSError

    with pytest.raises(OSError):
        enter(made(2, listeners=[Times()], clock=clock), fails)
    assert seen == [4.0, [2.0, 2.0]]


def test_first_success_makes_no_context():
    listener = Ends()
    template = made(listeners=[listener])
    assert template._plan.inline_first_attempt
    assert template._plan.times_first_attempt


# -- failure hooks and the inline path --------------------------------------------------------


@pytest.mark.parametrize("hook", ["on_error", "on_backoff", "on_recovery", "on_store_error"])
def test_failure_hooks_leave_the_first_attempt_inline(hook):
    called = []
    kind = type("OneHook", (RetryListener,), {hook: lambda *_: called.append(hook)})
    template = made(2, listeners=[kind()], recovery=lambda context: "recovered")
    assert template._inline_plan is template._plan
    template.call(script(OSError(), OSError()))
    assert called == ([] if hook == "on_store_error" else [hook] * (2 if hook == "on_error" else 1))


@pytest.mark.parametrize("hook", ["open", "before_attempt", "on_success", "close"])
def test_hooks_of_a_success_are_not_inline(hook):
    kind = type("OneHook", (RetryListener,), {hook: lambda *_: None})
    assert made(listeners=[kind()])._inline_plan is None


def test_overrun_under_a_deadline_is_reported_to_a_listener():
    clock, overruns = VirtualClock(), []

    class Overruns(RetryListener):
        def on_overrun(self, context, limit, elapsed):
            overruns.append((limit, elapsed))

    template = made(listeners=[Overruns()], clock=clock)
    with Deadline(1.0, clock=clock):
        template.call(clock.advance, 2.0)
    assert overruns == [(1.0, 2.0)]


# -- every other end --------------------------------------------------------------------------


class Rejecting(Guard):
    def admit(self, context):
        raise BulkheadFullError("full", name="llm")


def test_rejection_by_a_guard_calls_on_end_with_it():
    listener = Ends()
    error = made(listeners=[listener], guards=[Rejecting()]).outcome(int).exception
    assert listener.ends == [("end", error)]


def test_veto_calls_on_end():
    class Vetoes(RetryListener):
        def open(self, context):
            raise Veto("not now")

    listener = Ends()
    with pytest.raises(TerminatedRetryError) as caught:
        made(listeners=[Vetoes(), listener]).call(int)
    assert listener.ends == [("end", caught.value)]


def test_key_in_use_calls_on_end_without_close():
    listener = AlsoCloses()
    template = RetryTemplate(listeners=[listener], cache=MemoryRetryContextCache())
    template.cache.begin(template.scoped_key("key"), worker="another")
    with pytest.raises(AttemptInProgressError) as caught:
        template.execute(lambda context: 17, state=RetryState("key"))
    assert listener.ends == [("end", caught.value)]


def test_settings_that_cannot_be_read_call_on_end():
    listener = Ends()
    policy = SimpleRetryPolicy(max_attempts=lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError) as caught:
        made(listeners=[listener], policy=policy).call(int)
    assert listener.ends == [("end", caught.value)]


@pytest.mark.parametrize("enter", [call, wrap, execute], ids=lambda enter: enter.__name__)
@pytest.mark.parametrize("kind", [Ends, OnlyEnds, AlsoCloses])
def test_awaitable_in_synchronous_use_calls_on_end(enter, kind):
    async def later():
        raise AssertionError("this is not awaited")

    listener = kind()
    with pytest.raises(MisuseError) as caught:
        enter(made(listeners=[listener]), lambda: later())
    assert listener.ends[0] == ("end", caught.value)
    assert "first success" not in [kind for kind, *_ in listener.ends]


@pytest.mark.parametrize("enter", [call, wrap, execute], ids=lambda enter: enter.__name__)
def test_awaitable_in_synchronous_use_is_no_first_success(enter):
    class OnlyFirstSuccess(RetryListener):
        def on_first_success(self, name, elapsed):
            raise Cancelled

    with pytest.raises(MisuseError):
        enter(made(listeners=[OnlyFirstSuccess()]), lambda: asyncio.sleep(0))


def test_unacceptable_result_that_is_returned_calls_on_end():
    listener = Ends()
    policy = ResultRetryPolicy(lambda result: True, SimpleRetryPolicy(1), when_exhausted="return")
    assert made(listeners=[listener], policy=policy).call(script(17)) == 17
    assert listener.ends == [("end", None)]


def test_success_at_the_second_delivery_calls_on_end():
    listener, state = Ends(), RetryState("key")
    template = made(listeners=[listener])
    fn = script(OSError(), 17)
    with pytest.raises(OSError) as caught:
        template.execute(lambda context: fn(), state=state)
    assert template.execute(lambda context: fn(), state=state) == 17
    assert listener.ends == [("end", caught.value), ("end", None)]


def test_success_with_a_shared_context_is_one_at_once():
    listener, state = Ends(), RetryState("key", rollback_for=())
    policy = CircuitBreakerRetryPolicy(SimpleRetryPolicy(3))
    template = made(listeners=[listener], policy=policy)
    fn = script(OSError(), 17)
    with pytest.raises(Exception):  # noqa: B017  # the failure of the first execution
        template.execute(lambda context: fn(), state=state)
    assert template.execute(lambda context: fn(), state=state) == 17
    assert listener.kinds == ["end", "first success"]


# -- exceptions in the hooks ----------------------------------------------------------------------


@pytest.mark.parametrize("enter", [call, wrap, awaited("wrap_async")], ids=lambda e: e.__name__)
@pytest.mark.parametrize("kind", [Ends, AlsoCloses])
def test_exception_in_on_first_success_is_logged_and_ignored(enter, kind, caplog):
    class Fails(kind):
        def on_first_success(self, name, elapsed):
            raise ValueError("from the hook")

    listener = kind()
    with caplog.at_level(logging.ERROR, "retrytemplate"):
        assert enter(made(listeners=[listener, Fails()]), lambda: None) is None
    assert listener.kinds[0] == "first success"
    assert [record.exc_info[1].args for record in caplog.records] == [("from the hook",)]


def test_awaitable_of_on_first_success_is_logged(caplog):
    class Later(RetryListener):
        def on_first_success(self, name, elapsed):
            return asyncio.sleep(0)

    assert made(listeners=[Later()]).call(int, "17") == 17
    assert "must be synchronous" in str(caplog.records[0].exc_info[1])


def test_coroutine_function_on_first_success_is_rejected():
    class Later(RetryListener):
        async def on_first_success(self, name, elapsed):
            raise AssertionError("this is not awaited")

    with pytest.raises(TypeError, match="on_first_success must be synchronous"):
        made(listeners=[Later()])


@every_entry
def test_interrupt_in_on_first_success_is_raised_after_the_others(enter):
    class Interrupts(RetryListener):
        def on_first_success(self, name, elapsed):
            raise Cancelled

    listener = Ends()
    with pytest.raises(Cancelled):
        enter(made(listeners=[listener, Interrupts()]), script(17))
    assert listener.kinds == ["first success"]


@every_entry
def test_exception_in_on_end_is_raised_after_every_other_hook(enter):
    class Fails(RetryListener):
        def on_end(self, context, exception):
            raise ValueError("from the hook")

    listener = AlsoCloses()
    with pytest.raises(ValueError, match="from the hook"):
        enter(made(1, listeners=[listener, Fails()]), script(OSError()))
    assert listener.kinds == ["end", "close"]


def test_on_end_of_every_listener_comes_before_close():
    calls = []

    class Named(RetryListener):
        def __init__(self, name):
            self.name = name

        def on_end(self, context, exception):
            calls.append(("on_end", self.name))

        def close(self, context, exception):
            calls.append(("close", self.name))

    made(1, listeners=[Named("a"), Named("b")]).outcome(script(OSError()))
    assert calls == [("on_end", "b"), ("on_end", "a"), ("close", "b"), ("close", "a")]


def test_block_without_observers_stays_inline():
    attempts = next(iter(made(listeners=[OnlyEnds()]).attempts()))
    assert isinstance(attempts, Attempts)
    assert attempts._driver is None

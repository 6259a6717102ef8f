"""Retry inside retry: which template retries, the events, and the depth."""

import asyncio
import threading
from contextvars import copy_context

import pytest

from retrytemplate import (
    Deadline,
    FixedBackoff,
    NeverRetryPolicy,
    NoBackoff,
    RetryBudgetExhaustedError,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from retrytemplate.control import (
    ControlListener,
    NestedRetries,
    NestedRetry,
    Nesting,
    RetryBudget,
)
from retrytemplate.testing import GuardConformance, Recorder, VirtualClock
from tests.support.event_loops import LOOPS


class Down(Exception):
    """The error of the backend, the only one that is retried."""


class Listens(ControlListener):
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)


def template(*guards, attempts=3, **settings):
    policy = settings.pop("policy", SimpleRetryPolicy(attempts, retry_on=Down))
    return RetryTemplate(policy, NoBackoff(), guards=guards, **settings)


# -- every way to put one around another -----------------------------------------------------------


def by_call(made, fn):
    return lambda: made.call(fn)


def by_execute(made, fn):
    return lambda: made.execute(lambda context: fn())


def by_wrap(made, fn):
    return made.wrap(lambda: fn())


def by_block(made, fn):
    def whole():
        for attempt in made.attempts():
            with attempt:
                fn()

    return whole


def by_outcome(made, fn):
    return lambda: made.outcome(fn).unwrap()


def by_call_async(made, fn):
    return lambda: made.call_async(fn)


def by_execute_async(made, fn):
    return lambda: made.execute_async(lambda context: fn())


def by_wrap_async(made, fn):
    async def whole():
        return await fn()

    return made.wrap(whole)


def by_block_async(made, fn):
    async def whole():
        async for attempt in made.attempts():
            async with attempt:
                await fn()

    return whole


SYNC = [by_call, by_execute, by_wrap, by_block, by_outcome]
ASYNC = [by_call_async, by_execute_async, by_wrap_async, by_block_async]
LIMITED = {"attempt_timeout": 60.0}
SETTINGS = pytest.mark.parametrize("settings", [{}, LIMITED], ids=["plain", "limited"])


def in_layers(drivers, *made, backend):
    """The backend with templates around it, the outermost first."""
    for driver, each in reversed(list(zip(drivers, made, strict=True))):
        backend = driver(each, backend)
    return backend


class Backend:
    def __init__(self):
        self.seen = []

    def __call__(self):
        self.seen.append(Nesting.current())
        raise Down

    async def asynchronous(self):
        await asyncio.sleep(0)
        self()


@pytest.mark.statement("S3-25")
@SETTINGS
@pytest.mark.parametrize("first", SYNC)
@pytest.mark.parametrize("second", SYNC)
def test_guard_reduces_three_layers_of_three_from_27_calls_to_3(first, second, settings):
    for guards, calls in (((), 27), ((NestedRetries(),), 3)):
        made = template(*guards, **settings)
        backend = Backend()
        with pytest.raises(Down):
            in_layers([first, second, first], made, made, made, backend=backend)()
        assert len(backend.seen) == calls
        assert {each.depth for each in backend.seen} == {3}


@SETTINGS
@pytest.mark.parametrize("first", ASYNC)
@pytest.mark.parametrize("second", ASYNC)
def test_three_asynchronous_layers_make_3_calls(first, second, settings):
    made = template(NestedRetries(), **settings)
    backend = Backend()

    async def main():
        with pytest.raises(Down):
            await in_layers(
                [first, second, first], made, made, made, backend=backend.asynchronous
            )()

    asyncio.run(main())
    assert backend.seen == [Nesting(3, attempt) for attempt in (1, 2, 3)]


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
def test_tasks_that_an_attempt_begins_are_inside_it(loop):
    made = template(NestedRetries())
    inside = []

    async def backend():
        await loop.checkpoint()
        inside.append(Nesting.current().depth)
        raise Down

    async def child():
        inside.append((await made.outcome_async(backend)).attempts)

    async def main():
        await made.call_async(loop.together, child, child)

    loop.run(main)
    assert sorted(inside) == [1, 1, 2, 2]


def test_thread_is_nested_when_it_runs_in_a_copy_of_the_context():
    made = template(NestedRetries())
    attempts = []

    def work():
        attempts.append(made.outcome(Backend()).attempts)

    def begins(context):
        thread = threading.Thread(target=context.run, args=(work,))
        thread.start()
        thread.join()

    made.call(lambda: begins(copy_context()))
    begins(copy_context())
    assert attempts == [1, 3]


# -- what counts -----------------------------------------------------------------------------------


def test_depth_outside_of_an_execution_is_zero():
    assert Nesting.current() == Nesting(depth=0, attempt=1, no_retry=False)


@pytest.mark.parametrize(
    "policy", [NeverRetryPolicy(), SimpleRetryPolicy(1), SimpleRetryPolicy(lambda: 1)]
)
def test_template_of_a_single_attempt_is_not_a_layer(policy):
    made = template(NestedRetries())
    backend = Backend()
    assert template(policy=policy).outcome(made.wrap(backend)).attempts == 1
    assert backend.seen == [Nesting(1, attempt) for attempt in (1, 2, 3)]


@pytest.mark.parametrize("policy", [TimeoutRetryPolicy(60), SimpleRetryPolicy(lambda: 2)])
def test_template_with_an_unknown_limit_is_a_layer(policy):
    assert template(policy=policy).call(Nesting.current) == Nesting(1)


def test_attempt_number_covers_all_layers():
    seen = []

    def backend():
        seen.append(Nesting.current().attempt)
        raise Down

    template(attempts=2).outcome(template(attempts=2).wrap(backend))
    assert seen == [1, 2, 2, 3]


def test_listener_is_nested_from_open_to_close():
    seen = []

    class Asks(RetryListener):
        def open(self, context):
            seen.append(Nesting.current())

        def on_error(self, context, exception):
            seen.append(Nesting.current())

        def close(self, context, exception):
            seen.append(Nesting.current())

    template(attempts=2, listeners=[Asks()]).outcome(Backend())
    assert seen == [Nesting(1, 1), Nesting(1, 1), Nesting(1, 2), Nesting(0, 1)]


def test_recovery_is_not_nested_in_the_attempts():
    made = template(NestedRetries())
    instead = Backend()

    def recovery(context):
        return made.outcome(instead).attempts

    assert made.with_(recovery=recovery).call(Backend()) == 3
    assert instead.seen == [Nesting(1, attempt) for attempt in (1, 2, 3)]


def test_execution_that_gave_up_does_not_suppress_inner_retries():
    made = template(NestedRetries())

    def last(context):
        context.give_up()
        return made.outcome(Backend()).attempts

    assert made.execute(last) == 3


@pytest.mark.parametrize("begin", ["execute_async", "call_async", "wrap"])
def test_task_that_outlives_the_execution_is_not_nested(begin):
    made = template(NestedRetries())

    async def main():
        over = asyncio.Event()
        tasks = []

        async def work():
            await over.wait()
            return (await made.outcome_async(Backend().asynchronous)).attempts

        async def connect(*context):
            tasks.append(asyncio.ensure_future(work()))

        if begin == "wrap":
            await RetryTemplate().wrap(connect)()
        else:
            await getattr(RetryTemplate(), begin)(connect)
        over.set()
        return await tasks[0]

    assert asyncio.run(main()) == 3


# -- rejections ------------------------------------------------------------------------------------


def test_suppressed_retry_raises_the_failure_without_wait_or_event():
    clock, listener = VirtualClock(), Recorder()
    inner = RetryTemplate(
        SimpleRetryPolicy(3),
        FixedBackoff(5.0),
        guards=[NestedRetries()],
        listeners=[listener],
        clock=clock,
    )
    failure = Down()

    def fails():
        raise failure

    caught = template(attempts=2).call(lambda: inner.outcome(fails))
    assert (caught.exception, caught.attempts, clock.sleeps) == (failure, 1, [])
    assert not hasattr(failure, "__notes__")
    assert listener.hooks == ["open", "before_attempt", "on_error", "on_end", "close"]


def test_inner_recovery_returns_its_value():
    inner = template(NestedRetries(), recovery=lambda context: "cached")
    backend = Backend()
    assert template().call(inner.call, backend) == "cached"
    assert len(backend.seen) == 1


def test_grants_of_other_guards_are_released():
    budget = RetryBudget.tokens(capacity=10, cost=1, refund=0)
    inner = template(budget, NestedRetries())
    template().call(inner.outcome, Backend())
    assert (budget.snapshot().available, budget.snapshot().granted) == (10, 0)


@pytest.mark.parametrize("rolls_back", [None, lambda failure: False], ids=["rethrown", "in place"])
def test_inner_stateful_retry_is_left_to_the_redelivery(rolls_back):
    inner = template(NestedRetries(), recovery=lambda context: context.retry_count)
    backend = Backend()
    state = RetryState("order-17", rollback_for=rolls_back)

    def delivery():
        return inner.execute(lambda context: backend(), state=state)

    outer = template(attempts=9)
    assert outer.call(delivery) == 3
    assert len(backend.seen) == 3


# -- limits and reports ----------------------------------------------------------------------------


@pytest.mark.statement("S4-102")
def test_each_depth_can_have_its_own_limit():
    guard = NestedRetries(retries_by_depth=[0, 1, 3])
    made = template(guard, attempts=9)
    backend = Backend()
    wrapped = [made.wrap(backend)]
    for _ in range(3):
        wrapped.append(made.wrap(wrapped[-1], nested=True))
    calls = []
    for each in wrapped[1:]:
        backend.seen.clear()
        with pytest.raises(Down):
            each()
        calls.append(len(backend.seen))
    # 1 x 2, 1 x 2 x 4, and the last limit holds for all that is deeper.
    assert calls == [2, 8, 32]


def test_excess_retry_is_reported():
    listens = Listens()
    guard = NestedRetries(name="one layer", listeners=[listens])
    template(guard, attempts=2, name="outer").outcome(template(guard, name="inner").wrap(Backend()))
    expected = NestedRetry(name="one layer", template="inner", depth=1, retry=1, suppressed=True)
    assert listens.events == [expected, expected]


def test_nested_retries_can_be_reported_only():
    listens = Listens()
    made = template(NestedRetries(on_nested="report", listeners=[listens]))
    backend = Backend()
    made.outcome(made.wrap(backend))
    assert len(backend.seen) == 9
    assert [(each.retry, each.suppressed) for each in listens.events] == [
        (1, False),
        (2, False),
    ] * 3


def test_listener_that_raises_changes_nothing(caplog):
    class Fails(ControlListener):
        def on_event(self, event):
            raise ValueError("mine")

    made = template(NestedRetries(listeners=[Fails()]))
    assert template().call(made.outcome, Backend()).attempts == 1
    assert "raised an exception, which is ignored" in caplog.text


@pytest.mark.statement("S4-28")
def test_retries_of_a_run_share_its_budget_and_deadline():
    clock = VirtualClock()
    run = RetryBudget.tokens(capacity=3, cost=1, refund=0, name="run", clock=clock)

    def tool(name):
        own = RetryBudget.tokens(capacity=9, cost=1, parent=run, name=name, clock=clock)
        return RetryTemplate(SimpleRetryPolicy(3), FixedBackoff(1.0), guards=[own], clock=clock)

    with Deadline(10.0, clock=clock) as deadline:
        ended = [tool(name).outcome(Backend()) for name in ("search", "read", "write")]
        assert deadline.remaining() == 10.0 - 3
    assert [each.attempts for each in ended] == [3, 2, 1]
    assert type(ended[1].exception) is RetryBudgetExhaustedError
    assert ended[1].exception.name == "run"
    with Deadline(1.5, clock=clock) as deadline:
        fresh = RetryTemplate(SimpleRetryPolicy(9), FixedBackoff(1.0), clock=clock)
        assert fresh.outcome(Backend()).attempts == 2


class TestNestedRetries(GuardConformance):
    def make(self):
        return NestedRetries()


class TestWithALimit(GuardConformance):
    def make(self):
        return NestedRetries(retries_by_depth=(1,))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"on_nested": "refuse"}, "on_nested must be 'suppress' or 'report', got 'refuse'"),
        ({"retries_by_depth": ()}, "retries_by_depth must be a sequence"),
        ({"retries_by_depth": 3}, "retries_by_depth must be a sequence"),
        ({"retries_by_depth": (0, -1)}, "retries_by_depth: each but None must be an int >= 0"),
        ({"retries_by_depth": (True,)}, "retries_by_depth: each but None must be an int >= 0"),
        ({"name": ""}, "name must be a non-blank str"),
        ({"listeners": [object()]}, "listeners: each must be an object with the methods on_event"),
    ],
)
def test_wrong_rule_is_rejected(given, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        NestedRetries(**given)

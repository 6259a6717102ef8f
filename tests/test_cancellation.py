"""Cancellations, interrupts and exits pass through every component immediately."""

import asyncio
import concurrent.futures
import contextvars
import gc

import pytest
import trio

from retrytemplate import (
    AlwaysRetryPolicy,
    BackoffInterruptedError,
    CircuitBreakerRetryPolicy,
    CompositeRetryPolicy,
    Deadline,
    MaxAttemptsRetryPolicy,
    MemoryRetryContextCache,
    PredicateRetryPolicy,
    RetryListener,
    RetryState,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    current_context,
)
from retrytemplate.listeners.base import HOOKS
from retrytemplate.testing import AsyncRecorder, Interrupted, Recorder, VirtualClock, run, run_trio
from retrytemplate.testing.clock import checkpoint
from tests.support.failing_cache import Down
from tests.support.hooks import EveryHook
from tests.support.runners import Script, every_driver, in_block, in_thread, made

pytestmark = pytest.mark.filterwarnings("ignore::retrytemplate.UnboundedRetryWarning")

STATE = RetryState("key", rollback_for=())
PLACES = ("callback", "sleep", "recovery", *HOOKS)
# Where nothing has been counted yet when the signal comes.
UNCOUNTED = {"callback", "open", "before_attempt", "on_overrun", "on_success"}
UNCOUNTED |= {"on_store_error", "close"}
UNCALLED = ("open", "on_attempt_lost", "before_attempt", "on_store_error")
RECOVERED = ("recovery", "on_recovery", "on_end")


class Signal:
    """Raises at one place only; each place calls it with its name."""

    def __init__(self, place, set_off):
        self.place, self.set_off = place, set_off

    def at(self, place):
        return self.set_off() if place == self.place else None


class Recording(EveryHook):
    """Counts its opens and closes, and raises the signal in its hooks."""

    def __init__(self, signal=None):
        self.signal = signal
        self.called = []

    def hook(self, name):
        self.called.append(name)
        return None if self.signal is None else self.signal.at(name)


class SignalClock(VirtualClock):
    """Raises the signal in its sleeps."""

    def __init__(self, signal):
        super().__init__()
        self.signal = signal

    def sleep(self, delay):
        self.signal.at("sleep")
        super().sleep(delay)

    async def sleep_async(self, delay):
        step = self.signal.at("sleep")
        if step is not None:
            await step
        await super().sleep_async(delay)


class Scene:
    """An execution that passes every place up to the one of the signal."""

    def __init__(self, place, set_off):
        self.signal = Signal(place, set_off)
        self.place = place
        self.listeners = [Recording(), Recording(self.signal), Recording()]
        self.clock = SignalClock(self.signal)
        attempts = 1 if place in RECOVERED else 9
        self.away = place == "on_store_error"
        self.template = made(
            attempts,
            delay=1.0,
            name="scene",
            clock=self.clock,
            listeners=self.listeners,
            cache=self.cache(),
            attempt_timeout=1.0 if place == "on_overrun" else None,
        )
        self.calls = self.recoveries = 0
        self.recovers = place in RECOVERED

    def cache(self):
        cache = Down(lambda step, record: self.away, on_store_error="run_unguarded")
        cache.lost = "elsewhere:1" if self.place == "on_attempt_lost" else None
        return cache

    @property
    def fails(self):
        return self.place in ("sleep", "on_error", "on_backoff", *RECOVERED)

    def callback(self, context):
        self.calls += 1
        step = self.signal.at("callback")
        if self.place == "on_overrun":
            self.clock.advance(2.0)
        if self.fails:
            raise ValueError("the callback's own")
        return step

    def recovery(self, context):
        self.recoveries += 1
        return self.signal.at("recovery")

    @property
    def how(self):
        return {"recovery": self.recovery, "state": STATE}

    def check(self):
        """The conditions after any signal at any place."""
        assert self.calls == (0 if self.place in UNCALLED else 1)
        assert self.recoveries == (1 if self.recovers else 0)
        assert [listener.called.count("close") for listener in self.listeners] == [1, 1, 1]
        assert current_context() is None
        assert self.clock.sleeps == []
        self.away = False
        cache, key = self.template.cache, self.template.scoped_key("key")
        kept = cache.peek(key)
        if self.place == "recovery":
            assert kept.phase == "recovering", "the recovery has its turn again"
        elif self.place in RECOVERED:
            assert kept is None
        elif self.place in UNCOUNTED:
            assert kept is None, "nothing was counted"
        else:
            assert (kept.failures, kept.worker) == (1, None)
        # The claim is gone: no attempt is in progress.
        cache.release(cache.begin(key, worker="the next"))


class Hard(BaseException):
    """Not an ``Exception``, and of an unknown class."""


SIGNALS = [
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    Hard(),
    asyncio.CancelledError(),
    concurrent.futures.CancelledError(),
    BaseExceptionGroup("group", [ValueError(), asyncio.CancelledError()]),
    ExceptionGroup("group", [ExceptionGroup("in", [concurrent.futures.CancelledError()])]),
]


def named(value):
    return value if isinstance(value, str) else type(value).__name__


# -- raised in a thread -------------------------------------------------------------------------


@pytest.mark.statement("S0-22")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("signal", SIGNALS, ids=named)
@pytest.mark.parametrize("driver", [in_thread, in_block], ids=["execute", "block"])
def test_signal_passes_from_every_component_and_releases_everything(driver, signal, place):
    def set_off():
        raise signal

    scene = Scene(place, set_off)
    with pytest.raises(type(signal)) as caught:
        driver(scene.template, scene.callback, **scene.how)
    assert caught.value is signal
    scene.check()


@pytest.mark.parametrize("signal", SIGNALS, ids=named)
@pytest.mark.parametrize("attempt", [1, 2, 4])
def test_signal_passes_without_listeners(signal, attempt):
    for enter in (
        lambda template, fn: template.call(fn),
        lambda template, fn: template.wrap(fn)(),
        lambda template, fn: template.execute(lambda context: fn()),
        lambda template, fn: in_block(template, lambda context: fn()),
    ):
        contexts = []

        def fn(contexts=contexts):
            contexts.append(current_context())
            raise signal if len(contexts) == attempt else ValueError

        with pytest.raises(type(signal)) as caught:
            enter(made(9, recovery=lambda context: "recovered"), fn)
        assert caught.value is signal
        assert len(contexts) == attempt
        assert all(context.closed for context in contexts)
        assert current_context() is None
        assert not hasattr(signal, "__notes__")


POLICIES = [
    AlwaysRetryPolicy(),
    SimpleRetryPolicy(9, lambda exception: True),
    PredicateRetryPolicy(lambda exception: True),
    CompositeRetryPolicy([AlwaysRetryPolicy(), MaxAttemptsRetryPolicy(1)], optimistic=True),
    TimeoutRetryPolicy(60.0),
    CircuitBreakerRetryPolicy(AlwaysRetryPolicy()),
]


@pytest.mark.statement("S0-22")
@pytest.mark.parametrize("policy", POLICIES, ids=named)
@pytest.mark.parametrize("signal", SIGNALS, ids=named)
@every_driver
def test_policy_is_not_called_for_a_signal(driver, signal, policy):
    callback = Script(signal)

    with pytest.raises(type(signal)):
        driver(made(policy=policy), callback)
    assert callback.calls == 1


@pytest.mark.statement("S0-22")
@pytest.mark.parametrize(
    "kind",
    [BaseException, KeyboardInterrupt, asyncio.CancelledError, concurrent.futures.CancelledError],
)
def test_policy_that_lists_a_signal_is_rejected(kind):
    with pytest.raises(ValueError, match="never retried"):
        SimpleRetryPolicy(3, kind)


# -- cancelled in a task ------------------------------------------------------------------------


async def _asyncio_cancels():
    asyncio.current_task().cancel()
    await asyncio.sleep(0)
    pytest.fail("the cancellation was not delivered")


async def in_asyncio(execute):
    """Run it in a task that cancels itself at the place; it must end as cancelled."""
    task = asyncio.ensure_future(execute())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


def scene_in_asyncio(place):
    return Scene(place, _asyncio_cancels), lambda execute: run(in_asyncio(execute))


def scene_in_trio(place):
    scope = trio.CancelScope()

    async def cancels():
        scope.cancel()
        await trio.lowlevel.checkpoint()
        pytest.fail("the cancellation was not delivered")

    async def body(execute):
        with scope:
            await execute()
        assert scope.cancelled_caught

    return Scene(place, cancels), lambda execute: run_trio(body, execute)


in_tasks = pytest.mark.parametrize(
    "staged", [scene_in_asyncio, scene_in_trio], ids=["asyncio", "trio"]
)


@pytest.mark.statement("S0-20", "S0-21", "S0-23", "S2-32")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", ["execute", "block"])
@in_tasks
def test_cancelled_task_ends_in_every_component_and_releases_everything(staged, form, place):
    scene, play = staged(place)

    async def turn(context):
        value = scene.callback(context)
        return value if value is None else await value

    async def execute():
        await scene.template.execute_async(turn, **scene.how)

    async def block():
        attempts = scene.template.attempts(**scene.how)
        async for attempt in attempts:
            async with attempt as context:
                attempt.result = await turn(context)

    play(execute if form == "execute" else block)
    scene.check()


@pytest.mark.statement("S0-20", "S0-23")
@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("entrance", ["wrap", "call_async", "outcome_async", "execute_async"])
@in_tasks
def test_cancelled_task_ends_without_listeners(staged, entrance, attempt):
    scene, play = staged("here")
    calls = []

    async def fn(*context):
        calls.append(current_context())
        if len(calls) < attempt:
            raise ValueError
        await scene.signal.set_off()

    async def execute():
        template = made(9, recovery=lambda context: "recovered")
        if entrance == "wrap":
            await template.wrap(fn)()
        else:
            await getattr(template, entrance)(fn)

    play(execute)
    assert len(calls) == attempt
    assert all(context.closed for context in calls)


@pytest.mark.statement("S0-23")
async def test_cancelled_task_group_in_a_callback_ends_the_execution():
    calls = []

    async def callback(context):
        calls.append(context.attempt)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(asyncio.Event().wait())

    task = asyncio.create_task(made(9).execute_async(callback))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls == [1]


@pytest.mark.statement("S0-23")
def test_timeout_from_outside_ends_the_whole_execution():
    async def body():
        async with asyncio.timeout(2.5):
            await template.execute_async(Script(ValueError()))

    template = made(99, delay=1.0)
    with pytest.raises(TimeoutError):
        run(body(), clock=template.clock)
    assert template.clock.monotonic() == 2.5


# -- close is called once -----------------------------------------------------------------------


class Closing(RetryListener):
    def __init__(self, close):
        self.body, self.ended = close, None

    async def close(self, context, exception):
        self.ended = "begun"
        await self.body()
        self.ended = "ended"


def test_asynchronous_close_may_await_after_a_cancellation():
    async def cleanup():
        for _ in range(5):
            await asyncio.sleep(0)

    async def callback(context):
        await _asyncio_cancels()

    listeners = [Closing(cleanup), Closing(cleanup)]
    template = made(listeners=listeners)
    run(in_asyncio(lambda: template.execute_async(callback)))
    assert [listener.ended for listener in listeners] == ["ended", "ended"]


def test_second_cancellation_ends_a_close_and_calls_the_others():
    async def cleanup():
        await asyncio.sleep(0)

    async def callback(context):
        await _asyncio_cancels()

    first, held_up, last = listeners = (
        Closing(cleanup),
        Closing(_asyncio_cancels),
        Closing(cleanup),
    )
    template = made(listeners=listeners)
    run(in_asyncio(lambda: template.execute_async(callback)))
    assert (first.ended, held_up.ended, last.ended) == ("ended", "begun", "ended")


def test_trio_cancellation_calls_every_close_and_ends_shielded_ones():
    async def shielded():
        with trio.CancelScope(shield=True):
            await trio.sleep(1.0)  # virtual seconds

    scope = trio.CancelScope()

    async def callback(context):
        scope.cancel()
        await trio.sleep_forever()

    plain, guarded = listeners = Closing(checkpoint), Closing(shielded)

    async def body():
        with scope:
            await made(listeners=listeners).execute_async(callback)

    run_trio(body)
    assert scope.cancelled_caught
    assert (plain.ended, guarded.ended) == ("begun", "ended")


# -- interrupted waits --------------------------------------------------------------------------


@pytest.mark.statement("S2-32")
@every_driver
def test_interrupted_wait_ends_the_execution_with_its_error(driver):
    template = made(9, delay=5.0, clock=VirtualClock(interrupt_at=2), listeners=[Recorder()])
    callback = Script(ValueError("the callback's own"))
    recoveries = []

    with pytest.raises(BackoffInterruptedError) as caught:
        driver(template, callback, recovery=recoveries.append)
    assert isinstance(caught.value.__cause__, Interrupted)
    assert callback.calls == 2
    assert recoveries == []


@every_driver
def test_interrupted_wait_keeps_the_count_and_frees_the_key(driver):
    template = made(9, delay=5.0, name="scene", clock=VirtualClock(interrupt_at=1))

    with pytest.raises(BackoffInterruptedError):
        driver(template, Script(ValueError()), state=STATE)
    callback = Script("value")
    assert driver(template, callback, state=STATE) == "value"
    assert callback.seen == [2]


# -- coroutines that are closed or forgotten ----------------------------------------------------


class Suspended:
    """An awaitable at which a coroutine is suspended without a loop."""

    def __await__(self):
        yield


async def rests(*_):
    await Suspended()


def wrapped(template):
    return template.wrap(rests)()


def called(template):
    return template.call_async(rests)


def executed(template):
    return template.execute_async(rests)


def outcome_of(template):
    return template.outcome_async(rests)


async def in_a_block(template):
    async for attempt in template.attempts():
        async with attempt:
            await rests()


async def under_a_deadline(template):
    with Deadline(5.0, clock=template.clock):
        await rests()


suspended_in_every_driver = pytest.mark.parametrize(
    "suspended", [wrapped, called, executed, outcome_of, in_a_block]
)
listeners_of_every_kind = pytest.mark.parametrize(
    "listener", [None, Recorder, AsyncRecorder], ids=["no listener", "sync", "async"]
)


def begun(suspended, listener):
    """A coroutine suspended in its callback, started in a context that has ended."""
    listeners = [] if listener is None else [listener()]
    coroutine = suspended(made(listeners=listeners))
    step = contextvars.copy_context().run
    for _ in range(3 if listener is AsyncRecorder else 1):
        step(coroutine.send, None)
    return coroutine, listeners


@pytest.fixture
def without_loop(monkeypatch):
    """An asynchronous listener that is suspended like the callback."""
    from retrytemplate.testing import recorder

    monkeypatch.setattr(recorder, "checkpoint", rests)


@suspended_in_every_driver
@listeners_of_every_kind
@pytest.mark.usefixtures("without_loop")
def test_suspended_execution_can_be_closed_from_another_context(suspended, listener):
    coroutine, listeners = begun(suspended, listener)

    def close():
        coroutine.close()
        assert current_context() is None

    contextvars.copy_context().run(close)
    if listener is Recorder:
        assert listeners[0].hooks[-1] == "close"


@suspended_in_every_driver
@listeners_of_every_kind
@pytest.mark.usefixtures("without_loop")
def test_suspended_execution_that_is_collected_is_closed_silently(suspended, listener, unraisable):
    *forgotten, listeners = begun(suspended, listener)

    def forget():
        forgotten.clear()
        gc.collect()
        assert current_context() is None

    contextvars.copy_context().run(forget)
    if listener is Recorder:
        assert listeners[0].hooks[-1] == "close"
    assert unraisable == []


def test_suspended_deadline_can_be_closed_from_another_context():
    coroutine = under_a_deadline(made())
    contextvars.copy_context().run(coroutine.send, None)
    coroutine.close()
    assert Deadline.current() is None


@pytest.mark.parametrize("stateful", [executed, wrapped])
def test_suspended_execution_that_is_closed_frees_its_key(stateful):
    template = made(name="scene")
    coroutine = stateful(template.bind(state=STATE))
    coroutine.send(None)
    coroutine.close()

    assert template.execute(Script("value"), state=STATE) == "value"


def test_wrapped_async_generator_can_be_closed_from_another_context():
    async def numbers():
        await Suspended()
        yield 1

    generator = made().wrap(numbers)()
    step = generator.asend(None)
    contextvars.copy_context().run(step.send, None)
    with pytest.raises(GeneratorExit):
        step.throw(GeneratorExit)
    assert current_context() is None


# -- caches whose steps take a while ---------------------------------------------------------------


def step(name):
    async def method(self, *args, **kwargs):
        await checkpoint()
        done = getattr(self.inner, name)(*args, **kwargs)
        await checkpoint()
        return done

    return method


class Awaited:
    """A cache in memory whose every step lets others run, before and after."""

    def __init__(self):
        self.inner = MemoryRetryContextCache()

    begin, renew, fail, succeed = map(step, ("begin", "renew", "fail", "succeed"))
    release, forget, peek, swap = map(step, ("release", "forget", "peek", "swap"))
    holds = step("holds")


async def working(template):
    async def callback(context):
        await checkpoint()
        if context.attempt == 1:
            raise ValueError

    await template.execute_async(callback, state=STATE)


@pytest.mark.parametrize("turns", range(30))
def test_asyncio_task_cancelled_anywhere_leaves_its_key_free(turns):
    template = made(name="work", cache=Awaited())

    async def main():
        task = asyncio.create_task(working(template))
        for _ in range(turns):
            await checkpoint()
        task.cancel()
        await asyncio.wait([task])

    run(main(), clock=template.clock)
    assert template.cache.inner._claims == {}


@pytest.mark.parametrize("turns", range(30))
def test_trio_task_cancelled_anywhere_leaves_its_key_free(turns):
    template = made(name="work", cache=Awaited())

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(working, template)
            for _ in range(turns):
                await checkpoint()
            nursery.cancel_scope.cancel()

    run_trio(main, clock=template.clock)
    assert template.cache.inner._claims == {}

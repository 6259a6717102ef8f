"""One template in many threads and tasks: executions share no count."""

import asyncio
import threading

import pytest

from retrytemplate import (
    AttemptInProgressError,
    CircuitBreakerRetryPolicy,
    ExponentialBackoff,
    MemoryRetryContextCache,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
)
from retrytemplate.policies import RetryPolicy
from retrytemplate.testing import Recorder, ScriptedRandom, VirtualClock
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT, in_threads
from tests.support.runners import made

THREADS = 32
TASKS = 1000
ATTEMPTS = 4


# -- attempt counts -----------------------------------------------------------------------------


class Own:
    """The failures of one call, and the contexts of its attempts."""

    def __init__(self, failures):
        self.failures = failures
        self.seen = []

    def __call__(self, context=None):
        context = current_context() if context is None else context
        self.seen.append((context.attempt, context.retry_count))
        if len(self.seen) <= self.failures:
            raise ValueError(self)
        return self

    async def wait(self, context=None):
        await asyncio.sleep(0)
        return self(context)

    def check(self, result):
        """Exactly the attempts of this call, numbered from 1, ended by its own value or error."""
        made = min(self.failures + 1, ATTEMPTS)
        assert self.seen == [(number + 1, number) for number in range(made)]
        assert result is self


def own_result(enter):
    """The value of a call, or the text of its exception."""
    try:
        return enter()
    except ValueError as exc:
        return exc.args[0]


def executed(template, own):
    return template.execute(own)


def called(template, own):
    return template.call(own)


def wrapped(template, own):
    return template.wrap(own)()


def outcome_of(template, own):
    return template.outcome(own).unwrap()


def in_a_block(template, own):
    attempts = template.attempts()
    for attempt in attempts:
        with attempt as context:
            attempt.result = own(context)
    return attempts.result


ENTRANCES = [executed, called, wrapped, outcome_of, in_a_block]


def counts_never_mix(template, enter, rounds=10):
    """The check itself: many threads, each with calls that fail a different number of times."""

    def work(number):
        calls = [Own((number + turn) % (ATTEMPTS + 1)) for turn in range(rounds)]
        return [(own, own_result(lambda own=own: enter(template, own))) for own in calls]

    for results in in_threads(work, THREADS):
        for own, result in results:
            own.check(result)


@pytest.mark.parametrize("enter", ENTRANCES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"listeners": [Recorder()]},
        {"delay": 0.001},
        {"policy": CircuitBreakerRetryPolicy(SimpleRetryPolicy(ATTEMPTS))},
    ],
    ids=["inline", "watched", "waiting", "own state"],
)
def test_counts_never_mix_between_threads(enter, settings):
    counts_never_mix(made(ATTEMPTS, **settings), enter)


class SharedCount(RetryPolicy):
    """Planted: it counts on itself instead of in the execution's context."""

    def __init__(self):
        self.count = 0
        self.begun = threading.Barrier(THREADS)

    def allows(self, failures, failure):
        if failure is None:
            self.count = 0
            self.begun.wait(JOIN_TIMEOUT)
            return True
        self.count += 1
        return self.count < ATTEMPTS


class SharedContext:
    """Planted: a template whose executions all write to one context."""

    class Context:
        attempt = retry_count = 0

    def __init__(self):
        self.context = self.Context()
        self.begun = threading.Barrier(THREADS)

    def execute(self, callback):
        context = self.context
        context.attempt, context.retry_count = 1, 0
        self.begun.wait(JOIN_TIMEOUT)
        while True:
            try:
                return callback(context)
            except ValueError:
                context.retry_count += 1
                if context.retry_count >= ATTEMPTS:
                    raise
                context.attempt += 1


@pytest.mark.parametrize(
    "planted", [SharedContext, lambda: made(policy=SharedCount())], ids=["context", "policy"]
)
def test_check_fails_when_a_count_is_shared(planted):
    with pytest.raises(AssertionError):
        counts_never_mix(planted(), executed, rounds=1)


@pytest.mark.parametrize("entrance", ["execute_async", "call_async", "wrap"])
@pytest.mark.parametrize("settings", [{}, {"delay": 0.001}], ids=["at once", "waiting"])
async def test_counts_never_mix_between_tasks(entrance, settings):
    template = made(ATTEMPTS, **settings)
    calls = [Own(number % (ATTEMPTS + 1)) for number in range(TASKS)]
    bodies = {
        "execute_async": lambda own: template.execute_async(own.wait),
        "call_async": lambda own: template.call_async(own.wait),
        "wrap": lambda own: template.wrap(own.wait)(),
    }

    async def enter(own):
        try:
            return await bodies[entrance](own)
        except ValueError as exc:
            return exc.args[0]

    results = await asyncio.gather(*map(enter, calls))
    for own, result in zip(calls, results, strict=True):
        own.check(result)


async def test_plain_retry_loop_on_a_shared_object_mixes_tasks():
    """The same check on a shared count fails."""
    shared = SharedContext.Context()

    async def enter(own):
        shared.attempt, shared.retry_count = 1, 0
        while True:
            try:
                return await own.wait(shared)
            except ValueError as exc:
                shared.retry_count += 1
                if shared.retry_count >= ATTEMPTS:
                    return exc.args[0]
                shared.attempt += 1

    calls = [Own(number % (ATTEMPTS + 1)) for number in range(TASKS)]
    results = await asyncio.gather(*map(enter, calls))
    with pytest.raises(AssertionError):
        for own, result in zip(calls, results, strict=True):
            own.check(result)


async def test_tasks_of_one_block_form_do_not_mix():
    template = made(ATTEMPTS)

    async def enter(number):
        seen = []
        async for attempt in template.attempts():
            async with attempt as context:
                await asyncio.sleep(0)
                seen.append(context.attempt)
                if context.attempt <= number % ATTEMPTS:
                    raise ValueError
        return seen

    results = await asyncio.gather(*map(enter, range(TASKS)))
    assert results == [list(range(1, number % ATTEMPTS + 2)) for number in range(TASKS)]


def test_backoffs_of_different_threads_grow_separately():
    clock = VirtualClock()
    delays = threading.local()

    class Delays(Recorder):
        def on_backoff(self, context, delay):
            delays.seen.append(delay)

    template = RetryTemplate(
        SimpleRetryPolicy(6), ExponentialBackoff(initial=1.0), clock=clock, listeners=[Delays()]
    )

    def work(number):
        delays.seen = []
        template.outcome(int, "x")
        return delays.seen

    assert in_threads(work, THREADS) == [[1.0, 2.0, 4.0, 8.0, 16.0]] * THREADS


def test_current_context_belongs_to_the_thread():
    template = made(listeners=[Recorder()])

    def work(number):
        def inside(context):
            context.attributes["number"] = number
            for _ in range(50):
                assert current_context() is context
            return current_context().attributes["number"]

        return template.execute(inside)

    assert in_threads(work, THREADS) == list(range(THREADS))
    assert current_context() is None


# -- listeners ----------------------------------------------------------------------------------


def test_listeners_registered_concurrently_are_all_kept():
    template = made()
    listeners = [[Recorder() for _ in range(5)] for _ in range(THREADS)]

    def work(number):
        for listener in listeners[number]:
            template.register_listener(listener, index=number % 3)
            template.call(int)

    in_threads(work, THREADS)
    everybody = {id(listener) for group in listeners for listener in group}
    assert {id(listener) for listener in template.listeners} == everybody
    for group in listeners:
        for listener in group:
            listener.clear()
    template.call(int)
    whole = ["open", "before_attempt", "on_success", "on_first_success", "close"]
    assert all(listener.hooks == whole for group in listeners for listener in group)


def test_listener_registered_during_calls_sees_whole_executions():
    class Whole(Recorder):
        def __init__(self):
            super().__init__()
            self.local = threading.local()

        def _note(self, hook, context, value=None):
            mine = self.local.__dict__.setdefault("hooks", [])
            mine.append(hook)
            if hook == "close":
                wholes.append(mine[0])
                mine.clear()

    wholes = []
    template = made(2, delay=0.001)
    called, stop = threading.Semaphore(0), threading.Event()

    def join_while_others_call():
        try:
            for _ in range(20):
                assert called.acquire(timeout=JOIN_TIMEOUT)
                template.register_listener(Whole())
        finally:
            stop.set()

    def call():
        while not stop.is_set():
            template.outcome(int, "x")
            left = ["x", "1"]
            template.call(lambda left=left: int(left.pop(0)))
            called.release()

    in_threads(lambda number: call() if number else join_while_others_call(), 8)
    template.call(int)
    assert set(wholes) == {"open"}


# -- objects shared on purpose ------------------------------------------------------------------


def test_circuit_under_threads_counts_each_failure_and_opens_once():
    policy = CircuitBreakerRetryPolicy(SimpleRetryPolicy(20), open_timeout=5, reset_timeout=20)
    template = made(policy=policy, name="circuit")
    state = RetryState("billing", rollback_for=())
    calls = []

    def fail(context):
        calls.append(threading.get_ident())
        raise ValueError

    def work(number):
        return [
            template.execute(fail, state=state, recovery=lambda context: "elsewhere")
            for _ in range(4)
        ]

    answers = in_threads(work, THREADS)
    assert answers == [["elsewhere"] * 4] * THREADS
    record = template.cache.peek(template.scoped_key("billing"))
    assert record.failures == len(calls)
    # Calls that began before it opened may end; none begins afterwards.
    assert 20 <= len(calls) < 20 + THREADS
    before = len(calls)
    work(0)
    assert len(calls) == before


def test_one_thread_at_a_time_holds_a_key():
    template = made(10**6, name="claims", cache=MemoryRetryContextCache())
    inside, most, fences = [], [], []

    def callback(context):
        inside.append(1)
        most.append(len(inside))
        fences.append(context.fence)
        inside.pop()
        raise ValueError

    def work(number):
        rejected = failed = 0
        for _ in range(20):
            try:
                template.execute(callback, state=RetryState("key"))
            except AttemptInProgressError:
                rejected += 1
            except ValueError:
                failed += 1
        return rejected + failed, failed

    results = in_threads(work, THREADS)
    assert all(total == 20 for total, _ in results)
    failures = sum(failed for _, failed in results)
    assert max(most) == 1
    assert len(set(fences)) == len(fences) == failures
    assert template.cache.peek(template.scoped_key("key")).failures == failures


def test_full_cache_under_threads_never_exceeds_its_capacity():
    cache = MemoryRetryContextCache(capacity=THREADS, when_full="evict")
    template = made(10**6, name="full", cache=cache)

    def fail(context):
        raise ValueError

    def work(number):
        for turn in range(10):
            with pytest.raises(ValueError):
                template.execute(fail, state=RetryState((number, turn)))
            assert len(cache) <= THREADS

    in_threads(work, THREADS)
    assert len(cache) == THREADS


def test_scripted_random_and_virtual_time_lose_nothing_under_threads():
    clock, chance = VirtualClock(), ScriptedRandom([0.5], cycle=True)
    template = RetryTemplate(
        SimpleRetryPolicy(3),
        ExponentialBackoff(initial=1.0, jitter="full"),
        clock=clock,
        random=chance,
    )
    in_threads(lambda number: template.outcome(int, "x"), THREADS)
    assert chance.drawn == len(clock.sleeps) == 2 * THREADS
    assert clock.monotonic() == pytest.approx(1.5 * THREADS)

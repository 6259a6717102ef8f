"""A hedge in threads: losers are abandoned, and a full pool blocks no call."""

import asyncio
import threading
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import count

import pytest

from retrytemplate import Deadline, DeadlineExceededError, MisuseError
from retrytemplate.control import (
    AttemptAbandoned,
    AttemptFailed,
    HedgeRefused,
    HedgeStarted,
    HedgeWon,
    Quantile,
    RetryBudget,
)
from retrytemplate.control.hedge import runners
from retrytemplate.testing import VirtualClock
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.support.gc_probe import left_by
from tests.support.signal_injection import InterruptsOnly
from tests.support.slow_backend import Down, EventRecorder
from tests.support.slow_backend import hedge as asynchronous

AT_ONCE, NEVER = 0.0, JOIN_TIMEOUT


class Hanging:
    """A call that hangs a number of times; afterwards it answers.

    It hangs until it is let go, at the end of the block around the test at the latest.
    """

    def __init__(self, times=1, then=None):
        self.lock = threading.Lock()
        self.times = times
        self.then = then
        self.began = []
        self.over = threading.Event()

    def __call__(self):
        with self.lock:
            self.began.append(threading.get_ident())
            number = len(self.began)
        if number <= self.times:
            assert self.over.wait(JOIN_TIMEOUT)
            if self.then is not None:
                raise self.then
        return f"answer {number}"

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.over.set()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as made:
        yield made


def hedge(pool, delay=AT_ONCE, **settings):
    return asynchronous(delay, executor=pool, **settings)


def filled(pool):
    """Occupy every thread of the pool until the returned event is set."""
    over, barrier = threading.Event(), threading.Barrier(pool._max_workers + 1)

    def hang():
        barrier.wait(JOIN_TIMEOUT)
        over.wait(JOIN_TIMEOUT)

    for _ in range(pool._max_workers):
        pool.submit(hang)
    barrier.wait(JOIN_TIMEOUT)
    return over


# -- who answers -----------------------------------------------------------------------------------


def test_hedge_returns_and_abandons_the_hanging_call(pool):
    recorder = EventRecorder()
    made = hedge(pool, listeners=[recorder])
    with Hanging() as hanging:
        outcome = made.outcome(hanging)
        assert (outcome.value, outcome.source, outcome.attempts) == ("answer 2", 2, 2)
        assert made.snapshot().abandoned == 1
        assert {*recorder.kinds} == {HedgeStarted, AttemptAbandoned, HedgeWon}
        assert recorder.events[-2].number == 1


def test_failed_call_starts_the_next_at_once(pool):
    answers = iter([Down("first"), KeyError("second"), "third"])

    def ask():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    outcome = hedge(pool, NEVER, max_hedges=2).outcome(ask)
    assert (outcome.value, outcome.source) == ("third", 3)
    assert [type(each) for each in outcome.failures] == [Down, KeyError]


def test_failure_of_the_first_call_is_raised_with_the_others(pool):
    failures = iter([Down("first"), KeyError("second")])

    def ask():
        raise next(failures)

    with pytest.raises(Down, match="first") as raised:
        hedge(pool, NEVER).call(ask)
    assert [type(each) for each in raised.value.__cause__.exceptions] == [KeyError]
    assert raised.value.__notes__ == ["call 2 failed, too: KeyError: 'second'"]


def test_hedge_wraps_functions(pool):
    assert hedge(pool).wrap(str.upper)("rome") == "ROME"
    assert hedge(pool).call(int, "ff", base=16) == 255


# -- those who are left behind ---------------------------------------------------------------------


def test_stop_flag_is_set_when_no_caller_waits(pool):
    flags, seen = [], threading.Event()

    def ask(city, *, stop):
        flags.append(stop)
        if len(flags) == 1:
            assert stop.wait(JOIN_TIMEOUT)
            seen.set()
        return city

    assert hedge(pool).call(ask, "Oslo") == "Oslo"
    assert seen.wait(JOIN_TIMEOUT)
    assert [each.is_set() for each in flags] == [True, False]


def test_stop_argument_of_the_caller_is_kept(pool):
    assert hedge(pool).call(lambda *, stop: stop, stop="mine") == "mine"
    assert hedge(pool).call(lambda stop: stop, "mine") == "mine"
    assert hedge(pool).call(partial(lambda *, stop: stop, stop="mine")) == "mine"


def test_late_failure_of_an_abandoned_call_is_reported(pool):
    stopped = threading.Event()

    class Waits(EventRecorder):
        def on_event(self, event):
            super().on_event(event)
            if isinstance(event, AttemptFailed):
                stopped.set()

    recorder = Waits()
    with Hanging(then=Down("late")) as hanging:
        assert hedge(pool, listeners=[recorder]).call(hanging) == "answer 2"
        assert AttemptFailed not in recorder.kinds
    assert stopped.wait(JOIN_TIMEOUT)
    (lost,) = [each for each in recorder.events if isinstance(each, AttemptFailed)]
    assert (lost.number, str(lost.error)) == (1, "late")


def test_wait_ends_with_the_deadline(pool):
    made = hedge(pool)
    with Hanging(2) as hanging, Deadline(0.005, clock=VirtualClock()):
        outcome = made.outcome(hanging)
        assert type(outcome.exception) is DeadlineExceededError
        assert outcome.exception.outcome_unknown
        assert made.snapshot().abandoned == outcome.attempts


def test_interrupted_caller_abandons_and_signals_running_calls(pool):
    flags = []

    def ask(stop):
        flags.append(stop)
        interrupts.send()
        assert stop.wait(JOIN_TIMEOUT)

    made = hedge(pool, NEVER)
    with (
        InterruptsOnly(runners.ThreadPoolRunner._next) as interrupts,
        pytest.raises(KeyboardInterrupt),
    ):
        made.call(ask)
    assert (made.snapshot().abandoned, flags[0].wait(JOIN_TIMEOUT)) == (1, True)


# -- what ends a call ------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_base_exception_passes(pool, end):
    def ask():
        raise end

    with pytest.raises(end):
        hedge(pool, NEVER).outcome(ask)


def test_failure_outside_of_on_ends_the_call(pool):
    with Hanging(then=None), pytest.raises(ValueError, match="invalid literal"):
        hedge(pool, NEVER, on=(Down,)).call(int, "x")


def test_predicate_that_raises_ends_the_call_with_the_failure_as_cause(pool):
    def fails():
        raise Down

    def odd(exc):
        raise KeyError

    outcome = hedge(pool, NEVER, on=odd).outcome(fails)
    assert type(outcome.exception) is KeyError
    assert type(outcome.exception.__cause__) is Down
    assert (outcome.attempts, outcome.source) == (1, None)


def test_awaitable_result_is_rejected(pool):
    async def ask():
        """Not awaited."""

    with pytest.raises(MisuseError, match=r"use call_async\(\)"):
        hedge(pool, NEVER).call(ask)


def test_synchronous_call_requires_an_executor():
    made = asynchronous()
    for use in (made.call, made.outcome, made.wrap):
        with pytest.raises(MisuseError, match=r"pass executor=ThreadPoolExecutor"):
            use(str.upper)


def test_process_pool_is_rejected():
    with (
        ProcessPoolExecutor(1) as processes,
        pytest.raises(TypeError, match="executor must run threads"),
    ):
        hedge(processes)


def test_call_leaves_no_cycle(pool):
    def fails():
        raise Down

    def call(made, fn):
        with suppress(Down):
            made.call(fn)

    for made in (hedge(pool, NEVER), hedge(pool, Quantile(0.5))):
        for fn in (int, fails):
            assert left_by(partial(call, made, fn)) == 0


def test_call_abandoned_after_a_failure_leaves_no_cycle():
    def call():
        calls = count(1)

        def fn(stop):
            number = next(calls)
            if number == 1:
                raise Down
            return number if number == 3 else stop.wait(JOIN_TIMEOUT)

        with ThreadPoolExecutor(3) as pool:
            assert hedge(pool, 0.005, max_hedges=2).call(fn) == 3

    assert left_by(call) == 0


# -- pools that are full, or closed ----------------------------------------------------------------


def test_hedge_without_a_free_thread_costs_nothing():
    budget = RetryBudget.tokens(capacity=10, cost=5, refund=0)
    recorder = EventRecorder()
    due = threading.Event()

    class Single(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            made = super().submit(fn, *args, **kwargs)
            if self.__dict__.setdefault("first", made) is not made:
                due.set()
            return made

    def ask():
        assert due.wait(JOIN_TIMEOUT)
        return "answer"

    with Single(1) as single:
        made = hedge(single, budget=budget, listeners=[recorder])
        outcome = made.outcome(ask)
    assert (outcome.value, outcome.attempts, made.snapshot().hedges) == ("answer", 1, 0)
    assert budget.snapshot().available == 10
    assert recorder.events == []


def test_single_thread_makes_one_call_after_the_other():
    failures = iter([Down(), None])

    def ask():
        error = next(failures)
        if error is not None:
            raise error
        return "second"

    with ThreadPoolExecutor(1) as single:
        assert hedge(single).call(ask) == "second"


def test_caller_in_the_only_thread_of_the_pool_makes_the_calls(monkeypatch):
    monkeypatch.setattr(runners, "POOL_START_GRACE", 0.0)
    with ThreadPoolExecutor(1) as single, Hanging(0) as answers:
        caller = single.submit(threading.get_ident).result(JOIN_TIMEOUT)
        assert single.submit(hedge(single).call, answers).result(JOIN_TIMEOUT) == "answer 1"
        assert answers.began == [caller]
        fails = single.submit(hedge(single, max_hedges=2).outcome, int, "x")
        assert fails.result(JOIN_TIMEOUT).attempts == 3


def test_caller_makes_the_call_when_every_thread_is_busy(monkeypatch):
    monkeypatch.setattr(runners, "POOL_START_GRACE", 0.001)
    with ThreadPoolExecutor(2) as small, Hanging(0) as answers:
        over = filled(small)
        try:
            assert hedge(small, 0.002).call(answers) == "answer 1"
        finally:
            over.set()
    assert answers.began == [threading.get_ident()]


def test_deadline_applies_when_no_thread_is_free():
    with ThreadPoolExecutor(1) as single, Hanging(0) as answers:
        over = filled(single)
        try:
            with Deadline(0.005, clock=VirtualClock()):
                outcome = hedge(single, NEVER).outcome(answers)
        finally:
            over.set()
    assert type(outcome.exception) is DeadlineExceededError
    assert (outcome.attempts, answers.began) == (0, [])


def test_call_without_possible_hedge_runs_in_the_thread_of_the_caller(pool):
    made = hedge(pool, Quantile(0.9, minimum=1))
    assert made.call(threading.get_ident) == threading.get_ident()
    assert made.delay.value() is not None


def test_hedge_with_pool_that_is_shut_down_raises_misuse_error():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    made = []
    with pytest.raises(MisuseError, match="executor of the hedge 'hedge' is shut down") as raised:
        hedge(pool).call(made.append, "rome")
    assert type(raised.value.__cause__) is RuntimeError
    assert made == []


def test_pool_shut_down_during_the_call_starts_no_hedge():
    pool, recorder = ThreadPoolExecutor(1), EventRecorder()
    budget = RetryBudget.tokens(capacity=10, cost=5, refund=0)

    def ask():
        pool.shutdown(wait=False)
        raise Down

    with pytest.raises(Down):
        hedge(pool, NEVER, listeners=[recorder], budget=budget).call(ask)
    assert [type(each.error) for each in recorder.events] == [MisuseError]
    assert recorder.kinds == [HedgeRefused]
    assert budget.snapshot().available == 10


def test_call_dropped_by_its_pool_is_cancelled(monkeypatch):
    monkeypatch.setattr(runners, "POOL_START_GRACE", JOIN_TIMEOUT)
    pool = ThreadPoolExecutor(1)
    over = filled(pool)
    submit = pool.submit

    def thrown_away(fn, *args):
        made = submit(fn, *args)
        pool.shutdown(wait=False, cancel_futures=True)
        return made

    monkeypatch.setattr(pool, "submit", thrown_away)
    try:
        with pytest.raises(CancelledError):
            hedge(pool, NEVER).call(str.upper, "rome")
    finally:
        over.set()


def test_broken_pool_raises_its_error(monkeypatch):
    monkeypatch.setattr(runners, "POOL_START_GRACE", JOIN_TIMEOUT)

    class Broken(Executor):
        def submit(self, fn, /, *args, **kwargs):
            failed = Future()
            failed.set_exception(BrokenExecutor("no thread starts"))
            return failed

    outcome = hedge(Broken(), NEVER).outcome(str.upper, "rome")
    assert (type(outcome.exception), outcome.attempts) == (BrokenExecutor, 0)


def test_pool_without_threads_makes_no_call_later():
    made = []

    class Starved(Executor):
        def submit(self, fn, /, *args, **kwargs):
            made.append(partial(fn, *args, **kwargs))
            raise RuntimeError("can't start new thread")

    with Hanging(0) as answers, pytest.raises(RuntimeError, match="can't start"):
        hedge(Starved()).call(answers)
    made[0]()
    assert answers.began == []


def test_pool_that_runs_calls_inline_is_accepted():
    class Here(Executor):
        def submit(self, fn, /, *args, **kwargs):
            done = Future()
            done.set_result(fn(*args, **kwargs))
            return done

    assert hedge(Here()).call(str.upper, "rome") == "ROME"
    assert hedge(Here(), max_hedges=2).outcome(int, "x").attempts == 3


def test_many_callers_share_a_small_pool():
    count = threading.Lock()
    queries = []

    def ask(number):
        with count:
            queries.append(number)
            turn = queries.count(number)
        if turn == 1 and number % 3 == 0:
            raise Down
        return number

    with ThreadPoolExecutor(2) as small, ThreadPoolExecutor(8) as callers:
        made = hedge(small, 0.001)
        assert list(callers.map(partial(made.call, ask), range(200))) == list(range(200))
    shown = made.snapshot()
    assert shown.calls + shown.hedges == len(queries)


# -- context ---------------------------------------------------------------------------------------


def test_each_call_copies_the_context_of_the_caller(pool):
    user, seen = ContextVar("user"), []

    def ask():
        seen.append((user.get(), Deadline.current().remaining()))
        user.set("another user")
        raise Down

    user.set("kim")
    with Deadline(100.0, clock=VirtualClock()), pytest.raises(Down):
        hedge(pool, NEVER).call(ask)
    assert seen == [("kim", 100.0)] * 2
    assert user.get() == "kim"

"""A breaker under threads and tasks; entries are counted at the entry, not by time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from retrytemplate import CircuitOpenError
from retrytemplate.control import Calls, CircuitBreaker, Consecutive, Seconds
from retrytemplate.testing import VirtualClock
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.support.event_loops import LOOPS
from tests.support.thread_crowd import cancelled_anywhere, come_and_go, tasks_at_once

loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])


class Down(Exception):
    """The error of the failing service."""


def half_open(**settings):
    clock = VirtualClock()
    breaker = CircuitBreaker(
        "shared", window=Consecutive(1), half_open_calls=3, clock=clock, **settings
    )
    with pytest.raises(ZeroDivisionError):
        breaker.call(lambda: 1 / 0)
    clock.advance(60)
    assert breaker.state == "half_open"
    return breaker


@pytest.mark.statement("S4-32")
@pytest.mark.parametrize("driver", ["call", "wrap", "permit"])
def test_half_open_admits_three_of_thirty_two_threads(driver):
    breaker = half_open(required_successes=100)
    inside, rejections = [], []
    over = threading.Event()
    begin = threading.Barrier(32)

    def enter():
        inside.append(threading.get_ident())
        assert over.wait(JOIN_TIMEOUT)

    wrapped = breaker.wrap(enter)

    def work():
        begin.wait(JOIN_TIMEOUT)
        try:
            if driver == "permit":
                with breaker.permit():
                    enter()
            elif driver == "wrap":
                wrapped()
            else:
                breaker.call(enter)
        except CircuitOpenError as error:
            rejections.append(error)
            if len(rejections) == 29:
                over.set()

    with ThreadPoolExecutor(32) as pool:
        for future in [pool.submit(work) for _ in range(32)]:
            future.result(JOIN_TIMEOUT)
    assert (len(inside), len(rejections)) == (3, 29)
    assert len(set(map(id, rejections))) == 29
    assert (breaker.snapshot().probes, breaker.snapshot().successes) == (0, 3)


@loops
def test_half_open_admits_three_of_a_thousand_tasks(loop):
    breaker = half_open(required_successes=100)
    assert tasks_at_once(loop, breaker, 1000, places=3) == (3, 997)
    assert breaker.snapshot().successes == 3


@loops
@pytest.mark.parametrize("seed", range(5))
def test_tasks_cancelled_anywhere_leave_no_permit_taken(loop, seed):
    breaker, random = half_open(required_successes=10**6), Random(seed)
    cancelled_anywhere(loop, breaker, random, 20, random.randrange(30, 60))
    snapshot = breaker.snapshot()
    assert (snapshot.state, snapshot.probes) == ("half_open", 0)
    assert snapshot.successes > 0


@pytest.mark.parametrize("fails", [range(0, 3000, 7), [2999], []], ids=["often", "late", "never"])
@pytest.mark.parametrize("window", [Calls(10**6), Seconds(10**6)], ids=["calls", "seconds"])
def test_calls_of_many_threads_are_counted_exactly_once(window, fails, switching):
    breaker = CircuitBreaker("shared", window=window, minimum_calls=10**6)

    @breaker.wrap
    def ask(number):
        if number in fails:
            raise Down
        return number

    def work():
        for number in range(3000):
            try:
                ask(number)
            except Down:
                continue

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work) for _ in range(8)]:
            future.result(JOIN_TIMEOUT)
    shown = breaker.snapshot()
    assert (shown.calls, shown.failures, shown.late) == (24000, 8 * len(fails), 0)


def test_concurrent_failures_open_the_circuit_once(switching):
    begin = threading.Barrier(8)

    def fail():
        begin.wait(JOIN_TIMEOUT)
        raise Down

    def work(breaker):
        with pytest.raises(Down):
            breaker.call(fail)

    with ThreadPoolExecutor(8) as pool:
        for _ in range(200):
            breaker = CircuitBreaker("shared", window=Consecutive(5), clock=VirtualClock())
            for future in [pool.submit(work, breaker) for _ in range(8)]:
                future.result(JOIN_TIMEOUT)
            shown = breaker.snapshot()
            assert (shown.state, shown.generation, shown.late) == ("open", 1, 3)


def test_threads_that_come_and_go_in_half_open_are_never_more_than_may_be(switching):
    breaker = half_open(required_successes=10**9)
    most, admitted = come_and_go([breaker] * 16, 1000)
    shown = breaker.snapshot()
    assert most <= 3
    assert (shown.successes, shown.probes) == (admitted, 0)
    assert shown.rejected == 16 * 1000 - admitted

"""Strategies as plain decorators, in every order, around functions and methods: one result."""

from collections import Counter
from itertools import permutations

import pytest

from retrytemplate import RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import Bulkhead, CircuitBreaker, Fallback, Pipeline, Timeout
from tests.support.event_loops import LOOPS

every_loop = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])

NAMES = ("timeout", "template", "breaker", "bulkhead", "fallback")
ORDERS = list(permutations(NAMES))


class Down(Exception):
    """A retryable error."""


def other(*args):
    """A fallback for an error that is not raised here."""


class Guards:
    """One strategy of each kind for one service."""

    def __init__(self):
        self.timeout = Timeout(60.0)
        self.template = RetryTemplate(SimpleRetryPolicy(3, retry_on=Down))
        self.breaker = CircuitBreaker("service", minimum_calls=50)
        self.bulkhead = Bulkhead("service", limit=2)
        self.fallback = Fallback(other, on=(LookupError,))

    def around(self, order, function):
        """Apply decorators; the last one is the innermost."""
        for name in reversed(order):
            function = getattr(self, name).wrap(function)
        return function

    def pipeline(self, order):
        return Pipeline(*(getattr(self, name) for name in order))

    def at_rest(self):
        return (self.bulkhead.snapshot().in_use, self.breaker.snapshot().probes) == (0, 0)


class Service:
    """Fails a number of times, then returns."""

    def __init__(self, failures, error=Down):
        self.failures, self.error, self.calls = failures, error, Counter()

    def __call__(self, page, *, size):
        self.calls[page] += 1
        if self.calls[page] <= self.failures:
            raise self.error(page)
        return page * size


def ended(call, *args, **kwargs):
    """The result or the exception of a call."""
    try:
        return call(*args, **kwargs)
    except Exception as exc:
        return type(exc), exc.args


EXPECTED = [
    ((0, Down), 6, 1),
    ((2, Down), 6, 3),
    ((9, Down), (Down, (3,)), 3),
    ((9, ZeroDivisionError), (ZeroDivisionError, (3,)), 1),
]


@pytest.mark.parametrize("failing, answer, calls", EXPECTED)
def test_functions_and_methods_give_the_same_in_every_order(failing, answer, calls):
    for order in ORDERS:
        guards = Guards()
        plain, by_pipeline, method = Service(*failing), Service(*failing), Service(*failing)

        class Owner:
            pages = guards.around(order, lambda self, page, *, size, to=method: to(page, size=size))

        drivers = {
            "decorators": (guards.around(order, plain), plain),
            "pipeline": (guards.pipeline(order).wrap(by_pipeline), by_pipeline),
            "method": (Owner().pages, method),
        }
        for driver, (call, service) in drivers.items():
            assert (order, driver, ended(call, 3, size=2)) == (order, driver, answer)
            assert service.calls == {3: calls}
        called = Service(*failing)
        assert ended(guards.pipeline(order).call, called, 3, size=2) == answer
        assert called.calls == {3: calls}
        assert guards.at_rest()


@every_loop
@pytest.mark.parametrize("failing, answer, calls", EXPECTED)
def test_coroutine_functions_and_methods_give_the_same_in_every_order(loop, failing, answer, calls):
    async def main():
        for order in ORDERS:
            guards = Guards()
            services = [Service(*failing) for _ in range(3)]
            plain, method, called = services

            async def pages(page, *, size, to=plain):
                return to(page, size=size)

            class Owner:
                @guards.pipeline(order).wrap
                async def pages(self, page, *, size, to=method):
                    return to(page, size=size)

            for call in (guards.around(order, pages), Owner().pages):
                assert (order, await ended_async(call, 3, size=2)) == (order, answer)
            call = guards.pipeline(order).call_async
            assert (order, await ended_async(call, called, 3, size=2)) == (order, answer)
            assert [each.calls for each in services] == [{3: calls}] * 3
            assert guards.at_rest()

    loop.run(main)


async def ended_async(call, *args, **kwargs):
    try:
        return await call(*args, **kwargs)
    except Exception as exc:
        return type(exc), exc.args


@every_loop
def test_cancelled_call_leaves_nothing_behind_in_any_order(loop):
    async def main():
        for order in ORDERS:
            guards = Guards()
            reached, ends = Counter(), []

            async def hangs(reached=reached, ends=ends):
                reached["calls"] += 1
                try:
                    while True:
                        await loop.checkpoint()
                except loop.CANCELLED:
                    ends.append("cancelled")
                    raise

            calls = [guards.around(order, hangs), guards.pipeline(order).wrap(hangs)]
            for number, call in enumerate(calls, start=1):
                await loop.cancelled(call, when=lambda n=number, seen=reached: seen["calls"] == n)
                assert (order, ends) == (order, ["cancelled"] * number)
            assert reached == {"calls": 2}  # it was not called again
            assert guards.at_rest()
            counted = guards.breaker.snapshot()
            assert (counted.calls, counted.failures) == (0, 0)

    loop.run(main)

"""Hedges and retries share one budget: deposits of calls and costs of hedges."""

from contextlib import suppress

import pytest

from retrytemplate import NoBackoff, RetryBudgetExhaustedError, RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import HedgeRefused, HedgeStarted, RetryBudget
from retrytemplate.testing import VirtualClock
from tests.support.slow_backend import Backend, Down, EventRecorder, hedge, in_asyncio, in_trio

loops = pytest.mark.parametrize("runs", [in_asyncio, in_trio])

SLOW = (60.0, 0.5)


@pytest.fixture
def clock():
    return VirtualClock()


def tokens(clock, capacity=10, cost=5, refund=0, **settings):
    return RetryBudget.tokens(capacity=capacity, cost=cost, refund=refund, clock=clock, **settings)


def calls(runs, clock, call, times, takes=SLOW):
    """The number of requests of each of *calls* calls."""
    made = []

    async def main():
        for _ in range(times):
            backend = Backend(clock, *takes * 4)
            with suppress(Down):
                await call(backend.ask)
            made.append(len(backend.began))

    runs(main, clock)
    return made


@loops
def test_ratio_of_a_fifth_allows_two_hedges_for_ten_calls(runs, clock):
    budget = RetryBudget(ratio=0.2, min_per_second=0, ttl=3600, clock=clock)
    made = calls(runs, clock, hedge(clock=clock, budget=budget).call_async, 10, [20.0, 0.5])
    assert sum(made) == 12


@loops
def test_hedge_that_is_not_granted_is_not_started(runs, clock):
    budget, recorder = tokens(clock), EventRecorder()
    made = hedge(clock=clock, budget=budget, listeners=[recorder])
    assert calls(runs, clock, made.call_async, 3, [2.0, 60.0]) == [2, 2, 1]
    assert recorder.kinds == [HedgeStarted, HedgeStarted, HedgeRefused]
    assert type(recorder.events[-1].error) is RetryBudgetExhaustedError
    assert (made.snapshot().rejected, budget.snapshot().rejected) == (1, 1)


@loops
def test_rejected_hedge_is_not_tried_again(runs, clock):
    budget, recorder = tokens(clock, refill_per_second=5.0), EventRecorder()
    budget.withdraw()
    budget.withdraw(Down())
    clock.advance(0.5)
    made = hedge(delay=0.1, max_hedges=5, clock=clock, budget=budget, listeners=[recorder])
    assert calls(runs, clock, made.call_async, 1, [20.0, 60.0]) == [1]
    assert recorder.kinds == [HedgeRefused]


@loops
def test_failure_without_a_granted_hedge_is_raised(runs, clock):
    budget = tokens(clock, capacity=5)
    budget.withdraw()
    made = hedge(clock=clock, budget=budget)

    async def main():
        return await made.outcome_async(Backend(clock, (0.5, Down("own"))).ask)

    outcome = runs(main, clock)
    assert (str(outcome.exception), outcome.attempts) == ("own", 1)


@loops
def test_hedge_costs_the_price_of_the_failure_it_follows(runs, clock):
    budget = tokens(clock, capacity=100, cost={Down: 20, Exception: 5})
    made = hedge(clock=clock, budget=budget)
    calls(runs, clock, made.call_async, 1, SLOW)
    assert budget.snapshot().available == 95
    calls(runs, clock, made.call_async, 1, [(0.5, Down()), 0.5])
    assert budget.snapshot().available == 75


@loops
def test_success_is_refunded_once(runs, clock):
    budget = tokens(clock, capacity=100, cost=5, refund=1)
    made = hedge(clock=clock, budget=budget)
    calls(runs, clock, made.call_async, 2, SLOW)
    assert budget.snapshot().available == 92
    calls(runs, clock, made.call_async, 1, [(0.5, Down())] * 2)
    assert budget.snapshot().available == 87


@loops
def test_hedge_needs_budget_and_parent(runs, clock):
    process = tokens(clock, capacity=5)
    budget = tokens(clock, parent=process)
    made = hedge(clock=clock, budget=budget)
    assert calls(runs, clock, made.call_async, 2, [2.0, 60.0]) == [2, 1]
    assert (process.snapshot().available, budget.snapshot().available) == (0, 5)


def guarded(budget, clock):
    return RetryTemplate(SimpleRetryPolicy(2), NoBackoff(), guards=[budget], clock=clock)


@loops
@pytest.mark.parametrize("inside", ["the hedge", "the template"])
def test_call_under_template_and_hedge_of_one_budget_counts_once(runs, clock, inside):
    process = RetryBudget(ratio=0.5, min_per_second=0, ttl=3600, clock=clock, name="process")
    budget = RetryBudget(ratio=0.5, min_per_second=0, ttl=3600, clock=clock, parent=process)
    template, hedged = guarded(budget, clock), hedge(clock=clock, budget=budget)
    outer, inner = (template, hedged) if inside == "the hedge" else (hedged, template)

    async def call(fn):
        return await outer.call_async(inner.wrap(fn))

    calls(runs, clock, call, 10, [0.5])
    assert (budget.snapshot().available, process.snapshot().available) == (5, 5)


@loops
@pytest.mark.parametrize("inside", ["the hedge", "the template"])
def test_success_under_template_and_hedge_of_one_bucket_counts_once(runs, clock, inside):
    budget = tokens(clock, capacity=100, cost=10, refund=1)
    for _ in range(5):
        budget.withdraw()
    template, hedged = guarded(budget, clock), hedge(clock=clock, budget=budget)
    outer, inner = (template, hedged) if inside == "the hedge" else (hedged, template)

    async def call(fn):
        return await outer.call_async(inner.wrap(fn))

    calls(runs, clock, call, 10, [0.5])
    assert budget.snapshot().available == 60


@loops
def test_call_after_the_hedge_is_counted(runs, clock):
    budget = RetryBudget(ratio=0.5, min_per_second=0, ttl=3600, clock=clock)

    async def main():
        await hedge(clock=clock, budget=budget).call_async(int)
        guarded(budget, clock).call(int)

    runs(main, clock)
    assert budget.snapshot().available == 1

"""A stop applies to retries, fallbacks, hedges and inner templates."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from retrytemplate import (
    KillSwitchActiveError,
    NoBackoff,
    Rejected,
    RetryError,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import Bulkhead, Fallback, Hedge, KillSwitch, Pipeline, RetryBudget
from tests.support.event_loops import LOOPS
from tests.support.polling import wait_until

loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
RETRY = SimpleRetryPolicy(5)


def stop(switch):
    switch.stop(segment="billing", reason="charged twice, incident 9", by="kim", permanent=True)


class Work:
    """A function that always fails; the segment is stopped during the second call."""

    def __init__(self, switch, stop_at=2):
        self.switch, self.stop_at, self.calls = switch, stop_at, 0

    def __call__(self):
        self.calls += 1
        if self.calls == self.stop_at:
            stop(self.switch)
        raise ConnectionError("reset")

    async def later(self):
        self()


@pytest.fixture
def switch():
    return KillSwitch()


@pytest.fixture
def guard(switch):
    return switch.guard(segment="billing")


@pytest.mark.statement("S4-72")
def test_retry_of_stopped_work_is_not_made(switch, guard):
    work = Work(switch)
    with pytest.raises(KillSwitchActiveError) as raised:
        RetryTemplate(RETRY, NoBackoff(), guards=[guard]).call(work)
    assert work.calls == 2
    assert isinstance(raised.value.__cause__, ConnectionError)


@pytest.mark.statement("S4-72")
@loops
def test_asynchronous_retry_of_stopped_work_is_not_made(switch, guard, loop):
    work = Work(switch)
    template = RetryTemplate(RETRY, NoBackoff(), guards=[guard])
    with pytest.raises(KillSwitchActiveError):
        loop.run(lambda: template.call_async(work.later))
    assert work.calls == 2


@pytest.mark.statement("S4-72")
def test_inner_templates_are_stopped(switch, guard):
    work = Work(switch)
    inner = RetryTemplate(RETRY, NoBackoff()).wrap(work)
    with pytest.raises(KillSwitchActiveError):
        RetryTemplate(RETRY, NoBackoff(), guards=[guard]).call(inner)
    assert work.calls == 2


@pytest.mark.statement("S4-72")
def test_templates_inside_a_guard_are_stopped(switch, guard):
    work = Work(switch)
    with pytest.raises(KillSwitchActiveError):
        Pipeline(guard, RetryTemplate(RETRY, NoBackoff())).call(work)
    assert work.calls == 2


@pytest.mark.statement("S4-72")
@loops
def test_asynchronous_templates_inside_a_guard_are_stopped(switch, guard, loop):
    work = Work(switch)
    with pytest.raises(KillSwitchActiveError):
        pipeline = Pipeline(guard, RetryTemplate(RETRY, NoBackoff()))
        loop.run(lambda: pipeline.call_async(work.later))
    assert work.calls == 2


def test_guard_applies_to_its_own_call_only(switch, guard):
    guard.call(int, "17")
    stop(switch)
    assert RetryTemplate().call(int, "17") == 17


@pytest.mark.statement("S4-72")
def test_fallback_does_not_cover_stopped_work(switch, guard):
    stop(switch)
    template = RetryTemplate(guards=[guard])
    with pytest.raises(KillSwitchActiveError):
        Fallback(lambda: "from elsewhere").call(template.call, int)


@pytest.mark.parametrize(
    "on",
    [(Exception,), lambda error: True, (Rejected,), (OSError, RetryError)],
    ids=["class", "predicate", "rejections", "errors of the library"],
)
def test_fallback_on_everything_does_not_cover_stopped_work(switch, guard, on):
    stop(switch)
    with pytest.raises(KillSwitchActiveError):
        Fallback(lambda: "from elsewhere", on=on).call(guard.wrap(lambda: "done"))


def test_group_with_a_rejection_gets_no_fallback(switch, guard):
    stop(switch)

    def both():
        errors = []
        for fn in (lambda: int("x"), guard.wrap(lambda: "done")):
            try:
                fn()
            except Exception as exc:
                errors.append(exc)
        raise ExceptionGroup("both", errors)

    with pytest.raises(ExceptionGroup):
        Fallback(lambda: "from elsewhere").call(both)


def test_fallback_that_names_the_rejection_answers(switch, guard):
    stop(switch)
    refusal = Fallback(lambda: "closed for tonight", on=(KillSwitchActiveError,))
    assert refusal.call(guard.wrap(lambda: "done")) == "closed for tonight"


@pytest.mark.statement("S4-72")
def test_fallback_of_stopped_work_is_not_called(switch, guard):
    queries = []
    fallback = Fallback(lambda: queries.append("the other one"))
    with pytest.raises(KillSwitchActiveError):
        guard.call(fallback.call, Work(switch, stop_at=1))
    assert queries == []


@pytest.mark.statement("S4-72")
@loops
def test_asynchronous_fallback_of_stopped_work_is_not_called(switch, guard, loop):
    queries = []
    fallback = Fallback(lambda: queries.append("the other one"))
    work = Work(switch, stop_at=1)
    with pytest.raises(KillSwitchActiveError):
        loop.run(lambda: guard.call_async(fallback.call_async, work.later))
    assert queries == []


@pytest.mark.statement("S4-72")
def test_hedge_of_stopped_work_is_not_started(switch, guard):
    work = Work(switch, stop_at=1)
    hedge = Hedge(delay=0.0, max_hedges=3, idempotent=True)
    template = RetryTemplate(SimpleRetryPolicy(1), guards=[guard])
    with pytest.raises(ConnectionError):
        asyncio.run(template.call_async(hedge.call_async, work.later))
    assert work.calls == 1
    assert hedge.snapshot().rejected == 1


@pytest.mark.statement("S4-72")
def test_hedge_of_stopped_work_is_not_started_in_a_thread(switch, guard):
    work = Work(switch, stop_at=1)
    with ThreadPoolExecutor(2) as pool:
        hedge = Hedge(delay=60.0, max_hedges=3, idempotent=True, executor=pool)
        with pytest.raises(ConnectionError):
            guard.call(hedge.call, work)
    assert work.calls == 1


def test_rejection_starts_no_hedge(switch, guard):
    stop(switch)
    hedge = Hedge(delay=60.0, max_hedges=3, idempotent=True)
    outcome = asyncio.run(hedge.outcome_async(guard.wrap(asyncio.sleep), 0))
    assert isinstance(outcome.exception, KillSwitchActiveError)
    assert outcome.attempts == 1


@pytest.fixture
def full():
    """A bulkhead without a free slot, and the slot in use."""
    bulkhead = Bulkhead("llm", limit=1, queue=1, max_wait=60.0)
    return bulkhead, bulkhead.slot().__enter__()


def stop_who_waits(switch, bulkhead, slot):
    wait_until(lambda: bulkhead.snapshot().waiting)
    stop(switch)
    slot.__exit__(None, None, None)


@pytest.mark.statement("S4-72")
@pytest.mark.parametrize("driver", ["guard", "template"])
def test_call_stopped_in_a_queue_is_not_made(switch, guard, full, driver):
    bulkhead, slot = full
    around = guard if driver == "guard" else RetryTemplate(RETRY, NoBackoff(), guards=[guard])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(around.call, bulkhead.call, pytest.fail)
        stop_who_waits(switch, bulkhead, slot)
        with pytest.raises(KillSwitchActiveError):
            waiting.result()
    snapshot = bulkhead.snapshot()
    assert (snapshot.in_use, snapshot.waiting, snapshot.admitted) == (0, 0, 1)


@pytest.mark.statement("S4-72")
@loops
def test_task_stopped_in_a_queue_is_not_made(switch, guard, full, loop):
    bulkhead, slot = full
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(stop_who_waits, switch, bulkhead, slot)
        with pytest.raises(KillSwitchActiveError):
            loop.run(lambda: guard.call_async(bulkhead.call_async, pytest.fail))
        done.result()
    assert bulkhead.snapshot().in_use == 0


@pytest.mark.statement("S4-72")
def test_rejection_is_not_retried(switch, guard):
    stop(switch)
    outcome = RetryTemplate(RETRY, NoBackoff()).outcome(guard.wrap(lambda: "done"))
    assert isinstance(outcome.exception, KillSwitchActiveError)
    assert outcome.attempts == 1


@pytest.mark.statement("S4-72")
@pytest.mark.parametrize("rule", [Exception, Rejected, RetryError])
def test_rule_for_rejections_does_not_cover_a_switch(switch, guard, rule):
    stop(switch)
    template = RetryTemplate(SimpleRetryPolicy(5, rule), NoBackoff(), recovery=lambda _: "later")
    outcome = template.outcome(guard.wrap(lambda: "done"))
    assert isinstance(outcome.exception, KillSwitchActiveError)
    assert outcome.attempts == 1


def test_rule_that_names_the_rejection_of_a_switch_retries_it(switch, guard):
    stop(switch)
    template = RetryTemplate(SimpleRetryPolicy(5, KillSwitchActiveError), NoBackoff())
    assert template.outcome(guard.wrap(lambda: "done")).attempts == 5


def test_rejection_costs_a_budget_nothing(switch, guard):
    budget = RetryBudget.tokens(capacity=10, cost=5)
    work = Work(switch, stop_at=1)
    RetryTemplate(RETRY, NoBackoff(), guards=[budget, guard]).outcome(work)
    assert budget.snapshot().available == 10.0

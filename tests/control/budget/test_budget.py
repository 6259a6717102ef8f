"""A retry budget: granted retries, deposits and refunds."""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from retrytemplate import (
    ExceptionClassifier,
    FixedBackoff,
    Guard,
    KillSwitchActiveError,
    NoBackoff,
    RetryBudgetExhaustedError,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import CallRejected, ControlListener, RetryBudget
from retrytemplate.testing import GuardConformance, VirtualClock
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.support.event_loops import LOOPS
from tests.support.gc_probe import left_by


class Down(Exception):
    """The error of every call."""


def failing():
    raise Down


@pytest.fixture
def clock():
    return VirtualClock()


def template(budget, clock, attempts=3, delay=0.0, **settings):
    backoff = FixedBackoff(delay) if delay else NoBackoff()
    guards = [*settings.pop("guards", ()), budget]
    return RetryTemplate(
        SimpleRetryPolicy(attempts), backoff, guards=guards, clock=clock, **settings
    )


def attempts(made, calls):
    return [made.outcome(failing).attempts for _ in range(calls)]


# -- a share of the calls --------------------------------------------------------------------------


def test_ratio_of_a_fifth_allows_two_retries_for_ten_calls(clock):
    budget = RetryBudget(ratio=0.2, min_per_second=0, clock=clock)
    assert sum(attempts(template(budget, clock, 2), 10)) == 12


def test_minimum_per_second_is_always_granted(clock):
    budget = RetryBudget(ratio=0.1, min_per_second=0.5, ttl=10, clock=clock)
    assert attempts(template(budget, clock, 9), 2) == [6, 1]


def test_calls_and_retries_of_long_ago_count_no_more(clock):
    budget = RetryBudget(ratio=1.0, min_per_second=0, ttl=10, clock=clock)
    made = template(budget, clock, 2)
    assert attempts(made, 3) == [2, 2, 2]
    for _ in range(5):
        made.call(int)
    assert budget.snapshot().available == 5
    clock.advance(10)
    assert budget.snapshot().available == 0


# -- a bucket --------------------------------------------------------------------------------------


@pytest.mark.statement("S3-11")
def test_empty_bucket_rejects_retries_at_once(clock):
    events = []

    class Listens(ControlListener):
        def on_event(self, event):
            events.append(event)

    budget = RetryBudget.tokens(
        capacity=100, refill_per_second=10, cost=1, refund=0, clock=clock, listeners=[Listens()]
    )
    made = template(budget, clock, 101, delay=0.001)
    assert made.outcome(failing).attempts == 101
    began = clock.monotonic()
    outcome = made.outcome(failing)
    assert (outcome.attempts, clock.monotonic()) == (2, began + 0.001)  # one has come back
    outcome = made.outcome(failing)
    assert (outcome.attempts, clock.monotonic()) == (1, began + 0.001)
    error = outcome.exception
    assert type(error) is RetryBudgetExhaustedError
    assert type(error.__cause__) is Down
    assert (error.name, error.retry_after) == ("retries", pytest.approx(0.099))
    assert type(events[0]) is CallRejected
    assert events[-1].error is error


@pytest.mark.statement("S3-13")
def test_time_refills_the_bucket_up_to_its_capacity(clock):
    budget = RetryBudget.tokens(capacity=10, refill_per_second=2, cost=1, refund=0, clock=clock)
    made = template(budget, clock, 11)
    assert attempts(made, 2) == [11, 1]
    clock.advance(1.5)
    assert attempts(made, 2) == [4, 1]
    clock.advance(1000)
    assert budget.snapshot().available == 10


@pytest.mark.statement("S3-12")
def test_token_is_taken_only_when_a_retry_follows(clock):
    budget = RetryBudget.tokens(capacity=100, cost=1, refund=0, clock=clock)
    attempts(template(budget, clock, 3), 1)
    assert budget.snapshot().available == 98


def test_retry_costs_the_price_of_its_failure(clock):
    costs = {TimeoutError: 10, Exception: 5}
    for given in (costs, ExceptionClassifier(costs, default=5)):
        budget = RetryBudget.tokens(capacity=100, cost=given, clock=clock)
        made = template(budget, clock, 2)
        made.outcome(failing)
        assert budget.snapshot().available == 95

        def late():
            raise TimeoutError

        made.outcome(late)
        assert budget.snapshot().available == 85


def test_success_refunds_a_little_and_after_a_retry_its_cost(clock):
    budget = RetryBudget.tokens(capacity=20, cost=5, refund=1, clock=clock)
    made = template(budget, clock, 2)
    made.outcome(failing)
    assert budget.snapshot().available == 15
    made.call(int)
    assert budget.snapshot().available == 16
    answers = deque([Down(), "fine"])

    def flaky():
        answer = answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert made.call(flaky) == "fine"
    assert budget.snapshot().available == 16


# -- giving back -----------------------------------------------------------------------------------


class Refuses(Guard):
    """Admits a number of attempts."""

    def __init__(self, number):
        self.left = number

    def admit(self, context):
        self.left -= 1
        if self.left < 0:
            raise KillSwitchActiveError("no more")


BOTH = pytest.mark.parametrize(
    "make",
    [
        lambda clock: RetryBudget(ratio=0.0, min_per_second=1, ttl=10, clock=clock),
        lambda clock: RetryBudget.tokens(capacity=10, cost=1, refund=0, clock=clock),
    ],
    ids=["share", "bucket"],
)


@BOTH
def test_cancelled_wait_costs_nothing(make):
    clock = VirtualClock(interrupt_at=1)
    budget = make(clock)
    template(budget, clock, delay=1.0).outcome(failing)
    assert (budget.snapshot().available, budget.snapshot().granted) == (10, 0)


@BOTH
def test_attempt_rejected_after_the_wait_costs_nothing(make, clock):
    budget = make(clock)
    made = template(budget, clock, delay=0.5, guards=[Refuses(1)])
    outcome = made.outcome(failing)
    assert (type(outcome.exception), outcome.attempts) == (KillSwitchActiveError, 1)
    assert (budget.snapshot().available, budget.snapshot().granted) == (10, 0)


def test_withdrawal_before_the_window_is_not_refunded_into_it(clock):
    budget = RetryBudget(ratio=0.0, min_per_second=1, ttl=10, clock=clock)
    made = template(budget, clock, delay=30.0, guards=[Refuses(1)])
    made.outcome(failing)
    assert budget.snapshot().available == 10


@BOTH
def test_redelivery_is_charged_when_the_failure_is_raised(make, clock):
    budget = make(clock)
    made = template(budget, clock)
    with pytest.raises(Down):
        made.execute(lambda context: failing(), state=RetryState("key"))
    assert budget.snapshot().available == 9


# -- parents ---------------------------------------------------------------------------------------


def test_retry_needs_the_parent_and_its_rejection_costs_nothing(clock):
    process = RetryBudget.tokens(capacity=3, cost=1, refund=0, name="process", clock=clock)
    first = RetryBudget.tokens(10, cost=1, refund=0, parent=process, name="first", clock=clock)
    second = RetryBudget.tokens(10, cost=1, refund=0, parent=process, name="second", clock=clock)
    assert attempts(template(first, clock, 3), 1) == [3]
    outcome = template(second, clock, 3).outcome(failing)
    assert (outcome.attempts, outcome.exception.name) == (2, "process")
    assert [each.snapshot().available for each in (first, second, process)] == [8, 9, 0]


def test_parent_budget_earns_and_gets_refunds_through_its_children(clock):
    process = RetryBudget(ratio=1.0, min_per_second=0, name="process", clock=clock)
    child = RetryBudget.tokens(100, cost=1, refund=0, parent=process, clock=clock)
    made = template(child, clock, 2)
    made.call(int)
    assert process.snapshot().available == 1
    cut = VirtualClock(interrupt_at=1)
    template(child, cut, delay=1.0).outcome(failing)
    assert process.snapshot().available == 2


# -- the whole -------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
def test_asynchronous_calls_are_guarded(loop, clock):
    budget = RetryBudget(ratio=0.5, min_per_second=0, clock=clock)
    made = template(budget, clock)

    async def down():
        await loop.checkpoint()
        raise Down

    async def main():
        return [(await made.outcome_async(down)).attempts for _ in range(4)]

    assert loop.run(main) == [1, 2, 1, 2]


class TestShare(GuardConformance):
    def make(self):
        return RetryBudget()


class TestBucket(GuardConformance):
    def make(self):
        return RetryBudget.tokens(parent=RetryBudget())


def test_many_threads_never_overspend(switching):
    clock = VirtualClock()
    budget = RetryBudget.tokens(capacity=1000, cost=1, refund=0, clock=clock)
    made = template(budget, clock, 10**6)
    begin = threading.Barrier(8)

    def work():
        begin.wait(JOIN_TIMEOUT)
        return made.outcome(failing).attempts - 1

    with ThreadPoolExecutor(8) as pool:
        retries = [future.result(JOIN_TIMEOUT) for future in [pool.submit(work) for _ in range(8)]]
    shown = budget.snapshot()
    assert (sum(retries), shown.granted, shown.rejected, shown.available) == (1000, 1000, 8, 0)


@pytest.mark.parametrize("form", ["tokens", "share"])
def test_many_threads_withdraw_at_most_the_capacity(form, switching):
    clock = VirtualClock()
    if form == "tokens":
        budget = RetryBudget.tokens(capacity=20_000, cost=1, clock=clock)
    else:
        budget = RetryBudget(ratio=0, min_per_second=2000, ttl=10, clock=clock)

    def work():
        for taken in count():
            try:
                budget.withdraw()
            except RetryBudgetExhaustedError:
                return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [future.result(JOIN_TIMEOUT) for future in [pool.submit(work) for _ in range(8)]]
    assert (sum(taken), budget.snapshot().available) == (20_000, 0)


class Naive(RuleBasedStateMachine):
    """Both forms, recomputed each time from the whole history."""

    @initialize(
        share=st.booleans(), ratio=st.sampled_from([0.0, 0.25, 1.0]), cost=st.integers(1, 3)
    )
    def make(self, share, ratio, cost):
        self.clock, self.share, self.ratio = VirtualClock(), share, ratio
        self.cost = 1 if share else cost
        self.called, self.taken = [], []
        self.tokens, self.at = 6.0, 0
        if share:
            self.budget = RetryBudget(ratio, 0.2, 10, clock=self.clock)
        else:
            self.budget = RetryBudget.tokens(6, 0.5, cost, 1, clock=self.clock)
        self.context = Context()

    @property
    def now(self):
        return self.clock.monotonic()

    def left(self):
        if self.share:
            recent = self.now - 10
            calls = sum(1 for at in self.called if at > recent)
            return self.ratio * calls + 2 - sum(1 for at in self.taken if at > recent)
        self.tokens = min(6.0, self.tokens + 0.5 * (self.now - self.at))
        self.at = self.now
        return self.tokens

    @rule()
    def call(self):
        self.context.retry_count = 0
        self.budget.admit(self.context)
        self.called.append(self.now)

    @rule()
    def attempt_again(self):
        self.context.retry_count = 1
        self.budget.admit(self.context)

    @rule()
    def retry(self):
        enough = self.left() >= self.cost
        try:
            self.budget.reserve(self.context, 0.0)
        except RetryBudgetExhaustedError:
            assert not enough
        else:
            assert enough
            self.taken.append(self.now)
            self.tokens -= self.cost

    @rule()
    def release(self):
        if self.taken and self.taken[-1] == self.now:
            self.taken.pop()
            self.tokens = min(6.0, self.left() + self.cost) if not self.share else self.tokens
            self.budget.release(self.context)

    @rule(retried=st.booleans())
    def succeed(self, retried):
        self.context.retry_count = int(retried)
        self.budget.on_success(self.context, None)
        if not self.share:
            self.tokens = min(6.0, self.left() + (self.cost if retried else 1))

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds):
        self.clock.advance(float(seconds))

    @invariant()
    def agrees(self):
        if hasattr(self, "budget"):
            assert self.budget.snapshot().available == pytest.approx(max(0.0, self.left()))


class Context:
    """The part of a context that a budget reads."""

    retry_count = 0
    last_exception = Down()


TestNaive = Naive.TestCase
TestNaive.settings = settings(max_examples=150, stateful_step_count=40)


def test_manual_withdrawal_can_be_refunded(clock):
    process = RetryBudget.tokens(capacity=10, clock=clock)
    budget = RetryBudget.tokens(capacity=10, parent=process, clock=clock)
    budget.withdraw()
    budget.refund()
    assert [each.snapshot().available for each in (budget, process)] == [10, 10]
    process.withdraw()
    process.withdraw()
    with pytest.raises(RetryBudgetExhaustedError):
        budget.withdraw()
    assert (budget.snapshot().available, budget.snapshot().granted) == (10, 0)


def test_rejection_leaves_no_cycle(clock):
    budget = RetryBudget.tokens(capacity=1, cost=1, clock=clock)
    budget.withdraw()
    template = RetryTemplate(SimpleRetryPolicy(3), guards=[budget], clock=clock)

    def call():
        with suppress(RetryBudgetExhaustedError):
            budget.withdraw()
        template.outcome(failing)
        with suppress(RetryBudgetExhaustedError):
            template.call(failing)

    assert left_by(call) == 0


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "given", "problem"),
    [
        (RetryBudget, {"ratio": -0.1}, "ratio must be"),
        (RetryBudget, {"ratio": "20%"}, "ratio must be"),
        (RetryBudget, {"ratio": float("nan")}, "ratio must be"),
        (RetryBudget, {"min_per_second": -1}, "min_per_second must be"),
        (RetryBudget, {"ratio": 0, "min_per_second": 0}, "no retry is granted"),
        (RetryBudget, {"ttl": 0}, "ttl must be"),
        (RetryBudget, {"parent": 17}, "parent must be a RetryBudget or None, got 17"),
        (RetryBudget, {"name": ""}, "name must be a non-blank str"),
        (RetryBudget, {"clock": 17}, "clock must"),
        (RetryBudget, {"listeners": [17]}, "listeners"),
        (RetryBudget.tokens, {"capacity": -1}, "capacity must be"),
        (RetryBudget.tokens, {"capacity": 4}, "cost must be above 0 and at most the capacity of 4"),
        (RetryBudget.tokens, {"cost": 0}, "cost must be above 0"),
        (RetryBudget.tokens, {"cost": "5"}, "cost must be above 0 .* a number, .* got '5'"),
        (RetryBudget.tokens, {"cost": {TimeoutError: 10}}, "cost must have an entry for Exception"),
        (RetryBudget.tokens, {"cost": {Exception: 5, TimeoutError: 501}}, "got 501"),
        (RetryBudget.tokens, {"refund": -1}, "refund must be"),
        (RetryBudget.tokens, {"refill_per_second": float("inf")}, "refill_per_second must be"),
    ],
)
def test_budget_with_wrong_settings_is_rejected(make, given, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        make(**given)


@pytest.mark.parametrize("setting", ["ratio", "ttl", "capacity", "cost", "parent", "name"])
@pytest.mark.parametrize("make", [RetryBudget, RetryBudget.tokens])
def test_setting_of_a_budget_cannot_be_assigned(make, setting):
    with pytest.raises(AttributeError, match=f"{setting} of a RetryBudget .*; make another"):
        setattr(make(), setting, None)

"""A pipeline: strategies around a call, in the order in which they are written."""

import asyncio

import pytest

from retrytemplate import (
    AlwaysRetryPolicy,
    CircuitOpenError,
    DeadlineExceededError,
    FixedBackoff,
    MisuseError,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import (
    Bulkhead,
    CircuitBreaker,
    Consecutive,
    Fallback,
    Hedge,
    Pipeline,
    RetryBudget,
    Strategy,
    Timeout,
)
from retrytemplate.testing import VirtualClock, run
from tests.support.event_loops import LOOPS

every_loop = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])


class Down(Exception):
    """The error of the other side."""


class Logging:
    """A user's strategy that records when it is entered and left."""

    def __init__(self, name, events):
        self.name, self.events = name, events

    def call(self, fn, /, *args, **kwargs):
        self.events.append(f"in {self.name} {args}")
        try:
            return fn(*args, **kwargs)
        finally:
            self.events.append(f"out {self.name}")

    async def call_async(self, fn, /, *args, **kwargs):
        self.events.append(f"in {self.name} {args}")
        try:
            value = fn(*args, **kwargs)
            return await value if asyncio.iscoroutine(value) else value
        finally:
            self.events.append(f"out {self.name}")

    def wrap(self, fn):
        if asyncio.iscoroutinefunction(fn):

            async def wrapped(*args, **kwargs):
                return await self.call_async(fn, *args, **kwargs)
        else:

            def wrapped(*args, **kwargs):
                return self.call(fn, *args, **kwargs)

        return wrapped


def template(attempts=3, **settings):
    return RetryTemplate(SimpleRetryPolicy(attempts, retry_on=Down), **settings)


def breaker(failures=50, **settings):
    return CircuitBreaker("service", window=Consecutive(failures), **settings)


def failing(times, value="answer"):
    """A function that fails a number of times; its calls are in ``calls``."""

    def function(*args):
        function.calls += 1
        if function.calls <= times:
            raise Down(function.calls)
        return value

    function.calls = 0
    return function


# -- calls -----------------------------------------------------------------------------------------


def test_outermost_layer_is_first_and_all_see_the_arguments():
    events = []
    pipeline = Pipeline(Logging("a", events), Logging("b", events))
    expected = ["in a (17,)", "in b (17,)", "17", "out b", "out a"]
    assert pipeline.call(lambda number: events.append(str(number)), 17) is None
    assert events == expected
    del events[:]
    pipeline.wrap(lambda number: events.append(str(number)))(17)
    assert events == expected


@every_loop
def test_order_of_layers_is_the_same_in_a_task(loop):
    events = []
    pipeline = Pipeline(Logging("a", events), template(2), Logging("b", events))

    @pipeline.wrap
    async def function(number, *, unit):
        await loop.checkpoint()
        if len(events) < 3:
            raise Down
        return f"{number} {unit}"

    async def main():
        assert await function(17, unit="m") == "17 m"
        inner = ["in b (17,)", "out b"]
        assert events == ["in a (17,)", *inner, *inner, "out a"]
        assert await pipeline.call_async("{} {unit}".format, 17, unit="m") == "17 m"

    loop.run(main)


@pytest.mark.statement("S4-94")
def test_outer_timeout_covers_all_attempts_and_each_passes_the_breaker():
    clock = VirtualClock()
    circuit = breaker(2, clock=clock)
    pipeline = Pipeline(
        Timeout(12.0, clock=clock), template(9, backoff=FixedBackoff(4.0), clock=clock), circuit
    )
    slow = failing(99)

    async def answers():
        await clock.sleep_async(1.5)
        slow()

    outcome = run(pipeline.outcome_async(answers), clock=clock)
    # Both attempts count for the circuit, which opens; the third is rejected, and not tried again.
    assert (slow.calls, outcome.attempts, circuit.state) == (2, 2, "open")
    assert (type(outcome.exception), clock.monotonic()) == (CircuitOpenError, 1.5 + 4 + 1.5 + 4)

    never_open = Pipeline(*pipeline.layers[:2])
    began = clock.monotonic()
    outcome = run(never_open.outcome_async(answers), clock=clock)
    assert (type(outcome.exception), outcome.attempts) == (DeadlineExceededError, 3)
    assert clock.monotonic() - began == 12.0


@pytest.mark.statement("S4-94")
def test_open_circuit_is_not_retried():
    circuit = breaker()
    circuit.force_open(by="kim", reason="being mended")
    outcome = Pipeline(Timeout(2.0), template(5), circuit).outcome(failing(0))
    assert (type(outcome.exception), outcome.attempts) == (CircuitOpenError, 0)
    assert circuit.snapshot().rejected == 1


@pytest.mark.parametrize("driver", ["call", "wrap", "outcome"])
def test_each_layer_keeps_its_behaviour(driver):
    circuit, bulkhead = breaker(), Bulkhead("service", limit=3)
    pipeline = Pipeline(Timeout(2.0), template(), circuit, bulkhead)
    function = failing(2)
    if driver == "outcome":
        outcome = pipeline.outcome(function)
        assert (outcome.unwrap(), outcome.attempts, outcome.ok) == ("answer", 3, True)
    else:
        answer = pipeline.wrap(function)() if driver == "wrap" else pipeline.call(function)
        assert answer == "answer"
    assert (bulkhead.snapshot().admitted, bulkhead.snapshot().in_use) == (3, 0)
    assert circuit.snapshot().failures == 0


def test_fallback_gets_the_arguments_of_the_call():
    queries = []

    def cached(city, *, unit):
        queries.append((city, unit))
        return 31

    def provider(city, *, unit):
        raise Down

    pipeline = Pipeline(Fallback(cached), template(2), breaker())
    assert pipeline.call(provider, "Rome", unit="C") == 31
    assert pipeline.wrap(provider)("Rome", unit="C") == 31
    assert queries == [("Rome", "C")] * 2


@every_loop
def test_hedge_inside_the_retry_doubles_each_attempt(loop):
    answered = []

    async def replica(number):
        answered.append(number)
        await loop.checkpoint()
        if len(answered) < 4:
            raise Down
        return number

    async def main():
        hedge = Hedge(0.0, idempotent=True, name="replicas")
        pipeline = Pipeline(Timeout(60.0), template(), hedge, breaker())
        assert await pipeline.call_async(replica, 17) == 17
        assert await pipeline.wrap(replica)(18) == 18

    loop.run(main)
    assert answered.count(17) == 4


def test_bound_template_is_a_layer_with_its_state():
    bound = template(5).bind(state=RetryState("order-17"))
    pipeline = Pipeline(Timeout(2.0), bound)
    function = failing(1)
    with pytest.raises(Down):  # stateful: a failure is rethrown at once
        pipeline.call(function)
    assert pipeline.call(function) == "answer"


def test_recovery_chosen_by_the_call_gets_the_call():
    seen = []

    class Chosen:
        def for_call(self, failure, function, arguments):
            seen.append((type(failure), function, arguments))
            return lambda context: "recovered"

        def __call__(self, context):
            raise AssertionError("not called: it chooses another")

    function = failing(9)
    pipeline = Pipeline(Timeout(2.0), template(2, recovery=Chosen()))
    assert pipeline.call(function, 17) == "recovered"
    assert seen == [(Down, function, (17,))]


def test_pipeline_inside_another_adds_its_layers():
    inner = Pipeline(template(), breaker(), name="inner")
    outer = Pipeline(Timeout(2.0), inner)
    assert outer.layers == (outer.layers[0], *inner.layers)


def test_outcome_has_the_number_of_calls_and_the_duration():
    clock = VirtualClock()
    pipeline = Pipeline(template(backoff=FixedBackoff(2.0), clock=clock), clock=clock)
    outcome = pipeline.outcome(failing(1))
    assert (outcome.value, outcome.attempts, outcome.elapsed) == ("answer", 2, 2.0)
    outcome = run(pipeline.outcome_async(failing(9)), clock=clock)
    assert (type(outcome.exception), outcome.attempts, outcome.elapsed) == (Down, 3, 4.0)


@pytest.mark.parametrize("end", [KeyboardInterrupt, asyncio.CancelledError, MisuseError])
def test_outcome_does_not_hold_base_exceptions(end):
    def ends():
        raise end

    async def ends_async():
        raise end

    pipeline = Pipeline(Timeout(2.0), template(), breaker())
    with pytest.raises(end):
        pipeline.outcome(ends)
    with pytest.raises(end):
        run(pipeline.outcome_async(ends_async), clock=VirtualClock())


def test_unawaited_result_is_rejected_with_the_function_name():
    async def later():
        """Not awaited."""

    for pipeline in (Pipeline(template(), breaker()), Pipeline(Fallback(failing(0)))):
        with pytest.raises(MisuseError, match=r"later.*use call_async\(\)"):
            pipeline.call(later)


def test_wrapped_function_keeps_its_kind():
    pipeline = Pipeline(Timeout(2.0), template(), breaker(), Bulkhead("service"))

    class Service:
        """Methods of every kind."""

        @pipeline.wrap
        def fetch(self, page):
            """Fetch it."""
            return page

        @pipeline.wrap
        @classmethod
        def make(cls):
            return cls()

        @staticmethod
        @pipeline.wrap
        async def later(page):
            return page

    service = Service.make()
    assert service.fetch(17) == 17
    assert (Service.fetch.__name__, Service.fetch.__doc__) == ("fetch", "Fetch it.")
    assert run(service.later(3), clock=VirtualClock()) == 3
    with pytest.raises(TypeError, match="takes a function, got the generator function"):
        pipeline.wrap(lambda: (yield))


def test_pipeline_is_a_strategy_and_its_repr_names_the_layers():
    pipeline = Pipeline(Timeout(2.0, kind="partner"), template(name="charge"), breaker(), name="x")
    assert isinstance(pipeline, Strategy)
    assert repr(pipeline) == (
        "<Pipeline 'x': Timeout 'partner', RetryTemplate 'charge', CircuitBreaker 'service'>"
    )


# -- rejections ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ((), "at least one strategy, got none"),
        ((17,), r"takes strategies, objects with call, call_async and wrap.*got 17"),
        ((Timeout,), "takes strategies"),
        ((failing,), "takes strategies"),
        ((Timeout(1.0), RetryBudget()), r"pass a guard to RetryTemplate\(guards=...\)"),
    ],
)
def test_wrong_type_of_strategy_is_rejected(layers, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        Pipeline(*layers)


def test_name_and_clock_are_checked():
    with pytest.raises(TypeError, match="name must be a non-blank str"):
        Pipeline(Timeout(1.0), name="")
    with pytest.raises(TypeError, match="clock must"):
        Pipeline(Timeout(1.0), clock=17)


@pytest.mark.parametrize("layer", [breaker(), Bulkhead("service"), Fallback(failing(0))])
def test_layer_with_state_may_occur_once(layer):
    with pytest.raises(
        ValueError, match="a strategy with state must appear only once in a Pipeline, got"
    ):
        Pipeline(Pipeline(layer), Timeout(1.0), layer)
    once = Timeout(1.0)
    assert Pipeline(once, layer, once).layers == (once, layer, once)


@pytest.mark.statement("S3-22")
def test_unbounded_retry_is_rejected():
    endless = RetryTemplate(AlwaysRetryPolicy(), FixedBackoff(1.0), name="forever")
    for layers in ((endless,), (breaker(), endless, Timeout(1.0)), (endless.bind(),)):
        with pytest.raises(
            ValueError, match=r"'forever' has no limit, its policy is AlwaysRetryPolicy"
        ):
            Pipeline(*layers)
    assert Pipeline(Timeout(60.0), endless).worst_case() == 60.0
    bounded = endless.with_(policy=AlwaysRetryPolicy() & SimpleRetryPolicy(5))
    assert Pipeline(bounded).worst_case(attempt_duration=1.0) == 9.0


@pytest.mark.parametrize("setting", ["layers", "name"])
def test_setting_of_a_pipeline_cannot_be_assigned(setting):
    pipeline = Pipeline(Timeout(1.0))
    with pytest.raises(AttributeError, match=f"{setting} of a Pipeline .*; make another Pipeline"):
        setattr(pipeline, setting, ())

"""A pipeline passes on the parameters and the name of the called function."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial, update_wrapper
from inspect import signature

import pytest

from retrytemplate import AttemptTimeout, NoBackoff, RetryListener, RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import (
    Bulkhead,
    CircuitBreaker,
    ControlListener,
    Fallback,
    Hedge,
    Pipeline,
    Timeout,
)
from retrytemplate.testing import VirtualClock, run
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT


class Sees:
    """A user's strategy that records the signature of its function."""

    def __init__(self):
        self.seen = []

    def call(self, fn, /, *args, **kwargs):
        self.seen.append(str(signature(fn)))
        return fn(*args, **kwargs)

    async def call_async(self, fn, /, *args, **kwargs):
        self.seen.append(str(signature(fn)))
        return await fn(*args, **kwargs)

    def wrap(self, fn):
        return update_wrapper(partial(self.call, fn), fn)


class Recorded(ControlListener):
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)


def template(seconds=JOIN_TIMEOUT):
    limit = AttemptTimeout(seconds, in_thread=True)
    return RetryTemplate(SimpleRetryPolicy(2), NoBackoff(), attempt_timeout=limit)


def breaker():
    return CircuitBreaker("service")


def hedge(pool):
    return Hedge(JOIN_TIMEOUT, idempotent=True, executor=pool)


def cached(path, stop):
    return "cached"


def read(path, stop):
    return path, stop


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as made:
        yield made


ONES = {
    "an attempt in a thread": lambda pool: Pipeline(template()),
    "with a breaker inside": lambda pool: Pipeline(template(), breaker()),
    "with a breaker outside": lambda pool: Pipeline(breaker(), template()),
    "with a strategy of one's own inside": lambda pool: Pipeline(template(), Sees(), breaker()),
    "a hedge": lambda pool: Pipeline(hedge(pool)),
    "a hedge with a breaker inside": lambda pool: Pipeline(
        Timeout(JOIN_TIMEOUT), hedge(pool), breaker()
    ),
    "a hedge with a fallback inside": lambda pool: Pipeline(hedge(pool), Fallback(cached)),
}
DRIVERS = {
    "call": lambda pipeline: pipeline.call,
    "outcome": lambda pipeline: lambda *args, **kwargs: pipeline.outcome(*args, **kwargs).unwrap(),
    "wrap": lambda pipeline: lambda fn, *args, **kwargs: pipeline.wrap(fn)(*args, **kwargs),
}
every_one = pytest.mark.parametrize("one", ONES.values(), ids=ONES)
every_driver = pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)


# -- the stop flag ---------------------------------------------------------------------------------


@every_one
@every_driver
def test_function_that_takes_a_stop_flag_gets_one(one, driver, pool):
    call = driver(one(pool))
    for path, stop in (call(read, "page"), call(read, path="page")):
        assert (path, stop.is_set()) == ("page", False)


@every_one
@every_driver
def test_stop_argument_of_the_caller_is_kept(one, driver, pool):
    call = driver(one(pool))
    assert call(read, "page", "mine") == ("page", "mine")
    assert call(read, "page", stop="mine") == ("page", "mine")
    assert call(partial(read, stop="mine"), "page") == ("page", "mine")


@every_driver
def test_abandoned_attempt_in_a_thread_gets_the_stop_flag(driver):
    stopped = threading.Semaphore(0)

    def hangs(stop=None):
        if stop.wait(JOIN_TIMEOUT):
            stopped.release()

    with pytest.raises(TimeoutError):
        driver(Pipeline(template(0.01), breaker()))(hangs)
    for _ in range(2):
        assert stopped.acquire(timeout=JOIN_TIMEOUT)


# -- what a layer is given -------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["call", "outcome"])
def test_user_strategy_sees_the_signature_of_the_function(driver):
    outer, inner = Sees(), Sees()
    getattr(Pipeline(outer, breaker(), inner, Bulkhead("service")), driver)(read, "page", None)
    assert outer.seen == inner.seen == ["(path, stop)"]


@pytest.mark.parametrize("driver", ["call_async", "outcome_async"])
def test_user_strategy_sees_the_signature_in_a_task(driver):
    async def fetch(page):
        return page

    outer, inner = Sees(), Sees()
    pipeline = Pipeline(outer, breaker(), inner, Bulkhead("service"))
    run(getattr(pipeline, driver)(fetch, 17), clock=VirtualClock())
    assert outer.seen == inner.seen == ["(page)"]


# -- the name --------------------------------------------------------------------------------------


def around(clock, listener):
    limit = Timeout(1.0, listeners=[listener], clock=clock)
    return {
        "alone": Pipeline(limit),
        "outside": Pipeline(limit, breaker(), Bulkhead("service")),
        "inside": Pipeline(breaker(), limit),
        "between": Pipeline(Fallback(cached, on=KeyError), breaker(), limit, template()),
    }


places = pytest.mark.parametrize("place", around(VirtualClock(), Recorded()))


@places
@every_driver
def test_call_that_took_too_long_is_reported_with_the_function_name(place, driver):
    clock, listener = VirtualClock(), Recorded()
    driver(around(clock, listener)[place])(clock.advance, 2.0)
    assert [event.operation for event in listener.events] == [
        "retrytemplate.testing.clock.VirtualClock.advance"
    ]


@places
@pytest.mark.parametrize("driver", ["call_async", "outcome_async", "wrap"])
def test_cut_call_is_reported_with_the_function_name(place, driver):
    clock, listener = VirtualClock(), Recorded()
    pipeline = around(clock, listener)[place]

    async def main():
        if driver == "wrap":
            await pipeline.wrap(clock.sleep_async)(60.0)
        else:
            (await getattr(pipeline, driver)(clock.sleep_async, 60.0)).unwrap()

    with pytest.raises(TimeoutError):
        run(main(), clock=clock)
    assert [event.operation for event in listener.events] == [
        "retrytemplate.testing.clock.VirtualClock.sleep_async"
    ]


def test_callable_object_is_named_by_its_class():
    class Slow:
        def __call__(self):
            clock.advance(2.0)

    clock, listener = VirtualClock(), Recorded()
    Pipeline(Timeout(1.0, listeners=[listener], clock=clock), breaker()).outcome(Slow())
    assert [event.operation.rpartition(".")[2] for event in listener.events] == ["Slow"]


class Operations(RetryListener):
    """Records the name of the function at each end."""

    def __init__(self):
        self.names = []

    def close(self, context, exception):
        self.names.append(context.operation)


@pytest.mark.parametrize("driver", ["call", "outcome", "wrap"])
def test_listener_of_a_template_in_a_pipeline_gets_the_function(driver):
    listener = Operations()
    retrying = RetryTemplate(listeners=[listener])
    limit = Timeout(60.0, clock=VirtualClock())
    for pipeline in (Pipeline(retrying, limit, breaker()), Pipeline(limit, breaker(), retrying)):
        if driver == "wrap":
            pipeline.wrap(cached)("a", 1)
        else:
            getattr(pipeline, driver)(cached, "a", 1)
    assert listener.names == [f"{__name__}.cached"] * 2

"""A pipeline does not hide the function that it calls: its parameters and its name are there."""

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
    """A strategy of one's own: writes down the parameters of what it is given."""

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
WAYS = {
    "call": lambda pipeline: pipeline.call,
    "outcome": lambda pipeline: lambda *args, **kwargs: pipeline.outcome(*args, **kwargs).unwrap(),
    "wrap": lambda pipeline: lambda fn, *args, **kwargs: pipeline.wrap(fn)(*args, **kwargs),
}
every_one = pytest.mark.parametrize("one", ONES.values(), ids=ONES)
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


# -- the stop flag ---------------------------------------------------------------------------------


@every_one
@every_way
def test_a_function_that_takes_a_stop_flag_gets_one(one, way, pool):
    call = way(one(pool))
    for path, stop in (call(read, "page"), call(read, path="page")):
        assert (path, stop.is_set()) == ("page", False)


@every_one
@every_way
def test_a_stop_that_the_call_gives_itself_is_left_alone(one, way, pool):
    call = way(one(pool))
    assert call(read, "page", "mine") == ("page", "mine")
    assert call(read, "page", stop="mine") == ("page", "mine")
    assert call(partial(read, stop="mine"), "page") == ("page", "mine")


@every_way
def test_abandoned_attempt_in_a_thread_gets_the_stop_flag(way):
    stopped = threading.Semaphore(0)

    def hangs(stop=None):
        if stop.wait(JOIN_TIMEOUT):
            stopped.release()

    with pytest.raises(TimeoutError):
        way(Pipeline(template(0.01), breaker()))(hangs)
    for _ in range(2):
        assert stopped.acquire(timeout=JOIN_TIMEOUT)


# -- what a layer is given -------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["call", "outcome"])
def test_a_strategy_of_ones_own_sees_the_parameters_of_the_function(way):
    outer, inner = Sees(), Sees()
    getattr(Pipeline(outer, breaker(), inner, Bulkhead("service")), way)(read, "page", None)
    assert outer.seen == inner.seen == ["(path, stop)"]


@pytest.mark.parametrize("way", ["call_async", "outcome_async"])
def test_it_sees_them_in_a_task_too(way):
    async def fetch(page):
        return page

    outer, inner = Sees(), Sees()
    pipeline = Pipeline(outer, breaker(), inner, Bulkhead("service"))
    run(getattr(pipeline, way)(fetch, 17), clock=VirtualClock())
    assert outer.seen == inner.seen == ["(page)"]


# -- the name --------------------------------------------------------------------------------------


def around(clock, told):
    limit = Timeout(1.0, listeners=[told], clock=clock)
    return {
        "alone": Pipeline(limit),
        "outside": Pipeline(limit, breaker(), Bulkhead("service")),
        "inside": Pipeline(breaker(), limit),
        "between": Pipeline(Fallback(cached, on=KeyError), breaker(), limit, template()),
    }


places = pytest.mark.parametrize("place", around(VirtualClock(), Recorded()))


@places
@every_way
def test_call_that_took_too_long_is_reported_with_the_function_name(place, way):
    clock, told = VirtualClock(), Recorded()
    way(around(clock, told)[place])(clock.advance, 2.0)
    assert [event.operation for event in told.events] == [
        "retrytemplate.testing.clock.VirtualClock.advance"
    ]


@places
@pytest.mark.parametrize("way", ["call_async", "outcome_async", "wrap"])
def test_so_is_one_that_was_cut(place, way):
    clock, told = VirtualClock(), Recorded()
    pipeline = around(clock, told)[place]

    async def main():
        if way == "wrap":
            await pipeline.wrap(clock.sleep_async)(60.0)
        else:
            (await getattr(pipeline, way)(clock.sleep_async, 60.0)).unwrap()

    with pytest.raises(TimeoutError):
        run(main(), clock=clock)
    assert [event.operation for event in told.events] == [
        "retrytemplate.testing.clock.VirtualClock.sleep_async"
    ]


def test_an_object_that_is_called_has_the_name_of_its_class():
    class Slow:
        def __call__(self):
            clock.advance(2.0)

    clock, told = VirtualClock(), Recorded()
    Pipeline(Timeout(1.0, listeners=[told], clock=clock), breaker()).outcome(Slow())
    assert [event.operation.rpartition(".")[2] for event in told.events] == ["Slow"]


class Operations(RetryListener):
    """Keeps the name of the function at each end."""

    def __init__(self):
        self.names = []

    def close(self, context, exception):
        self.names.append(context.operation)


@pytest.mark.parametrize("way", ["call", "outcome", "wrap"])
def test_template_in_a_pipeline_shows_its_listener_the_function(way):
    told = Operations()
    retrying = RetryTemplate(listeners=[told])
    limit = Timeout(60.0, clock=VirtualClock())
    for pipeline in (Pipeline(retrying, limit, breaker()), Pipeline(limit, breaker(), retrying)):
        if way == "wrap":
            pipeline.wrap(cached)("a", 1)
        else:
            getattr(pipeline, way)(cached, "a", 1)
    assert told.names == [f"{__name__}.cached"] * 2

"""``wrap``: every kind of callable keeps its kind, its signature and its name, and retries."""

import asyncio
import functools
import inspect
from types import GeneratorType

import pytest

from retrytemplate import (
    BulkheadFullError,
    FixedBackoff,
    MisuseError,
    NeverRetryPolicy,
    NoBackoff,
    ResultRetryPolicy,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    SystemClock,
    UnacceptableResultError,
    current_context,
    intercept,
    recover,
    retryable,
)
from retrytemplate.control import Bulkhead, Pipeline, with_retry
from retrytemplate.testing import Recorder
from tests.support.flaky import RemoteError, Trouble
from tests.support.runners import made


def template(failures, *, inline=True, **settings):
    """A template with just enough attempts, inline or with a listener, and a failing callback."""
    return made(failures + 1, listeners=[] if inline else [Recorder()], **settings), Trouble(
        failures
    )


both_paths = pytest.mark.parametrize("inline", [True, False], ids=["inline", "engine"])
any_failures = pytest.mark.parametrize("failures", [0, 1, 3])


# -- functions ----------------------------------------------------------------------------------


@both_paths
@any_failures
def test_function_is_called_until_it_returns(failures, inline):
    retry, trouble = template(failures, inline=inline)

    @retry.wrap
    def add(one, /, two, *rest, three=3, **others):
        trouble()
        return (one, two, rest, three, others)

    assert add(1, 2, 3, 4, three=5, six=6) == (1, 2, (3, 4), 5, {"six": 6})
    assert trouble.calls == failures + 1


@both_paths
@any_failures
async def test_coroutine_function_is_awaited_until_it_returns(failures, inline):
    retry, trouble = template(failures, inline=inline)

    @retry.wrap
    async def add(one, *, two):
        await asyncio.sleep(0)
        trouble()
        return one + two

    assert inspect.iscoroutinefunction(add)
    assert await add(1, two=2) == 3
    assert trouble.calls == failures + 1


@pytest.mark.statement("S0-04")
def test_name_docstring_signature_annotations_and_attributes_survive():
    def fetch(url: str, *, limit: int = 10) -> bytes:
        """Fetch a page."""
        return b""

    fetch.tag = "http"
    wrapped = RetryTemplate().wrap(fetch)

    assert wrapped.__name__ == "fetch"
    assert wrapped.__qualname__.endswith("fetch")
    assert wrapped.__doc__ == "Fetch a page."
    assert wrapped.__module__ == __name__
    assert inspect.signature(wrapped) == inspect.signature(fetch)
    assert inspect.get_annotations(wrapped) == inspect.get_annotations(fetch)
    assert wrapped.tag == "http"
    assert inspect.unwrap(wrapped) is fetch


@pytest.mark.statement("S0-04")
@pytest.mark.parametrize(
    "kind", ["function", "coroutine", "generator", "async generator"], ids=lambda kind: kind
)
def test_wrapped_function_keeps_its_kind(kind):
    def function(a, b=1): ...

    async def coroutine(a, b=1): ...

    def generator(a, b=1):
        yield

    async def async_generator(a, b=1):
        yield

    chosen = {
        "function": function,
        "coroutine": coroutine,
        "generator": generator,
        "async generator": async_generator,
    }[kind]
    wrapped = RetryTemplate().wrap(chosen)
    for ask in (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
        inspect.isfunction,
    ):
        assert ask(wrapped) == ask(chosen)
    assert inspect.signature(wrapped) == inspect.signature(chosen)
    assert wrapped.__name__ == chosen.__name__


def test_nested_wrap_allowed_by_argument_multiplies_attempts():
    trouble = Trouble(99)
    twice = made(2).wrap(made(3).wrap(trouble), nested=True)

    with pytest.raises(RemoteError):
        twice()
    assert trouble.calls == 6


def test_plain_function_that_returns_a_coroutine_is_rejected():
    async def body(): ...

    def gives():
        return body()

    wrapped = RetryTemplate().wrap(gives)
    with pytest.raises(TypeError, match=r"gives returned an awaitable .* call_async"):
        wrapped()


# -- methods ------------------------------------------------------------------------------------


@both_paths
def test_methods_classmethods_and_staticmethods_find_their_arguments(inline):
    retry, trouble = template(3, inline=inline)

    class Service:
        base = 10

        @retry.wrap
        def method(self, x):
            trouble()
            return self, x

        @retry.wrap
        @classmethod
        def of_class(cls, x):
            trouble()
            return cls, x

        @retry.wrap
        @staticmethod
        def of_static(x):
            trouble()
            return x

        @classmethod
        @retry.wrap
        def inside(cls, x):
            trouble()
            return cls, x

    class Derived(Service): ...

    one = Derived()
    assert one.method(1) == (one, 1)
    assert trouble.calls == 4
    assert Service.method(one, 2) == (one, 2)
    assert Derived.of_class(3) == one.of_class(3) == (Derived, 3)
    assert Derived.inside(3) == (Derived, 3)
    assert Derived.of_static(4) == one.of_static(4) == 4
    assert isinstance(vars(Service)["of_class"], classmethod)
    assert isinstance(vars(Service)["of_static"], staticmethod)


async def test_asynchronous_methods_classmethods_and_staticmethods_are_awaited():
    retry, trouble = template(3)

    class Service:
        @retry.wrap
        async def method(self, x):
            trouble()
            return x

        @retry.wrap
        @classmethod
        async def of_class(cls, x):
            return cls, x

        @retry.wrap
        @staticmethod
        async def of_static(x):
            return x

    assert await Service().method(1) == 1
    assert trouble.calls == 4
    assert await Service.of_class(2) == (Service, 2)
    assert await Service.of_static(3) == 3


def test_bound_method_can_be_wrapped():
    retry, trouble = template(2)

    class Service:
        def method(self, x):
            """Of an instance."""
            trouble()
            return self, x

    one = Service()
    wrapped = retry.wrap(one.method)
    assert wrapped(5) == (one, 5)
    assert wrapped.__doc__ == "Of an instance."


def test_wrapped_method_of_an_abstract_class_is_abstract():
    import abc

    class Base(abc.ABC):
        @RetryTemplate().wrap
        @abc.abstractmethod
        def method(self): ...

    with pytest.raises(TypeError, match="abstract"):
        Base()


# -- callable objects, partials -----------------------------------------------------------------


class Adder:
    """Adds."""

    def __init__(self, trouble):
        self.trouble = trouble

    def __call__(self, one, two=0):
        self.trouble()
        return one + two


class AsyncAdder(Adder):
    async def __call__(self, one, two=0):
        await asyncio.sleep(0)
        return super().__call__(one, two)


class Counter(Adder):
    def __call__(self, one, two=0):
        self.trouble()
        yield from range(one, two)


@both_paths
def test_callable_object_is_called_and_its_state_is_not_copied(inline):
    retry, trouble = template(2, inline=inline)
    adder = Adder(trouble)
    wrapped = retry.wrap(adder)

    assert wrapped(1, two=2) == 3
    assert trouble.calls == 3
    assert wrapped.__doc__ == "Adds."
    assert not hasattr(wrapped, "trouble")
    assert inspect.signature(wrapped) == inspect.signature(adder)


@both_paths
async def test_object_with_an_asynchronous_call_is_awaited(inline):
    retry, trouble = template(2, inline=inline)
    wrapped = retry.wrap(AsyncAdder(trouble))

    assert inspect.iscoroutinefunction(wrapped)
    assert await wrapped(1, two=2) == 3
    assert trouble.calls == 3


@both_paths
def test_partial_is_called_with_its_arguments(inline):
    retry, trouble = template(2, inline=inline)
    partial = functools.partial(Adder(trouble), 40)
    wrapped = retry.wrap(partial)

    assert wrapped(two=2) == 42
    assert trouble.calls == 3
    assert inspect.signature(wrapped) == inspect.signature(partial)


async def test_partial_of_a_coroutine_function_is_awaited():
    retry, trouble = template(2)

    async def add(one, two):
        trouble()
        return one + two

    wrapped = retry.wrap(functools.partial(add, 40))
    assert await wrapped(2) == 42
    assert trouble.calls == 3


async def test_partial_of_an_object_with_an_asynchronous_call_is_awaited():
    retry, trouble = template(2)

    wrapped = retry.wrap(functools.partial(AsyncAdder(trouble), 40))
    assert await wrapped(2) == 42
    assert trouble.calls == 3


def test_objects_and_partials_that_yield_are_wrapped_as_generators():
    retry, trouble = template(2)

    assert list(retry.wrap(Counter(trouble))(1, 4)) == [1, 2, 3]
    assert trouble.calls == 3
    assert list(retry.wrap(functools.partial(Counter(trouble), 1))(4)) == [1, 2, 3]


def test_builtins_are_wrapped():
    assert RetryTemplate().wrap(len)([1, 2]) == 2


@pytest.mark.parametrize(
    "nonsense", [None, 17, "fetch", pytest.param(object(), id="object")], ids=repr
)
def test_object_that_is_not_callable_is_rejected(nonsense):
    with pytest.raises(TypeError, match="wrap"):
        RetryTemplate().wrap(nonsense)


def test_class_is_rejected():
    class Service: ...

    with pytest.raises(TypeError, match="wrap its methods"):
        RetryTemplate().wrap(Service)


# -- generators ---------------------------------------------------------------------------------


@both_paths
@any_failures
def test_generator_is_retried_until_its_first_item(failures, inline):
    retry, trouble = template(failures, inline=inline)

    @retry.wrap
    def numbers(stop):
        trouble()
        yield from range(stop)
        return "end"

    def through():
        ended.append((yield from numbers(3)))

    ended = []
    assert list(through()) == [0, 1, 2]
    assert ended == ["end"]
    assert trouble.calls == failures + 1


def test_generator_does_nothing_before_its_first_item_is_requested():
    retry, trouble = template(0)

    @retry.wrap
    def numbers():
        trouble()
        yield 1

    generator = numbers()
    assert isinstance(generator, GeneratorType)
    assert trouble.calls == 0
    assert next(generator) == 1


def test_generator_without_items_is_retried_and_returns_its_value():
    retry, trouble = template(2)

    @retry.wrap
    def nothing():
        trouble()
        return "value"
        yield

    def through():
        return (yield from nothing())

    with pytest.raises(StopIteration) as stop:
        next(through())
    assert stop.value.value == "value"
    assert trouble.calls == 3


def test_generator_exhausted_before_the_first_item_raises_the_last_failure():
    retry, trouble = template(2)
    trouble.failures = 99

    @retry.wrap
    def numbers():
        trouble()
        yield 1

    with pytest.raises(RemoteError, match="failure 3"):
        next(numbers())


def test_generator_after_the_first_item_raises_unchanged():
    recorder = Recorder()
    failure = ValueError("in the middle")

    @made(listeners=[recorder]).wrap
    def numbers():
        yield 1
        raise failure

    generator = numbers()
    assert next(generator) == 1
    with pytest.raises(ValueError) as caught:
        next(generator)
    assert caught.value is failure
    assert recorder.hooks == ["open", "before_attempt", "on_success", "on_first_success", "close"]


def test_context_of_a_generator_is_closed_after_its_first_item():
    contexts = []

    @made().wrap
    def numbers():
        contexts.append(current_context())
        yield 1
        yield current_context()

    generator = numbers()
    next(generator)
    assert contexts[0].closed
    assert current_context() is None
    assert next(generator) is None


def test_generator_receives_sent_values_and_thrown_errors():
    @made().wrap
    def echo():
        received = yield "ready"
        while True:
            try:
                received = yield received
            except LookupError as exc:
                received = f"caught {exc}"

    generator = echo()
    assert next(generator) == "ready"
    assert generator.send("one") == "one"
    assert generator.throw(LookupError("two")) == "caught two"
    with pytest.raises(ValueError, match="not caught inside"):
        generator.throw(ValueError("not caught inside"))


def test_closing_a_generator_closes_the_one_inside():
    ended = []

    @made().wrap
    def numbers():
        try:
            yield 1
        finally:
            ended.append("cleaned up")

    generator = numbers()
    next(generator)
    generator.close()
    assert ended == ["cleaned up"]


def test_listener_of_a_generator_receives_the_first_item():
    recorder = Recorder()

    @made(listeners=[recorder]).wrap
    def numbers():
        yield 17

    next(numbers())
    assert recorder.results == [17]


# -- asynchronous generators --------------------------------------------------------------------


@both_paths
@any_failures
async def test_asynchronous_generator_is_retried_until_its_first_item(failures, inline):
    retry, trouble = template(failures, inline=inline)

    @retry.wrap
    async def numbers(stop):
        await asyncio.sleep(0)
        trouble()
        for number in range(stop):
            yield number

    assert [number async for number in numbers(3)] == [0, 1, 2]
    assert trouble.calls == failures + 1


async def test_asynchronous_generator_without_items_is_retried():
    retry, trouble = template(2)

    @retry.wrap
    async def nothing():
        trouble()
        return
        yield

    assert [item async for item in nothing()] == []
    assert trouble.calls == 3


async def test_async_generator_after_the_first_item_raises_unchanged():
    recorder = Recorder()
    failure = ValueError("in the middle")

    @made(listeners=[recorder]).wrap
    async def numbers():
        yield current_context()
        assert current_context() is None
        raise failure

    generator = numbers()
    assert (await anext(generator)).closed
    assert current_context() is None
    with pytest.raises(ValueError) as caught:
        await anext(generator)
    assert caught.value is failure
    assert recorder.hooks == ["open", "before_attempt", "on_success", "on_first_success", "close"]


async def test_async_generator_receives_sent_values_and_thrown_errors():
    @made().wrap
    async def echo():
        received = yield "ready"
        while True:
            try:
                received = yield received
            except LookupError as exc:
                received = f"caught {exc}"

    generator = echo()
    assert await anext(generator) == "ready"
    assert await generator.asend("one") == "one"
    assert await generator.athrow(LookupError("two")) == "caught two"
    with pytest.raises(ValueError, match="not caught inside"):
        await generator.athrow(ValueError("not caught inside"))


async def test_closing_an_asynchronous_generator_closes_the_one_inside():
    ended = []

    @made().wrap
    async def numbers():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    generator = numbers()
    await anext(generator)
    await generator.aclose()
    assert ended == ["cleaned up"]


# -- the traceback ------------------------------------------------------------------------------


def frames_of(exception):
    names, step = [], exception.__traceback__
    while step is not None:
        names.append(step.tb_frame.f_code.co_name)
        step = step.tb_next
    return names


def test_traceback_of_the_last_failure_has_few_library_frames():
    def failing():
        raise ValueError("deep")

    with pytest.raises(ValueError) as caught:
        made(5).wrap(failing)()
    inside = frames_of(caught.value)[1:]
    assert inside[-1] == "failing"
    assert len(inside) <= 4
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


# -- a function that a template has wrapped already --------------------------------------------


def wrapped_function():
    trouble = Trouble(99)

    @made(3).wrap
    def fetch(page="home"):
        trouble()

    return fetch, trouble


class Pages:
    @made(2).wrap
    def fetch(self):
        raise RemoteError


class Caller:
    @made(2).wrap
    def __call__(self):
        raise RemoteError


def plain():
    raise RemoteError


RETRYING = {
    "function": made(3).wrap(plain),
    "partial": functools.partial(made(3).wrap(plain), "home"),
    "staticmethod": staticmethod(made(3).wrap(plain)),
    "classmethod": made(3).wrap(classmethod(plain)),
    "bound method": Pages().fetch,
    "callable object": Caller(),
    "partial of a callable object": functools.partial(Caller()),
    "retryable": retryable(retry_on=RemoteError)(plain),
    "strategy": Bulkhead("pages").wrap(made(3).wrap(plain)),
    "pipeline, template first": Pipeline(made(2), Bulkhead("pages")).wrap(plain),
    "pipeline, template last": Pipeline(Bulkhead("pages"), made(2)).wrap(plain),
    "node": with_retry(retryable=RemoteError)(plain),
}


@pytest.mark.parametrize("kind", RETRYING)
def test_wrap_of_a_retrying_function_is_rejected(kind):
    with pytest.raises(MisuseError, match=r"use .*retry_with\(\.\.\.\).*nested=True"):
        made(2).wrap(RETRYING[kind])


@pytest.mark.parametrize(
    "wrap",
    [
        made(2).bind(label="pages").wrap,
        retryable(retry_on=RemoteError),
        with_retry(retryable=RemoteError),
        Pipeline(Bulkhead("pages"), made(2)).wrap,
        Pipeline(made(2).bind()).wrap,
    ],
    ids=["bound template", "retryable", "node", "pipeline", "pipeline with a bound template"],
)
def test_each_decorator_that_retries_rejects_a_retrying_function(wrap):
    fetch, _ = wrapped_function()
    with pytest.raises(MisuseError, match="fetch is wrapped by a template already"):
        wrap(fetch)


def test_pipeline_wrap_nested_allowed_by_argument():
    fetch, trouble = wrapped_function()
    with pytest.raises(RemoteError):
        Pipeline(made(2)).wrap(fetch, nested=True)()
    assert trouble.calls == 6


def test_node_nested_allowed_by_argument():
    fetch, trouble = wrapped_function()
    with pytest.raises(RemoteError):
        with_retry(SimpleRetryPolicy(2), backoff=NoBackoff(), nested=True)(fetch)()
    assert trouble.calls == 6


def test_pipeline_without_a_template_takes_a_retrying_function():
    fetch, trouble = wrapped_function()
    with pytest.raises(RemoteError):
        Pipeline(Bulkhead("pages")).wrap(fetch)()
    assert trouble.calls == 3


def test_wrap_takes_a_function_with_copied_attributes():
    fetch, trouble = wrapped_function()

    @functools.wraps(fetch)  # copies ``retry_with`` too
    def offline():
        return "cached"

    assert made(2).wrap(offline)() == "cached"
    assert trouble.calls == 0


def test_intercept_rejects_a_pattern_that_matches_a_retrying_method():
    with pytest.raises(MisuseError, match=r"Pages\.fetch is wrapped by .*leave it out"):
        intercept(Pages(), "fetch", made(2))


def test_retryable_class_leaves_a_retrying_method_as_it_is():
    method = vars(Pages)["fetch"]

    @retryable(retry_on=RemoteError)
    class Whole(Pages):
        def other(self): ...

    assert Whole.fetch is method


# -- retry_with --------------------------------------------------------------------------------


def test_retry_with_replaces_the_template_of_a_function():
    fetch, trouble = wrapped_function()
    with pytest.raises(RemoteError):
        fetch.retry_with(policy=SimpleRetryPolicy(5))()
    assert trouble.calls == 5
    with pytest.raises(RemoteError):
        fetch()
    assert trouble.calls == 5 + 3


def test_retry_with_twice_keeps_earlier_changes():
    fetch, trouble = wrapped_function()
    again = fetch.retry_with(policy=SimpleRetryPolicy(5)).retry_with(name="pages")
    with pytest.raises(RemoteError):
        again()
    assert trouble.calls == 5


def function(page: str) -> str:
    return page


async def coroutine(page: str) -> str:
    return page


def generator(page: str):
    yield page


async def async_generator(page: str):
    yield page


@pytest.mark.parametrize("fn", [function, coroutine, generator, async_generator])
def test_retry_with_keeps_the_kind_of_a_function(fn):
    changed = made(3).wrap(fn).retry_with(policy=SimpleRetryPolicy(5))
    for ask in (
        inspect.isfunction,
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
        inspect.signature,
    ):
        assert ask(changed) == ask(fn)
    assert changed.__wrapped__ is fn


def test_retry_with_in_a_class_body_keeps_the_kind_of_a_method():
    calls = []

    class Service:
        @made(2).wrap
        def method(self):
            calls.append(type(self).__name__)
            raise RemoteError

        @made(2).wrap
        @classmethod
        def of_class(cls):
            calls.append(cls.__name__)
            raise RemoteError

        @retryable(retry_on=RemoteError, max_attempts=2)
        @staticmethod
        def static():
            calls.append("static")
            raise RemoteError

        once = method.retry_with(policy=NeverRetryPolicy())
        of_class_once = of_class.retry_with(policy=NeverRetryPolicy())
        static_once = static.retry_with(policy=NeverRetryPolicy())

    for fn in (Service().once, Service.of_class_once, Service().static_once):
        with pytest.raises(RemoteError):
            fn()
    assert calls == ["Service", "Service", "static"]


def test_retry_with_of_a_method_takes_the_instance_first():
    pages = Pages()
    once = pages.fetch.retry_with(policy=NeverRetryPolicy())
    with pytest.raises(RemoteError):
        once(pages)


def test_retry_with_keeps_recovery_state_and_label():
    seen = []

    def recovered(context):
        seen.append((context.name, context.key, context.retry_count))
        return "recovered"

    state = RetryState("order-17")
    bound = made(3, name="shop").bind(recovery=recovered, state=state, label="night")
    once = bound.wrap(plain).retry_with(policy=SimpleRetryPolicy(1))

    with pytest.raises(RemoteError):
        once()
    assert once() == "recovered"
    assert seen == [("night", "order-17", 1)]


def test_retry_with_another_recovery_replaces_the_bound_one():
    fetch = made(1).bind(recovery=lambda context: "first").wrap(plain)
    assert fetch.retry_with(recovery=lambda context: "second")() == "second"
    assert fetch() == "first"


def test_retry_with_another_name_replaces_an_inherited_label():
    names = []
    fetch = made(1, name="shop").bind().wrap(lambda: names.append(current_context().name))
    fetch.retry_with(name="stock")()
    assert names == ["stock"]


def test_retry_with_keeps_the_recoverer_of_a_retryable_method():
    class Service:
        @retryable(retry_on=RemoteError)
        def fetch(self, page):
            raise RemoteError

        @recover
        def recovered(self, error: RemoteError, page):
            return f"no {page}"

    once = Service.fetch.retry_with(policy=NeverRetryPolicy())
    assert once(Service(), "home") == "no home"


def test_retry_with_keeps_the_strategy_outside_of_the_template():
    fetch, trouble = wrapped_function()
    bulkhead = Bulkhead("pages", limit=1, queue=0)
    guarded = bulkhead.wrap(fetch).retry_with(policy=SimpleRetryPolicy(5))
    with bulkhead.slot(), pytest.raises(BulkheadFullError):
        guarded()
    with pytest.raises(RemoteError):
        guarded()
    assert trouble.calls == 5


def test_retry_with_of_a_node_changes_its_template():
    trouble = Trouble(99)

    @with_retry(retryable=RemoteError, backoff=NoBackoff())
    def node(state):
        trouble()

    with pytest.raises(RemoteError):
        node.retry_with(policy=SimpleRetryPolicy(5))({})
    assert trouble.calls == 5


def test_retry_with_an_unknown_setting_names_a_similar_one():
    fetch, _ = wrapped_function()
    with pytest.raises(TypeError, match="got 'polcy'; did you mean 'policy'"):
        fetch.retry_with(polcy=SimpleRetryPolicy(5))


# -- the generator of a first item that is not used --------------------------------------------


class Streams(RetryListener):
    """Generators of one item each, and a record of their steps."""

    def __init__(self, *items):
        self.items = iter(items)
        self.events = []

    def on_backoff(self, context, delay):
        self.events.append("backoff")

    def template(self, when_exhausted="raise", **settings):
        """Two attempts; None is rejected as the first item."""
        policy = ResultRetryPolicy(
            lambda item: item is None, SimpleRetryPolicy(2), when_exhausted=when_exhausted
        )
        return made(policy=policy, delay=1.0, listeners=[self], **settings)

    def stream(self):
        self.events.append("open")
        try:
            yield next(self.items)
        finally:
            self.events.append("close")

    async def stream_async(self):
        self.events.append("open")
        try:
            yield next(self.items)
        finally:
            await asyncio.sleep(0)
            self.events.append("close")

    async def read(self, retry, asynchronous):
        """All items of the wrapped generator function."""
        if asynchronous:
            return [item async for item in retry.wrap(self.stream_async)()]
        return list(retry.wrap(self.stream)())


class FailsToClose(Streams):
    def stream(self):
        try:
            yield None
        finally:
            raise RemoteError

    async def stream_async(self):
        try:
            yield None
        finally:
            raise RemoteError


sync_and_async = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@sync_and_async
async def test_rejected_first_item_closes_the_generator_before_the_backoff(asynchronous):
    streams = Streams(None, "item")
    assert await streams.read(streams.template(), asynchronous) == ["item"]
    assert streams.events == ["open", "close", "backoff", "open", "close"]


@sync_and_async
async def test_last_rejected_first_item_closes_the_generator(asynchronous):
    streams = Streams(None, None)
    with pytest.raises(UnacceptableResultError) as caught:
        await streams.read(streams.template(), asynchronous)
    assert streams.events == ["open", "close", "backoff", "open", "close"]
    assert caught.tb  # it keeps the frames: no collector has closed them


@sync_and_async
async def test_rejected_first_item_that_is_returned_keeps_the_generator(asynchronous):
    streams = Streams(None, None)
    assert await streams.read(streams.template("return"), asynchronous) == [None]
    assert streams.events == ["open", "close", "backoff", "open", "close"]


@sync_and_async
async def test_recovery_runs_after_the_generator_is_closed(asynchronous):
    streams = Streams(None, None)

    def recovered(context):
        streams.events.append("recovery")
        return ["cached"]

    retry = streams.template(recovery=recovered)
    assert await streams.read(retry, asynchronous) == ["cached"]
    assert streams.events[-3:] == ["open", "close", "recovery"]


@sync_and_async
async def test_failing_listener_closes_the_generator_of_its_item(asynchronous):
    streams = Streams("item")

    class Fails(RetryListener):
        def close(self, context, exception):
            raise RemoteError

    retry = streams.template()
    retry.register_listener(Fails())
    with pytest.raises(RemoteError) as caught:
        await streams.read(retry, asynchronous)
    assert streams.events == ["open", "close"]
    assert caught.tb


@sync_and_async
async def test_generator_that_fails_to_close_ends_the_retries(asynchronous):
    streams = FailsToClose()
    with pytest.raises(RemoteError):
        await streams.read(streams.template(), asynchronous)
    assert streams.events == []


async def test_cancelled_backoff_leaves_no_async_generator_open():
    streams = Streams(None)
    retry = streams.template().with_(clock=SystemClock(), backoff=FixedBackoff(3600))
    task = asyncio.create_task(streams.read(retry, asynchronous=True))
    while streams.events != ["open", "close", "backoff"]:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert streams.events == ["open", "close", "backoff"]


async def test_cancelled_listener_closes_the_async_generator_of_its_item():
    streams, reached = Streams("item"), asyncio.Event()

    class Waits(RetryListener):
        async def on_success(self, context, result):
            reached.set()
            await asyncio.Event().wait()

    retry = streams.template()
    retry.register_listener(Waits())
    task = asyncio.create_task(streams.read(retry, asynchronous=True))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert streams.events == ["open", "close"]
    assert caught.tb

"""Invalid input is rejected at once, with its name, its value and the allowed values."""

import asyncio
import logging
import re
import types
from datetime import timedelta
from functools import partial, wraps

import pytest

from retrytemplate import (
    AttemptTimeout,
    Backoff,
    CircuitBreakerRetryPolicy,
    CompositeRetryPolicy,
    Deadline,
    ExceptionClassifier,
    ExceptionClassifierRetryPolicy,
    ExponentialBackoff,
    FixedBackoff,
    Guard,
    InconsistentKeyError,
    LoggingListener,
    MaxAttemptsRetryPolicy,
    MemoryRetryContextCache,
    MisuseError,
    NeverRetryPolicy,
    NoBackoff,
    PatternClassifier,
    PredicateRetryPolicy,
    ResultRetryPolicy,
    RetryAfterBackoff,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    StatefulRetryPolicy,
    StatisticsListener,
    SystemClock,
    TimeoutRetryPolicy,
    UniformRandomBackoff,
    current_context,
    retryable,
)
from retrytemplate.caches.base import METHODS
from retrytemplate.control import Bulkhead
from retrytemplate.listeners.base import HOOKS
from retrytemplate.simulation import simulate
from retrytemplate.testing import (
    Recorder,
    ScriptedRandom,
    VirtualClock,
    no_waiting,
    run,
    virtual_loop,
)
from tests.support.failing_cache import Down
from tests.support.runners import Script, every_driver, made

NAN, INF = float("nan"), float("inf")
DAY_BEFORE = timedelta(days=-1)


async def coroutine_function(*_):
    raise AssertionError("this is not awaited")


class CoroutineObject:
    async def __call__(self, *_):
        raise AssertionError("this is not awaited")


async def items(*_):
    yield


LATER = (
    coroutine_function,
    partial(coroutine_function, 1),
    partial(partial(coroutine_function, 1), 2),
    CoroutineObject(),
    partial(CoroutineObject(), 1),
    CoroutineObject().__call__,
    items,
)
"""Functions whose answer would have to be awaited, open and hidden."""


def generates(*_):
    yield True


class GeneratorObject:
    def __call__(self, *_):
        yield True


ALWAYS_TRUE = (
    generates,
    partial(generates, 1),
    GeneratorObject(),
    ConnectionError,
    partial(ConnectionError),
    int,
)
"""What can be called, and gives an object that was not meant as an answer."""


# -- constructors -------------------------------------------------------------------------------

NUMBERS_OF_ATTEMPTS = (0, -1, 1.5, "3", True, None)
TIMES = (-1, -0.001, NAN, "1", None, DAY_BEFORE, True)
FLAGS = ("yes", 1, None)


def settings(make, name, *values, **fixed):
    """One rejected setting with each of some values."""
    return [(make, {**fixed, name: value}, name) for value in values]


REFUSED = [
    # policies
    *settings(SimpleRetryPolicy, "max_attempts", *NUMBERS_OF_ATTEMPTS, *LATER),
    *settings(SimpleRetryPolicy, "retry_on", 5, "OSError", int, (OSError, "x"), BaseException),
    *settings(SimpleRetryPolicy, "retry_on", *LATER),
    *settings(SimpleRetryPolicy, "not_on", 5, (OSError, int), OSError()),
    *settings(SimpleRetryPolicy, "not_recoverable", 5, (OSError, int)),
    *settings(SimpleRetryPolicy, "traverse_causes", *FLAGS),
    *settings(SimpleRetryPolicy, "classifier", 5, {OSError: True}),
    *settings(MaxAttemptsRetryPolicy, "max_attempts", *NUMBERS_OF_ATTEMPTS, *LATER),
    *settings(TimeoutRetryPolicy, "timeout", *TIMES, *LATER),
    *settings(PredicateRetryPolicy, "predicate", 5, None, *LATER),
    *settings(ResultRetryPolicy, "retry_if", 5, None, *LATER),
    *settings(ResultRetryPolicy, "policy", 5, None, SimpleRetryPolicy, retry_if=bool),
    *settings(ResultRetryPolicy, "when_exhausted", "give up", None, retry_if=bool),
    *settings(ExceptionClassifierRetryPolicy, "policies", 5, {int: NeverRetryPolicy()}),
    *settings(ExceptionClassifierRetryPolicy, "policies", {OSError: 3}),
    *settings(ExceptionClassifierRetryPolicy, "default", 5, policies={}),
    *settings(CompositeRetryPolicy, "policies", (), 5, [NeverRetryPolicy(), 5]),
    *settings(CompositeRetryPolicy, "optimistic", *FLAGS, policies=[NeverRetryPolicy()]),
    *settings(CircuitBreakerRetryPolicy, "delegate", 5, None, NoBackoff()),
    *settings(CircuitBreakerRetryPolicy, "open_timeout", *TIMES, *LATER),
    *settings(CircuitBreakerRetryPolicy, "reset_timeout", *TIMES, *LATER),
    *settings(SimpleRetryPolicy, "max_attempts", *ALWAYS_TRUE),
    *settings(SimpleRetryPolicy, "retry_on", *ALWAYS_TRUE[:3]),
    *settings(MaxAttemptsRetryPolicy, "max_attempts", *ALWAYS_TRUE),
    *settings(TimeoutRetryPolicy, "timeout", *ALWAYS_TRUE),
    *settings(PredicateRetryPolicy, "predicate", *ALWAYS_TRUE),
    *settings(ResultRetryPolicy, "retry_if", *ALWAYS_TRUE),
    *settings(CircuitBreakerRetryPolicy, "open_timeout", *ALWAYS_TRUE),
    *settings(FixedBackoff, "delay", *ALWAYS_TRUE),
    *settings(UniformRandomBackoff, "minimum", *ALWAYS_TRUE),
    *settings(ExponentialBackoff, "multiplier", *ALWAYS_TRUE),
    # classifiers
    *settings(ExceptionClassifier, "rules", 5, None, {int: True}, {"OSError": True}),
    *settings(ExceptionClassifier, "traverse_causes", *FLAGS, rules={}),
    *settings(ExceptionClassifier.from_config, "rules", 5, {"nothing.at.all": True}, validate=True),
    *settings(PatternClassifier, "patterns", 5, None, {5: True}),
    # backoffs
    *settings(FixedBackoff, "delay", *TIMES, INF, *LATER),
    *settings(UniformRandomBackoff, "minimum", *TIMES, INF, *LATER),
    *settings(UniformRandomBackoff, "maximum", *TIMES, INF, *LATER),
    *settings(UniformRandomBackoff, "maximum", 1.0, minimum=2.0),
    *settings(ExponentialBackoff, "initial", *TIMES, INF, *LATER),
    *settings(ExponentialBackoff, "multiplier", 0.5, 0, -2, NAN, "2", None, *LATER),
    *settings(ExponentialBackoff, "maximum", *TIMES, *LATER),
    *settings(ExponentialBackoff, "jitter", "some", 0.5, True),
    *settings(RetryAfterBackoff, "fallback", 5, None),
    *settings(RetryAfterBackoff, "give_up_above", -1, NAN, "1", DAY_BEFORE, fallback=NoBackoff()),
    # state and cache
    *settings(RetryState, "force_refresh", *FLAGS, key="key"),
    *settings(RetryState, "rollback_for", 5, "OSError", (OSError, 5), int, key="key"),
    *settings(RetryState, "rollback_for", *LATER, key="key"),
    *settings(RetryState, "defer_backoff", "later", 5, True, key="key"),
    *settings(RetryState, "exclusive", 0, 1, "yes", key="key"),
    *settings(RetryState, "remember", -1, NAN, "60", DAY_BEFORE, True, key="key"),
    *settings(MemoryRetryContextCache, "capacity", 0, -1, 1.5, "9", True, None),
    *settings(MemoryRetryContextCache, "ttl", -1, NAN, "60", DAY_BEFORE, True),
    *settings(MemoryRetryContextCache, "when_full", "drop", None, True),
    *settings(MemoryRetryContextCache, "clock", 5, "clock"),
    *settings(MemoryRetryContextCache, "redact", 5, "x"),
    # the template
    *settings(RetryTemplate, "policy", 5, None, SimpleRetryPolicy, NoBackoff()),
    *settings(RetryTemplate, "backoff", 5, None, 1.0, NoBackoff, NeverRetryPolicy()),
    *settings(RetryTemplate, "name", 5, "", b"name"),
    *settings(RetryTemplate, "listeners", 5, RetryListener(), [RetryListener], [5], "ab", [None]),
    *settings(RetryTemplate, "guards", 5, Guard(), [Guard], [5], "ab"),
    *settings(RetryTemplate, "cache", 5, {}, MemoryRetryContextCache),
    *settings(RetryTemplate, "recovery", 5, "value"),
    *settings(RetryTemplate, "attempt_timeout", 0, -1, NAN, "1", True, DAY_BEFORE),
    *settings(RetryTemplate, "raise_last", *FLAGS),
    *settings(RetryTemplate, "clock", 5, None, SystemClock),
    *settings(RetryTemplate, "random", 5, "x"),
    *settings(RetryTemplate().with_, "policy", 5, None),
    *settings(RetryTemplate().with_, "backoff", 5, None),
    *settings(RetryTemplate().bind, "recovery", 5),
    *settings(RetryTemplate().bind, "state", 5, "key"),
    *settings(RetryTemplate().bind, "label", 5, "", b"label"),
    *settings(RetryTemplate().attempts, "recovery", 5),
    *settings(RetryTemplate().attempts, "state", 5, "key"),
    *settings(RetryTemplate().register_listener, "listener", 5, None, RetryListener),
    *settings(RetryTemplate().register_listener, "index", "1", 1.5, listener=RetryListener()),
    # limits
    *settings(Deadline, "seconds", *TIMES),
    *settings(Deadline, "clock", 5, "clock", seconds=1.0),
    *settings(Deadline.after, "seconds", *TIMES),
    *settings(AttemptTimeout, "seconds", 0, *TIMES),
    *settings(AttemptTimeout, "in_thread", *FLAGS, seconds=1.0),
    *settings(SystemClock, "stop", 5, True),
    # listeners
    *settings(LoggingListener, "logger", 5, True),
    *settings(LoggingListener, "level", "LOUD", 1.5, True),
    *settings(StatisticsListener, "window", 0, -1, NAN, "15", None, DAY_BEFORE),
    *settings(StatisticsListener, "clock", 5),
    # declarative
    *settings(retryable, "key", *LATER, retry_on=OSError),
    # simulation and testing
    *settings(simulate, "policy", 5, None, backoff=NoBackoff()),
    *settings(simulate, "backoff", 5, None, policy=NeverRetryPolicy()),
    *settings(simulate, "runs", 0, -1, 1.5, "9", policy=NeverRetryPolicy(), backoff=NoBackoff()),
    *settings(VirtualClock, "start", -1, NAN, INF, "0", None),
    *settings(VirtualClock, "epoch", -1, NAN, INF, "0", None),
    *settings(VirtualClock, "interrupt_at", 0, -1, 1.5, "1"),
    *settings(ScriptedRandom, "values", [1.0], [-0.1], [NAN], ["0.5"]),
    *settings(no_waiting, "clock", 5, SystemClock()),
    *settings(virtual_loop, "grace", -1, NAN, INF, "0", None),
]


def case_id(value):
    if isinstance(value, dict):
        return ",".join(f"{name}={each!r}" for name, each in value.items()).split(" at 0x")[0][:60]
    return value if isinstance(value, str) else getattr(value, "__qualname__", repr(value))


@pytest.mark.statement("S0-66", "S3-14")
@pytest.mark.parametrize(("make", "arguments", "name"), REFUSED, ids=case_id)
def test_invalid_setting_is_rejected_at_construction_and_named(make, arguments, name):
    with pytest.raises((TypeError, ValueError)) as caught:
        make(**arguments)
    message = str(caught.value)
    value = arguments[name]
    shown = {repr(value)}
    if isinstance(value, timedelta):
        shown.add(repr(value.total_seconds()))
    if value == ():
        shown.add("got none")
    if isinstance(value, list | tuple | dict):
        shown |= {repr(each) for each in (value.values() if isinstance(value, dict) else value)}
        shown |= {repr(each) for each in value}
    if isinstance(value, type):
        shown.add(value.__name__)
    assert name in message, message
    assert " must " in message or "cannot be imported" in message, message
    assert any(text in message for text in shown), message


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (ExponentialBackoff, {"initial": 60.0, "maximum": 30.0}),
        (TimeoutRetryPolicy, {"timeout": 0}),
        (CircuitBreakerRetryPolicy, {"open_timeout": 60.0, "reset_timeout": 20.0}),
        (ExceptionClassifier, {"rules": {}}),
        (Deadline, {"seconds": 0}),
        (FixedBackoff, {"delay": timedelta(seconds=1)}),
        (RetryTemplate, {"attempt_timeout": timedelta(seconds=1)}),
        (RetryTemplate, {"listeners": iter([RetryListener()])}),
        (LoggingListener, {"logger": logging.getLogger("mine"), "level": None}),
        (ResultRetryPolicy, {"retry_if": bool}),
    ],
    ids=case_id,
)
def test_unusual_but_valid_setting_is_accepted(make, arguments):
    make(**arguments)


SECONDS = "a number of seconds or a datetime.timedelta"
CLOCK = "an object with the methods monotonic, time, sleep, sleep_async"


@pytest.mark.parametrize(
    ("make", "arguments", "reported"),
    [
        (Deadline, {"seconds": -1}, f"seconds must be {SECONDS} >= 0, got -1"),
        (AttemptTimeout, {"seconds": 0}, f"seconds must be {SECONDS} > 0, got 0"),
        (MemoryRetryContextCache, {"ttl": -1}, f"ttl must be {SECONDS} >= 0, or None, got -1"),
        (RetryState, {"key": "a", "remember": -1}, f"{SECONDS} >= 0, or None"),
        (StatisticsListener, {"window": 0}, f"window must be {SECONDS} > 0, got 0"),
        (RetryTemplate, {"attempt_timeout": 0}, f"{SECONDS} > 0, an AttemptTimeout or None, got 0"),
        (SimpleRetryPolicy, {"retry_on": 3}, "or a predicate of the exception, got 3"),
        (SimpleRetryPolicy, {"max_attempts": OSError}, "must be an int >= 1, got <class"),
        (FixedBackoff, {"delay": OSError}, "delay must be a plain function, got the class"),
        (PredicateRetryPolicy, {"predicate": OSError}, "must be a plain function, got the class"),
        (ResultRetryPolicy, {"retry_if": generates}, "must be a plain function, got the generator"),
        (RetryTemplate().bind, {"label": ""}, "label must be a non-empty str or None, got ''"),
        (RetryTemplate, {"clock": 5}, f"clock must be {CLOCK}, got 5"),
        (Deadline, {"seconds": 1, "clock": 5}, f"clock must be {CLOCK}, got 5"),
        (MemoryRetryContextCache, {"clock": 5}, f"clock must be {CLOCK}, got 5"),
        (StatisticsListener, {"clock": 5}, f"clock must be {CLOCK}, got 5"),
        (RetryAfterBackoff, {"fallback": NoBackoff(), "clock": 5}, f"clock must be {CLOCK}, got 5"),
    ],
    ids=case_id,
)
def test_error_names_all_allowed_values(make, arguments, reported):
    with pytest.raises((TypeError, ValueError), match=re.escape(reported)):
        make(**arguments)


@pytest.mark.parametrize("missing", METHODS)
def test_cache_without_a_needed_method_is_rejected(missing):
    cache = MemoryRetryContextCache()
    setattr(cache, missing, None)
    with pytest.raises(TypeError, match=f"cache must be an object with the methods .*{missing}"):
        RetryTemplate(cache=cache)


@pytest.mark.parametrize(
    ("kind", "method"),
    [(Backoff, "start"), (Backoff, "next")]
    + [(StatefulRetryPolicy, each) for each in ("start", "record", "decide")],
)
def test_component_without_a_needed_method_is_rejected(kind, method):
    needed = ("start", "next", "record", "decide")
    half = type("Half", (kind,), {each: print for each in needed if each != method})
    with pytest.raises(TypeError, match=f"abstract class Half .*abstract method '?{method}"):
        half()


def test_unknown_setting_raises():
    with pytest.raises(TypeError, match="max_attempt"):
        RetryTemplate(max_attempt=3)
    with pytest.raises(TypeError, match="max_attempt"):
        RetryTemplate().with_(max_attempt=3)


def test_durable_cache_without_a_template_name_raises():
    class Durable(MemoryRetryContextCache):
        durable = True

    with pytest.raises(ValueError, match=r"name is required"):
        RetryTemplate(cache=Durable())
    RetryTemplate(cache=Durable(), name="orders")


@every_driver
@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize(
    "how",
    [{"recovery": 5}, {"recovery": 5, "state": RetryState("key")}, {"state": "key"}],
    ids=case_id,
)
def test_invalid_argument_is_rejected_before_the_execution_begins(driver, how, listening):
    callback, recorder = Script(ValueError()), Recorder()
    template = made(listeners=[recorder] if listening else [])
    with pytest.raises(TypeError, match=next(iter(how))):
        driver(template, callback, **how)
    assert (callback.calls, recorder.hooks) == (0, [])


@pytest.mark.parametrize("nonsense", [5, None, "callback"], ids=repr)
def test_callback_that_is_not_callable_is_rejected(nonsense):
    recorder = Recorder()
    plain, watched = made(), made(listeners=[recorder])
    stateful = plain.bind(state=RetryState("key"))
    for enter in (plain.execute, plain.call, watched.execute, watched.call, stateful.call):
        with pytest.raises(TypeError, match="the callback must be callable, got") as caught:
            enter(nonsense)
        assert not hasattr(caught.value, "__notes__")
    assert recorder.hooks == []
    assert stateful.call(lambda: "value") == "value"


def test_outcome_has_the_error_of_rejected_arguments():
    for outcome in (made().outcome(5), asyncio.run(made().outcome_async(5))):
        assert "the callback must be callable, got 5" in str(outcome.exception)
        assert (outcome.attempts, outcome.history, outcome.elapsed) == (0, (), 0.0)


@pytest.mark.parametrize("nonsense", [5, None, "callback"], ids=repr)
def test_callback_that_is_not_callable_is_rejected_in_a_task(nonsense):
    for enter in (made().execute_async, made().call_async):
        with pytest.raises(TypeError, match="the callback must be callable, got"):
            asyncio.run(enter(nonsense))


@every_driver
@pytest.mark.parametrize("key", [None, 1.5, ["a"], {"a": 1}, NAN, (1, None)], ids=repr)
def test_key_without_a_stable_encoding_is_named(driver, key):
    with pytest.raises(InconsistentKeyError) as caught:
        driver(made(), Script("value"), state=RetryState(key))
    shown = key if not isinstance(key, tuple) else key[1]
    assert repr(shown) in str(caught.value)


# -- the wrong number of arguments --------------------------------------------------------------


def nothing_wanted():
    raise AssertionError("it cannot be called with a context")


async def nothing_awaited():
    raise AssertionError("it cannot be called with a context")


@pytest.mark.parametrize("settings", [{}, {"attempt_timeout": 1.0}, {"listeners": [Recorder()]}])
def test_function_without_parameters_in_execute_suggests_call(settings):
    template = made(**settings)
    with pytest.raises(MisuseError, match=r"nothing_wanted .*use call\(\)"):
        template.execute(nothing_wanted)
    assert current_context() is None


@pytest.mark.parametrize("settings", [{}, {"attempt_timeout": 1.0}, {"listeners": [Recorder()]}])
async def test_coroutine_function_without_parameters_suggests_call(settings):
    with pytest.raises(MisuseError, match=r"nothing_awaited .*use call"):
        await made(**settings).execute_async(nothing_awaited)


def test_execute_of_wrapped_function_without_context_suggests_call():
    with pytest.raises(MisuseError, match=r"nothing_wanted .*use call\(\)"):
        made().execute(Bulkhead("files").wrap(nothing_wanted))


def test_misuse_is_raised_once_without_retry_or_recovery():
    recorder = Recorder()
    with pytest.raises(MisuseError) as caught:
        made(listeners=[recorder], recovery=lambda context: "recovered").execute(nothing_wanted)
    assert recorder.hooks == ["open", "before_attempt", "on_end", "close"]
    assert type(caught.value.__cause__) is TypeError


@pytest.mark.parametrize("settings", [{}, {"listeners": [Recorder()]}], ids=["plain", "listener"])
def test_missing_arguments_of_call_are_named(settings):
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'two'"):
        made(**settings).call(lambda one, two: None, 1)


def test_type_error_inside_a_callback_is_an_ordinary_failure():
    def callback(context):
        return nothing_wanted(context)

    outcome = made().outcome(lambda: callback(None))
    assert outcome.attempts == 3
    assert "use call()" not in str(outcome.exception)


@every_driver
@pytest.mark.parametrize("settings", [{}, {"listeners": [Recorder()]}], ids=["plain", "listener"])
def test_type_error_inside_a_callback_with_context_is_retried(driver, settings):
    assert driver(made(**settings), Script(TypeError("its own"), "value")) == "value"


def test_type_error_in_callback_with_wrapped_signature_is_ordinary():
    @wraps(nothing_wanted)
    def callback(context):
        raise TypeError("its own")

    with pytest.raises(TypeError, match="its own"):
        made().execute(callback)


# -- awaitables in synchronous code -------------------------------------------------------------


def with_async_hook(hook):
    async def body(self, *_):
        raise AssertionError("this is not awaited")

    body.__qualname__ = f"Hook.{hook}"
    return type("Hook", (RetryListener,), {hook: body})()


@pytest.mark.parametrize("hook", [each for each in HOOKS if each != "on_overrun"])
def test_asynchronous_hook_in_synchronous_use_is_named(hook):
    failing = hook in ("on_error", "on_backoff", "on_recovery", "on_end")
    attempts = 1 if hook == "on_recovery" else 2
    cache = Down(lambda step, record: hook == "on_store_error" and step == "succeed")
    cache.lost = "elsewhere:1" if hook == "on_attempt_lost" else None
    template = made(attempts, delay=1.0, listeners=[with_async_hook(hook)], cache=cache)

    with pytest.raises(MisuseError, match=rf"Hook\.{hook} returned an awaitable"):
        template.execute(
            Script(ValueError() if failing else "value"),
            recovery=lambda context: "r",
            state=RetryState("key", rollback_for=()),
        )
    assert current_context() is None


@pytest.mark.parametrize("hook", ["open", "before_attempt", "on_success", "close"])
def test_asynchronous_hook_of_a_first_attempt_is_named(hook):
    template = RetryTemplate(listeners=[with_async_hook(hook)])
    with pytest.raises(MisuseError, match=rf"Hook\.{hook} returned an awaitable"):
        template.execute(lambda context: "value")
    assert current_context() is None


class Deferred:
    """An awaitable that is not a coroutine: a future, a task."""

    def __await__(self):
        yield


@types.coroutine
def old_coroutine():
    yield


@pytest.mark.parametrize("attempt", [1, 2])
def test_callback_that_returns_an_awaitable_generator_is_named(attempt):
    def later():
        calls.append(1)
        if len(calls) < attempt:
            raise ValueError
        return old_coroutine()

    calls = []
    with pytest.raises(MisuseError, match=r"later returned an awaitable .*_async\(\)"):
        made(2).call(later)


def test_generator_is_an_ordinary_value():
    assert list(made().call(lambda: (number for number in range(3)))) == [0, 1, 2]


@pytest.mark.parametrize(
    "made_by", [coroutine_function, lambda *_: Deferred()], ids=["coro", "obj"]
)
@pytest.mark.parametrize("listeners", [[], [Recorder()]], ids=["inline", "engine"])
@pytest.mark.parametrize("attempt", [1, 2])
def test_callback_that_returns_an_awaitable_is_named(made_by, listeners, attempt):
    def enters(template):
        def later(*_):
            calls.append(1)
            if len(calls) < attempt:
                raise ValueError
            return made_by()

        calls = []
        yield lambda: template.execute(later)
        yield lambda: template.call(later)
        yield lambda: template.wrap(later)()
        yield lambda: template.outcome(later).unwrap()

    for number in range(4):
        with pytest.raises(MisuseError, match=r"later returned an awaitable .*_async\(\)"):
            list(enters(made(listeners=listeners)))[number]()


def test_wrapped_function_with_a_later_awaitable_is_named():
    results = [1, 2, Deferred()]
    wrapped = made().wrap(lambda: results.pop(0))
    assert [wrapped(), wrapped()] == [1, 2]
    with pytest.raises(MisuseError, match="returned an awaitable"):
        wrapped()


@pytest.mark.parametrize("recovery", [nothing_wanted, nothing_awaited, lambda: "cached"])
def test_recovery_without_parameters_is_rejected(recovery):
    with pytest.raises(TypeError, match="recovery must be a function of the context, got <"):
        made(recovery=recovery)
    with pytest.raises(TypeError, match="recovery must be a function of the context, got <"):
        made().bind(recovery=recovery)


def test_recovery_without_a_readable_signature_is_accepted():
    assert made(1).bind(recovery=repr).call(Script(ValueError())).startswith("<RetryContext")


@pytest.mark.parametrize("settings", [{}, {"listeners": [Recorder()]}], ids=["plain", "listener"])
def test_recovery_of_a_call_without_parameters_is_rejected(settings):
    with pytest.raises(
        MisuseError, match="nothing_wanted cannot take the context that a recovery"
    ) as caught:
        made(1, **settings).execute(Script(ValueError("down")), recovery=nothing_wanted)
    assert repr(caught.value.__context__) == "ValueError('down')"


def test_type_error_inside_a_recovery_is_raised_unchanged():
    def recovery(context):
        raise TypeError("of its own")

    with pytest.raises(TypeError, match="of its own") as caught:
        made(1).execute(Script(ValueError()), recovery=recovery)
    assert type(caught.value) is TypeError


def test_recovery_that_returns_an_awaitable_is_named():
    with pytest.raises(MisuseError, match="coroutine_function returned an awaitable"):
        made(1).execute(Script(ValueError()), recovery=coroutine_function)


@pytest.mark.parametrize("step", ["begin", "fail", "succeed"])
def test_asynchronous_cache_in_synchronous_use_is_named(step):
    async def later(self, *args, **kwargs):
        raise AssertionError("this is not awaited")

    later.__qualname__ = f"Twin.{step}"
    kind = type("Twin", (MemoryRetryContextCache,), {step: later})
    template = made(name="twin", cache=kind())
    callback = Script(ValueError() if step == "fail" else "value")

    with pytest.raises(Exception) as caught:
        template.execute(callback, state=RetryState("key"))
    reported = []
    error = caught.value
    while error is not None:
        reported.append(str(error))
        error = error.__cause__ or error.__context__
    assert any(f"Twin.{step} returned an awaitable" in text for text in reported)


def test_asynchronous_clock_in_synchronous_use_is_named():
    class Slow(VirtualClock):
        async def sleep(self, delay):
            raise AssertionError("this is not awaited")

    with pytest.raises(MisuseError, match=r"Slow\.sleep returned an awaitable"):
        made(delay=1.0, clock=Slow()).execute(Script(ValueError()))


@pytest.mark.parametrize("method", ["admit", "reserve", "release"])
def test_asynchronous_guard_in_synchronous_use_is_named(method):
    async def later(self, *_):
        raise AssertionError("this is not awaited")

    later.__qualname__ = f"Budget.{method}"
    guard = type("Budget", (Guard,), {method: later})()
    clock = VirtualClock(interrupt_at=1 if method == "release" else None)
    template = made(delay=1.0, clock=clock, guards=[guard])

    with pytest.raises(MisuseError, match=rf"Budget\.{method} returned an awaitable"):
        template.execute(Script(ValueError()))


@every_driver
def test_blocking_cache_in_tasks_is_rejected(driver):
    class Blocking(MemoryRetryContextCache):
        blocking = True

    template = made(name="blocking", cache=Blocking())
    if driver.__name__ in ("in_thread", "in_block"):
        assert driver(template, Script("value"), state=RetryState("key")) == "value"
    else:
        with pytest.raises(MisuseError, match="Blocking blocks"):
            driver(template, Script("value"), state=RetryState("key"))


@pytest.mark.parametrize("state", ["", 0, [], False, "order-17"])
def test_state_of_wrong_type_is_rejected_also_if_false(state):
    template = made()
    for enter in (
        lambda: template.execute(int, state=state),
        lambda: run(template.execute_async(int, state=state)),
        lambda: template.attempts(state=state),
        lambda: template.bind(state=state),
    ):
        with pytest.raises(TypeError, match="state must be a RetryState or None, got"):
            enter()

"""Every component of the library passes its conformance kit."""

import logging

import pytest

import retrytemplate
from retrytemplate import (
    AlwaysRetryPolicy,
    CircuitBreakerRetryPolicy,
    CompositeRetryPolicy,
    ExceptionClassifier,
    ExceptionClassifierRetryPolicy,
    ExponentialBackoff,
    FixedBackoff,
    Guard,
    LoggingListener,
    MaxAttemptsRetryPolicy,
    MemoryRetryContextCache,
    NeverRetryPolicy,
    NoBackoff,
    PredicateRetryPolicy,
    ResultRetryPolicy,
    RetryAfterBackoff,
    RetryListener,
    SimpleRetryPolicy,
    StatisticsListener,
    SystemClock,
    TimeoutRetryPolicy,
    UniformRandomBackoff,
)
from retrytemplate.backoff import Backoff
from retrytemplate.observe import CallbackSink, InMemoryMetrics, Observer
from retrytemplate.policies import RetryPolicy
from retrytemplate.testing import (
    AsyncCacheConformance,
    AsyncRecorder,
    BackoffConformance,
    CacheConformance,
    ClassifierConformance,
    ClockConformance,
    GuardConformance,
    ListenerConformance,
    PolicyConformance,
    Recorder,
    VirtualClock,
    no_waiting,
)
from retrytemplate.testing.skip_delays import SkippingClock

simple = SimpleRetryPolicy(3)
is_os_error = PredicateRetryPolicy(lambda error: isinstance(error, OSError))
by_class = {
    TimeoutError: SimpleRetryPolicy(5),
    OSError: TimeoutRetryPolicy(2.0),
    ValueError: SimpleRetryPolicy(2) & is_os_error,
}
rules = {OSError: True, ConnectionRefusedError: False, ExceptionGroup: False}
names = {"builtins.OSError": True, "builtins.KeyError": {"status": {"5xx": True}}}

POLICIES = {
    "simple": lambda: SimpleRetryPolicy(3),
    "simple with rules": lambda: SimpleRetryPolicy(
        4, retry_on=(OSError, ValueError), not_on=ConnectionError, not_recoverable=ValueError
    ),
    "simple through causes": lambda: SimpleRetryPolicy(4, retry_on=OSError, traverse_causes=True),
    "simple by a predicate": lambda: SimpleRetryPolicy(4, retry_on=lambda error: bool(error.args)),
    "simple read at run time": lambda: SimpleRetryPolicy(max_attempts=lambda: 3),
    "max attempts": lambda: MaxAttemptsRetryPolicy(4),
    "max attempts read at run time": lambda: MaxAttemptsRetryPolicy(lambda: 2),
    "never": NeverRetryPolicy,
    "always": AlwaysRetryPolicy,
    "timeout": lambda: TimeoutRetryPolicy(30.0),
    "timeout of nothing": lambda: TimeoutRetryPolicy(0),
    "timeout read at run time": lambda: TimeoutRetryPolicy(lambda: 8.0),
    "predicate": lambda: is_os_error,
    "result": lambda: ResultRetryPolicy(lambda result: result == 202, SimpleRetryPolicy(5)),
    "result with state": lambda: ResultRetryPolicy(bool, TimeoutRetryPolicy(5.0)),
    "by class": lambda: ExceptionClassifierRetryPolicy(by_class),
    "by class with default": lambda: ExceptionClassifierRetryPolicy(by_class, default=simple),
    "all of several": lambda: CompositeRetryPolicy([simple, is_os_error]),
    "all of several with state": lambda: simple & TimeoutRetryPolicy(8.0) & is_os_error,
    "any of several": lambda: CompositeRetryPolicy([simple, is_os_error], optimistic=True),
    "any of several with state": lambda: simple | TimeoutRetryPolicy(8.0),
    "a deep tree": lambda: (
        ExceptionClassifierRetryPolicy(by_class, default=simple | TimeoutRetryPolicy(2.0))
        & (MaxAttemptsRetryPolicy(6) | NeverRetryPolicy())
    ),
    "circuit breaker": lambda: CircuitBreakerRetryPolicy(
        SimpleRetryPolicy(2), open_timeout=1.0, reset_timeout=5.0
    ),
    "circuit breaker over state": lambda: CircuitBreakerRetryPolicy(
        TimeoutRetryPolicy(3.0) & simple, open_timeout=lambda: 4.0, reset_timeout=2.0
    ),
}
BACKOFFS = {
    "none": NoBackoff,
    "fixed": lambda: FixedBackoff(1.0),
    "fixed of nothing": lambda: FixedBackoff(0.0),
    "fixed read at run time": lambda: FixedBackoff(lambda failures, failure: failures / 2),
    "uniform": lambda: UniformRandomBackoff(0.5, 1.5),
    "uniform read at run time": lambda: UniformRandomBackoff(lambda: 0.5, lambda: 1.5),
    "exponential": ExponentialBackoff,
    "exponential read at run time": lambda: ExponentialBackoff(
        initial=lambda: 1.0, multiplier=lambda: 3.0, maximum=lambda: 20.0
    ),
    "exponential without end": lambda: ExponentialBackoff(maximum=1e308, multiplier=1e9),
    "full jitter": lambda: ExponentialBackoff(jitter="full"),
    "equal jitter": lambda: ExponentialBackoff(jitter="equal"),
    "decorrelated jitter": lambda: ExponentialBackoff(jitter="decorrelated"),
    "spring's jitter": lambda: ExponentialBackoff(jitter="spring"),
    "retry after": lambda: RetryAfterBackoff(ExponentialBackoff(jitter="full"), give_up_above=9.0),
}
CLASSIFIERS = {
    "of nothing": lambda: ExceptionClassifier({}),
    "by class": lambda: ExceptionClassifier(rules),
    "through causes": lambda: ExceptionClassifier(rules, default=None, traverse_causes=True),
    "by name": lambda: ExceptionClassifier.from_config(names),
    "by name through causes": lambda: ExceptionClassifier.from_config(names, traverse_causes=True),
}
LISTENERS = {
    "one that does nothing": RetryListener,
    "logging": LoggingListener,
    "statistics": lambda: StatisticsListener(clock=VirtualClock()),
    "observer": lambda: Observer(sinks=[CallbackSink(print)], metrics=[InMemoryMetrics()]),
    "observer of deadlines": lambda: Observer(metrics=[InMemoryMetrics()], deadlines=True),
}
CLOCKS = {"system": SystemClock, "virtual": VirtualClock, "skipping": SkippingClock}
GUARDS = {"one that grants everything": Guard}
CACHES = {
    "memory": MemoryRetryContextCache,
    "memory with limits": lambda: MemoryRetryContextCache(100, ttl=3600.0, when_full="evict"),
    "memory with an old clock": lambda: MemoryRetryContextCache(clock=VirtualClock(1e6), ttl=60.0),
}


class AsyncMemory:
    """The cache in memory with coroutine methods that let other tasks run."""

    def __init__(self):
        self._cache = MemoryRetryContextCache()

    @staticmethod
    def _method(name):
        async def method(self, *args, **kwargs):
            await no_time()
            answer = getattr(self._cache, name)(*args, **kwargs)
            await no_time()
            return answer

        return method


async def no_time():
    await VirtualClock().sleep_async(0.0)


for method_name in retrytemplate.testing.conformance.cache.METHODS:
    setattr(AsyncMemory, method_name, AsyncMemory._method(method_name))

KITS = [
    (PolicyConformance, POLICIES),
    (BackoffConformance, BACKOFFS),
    (ClassifierConformance, CLASSIFIERS),
    (ListenerConformance, LISTENERS),
    (ClockConformance, CLOCKS),
    (GuardConformance, GUARDS),
    (CacheConformance, CACHES),
    (AsyncCacheConformance, {"memory behind coroutines": AsyncMemory}),
]


def kit_for(kit, make):
    return type("Kit", (kit,), {"make": lambda self: make()})()


@pytest.fixture(autouse=True)
def quiet():
    """Suppress the output of a logging listener."""
    logger = logging.getLogger("retrytemplate")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize(
    ("kit", "make", "test"),
    [
        pytest.param(kit, make, test, id=f"{name}-{test}")
        for kit, pieces in KITS
        for name, make in pieces.items()
        for test in kit.names_of_tests()
    ],
)
def test_ours(kit, make, test):
    getattr(kit_for(kit, make), test)()


@pytest.mark.parametrize("recorder", [Recorder, AsyncRecorder])
def test_recorder_passes_the_kit_but_keeps_exceptions(recorder):
    assert list(kit_for(ListenerConformance, recorder).run_all()) == ["test_it_lets_go_of_failures"]


def test_system_clock_that_skips_waits_passes_its_kit():
    with no_waiting():
        assert kit_for(ClockConformance, SystemClock).run_all() == {}


@pytest.mark.parametrize(
    ("root", "tried"),
    [(RetryPolicy, POLICIES), (Backoff, BACKOFFS), (RetryListener, LISTENERS)],
)
def test_every_public_component_is_tested(root, tried):
    public = [getattr(retrytemplate, name) for name in retrytemplate.__all__]
    pieces = {each for each in public if isinstance(each, type) and issubclass(each, root)}
    seams = {retrytemplate.RetryPolicy, retrytemplate.StatefulRetryPolicy, retrytemplate.Backoff}
    assert pieces - seams - {type(make()) for make in tried.values()} == set()

"""Attacks on every object with a lock: ``python -m tests.support.lock_attacks ATTACK``.

An attack interrupts the library inside its own code and uses the same object there. A deadlock ends
the process with the stacks of all threads. Prints the names of the objects that withstood.
"""

import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import define

import retrytemplate
from retrytemplate import (
    FixedBackoff,
    MemoryRetryContextCache,
    Rejected,
    RetryError,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate._storage.fork_safety import register
from retrytemplate.backends.leases import LeasedClaim, RenewingThread
from retrytemplate.control import (
    Bulkhead,
    CircuitBreaker,
    Consecutive,
    Fallback,
    GateSnapshot,
    Hedge,
    HostGate,
    KillSwitch,
    ProcessGate,
    Quantile,
    RateLimiter,
    RedisRateLimitStore,
    RetryBudget,
    idempotency_key,
)
from retrytemplate.control.breaker.redis.store import RedisCircuitStore
from retrytemplate.listeners.statistics import RollingStatistics
from retrytemplate.observe import (
    DEFAULT_RULES,
    AlertEvaluator,
    BufferedSink,
    Event,
    InMemoryMetrics,
    MemorySink,
    Observer,
    RateLimitedSink,
)
from retrytemplate.observe.measurements import Measurements
from retrytemplate.testing import VirtualClock, no_waiting

LIBRARY = Path(retrytemplate.__file__).parent
ATTACKED = tuple(
    str(LIBRARY / each)
    for each in (
        "_internal/locks.py",
        "caches",
        "control",
        "listeners",
        "backends/leases.py",
        "observe",
        "testing",
    )
)
SECONDS = 100  # until a deadlock is taken for one
SIGNALS, FORKS = 60, 4
EXHAUSTIVE = os.environ.get("RETRYTEMPLATE_TEST_EXHAUSTIVE")


@define
class Subject:
    """An object under attack.

    :param where: the modules whose locks it tries.
    :param use: everything that is done with the object, in a thread of its own or interrupted.
    :param attack: what the interrupting code does with it.
    :param check: raises unless the object is as it was before.
    :param stride: only each n-th instruction is attacked, where *use* is long; with the variable
        ``RETRYTEMPLATE_TEST_EXHAUSTIVE`` every one is.
    """

    where: tuple[str, ...]
    make: Callable[[], Any]
    use: Callable[[Any], object]
    attack: Callable[[Any], object]
    check: Callable[[Any], object]
    stride: int = 1


def well():
    return 0


def fail():
    raise ConnectionError


def tried(call, *args, **kwargs):
    with suppress(RetryError, ConnectionError, ValueError):
        return call(*args, **kwargs)


def stream(block):
    with block:
        yield


def abandon(block):
    """Leave a generator inside of the block; the code that frees it closes it."""
    with suppress(RetryError):
        left = stream(block)
        next(left)


# -- the objects -----------------------------------------------------------------------------------


def use_bulkhead(bulkhead):
    tried(bulkhead.wrap(well))
    tried(bulkhead.call, int)
    with suppress(Rejected), bulkhead.slot(key="a"):
        tried(bulkhead.call, int)
    bulkhead.resize(2)
    bulkhead.snapshot()


def attack_bulkhead(bulkhead):
    abandon(bulkhead.slot(key="a"))
    tried(bulkhead.wrap(well))
    bulkhead.resize(2)
    assert bulkhead.snapshot().in_use <= 2


def check_bulkhead(bulkhead):
    shown = bulkhead.snapshot()
    assert (shown.in_use, shown.waiting, shown.keys) == (0, 0, 0), shown
    with bulkhead.slot(key="a"), bulkhead.slot(key="b"):
        assert bulkhead.snapshot().in_use == 2


def use_limiter(limiter):
    tried(limiter.wrap(well))
    tried(limiter.acquire, 2)
    tried(limiter.call, int)
    limiter.pause(1e-6)
    limiter.resize(permits=10**6)
    limiter.snapshot()


def use_limiter_of_keys(limiter):
    tried(limiter.acquire, key=next(KEYS) % 20)
    tried(limiter.acquire, 2, key="a")
    limiter.pause(1e-6)
    limiter.snapshot()


def attack_limiter(limiter):
    tried(limiter.try_acquire)
    tried(limiter.acquire, 2)
    limiter.pause(1e-6)
    limiter.resize(permits=10**6)
    assert limiter.snapshot().waiting <= 4


def check_limiter(limiter):
    shown = limiter.snapshot()
    assert (shown.waiting, shown.keys <= 40) == (0, True), shown
    before = shown.admitted
    no_waiting_until(limiter.try_acquire)
    assert limiter.snapshot().admitted == before + 1
    assert limiter._admission.limits.single.queue is None


def no_waiting_until(condition):
    while not condition():
        pass


def rate_limiter(**settings):
    return RateLimiter("x", permits=10**6, max_wait=0.001, **settings)


def unreachable_limit():
    store = RedisRateLimitStore("redis://127.0.0.1:9/0")
    return rate_limiter(store=store)


def use_gate(gate):
    tried(enter, gate.shared(0))
    tried(enter, gate.exclusive(0))
    with suppress(RetryError), gate.shared(0):
        tried(enter, gate.shared(0))
        tried(enter, gate.exclusive(0))
    gate.is_open()


def enter(block):
    with block:
        pass


def attack_gate(gate):
    abandon(gate.shared(0))
    tried(enter, gate.exclusive(0))
    gate.is_open()


def check_gate(gate):
    assert gate.snapshot() == GateSnapshot(shared=0, exclusive=0, waiting=0), gate.snapshot()
    with gate.exclusive(5):
        assert not gate.is_open()
    enter(gate.shared(5))  # with is_open() a process that still uses the gate would count


def use_breaker(breaker):
    tried(breaker.call, int)
    tried(breaker.wrap(fail))
    tried(breaker.call, fail)
    tried(breaker.call, int)
    breaker.snapshot()
    breaker.force_open(by="me", reason="try")
    tried(breaker.call, int)
    breaker.reset()


def attack_breaker(breaker):
    abandon(breaker.permit())
    tried(breaker.call, fail)
    tried(breaker.wrap(well))
    assert breaker.state is not None
    breaker.disable(by="me", reason="try")
    breaker.reset()


def check_breaker(breaker):
    breaker.reset()
    assert breaker.call(int) == 0
    before = breaker.snapshot()
    assert (before.state, before.probes, before.failures) == ("closed", 0, 0), before
    for _ in range(2):
        tried(breaker.call, fail)
    assert breaker.state == "open"
    breaker.reset()


def use_budget(budget):
    template = RetryTemplate(SimpleRetryPolicy(2), FixedBackoff(0), guards=[budget])
    tried(template.call, int)
    tried(template.call, fail)
    tried(budget.withdraw)
    budget.refund()
    budget.snapshot()


def attack_budget(budget):
    try:
        budget.withdraw()
    except Rejected:
        return
    finally:
        assert budget.snapshot().available >= 0
    budget.refund()


def check_budget(budget):
    before = budget.snapshot().granted
    budget.withdraw()
    assert budget.snapshot().granted == before + 1
    budget.refund()


def use_fallback(fallback):
    fallback.call(fail)
    fallback.counts()


def attack_fallback(fallback):
    fallback.call(int)
    fallback.counts()


def check_fallback(fallback):
    before = fallback.counts()["primary"]
    fallback.call(int)
    assert fallback.counts()["primary"] == before + 1


POOL = ThreadPoolExecutor(2)
FOLDER = TemporaryDirectory()


def made_hedge():
    return Hedge(Quantile(0.5, minimum=1, window=3), idempotent=True, executor=POOL)


def use_hedge(hedge):
    hedge.call(int)
    hedge.snapshot()


def attack_hedge(hedge):
    hedge.delay.record(0.5)
    hedge.delay.value()
    hedge.snapshot()


def check_hedge(hedge):
    before = hedge.snapshot().rejected
    # Not the number of calls: a call that a hedge has answered may never have begun.
    hedge._recorder.on_rejected(ConnectionError())
    assert (hedge.call(int), hedge.snapshot().rejected) == (0, before + 1)
    assert sorted(hedge.delay._last) == hedge.delay._sorted


WHY = "to see whether it withstands"


def use_switch(switch):
    tried(switch.stop, feature="a", by="me", reason=WHY, expires_in=3600)
    switch.check(feature="a")
    tried(switch.resume, feature="a", by="me", justification=WHY)


def attack_switch(switch):
    switch.check(feature="b")
    switch.snapshot()
    tried(switch.stop, feature="b", by="me", reason=WHY, expires_in=3600)


def check_switch(switch):
    switch.stop(feature="c", by="me", reason=WHY, expires_in=3600)
    assert not switch.check(feature="c")
    switch.resume(feature="c", by="me", justification=WHY)


def use_metrics(metrics):
    metrics.first_success("billing", 0.01)
    metrics.add("backoff.time", {"template": "billing"}, 0.5)
    metrics.record("rate_limiter.wait.duration", {"name": f"limiter {next(KEYS) % 3}"}, 0.5)
    metrics.snapshot()
    metrics.history("backoff.time", {"template": "billing"})


def check_metrics(metrics):
    before = successes(metrics)
    use_metrics(metrics)
    assert successes(metrics) == before + 1


def successes(metrics):
    shown = metrics.snapshot().get("call.duration", {})
    return sum(each.count for each in shown.values())


class CountedMetrics:
    """Metrics of a program, without a limit of label values; an append is atomic."""

    def __init__(self):
        self.added = []

    def add(self, name, labels, amount=1.0):
        self.added.append(name)

    record = add

    def first_success(self, template, elapsed):
        self.added.append(template)


def use_measurements(measurements):
    measurements.on_first_success("billing", 0.01)
    measurements.add("backoff.time", f"template {next(KEYS) % 4}")


def check_measurements(measurements):
    [metrics] = measurements.metrics
    before = metrics.added.count("backoff.time")
    use_measurements(measurements)
    assert metrics.added.count("backoff.time") == before + 1


def made_alerts():
    clock = VirtualClock()
    evaluator = AlertEvaluator(
        Observer(metrics=[InMemoryMetrics(clock=clock)]), rules=DEFAULT_RULES[:1], clock=clock
    )
    evaluator.metrics.first_success("billing", 9.0)
    evaluator.test_clock = clock
    return evaluator


def check_alerts(evaluator):
    evaluator.test_clock.advance(3600)
    evaluator.evaluate()
    evaluator.metrics.first_success("billing", 9.0)
    assert [each.type for each in evaluator.evaluate()] == ["alert.raised"]
    assert evaluator.evaluate() == ()


KEYS = count()


def use_key(template):
    keys = template.call(lambda: (idempotency_key(), idempotency_key()))
    assert keys[0] == keys[1]


def use_statistics(statistics):
    statistics.increment("started", "complete")
    statistics.update_attributes({"circuit.open": False})
    statistics.snapshot()


def check_statistics(statistics):
    before = statistics.started
    statistics.increment("started", "complete")
    assert (statistics.started, statistics.complete) == (before + 1, before + 1)


def use_template(template):
    template.register_listener(RetryListener())
    template.call(int)


def check_template(template):
    before = len(template.listeners)
    use_template(template)
    assert len(template.listeners) == before + 1
    while len(template.listeners) > 50:  # of a long attack: each one makes the next dearer
        object.__setattr__(template, "listeners", ())


def use_switched_clock(_):
    with no_waiting() as clock:
        clock.sleep(1)


def check_switched_clock(_):
    from retrytemplate.testing import skip_delays

    gc.collect()
    assert skip_delays._switched_on == []


def made_cached(cache):
    return RetryTemplate(SimpleRetryPolicy(2), FixedBackoff(0), name="work", cache=cache)


def use_cache(template):
    bound = template.bind(state=RetryState(next(KEYS) % 20))
    tried(bound.call, fail)
    tried(bound.call, int)


def attack_cache(template):
    left = template.attempts(state=RetryState(("left", next(KEYS) % 20)))
    tried(next, left)
    del left
    tried(template.bind(state=RetryState(("other", next(KEYS) % 20))).call, fail)


def check_cache(template):
    gc.collect()
    assert template.cache._claims == {}, template.cache._claims
    for _ in range(2):
        use_cache(template)


def unreachable():
    store = RedisCircuitStore("redis://127.0.0.1:9/0", stale_after=3600)
    return CircuitBreaker("x", window=Consecutive(2), store=store, reset_jitter=0)


def unreachable_cached():
    store = RedisCircuitStore("redis://127.0.0.1:9/0", stale_after=3600, mode="cached")
    return CircuitBreaker("x", window=Consecutive(2), store=store, reset_jitter=0)


def use_shared(breaker):
    tried(breaker.call, int)
    tried(breaker.call, fail)
    tried(lambda: breaker.state)


def check_shared(breaker):
    assert tried(breaker.snapshot) is not None
    breaker.close()


class Renewals:
    """The leases of a cache: renewed by a thread of their own, by another one after a fork."""

    def __init__(self):
        self._forked()
        register(self)

    def _forked(self):
        self.renewer, self.claim = RenewingThread(self.renew, time.monotonic, well), held(1e-6)

    def renew(self, claim):
        raise ConnectionError

    def use(self):
        for lease in (3600.0, 1e-6):  # one that outlives a failure, and one that is over at once
            self.claim = claim = held(lease)
            self.renewer.add(claim)
            self.renewer._renew_one(claim)  # of the thread, whose instructions are not traced
            self.renewer.drop(claim)

    def attack(self):
        self.renewer.drop(self.claim)
        other = held(3600.0)
        self.renewer.add(other)
        self.renewer.drop(other)

    def check(self):
        self.use()
        assert not self.renewer._leases.has(self.claim)
        assert self.renewer._leases.thread.is_alive()


def held(lease):
    claim = LeasedClaim(f"key {next(KEYS)}", "me", None, 1)
    claim.lease = lease
    return claim


EVENT = Event(type="call.rejected", subject="charge", severity=20, time=17.0)


def use_limited_sink(sink):
    for _ in range(3):
        sink.emit(EVENT)
    for window in sink._lock.run(sink._ended, float("inf")):
        sink._folded(window)


def attack_limited_sink(sink):
    sink.emit(EVENT)


def check_limited_sink(sink):
    sink._lock.run(sink._take_all)
    for _ in range(3):
        sink.emit(EVENT)
    [window] = sink._windows.values()
    assert (window.passed, window.count) == (1, 2), window


def use_buffered_sink(sink):
    for _ in range(5):
        sink.emit(EVENT)


def check_buffered_sink(sink):
    before = sink.dropped
    no_waiting_until(lambda: sink._free.qsize() == sink.capacity)
    sink.emit(EVENT)
    assert sink.dropped == before
    no_waiting_until(lambda: sink._free.qsize() == sink.capacity)


def bulkhead(**settings):
    return Bulkhead("x", limit=2, queue=5, max_wait=0.001, **settings)


SUBJECTS = {
    "bulkhead": Subject(
        ("control/bulkhead/bulkhead.py",), bulkhead, use_bulkhead, attack_bulkhead, check_bulkhead
    ),
    "bulkhead with keys": Subject(
        ("control/bulkhead/bulkhead.py",),
        lambda: bulkhead(per_key=1),
        use_bulkhead,
        attack_bulkhead,
        check_bulkhead,
        stride=3,
    ),
    "rate limiter": Subject(
        ("control/rate_limiter/admission.py",),
        rate_limiter,
        use_limiter,
        attack_limiter,
        check_limiter,
        stride=17,
    ),
    "rate limiter with keys": Subject(
        ("control/rate_limiter/admission.py",),
        lambda: rate_limiter(per_key=True),
        use_limiter_of_keys,
        use_limiter_of_keys,
        check_limiter,
        stride=23,
    ),
    "shared rate limiter": Subject(
        ("control/rate_limiter/redis/shared.py",),
        unreachable_limit,
        use_limiter,
        attack_limiter,
        check_limiter,
        stride=97,
    ),
    "process gate": Subject(
        ("control/isolation_gate/gate.py",),
        ProcessGate,
        use_gate,
        attack_gate,
        check_gate,
        stride=3,
    ),
    "host gate": Subject(
        ("control/isolation_gate/gate.py",),
        lambda: HostGate(directory=FOLDER.name),
        use_gate,
        attack_gate,
        check_gate,
        stride=7,
    ),
    "breaker": Subject(
        ("control/breaker/backend.py",),
        lambda: CircuitBreaker("x", window=Consecutive(2)),
        use_breaker,
        attack_breaker,
        check_breaker,
        stride=3,
    ),
    "budget": Subject(
        ("control/budget/budget.py",),
        lambda: RetryBudget(ratio=1, min_per_second=100),
        use_budget,
        attack_budget,
        check_budget,
        stride=7,
    ),
    "budget of tokens": Subject(
        ("control/budget/budget.py",),
        lambda: RetryBudget.tokens(refill_per_second=1e6),
        use_budget,
        attack_budget,
        check_budget,
        stride=7,
    ),
    "fallback": Subject(
        ("control/fallback.py",),
        lambda: Fallback(well),
        use_fallback,
        attack_fallback,
        check_fallback,
    ),
    "hedge": Subject(
        ("control/hedge/events.py", "control/hedge/delay.py", "control/hedge/runners.py"),
        made_hedge,
        use_hedge,
        attack_hedge,
        check_hedge,
        stride=23,
    ),
    "kill switch": Subject(
        ("control/switch/store/base.py", "control/switch/notifier.py", "control/switch/cache.py"),
        KillSwitch,
        use_switch,
        attack_switch,
        check_switch,
        stride=61,
    ),
    "idempotency key": Subject(
        ("control/idempotency/keys.py",), RetryTemplate, use_key, use_key, use_key
    ),
    "statistics": Subject(
        ("listeners/statistics.py",),
        RollingStatistics,
        use_statistics,
        use_statistics,
        check_statistics,
    ),
    "metrics": Subject(
        ("observe/instruments/memory.py",),
        lambda: InMemoryMetrics(max_label_values=2),
        use_metrics,
        use_metrics,
        check_metrics,
        stride=97,
    ),
    "measurements": Subject(
        ("observe/measurements.py",),
        lambda: Measurements([CountedMetrics()], 2),
        use_measurements,
        use_measurements,
        check_measurements,
        stride=7,
    ),
    "alerts": Subject(
        ("observe/alerts/evaluator.py",),
        made_alerts,
        AlertEvaluator.evaluate,
        AlertEvaluator.evaluate,
        check_alerts,
        stride=11,
    ),
    "template": Subject(
        ("template.py",), RetryTemplate, use_template, use_template, check_template, stride=19
    ),
    "no_waiting": Subject(
        ("testing/skip_delays.py",),
        no_waiting,
        use_switched_clock,
        lambda _: abandon(no_waiting()),
        check_switched_clock,
        stride=11,
    ),
    "cache in memory": Subject(
        ("caches/memory.py",),
        lambda: made_cached(MemoryRetryContextCache(10, ttl=60, when_full="evict")),
        use_cache,
        attack_cache,
        check_cache,
        stride=61,
    ),
    "shared circuit": Subject(
        ("control/breaker/redis/strict.py",),
        unreachable,
        use_shared,
        use_shared,
        check_shared,
        stride=41,
    ),
    "shared circuit, cached": Subject(
        ("control/breaker/redis/cached.py",),
        unreachable_cached,
        use_shared,
        use_shared,
        check_shared,
        stride=41,
    ),
    "rate limited sink": Subject(
        ("observe/sinks/rate_limited.py",),
        lambda: RateLimitedSink(MemorySink(), limit=1, interval=3600),
        use_limited_sink,
        attack_limited_sink,
        check_limited_sink,
        stride=7,
    ),
    "buffered sink": Subject(
        ("observe/sinks/buffered.py",),
        lambda: BufferedSink(MemorySink(), capacity=3),
        use_buffered_sink,
        use_buffered_sink,
        check_buffered_sink,
        stride=7,
    ),
    "renewed leases": Subject(
        ("backends/leases.py",), Renewals, Renewals.use, Renewals.attack, Renewals.check
    ),
}

# -- the attacks -----------------------------------------------------------------------------------


class Interrupt:
    """Runs the attack before the n-th instruction of the library in this thread."""

    def __init__(self, number, attack):
        self.number, self.attack, self.seen = number, attack, 0

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(ATTACKED):
            return None
        frame.f_trace_opcodes = True  # Python 3.13 forgets it if only the call sets it
        if event == "opcode":
            self.seen += 1
            if self.seen == self.number:
                sys.settrace(None)  # the rest runs at full speed
                self.attack()
        return self


def instructions(subject):
    """The collector, a finalizer or a signal handler at any instruction of the library."""
    made = subject.make()

    def interrupted(number):
        """Whether the use has this number of instructions."""
        interrupt = Interrupt(number, lambda: subject.attack(made))
        sys.settrace(interrupt)
        try:
            subject.use(made)
        finally:
            sys.settrace(None)
        subject.check(made)
        return interrupt.seen >= number

    for _ in range(2):  # Python 3.12 sends no opcode events in the first call of a function
        interrupted(sys.maxsize)
    number = 1
    while interrupted(number):
        number += 1 if EXHAUSTIVE else subject.stride
    assert number > 10


def signals(subject):
    """Frequent signals whose handler uses the object."""
    made, handled = subject.make(), count()

    def handle(*_):
        number = next(handled)
        subject.attack(made)
        if number < SIGNALS:  # else a slow use, which each signal makes longer, never returns
            signal.setitimer(signal.ITIMER_REAL, 0.0003)  # not before: no handler interrupts itself

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0003)
    try:
        while next(handled) < SIGNALS:
            subject.use(made)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    subject.check(made)


class Cycle:
    """Freed by the garbage collector only; then it attacks."""

    def __init__(self, attack):
        self.me, self.attack = self, attack

    def __del__(self):
        self.attack()


def collector(subject):
    """Finalizers that the garbage collector runs during any operation of a thread."""
    made = subject.make()
    gc.set_threshold(1)
    try:
        for _ in range(40):
            Cycle(lambda: subject.attack(made))
            subject.use(made)
    finally:
        gc.set_threshold(700, 10, 10)
    gc.collect()
    subject.check(made)


def fork(subject):
    """Fork a child while threads are inside the object."""
    made, over = subject.make(), threading.Event()
    subject.use(made)  # no thread is to be importing a module at the fork

    def work():
        while not over.is_set():
            subject.use(made)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(FORKS):
            child = os.fork()
            if not child:
                ended_by(lambda: in_child(subject, made))
            _, status = os.waitpid(child, 0)
            assert status == 0, status
    finally:
        over.set()
        for thread in threads:
            thread.join()


def in_child(subject, made):
    POOL.__init__(2)  # its threads are the parent's
    if subject.where == ("testing/skip_delays.py",):
        subject.attack(made)  # what the parent's threads have switched on stays on
    else:
        subject.attack(made)
        subject.check(made)


def ended_by(call):
    """End this child: with 0 if the call returns, by a signal if it blocks."""
    signal.alarm(10)  # faulthandler's thread is the parent's
    try:
        call()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


ATTACKS = {each.__name__: each for each in (instructions, signals, collector, fork)}


def main(name):
    for subject, details in SUBJECTS.items():
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            ATTACKS[name](details)
        except BaseException:
            print(f"{subject}:", file=sys.stderr)
            traceback.print_exc()
        else:
            print(subject, flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1])

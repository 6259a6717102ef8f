"""Graph nodes under decorators: any of them, in any order, with other decorators."""

import asyncio
import inspect
from collections import Counter
from contextlib import suppress
from functools import partial, update_wrapper, wraps
from itertools import permutations

import pytest

from retrytemplate import (
    CircuitOpenError,
    DeadlineExceededError,
    KillSwitchActiveError,
    MaxAttemptsRetryPolicy,
    MisuseError,
    NoBackoff,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import (
    Bulkhead,
    CircuitBreaker,
    Consecutive,
    FallbackUsed,
    KillSwitch,
    Timeout,
    with_breaker,
    with_bulkhead,
    with_retry,
    with_switch,
    with_timeout,
)
from retrytemplate.testing import VirtualClock
from tests.support.event_loops import LOOPS

every_loop = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])


class Down(Exception):
    """A retryable error."""


class Script:
    """A node that raises the given errors in turn, then returns."""

    def __init__(self, *errors):
        self.errors, self.runs = list(errors), 0

    def __call__(self, state):
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return {**state, "answer": 31}


class Recorded:
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)


def node_of(script):
    async def ask(state):
        return script(state)

    return ask


def sync_node_of(script):
    def ask(state):
        return script(state)

    return ask


def awaited(node, *args, **kwargs):
    """The result of a node, synchronous or asynchronous."""
    value = node(*args, **kwargs)
    return asyncio.run(value) if inspect.isawaitable(value) else value


every_node = pytest.mark.parametrize("made", [node_of, sync_node_of])


def retry(attempts=3):
    return with_retry(retryable=Down, max_attempts=attempts, backoff=NoBackoff())


def unknown(state):
    return {**state, "answer": "unknown"}


# Each alone.


@every_node
def test_retryable_failure_is_run_again(made):
    script = Script(Down(), Down())
    assert awaited(retry()(made(script)), {"city": "Rome"}) == {"city": "Rome", "answer": 31}
    assert script.runs == 3


@pytest.mark.statement("S4-93")
@pytest.mark.parametrize(
    "retryable, runs",
    [
        (Down, 1),
        ((Down, KeyError), 2),
        (lambda exc: exc.args == ("no",), 2),
        (lambda exc: False, 1),
    ],
    ids=["class", "classes", "predicate", "no"],
)
@every_node
def test_failure_outside_of_retryable_is_raised_immediately(made, retryable, runs):
    script = Script(KeyError("no"))
    node = with_retry(retryable=retryable, backoff=NoBackoff())(made(script))
    if runs == 1:
        with pytest.raises(KeyError):
            awaited(node, {})
    else:
        awaited(node, {})
    assert script.runs == runs


def test_retry_accepts_template_bound_template_or_policy():
    template = RetryTemplate(SimpleRetryPolicy(2, retry_on=Down), NoBackoff())
    policy = SimpleRetryPolicy(2, retry_on=Down)
    for decorator in (
        with_retry(template),
        with_retry(template.bind(label="ask")),
        with_retry(policy, backoff=NoBackoff()),
    ):
        script = Script(Down(), Down())
        with pytest.raises(Down):
            decorator(sync_node_of(script))({})
        assert script.runs == 2


def test_default_settings_wait_longer_each_time_with_jitter(monkeypatch):
    waits = []
    monkeypatch.setattr("retrytemplate.clock.time.sleep", waits.append)
    node = with_retry(retryable=Down, max_attempts=7)(sync_node_of(Script(*[Down()] * 6)))
    node({})
    limits = [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert all(0 <= wait <= limit for wait, limit in zip(waits, limits, strict=True))
    assert len(set(waits)) == 6


@pytest.mark.parametrize(
    "decorate, message",
    [
        (lambda: with_retry(), "name the retryable errors"),
        (
            lambda: with_retry(MaxAttemptsRetryPolicy(2), retryable=Down),
            r"retryable must be left out with MaxAttemptsRetryPolicy\(.*\); set it there",
        ),
        (
            lambda: with_retry(RetryTemplate(), max_attempts=2, backoff=NoBackoff()),
            "max_attempts and backoff must be left out with",
        ),
        (lambda: with_timeout(Timeout(1.0), on_timeout={}), "set on_timeout on the Timeout"),
        (lambda: with_breaker(CircuitBreaker("b"), on=Down), "needs a fallback"),
    ],
    ids=["nothing", "policy", "template", "timeout", "breaker"],
)
def test_missing_or_repeated_settings_are_misuse(decorate, message):
    with pytest.raises(MisuseError, match=message):
        decorate()


async def asynchronous(state):
    return state


@pytest.mark.parametrize(
    "decorate, message",
    [
        (lambda: with_retry(3), "template must be a RetryTemplate or a RetryPolicy, got 3"),
        (lambda: with_retry(retryable="Down"), "retryable must be an exception class"),
        (lambda: with_breaker("billing"), "breaker must be a CircuitBreaker, got 'billing'"),
        (
            lambda: with_breaker(CircuitBreaker("b"), fallback={"answer": None}),
            "fallback must be a function of the node's state, got {'answer': None}",
        ),
        (lambda: with_bulkhead(3), "bulkhead must be a Bulkhead, got 3"),
        (lambda: with_switch(3), "guard must be a result of KillSwitch.guard.., .* got 3"),
        (lambda: with_switch(Timeout), "guard must be .* got <class"),
        (lambda: with_switch(asynchronous), "guard must be .* a plain function"),
        (lambda: with_timeout("fast"), "seconds must be"),
        (lambda: with_timeout(1.0)("node"), "wrap.. takes a function"),
        (lambda: with_timeout(1.0)(Script), "wrap.. takes a function, got the class"),
        (
            lambda: with_timeout(1.0, on_timeout=asynchronous)(unknown),
            "on_timeout must be synchronous",
        ),
        (
            lambda: with_breaker(CircuitBreaker("b"), fallback=asynchronous)(unknown),
            "fallback must be synchronous",
        ),
        (
            lambda: with_breaker(CircuitBreaker("b"), fallback=lambda one, two: one)(unknown),
            r"fallback must take \(state\), or fewer of them from the left",
        ),
    ],
)
def test_wrong_setting_is_rejected_when_the_node_is_decorated(decorate, message):
    with pytest.raises(TypeError, match=message):
        decorate()


def late(clock):
    """A node that takes a second of this clock."""

    def ask(state, *, config=None):
        clock.sleep(1.0)
        return state

    return ask


@pytest.mark.parametrize("on_timeout", [None, {"answer": "later"}, unknown])
def test_late_synchronous_run_of_a_node_is_kept(on_timeout):
    settings = {} if on_timeout is None else {"on_timeout": on_timeout}
    node = with_timeout(1e-9, **settings)(lambda state: {**state, "answer": "31"})
    assert node({"city": "Rome"}) == {"city": "Rome", "answer": "31"}


def test_late_result_that_is_discarded_is_an_error():
    clock = VirtualClock()
    limited = Timeout(0.5, on_late_result="discard", clock=clock)
    with pytest.raises(DeadlineExceededError):
        with_timeout(limited)(late(clock))({})


@every_loop
def test_cut_run_is_replaced_by_on_timeout(loop):
    async def later(state, config):
        return {**state, "answer": config}

    async def ask(state, *, config):
        await loop.forever()

    async def main():
        for on_timeout, answer in [
            ({"answer": "constant"}, {"answer": "constant"}),
            (lambda: {"answer": "no argument"}, {"answer": "no argument"}),
            (unknown, {"city": "Rome", "answer": "unknown"}),
            (later, {"city": "Rome", "answer": "given"}),
        ]:
            node = with_timeout(0.001, on_timeout=on_timeout)(ask)
            assert await node({"city": "Rome"}, config="given") == answer

    loop.run(main)


def test_run_that_returns_in_time_needs_no_on_timeout():
    node = with_timeout(60, on_timeout=unknown)(sync_node_of(Script()))
    assert node({}) == {"answer": 31}


@every_node
def test_open_circuit_rejects_the_run_and_the_fallback_returns_the_state(made):
    listener = Recorded()
    breaker = CircuitBreaker("weather", window=Consecutive(2), listeners=[listener])
    script = Script(Down(), Down())
    node = with_breaker(breaker, fallback=unknown)(made(script))
    for _ in range(2):
        with pytest.raises(Down):  # the breaker counts it, and a retry around may try again
            awaited(node, {})
    assert awaited(node, {"city": "Rome"}) == {"city": "Rome", "answer": "unknown"}
    assert script.runs == 2
    assert [each.source for each in listener.events if isinstance(each, FallbackUsed)] == [
        "unknown"
    ]
    with pytest.raises(CircuitOpenError):
        awaited(with_breaker(breaker)(made(script)), {})


def test_plain_function_that_returns_an_awaitable_is_misuse():
    def hidden(state):
        return asynchronous(state)

    for decorator in guards().values():
        with pytest.raises(MisuseError, match="await"):
            decorator(hidden)({})


@every_node
def test_fallback_covers_the_failures_given_in_on(made):
    breaker = CircuitBreaker("weather", window=Consecutive(9))
    node = with_breaker(breaker, fallback=unknown, on=Down)(made(Script(Down(), KeyError())))
    assert awaited(node, {}) == {"answer": "unknown"}
    with pytest.raises(KeyError):
        awaited(node, {})
    assert breaker.snapshot().failures == 2


def test_bulkhead_limits_concurrent_runs():
    bulkhead = Bulkhead("llm", limit=1, queue=0)
    seen = []

    @with_bulkhead(bulkhead)
    def ask(state):
        seen.append(bulkhead.snapshot().in_use)
        return state

    assert ask({}) == {}
    assert (seen, bulkhead.snapshot().in_use) == ([1], 0)


def stopped(**scope):
    switch = KillSwitch()
    switch.stop(**scope, reason="leak suspected", by="kim", permanent=True)
    return switch


@every_node
def test_node_stopped_by_a_kill_switch_is_not_run(made):
    switch, script = stopped(segment="finance"), Script()
    with pytest.raises(KillSwitchActiveError, match="leak suspected"):
        awaited(with_switch(switch.guard(segment="finance"))(made(script)), {})
    assert script.runs == 0
    assert awaited(with_switch(switch.guard(segment="sales"))(made(script)), {})["answer"] == 31


@every_node
def test_switch_guard_can_depend_on_the_state(made):
    switch = stopped(feature="weather")
    switch.resume(feature="weather", by="kim", justification="found, mended", canary=(50, 100))
    node = with_switch(lambda state: switch.guard(feature="weather", key=state["user"]))
    node, let_in = node(made(Script())), []
    for user in range(20):
        with suppress(KillSwitchActiveError):
            let_in.append(awaited(node, {"user": user})["user"])
    assert let_in == [user for user in range(20) if switch.check(feature="weather", key=user)]
    assert 0 < len(let_in) < 20


# Together.

NAMES = ("timeout", "retry", "breaker", "bulkhead", "switch")


def guards(switch=None):
    return {
        "switch": with_switch((switch or KillSwitch()).guard(feature="service")),
        "timeout": with_timeout(60),
        "retry": retry(),
        "breaker": with_breaker(CircuitBreaker("service", minimum_calls=50), fallback=unknown),
        "bulkhead": with_bulkhead(Bulkhead("service", limit=1, queue=0)),
    }


def around(decorators, node):
    """Apply decorators; the last one is the innermost."""
    for decorator in reversed(decorators):
        node = decorator(node)
    return node


@pytest.mark.statement("S4-01")
@pytest.mark.statement("S4-92")
@every_node
def test_they_compose_in_any_order_with_one_left_out_or_all_there(made):
    for number in (1, 2, len(NAMES)):
        for order in permutations(NAMES, number):
            script = Script(Down(), Down())
            decorators = guards()
            node = around([decorators[name] for name in order], made(script))
            if "retry" in order:
                assert (order, awaited(node, {})) == (order, {"answer": 31})
                assert script.runs == 3
            else:
                with pytest.raises(Down):
                    awaited(node, {})
                assert script.runs == 1


@pytest.mark.statement("S4-01")
@every_node
def test_stopped_node_is_not_run_in_any_order_of_decorators(made):
    switch, script = stopped(everything=True), Script()
    for order in permutations(NAMES):
        decorators = guards(switch)
        decorators["breaker"] = with_breaker(CircuitBreaker("b"), fallback=unknown, on=Exception)
        with pytest.raises(KillSwitchActiveError):
            awaited(around([decorators[name] for name in order], made(script)), {})
    assert script.runs == 0


@every_node
def test_node_stopped_between_two_attempts_is_not_run_again(made):
    switch, runs = KillSwitch(), []

    def answer(state):
        runs.append("run")
        switch.stop(feature="service", reason="paid twice, stop", by="kim", permanent=True)
        raise Down

    node = retry()(with_switch(switch.guard(feature="service"))(made(answer)))
    with pytest.raises(KillSwitchActiveError):
        awaited(node, {})
    assert runs == ["run"]


def checked(node):
    """A third-party guard."""
    if inspect.iscoroutinefunction(node):

        @wraps(node)
        async def guarded(state, *args, **kwargs):
            return checked_output(await node(dict(state), *args, **kwargs))
    else:

        @wraps(node)
        def guarded(state, *args, **kwargs):
            return checked_output(node(dict(state), *args, **kwargs))

    return guarded


def checked_output(state):
    return {**state, "checked": state.get("checked", 0) + 1}


class Checked:
    """The same as a class whose instances replace the node."""

    def __init__(self, node):
        self.node = node
        update_wrapper(self, node)

    async def __call__(self, state):
        return checked_output(await self.node(dict(state)))


class Checks:
    """The same as a class whose instances decorate."""

    def __init__(self, check):
        self.check = check

    def __call__(self, node):
        @wraps(node)
        async def guarded(state):
            return self.check(await node(state))

        return guarded


@pytest.mark.statement("S4-97")
@pytest.mark.parametrize(
    "other", [checked, Checked, Checks(checked_output)], ids=["function", "object", "factory"]
)
def test_other_decorators_chain_in_any_order(other):
    for order in permutations(["timeout", "retry", "breaker", "other"]):
        script = Script(Down(), Down())
        decorators = guards() | {"other": other}
        node = around([decorators[name] for name in order], node_of(script))
        assert (order, awaited(node, {})) == (order, {"answer": 31, "checked": 1})
        assert script.runs == 3
        assert node.__name__ == "ask"


def test_other_decorators_chain_in_any_order_synchronously():
    for order in permutations(["timeout", "retry", "breaker", "other"]):
        decorators = guards() | {"other": checked}
        node = around([decorators[name] for name in order], sync_node_of(Script(Down())))
        assert (order, node({})) == (order, {"answer": 31, "checked": 1})


# What a graph sees of a node.


@pytest.mark.parametrize("name", NAMES)
def test_name_signature_doc_and_kind_of_a_node_stay(name):
    async def ask(state: dict, config: str, *, runtime: int, store: None = None) -> dict:
        """Asks."""
        return {"config": config, "runtime": runtime, "store": store}

    def ask_now(state: dict, config: str) -> dict:
        return {}

    decorator = guards()[name]
    for raw in (ask, ask_now):
        node = decorator(raw)
        assert (node.__name__, node.__doc__) == (raw.__name__, raw.__doc__)
        assert inspect.signature(node) == inspect.signature(raw)
        assert inspect.iscoroutinefunction(node) == inspect.iscoroutinefunction(raw)
        assert node.__wrapped__ is raw
    given = awaited(decorator(ask), {}, "config", runtime=3)
    assert given == {"config": "config", "runtime": 3, "store": None}


class Agent:
    """A node that is an object, and one that is a method."""

    async def __call__(self, state: dict) -> dict:
        return {**state, "by": "object"}

    @with_breaker(CircuitBreaker("agent"), fallback=lambda self, state: {"by": "fallback"})
    @with_timeout(60)
    async def ask(self, state: dict) -> dict:
        return {**state, "by": "method"}

    @classmethod
    @retry()
    def of_class(cls, state: dict) -> dict:
        return {**state, "by": cls.__name__}

    @with_breaker(CircuitBreaker("agent"), fallback=unknown)
    @staticmethod
    def of_nobody(state: dict) -> dict:
        return {**state, "by": "no one"}


@pytest.mark.parametrize("name", NAMES)
def test_object_is_named_by_its_class(name):
    node = guards()[name](Agent())
    assert (node.__name__, awaited(node, {})) == ("Agent", {"by": "object"})
    assert inspect.signature(node) == inspect.signature(Agent())
    node = guards()[name](partial(Agent()))
    assert (node.__name__, awaited(node, {})) == ("partial", {"by": "object"})


def test_methods_are_nodes():
    agent = Agent()
    assert awaited(agent.ask, {}) == {"by": "method"}
    assert awaited(agent.of_class, {}) == {"by": "Agent"}
    assert awaited(agent.of_nobody, {}) == {"by": "no one"}


# States and ends.


def test_each_attempt_gets_the_original_state():
    given = {"seen": []}
    states = []

    @retry()
    def ask(state):
        states.append(state)
        state["seen"].append(len(states))
        if len(states) < 3:
            raise Down
        return state

    assert ask(given) is given
    assert all(state is given for state in states)
    assert given == {"seen": [1, 2, 3]}  # what failed runs have changed in place is there


@every_loop
def test_cancelled_run_is_not_repeated_and_leaves_nothing(loop):
    async def main():
        for order in permutations(["timeout", "retry", "breaker", "bulkhead"]):
            breaker, bulkhead = CircuitBreaker("service"), Bulkhead("service", limit=1)
            decorators = guards() | {
                "breaker": with_breaker(breaker, fallback=unknown, on=Exception),
                "bulkhead": with_bulkhead(bulkhead),
                "timeout": with_timeout(60, on_timeout=unknown),
            }
            seen = Counter()

            async def ask(state, seen=seen):
                seen["begun"] += 1
                try:
                    await loop.forever()
                finally:
                    seen["ended"] += 1

            node = around([decorators[name] for name in order], ask)
            await loop.cancelled(lambda node=node: node({}), when=lambda seen=seen: seen["begun"])
            assert (order, seen) == (order, {"begun": 1, "ended": 1})
            assert bulkhead.snapshot().in_use == breaker.snapshot().calls == 0

    loop.run(main)

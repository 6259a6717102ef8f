"""Types of a call with strategies, for type checkers."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, assert_type

from retrytemplate import AttemptTimeout, Outcome, RetryTemplate
from retrytemplate.control import (
    FAST_IO,
    Bulkhead,
    CircuitBreaker,
    Fallback,
    FallbackOutcome,
    Hedge,
    HedgeOutcome,
    KillSwitch,
    Operations,
    Pipeline,
    Preset,
    RateLimiter,
    ServiceErrors,
    Strategy,
    Timeout,
    preset,
    with_switch,
)
from retrytemplate.observe import Tracing

breaker = CircuitBreaker("billing")
bulkhead = Bulkhead("billing")
limiter = RateLimiter("billing")
guard = KillSwitch().guard(segment="billing")
errors = ServiceErrors({})
hedge = Hedge(idempotent=True, executor=ThreadPoolExecutor())
timeout = Timeout(1.0)
pipeline = Pipeline(timeout, breaker)
operations = Operations()
attempt = Tracing().attempt


def add(one: int, two: int = 0) -> int:
    return one + two


async def add_async(one: int, two: int = 0) -> int:
    return one + two


def until_stopped(one: int, *, stop: Event) -> int:
    return one if stop.wait(1.0) else 0


def not_known(one: int, two: int = 0) -> str:
    return "not known"


fallback = Fallback(not_known)


class Adder:
    def add(self, one: int) -> int:
        return one


def what_gives_the_answer_of_the_function() -> None:
    assert_type(breaker.call(add, 1, two=2), int)
    assert_type(breaker.call(Adder().add, 1), int)
    assert_type(breaker.outcome(add, 1), Outcome[int])
    assert_type(bulkhead.call(add, 1, two=2), int)
    assert_type(limiter.call(add, 1, two=2), int)
    assert_type(guard.call(add, 1, two=2), int)
    assert_type(attempt.call(add, 1, two=2), int)
    assert_type(errors.call(add, 1, two=2), int)
    assert_type(hedge.call(add, 1, two=2), int)
    assert_type(hedge.call(until_stopped, 1), int)
    assert_type(hedge.outcome(add, 1), HedgeOutcome[int])
    assert_type(hedge.outcome(add, 1).value, int | None)
    assert_type(hedge.outcome(add, 1).unwrap(), int)


async def the_same_asynchronously() -> None:
    assert_type(await breaker.call_async(add_async, 1, two=2), int)
    assert_type(await breaker.call_async(add, 1, two=2), int)
    assert_type(await breaker.outcome_async(add_async, 1), Outcome[int])
    assert_type(await breaker.outcome_async(add, 1), Outcome[int])
    assert_type(await bulkhead.call_async(add_async, 1, two=2), int)
    assert_type(await limiter.call_async(add_async, 1, two=2), int)
    assert_type(await bulkhead.call_async(add, 1, two=2), int)
    assert_type(await guard.call_async(add_async, 1, two=2), int)
    assert_type(await guard.call_async(add, 1, two=2), int)
    assert_type(await attempt.call_async(add_async, 1, two=2), int)
    assert_type(await attempt.call_async(add, 1, two=2), int)
    assert_type(await errors.call_async(add_async, 1, two=2), int)
    assert_type(await errors.call_async(add, 1, two=2), int)
    assert_type(await hedge.call_async(add_async, 1, two=2), int)
    assert_type(await hedge.call_async(add, 1, two=2), int)
    assert_type(await hedge.outcome_async(add_async, 1), HedgeOutcome[int])
    assert_type(await hedge.outcome_async(add, 1), HedgeOutcome[int])


def what_may_answer_in_its_place() -> None:
    assert_type(fallback.call(add, 1, two=2), int | Any)
    assert_type(fallback.outcome(add, 1), FallbackOutcome[int | Any])
    assert_type(fallback.outcome(add, 1).value, int | Any | None)
    assert_type(timeout.call(add, 1, two=2), int | Any)
    assert_type(pipeline.call(add, 1, two=2), int | Any)
    assert_type(pipeline.outcome(add, 1), Outcome[int | Any])
    number: int = pipeline.outcome(add, 1).unwrap()
    print(number)


async def the_same_in_its_place_asynchronously() -> None:
    assert_type(await fallback.call_async(add_async, 1, two=2), int | Any)
    assert_type(await fallback.call_async(add, 1, two=2), int | Any)
    assert_type(await fallback.outcome_async(add_async, 1), FallbackOutcome[int | Any])
    assert_type(await fallback.outcome_async(add, 1), FallbackOutcome[int | Any])
    assert_type(await timeout.call_async(add_async, 1, two=2), int | Any)
    assert_type(await timeout.call_async(add, 1, two=2), int | Any)
    assert_type(await pipeline.call_async(add_async, 1, two=2), int | Any)
    assert_type(await pipeline.call_async(add, 1, two=2), int | Any)
    assert_type(await pipeline.outcome_async(add_async, 1), Outcome[int | Any])
    assert_type(await pipeline.outcome_async(add, 1), Outcome[int | Any])


def what_a_switch_decides() -> None:
    allowed, reason = KillSwitch().check(segment="billing")
    assert_type(allowed, bool)
    assert_type(reason, str)


class Loose:
    """A user's strategy without type annotations."""

    def call(self, fn: Any, *args: Any, **kwargs: Any) -> Any: ...

    async def call_async(self, fn: Any, *args: Any, **kwargs: Any) -> Any: ...

    def wrap(self, fn: Any) -> Any: ...


def all_are_strategies() -> None:
    once = operations.idempotent(str)
    given: list[Strategy] = [RetryTemplate(), breaker, bulkhead, limiter, guard, errors, hedge]
    given += [timeout, attempt]
    given += [fallback, pipeline, once, Loose()]
    assert_type(with_switch(once)(add)(1), int)
    assert_type(once.call(add, 1), Any)


def presets_know_their_settings() -> None:
    assert_type(preset("fast-io"), Preset)
    assert_type(FAST_IO.with_(max_attempts=5, attempt_timeout=None), Preset)
    assert_type(FAST_IO.template(name="orders"), RetryTemplate)
    Timeout(1.0, on_late_result="discard")
    AttemptTimeout(1.0, on_late_result="discard")


def mistakes_are_found() -> None:
    # Each line is wrong on purpose: a checker that no longer says so fails over the unused ignore.
    breaker.call(add, "1")  # type: ignore[arg-type]
    breaker.outcome(add)  # type: ignore[call-arg]
    bulkhead.call(add, "1")  # type: ignore[arg-type]
    guard.call(add, "1")  # type: ignore[arg-type]
    errors.call(add, "1")  # type: ignore[arg-type]
    hedge.call(add, 1).upper()  # type: ignore[attr-defined]
    fallback.call(add, "1")  # type: ignore[arg-type]
    fallback.call(add, 1).upper()  # type: ignore[union-attr]
    fallback.outcome(add, "1")  # type: ignore[arg-type]
    timeout.call(add, "1")  # type: ignore[arg-type]
    timeout.call(add, 1).upper()  # type: ignore[union-attr]
    pipeline.call(add, "1")  # type: ignore[arg-type]
    pipeline.call(add, 1).upper()  # type: ignore[union-attr]
    pipeline.outcome(add)  # type: ignore[call-arg]
    operations.call("order-17", add, "1")  # type: ignore[arg-type]
    operations.idempotent(str).call(add, "1")  # type: ignore[arg-type]
    FAST_IO.with_(max_attempts="5")  # type: ignore[arg-type]
    FAST_IO.with_(max_attemps=5)  # type: ignore[call-arg]
    FAST_IO.template(name=5)  # type: ignore[arg-type]
    Timeout(1.0, on_late_result="drop")  # type: ignore[arg-type]
    AttemptTimeout(1.0, on_late_result="drop")  # type: ignore[arg-type]


async def mistakes_are_found_asynchronously() -> None:
    await breaker.call_async(add_async, "1")  # type: ignore[call-overload]
    await bulkhead.call_async(add_async, "1")  # type: ignore[call-overload]
    await guard.call_async(add_async, "1")  # type: ignore[call-overload]
    await errors.call_async(add_async, "1")  # type: ignore[call-overload]
    await hedge.call_async(add_async, "1")  # type: ignore[call-overload]
    await fallback.call_async(add_async, "1")  # type: ignore[call-overload]
    await timeout.call_async(add_async, "1")  # type: ignore[call-overload]
    await pipeline.call_async(add_async, "1")  # type: ignore[call-overload]
    await operations.call_async("order-17", add_async, "1")  # type: ignore[arg-type]
    await operations.idempotent(str).call_async(add_async, "1")  # type: ignore[arg-type]

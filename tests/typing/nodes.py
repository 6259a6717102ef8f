"""Types of a guarded graph node, for type checkers."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypedDict, assert_type

from retrytemplate import FixedBackoff, MaxAttemptsRetryPolicy, RetryTemplate
from retrytemplate.control import (
    Bulkhead,
    CircuitBreaker,
    Timeout,
    with_breaker,
    with_bulkhead,
    with_retry,
    with_switch,
    with_timeout,
)


class State(TypedDict, total=False):
    city: str
    answer: int


def not_known(state: State) -> State:
    return {**state, "answer": 0}


async def later(state: State) -> State:
    return state


def guard_of(state: State) -> Timeout:
    return Timeout(1.0)


template = RetryTemplate()
weather = CircuitBreaker("weather")


@with_timeout(timedelta(seconds=10), on_timeout=later)
@with_retry(retryable=(OSError, TimeoutError), max_attempts=3, backoff=FixedBackoff(0.1))
@with_breaker(weather, fallback=not_known, on=OSError)
@with_bulkhead(Bulkhead("weather"))
@with_switch(Timeout(1.0))
async def ask(state: State, config: dict[str, str], *, runtime: int = 0) -> State:
    return {**state, "answer": runtime}


@with_timeout(Timeout(1.0))
@with_retry(template)
@with_breaker(weather)
def ask_now(state: State) -> State:
    return state


@with_retry(template.bind(label="by name"))
def by_template(state: State) -> State:
    return state


@with_retry(MaxAttemptsRetryPolicy(2))
def by_policy(state: State) -> State:
    return state


@with_switch(guard_of)
@with_retry(retryable=lambda exc: bool(exc.args))
def by_predicate(state: State) -> State:
    return state


class Agent:
    @with_retry(retryable=OSError)
    async def ask(self, state: State) -> State:
        return state

    @classmethod
    @with_bulkhead(Bulkhead("weather"))
    def of_class(cls, state: State) -> State:
        return state

    def __call__(self, state: State) -> State:
        return state


def guarded(node: Callable[[State], Awaitable[State]]) -> Callable[[State], Awaitable[State]]:
    return node


@with_timeout(1.0)
@guarded
@with_retry(retryable=OSError)
async def between(state: State) -> State:
    return state


async def nodes() -> None:
    given: Coroutine[Any, Any, State] = ask({"city": "Rome"}, {}, runtime=3)
    assert_type(await given, State)
    assert_type(await Agent().ask({}), State)
    assert_type(await between({}), State)
    assert_type(ask_now({}), State)
    assert_type(Agent.of_class({}), State)
    assert_type(with_timeout(1.0)(Agent())({}), State)
    node: Callable[[State, dict[str, str]], Awaitable[State]] = ask
    await node({}, {})


def mistakes_are_found() -> None:
    # Each line is wrong on purpose: a checker that no longer says so fails over the unused ignore.
    ask_now({}, {})  # type: ignore[call-arg]
    ask_now(3)  # type: ignore[arg-type]
    number: int = ask_now({})  # type: ignore[assignment]
    print(number)
    name = "billing"
    with_breaker(name)  # type: ignore[arg-type]
    with_bulkhead(weather)  # type: ignore[arg-type]
    with_retry(name)  # type: ignore[arg-type]
    with_switch(name)  # type: ignore[arg-type]
    with_timeout(name)  # type: ignore[arg-type]
    with_breaker(weather, fallback={"answer": 0})  # type: ignore[arg-type]

"""Types of the entry points of a template, for type checkers."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from retrytemplate import (
    Attempts,
    BoundTemplate,
    Outcome,
    RetryContext,
    RetryState,
    RetryTemplate,
    current_context,
)

template = RetryTemplate()
state = RetryState("order-17")


def callback(context: RetryContext) -> int:
    return context.attempt


async def callback_async(context: RetryContext) -> int:
    return context.attempt


def recover(context: RetryContext) -> int:
    return context.retry_count


async def recover_async(context: RetryContext) -> int:
    return context.retry_count


def recover_text(context: RetryContext) -> str:
    return context.name or ""


async def recover_text_async(context: RetryContext) -> str:
    return context.name or ""


def add(one: int, two: int = 0) -> int:
    return one + two


async def add_async(one: int, two: int = 0) -> int:
    return one + two


def entrances() -> None:
    assert_type(template.execute(callback), int)
    assert_type(template.execute(callback, recovery=recover), int)
    assert_type(template.execute(callback, recovery=recover, state=state), int)
    assert_type(template.execute(lambda context: context.attempt), int)
    assert_type(template.call(add, 1, two=2), int)
    assert_type(template.outcome(add, 1), Outcome[int])
    assert_type(template.outcome(add, 1).value, int | None)
    assert_type(template.outcome(add, 1).unwrap(), int)
    assert_type(template.with_(name="other"), RetryTemplate)
    assert_type(current_context(), RetryContext | None)


async def asynchronous_entrances() -> None:
    assert_type(await template.execute_async(callback_async), int)
    assert_type(await template.execute_async(callback), int)
    assert_type(await template.execute_async(callback_async, recovery=recover_async), int)
    assert_type(await template.execute_async(callback_async, recovery=recover), int)
    assert_type(await template.execute_async(callback, recovery=recover_async, state=state), int)
    assert_type(await template.call_async(add_async, 1, two=2), int)
    assert_type(await template.call_async(add, 1, two=2), int)
    assert_type(await template.outcome_async(add_async, 1), Outcome[int])
    assert_type((await template.outcome_async(add, 1)).unwrap(), int)


def bound_entrances() -> None:
    bound = template.bind(recovery=recover, state=state, label="typed")
    assert_type(bound, BoundTemplate[int])
    assert_type(bound.call(add, 1), int)
    assert_type(bound.execute(callback), int)
    assert_type(bound.outcome(add, 1), Outcome[int])
    assert_type(bound.wrap(add)(1), int)


def recoveries_of_another_type() -> None:
    assert_type(template.execute(callback, recovery=recover_text), int | str)
    assert_type(template.execute(callback, recovery=lambda context: None), int | None)
    bound = template.bind(recovery=recover_text)
    assert_type(bound, BoundTemplate[str])
    assert_type(bound.call(add, 1), int | str)
    assert_type(bound.execute(callback), int | str)
    assert_type(bound.execute(callback, recovery=recover), int)
    assert_type(bound.outcome(add, 1), Outcome[int | str])
    assert_type(template.bind(label="typed").call(add, 1), int)
    either: BoundTemplate = bound  # no type given: a recovery of any type
    either.call(add, 1)


async def asynchronous_recoveries_of_another_type() -> None:
    assert_type(await template.execute_async(callback, recovery=recover_text), int | str)
    assert_type(await template.execute_async(callback, recovery=recover_text_async), int | str)
    assert_type(
        await template.execute_async(callback_async, recovery=recover_text_async), int | str
    )
    bound = template.bind(recovery=recover_text_async)
    assert_type(bound, BoundTemplate[str])
    assert_type(await bound.call_async(add_async, 1), int | str)
    assert_type(await bound.execute_async(callback), int | str)
    assert_type(await bound.outcome_async(add, 1), Outcome[int | str])


def blocks() -> None:
    attempts = template.attempts(recovery=recover, state=state)
    for attempt in attempts:
        assert_type(attempt, Attempts)
        with attempt as context:
            assert_type(context, RetryContext)
            attempt.result = context.attempt


async def asynchronous_blocks() -> None:
    async for attempt in template.attempts():
        async with attempt as context:
            assert_type(context, RetryContext)


def value_after_a_block() -> int:
    for attempt in template.attempts():
        with attempt:
            return 1
    return 0


def mistakes_are_found() -> None:
    # Each line is wrong on purpose: a checker that no longer says so fails over the unused ignore.
    template.call(add, "1")  # type: ignore[arg-type]
    template.call(add)  # type: ignore[call-arg]
    template.execute(callback, state=5)  # type: ignore[call-overload]
    template.with_(polcy=None)  # type: ignore[call-arg]
    template.with_(policy=3)  # type: ignore[arg-type]
    template.bind(recovery=recover_text).call(add, 1).bit_length()  # type: ignore[union-attr]
    value = template.outcome(add, 1).unwrap()
    value.upper()  # type: ignore[attr-defined]

"""One scenario on every entry point: in this thread, under asyncio, under trio, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retrytemplate import (
    FixedBackoff,
    RetryContext,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.testing import VirtualClock, run, run_trio
from retrytemplate.testing.clock import checkpoint

Callback = Callable[[RetryContext], Any]
Driver = Callable[..., Any]


def made(attempts: int = 3, delay: float | None = None, **settings: Any) -> RetryTemplate:
    """A template on virtual time with N attempts and a fixed delay."""
    settings = {"policy": SimpleRetryPolicy(attempts), "clock": VirtualClock()} | settings
    if delay is not None:
        settings["backoff"] = FixedBackoff(delay)
    return RetryTemplate(**settings)


class Script:
    """A callback that does what a list says: raises the exceptions in it, returns the rest.

    The last entry is repeated for ever.  ``seen`` holds the number of the attempt at each call.
    """

    def __init__(self, *steps: Any) -> None:
        self.steps = steps
        self.seen: list[int] = []

    @property
    def calls(self) -> int:
        return len(self.seen)

    def __call__(self, context: RetryContext) -> Any:
        self.seen.append(context.attempt)
        step = self.steps[min(self.calls, len(self.steps)) - 1]
        if isinstance(step, BaseException):
            raise step
        return step


def in_thread(template: RetryTemplate, callback: Callback, **how: Any) -> Any:
    return template.execute(callback, **how)


async def _execute(template: RetryTemplate, callback: Callback, how: dict[str, Any]) -> Any:
    async def turn(context: RetryContext) -> Any:
        await checkpoint()
        return callback(context)

    return await template.execute_async(turn, **how)


def in_asyncio(template: RetryTemplate, callback: Callback, **how: Any) -> Any:
    return run(_execute(template, callback, how), clock=template.clock)


def in_trio(template: RetryTemplate, callback: Callback, **how: Any) -> Any:
    return run_trio(_execute, template, callback, how, clock=template.clock)


def in_block(
    template: RetryTemplate,
    callback: Callback,
    recovery: Callback | None = None,
    state: RetryState | None = None,
) -> Any:
    attempts = template.attempts(recovery=recovery, state=state)
    for attempt in attempts:
        with attempt as context:
            attempt.result = callback(context)
    return attempts.result


async def _block(template: RetryTemplate, callback: Callback, how: dict[str, Any]) -> Any:
    attempts = template.attempts(**how)
    async for attempt in attempts:
        async with attempt as context:
            await checkpoint()
            attempt.result = callback(context)
    return attempts.result


def in_async_block(template: RetryTemplate, callback: Callback, **how: Any) -> Any:
    return run(_block(template, callback, how), clock=template.clock)


def in_trio_block(template: RetryTemplate, callback: Callback, **how: Any) -> Any:
    return run_trio(_block, template, callback, how, clock=template.clock)


DRIVERS: tuple[Driver, ...] = (
    in_thread,
    in_asyncio,
    in_trio,
    in_block,
    in_async_block,
    in_trio_block,
)
TASKS: tuple[Driver, ...] = (in_asyncio, in_trio)

every_driver = pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.__name__)
both_kinds = pytest.mark.parametrize(
    "driver", (in_thread, in_asyncio, in_trio), ids=lambda driver: driver.__name__
)

"""What happens in each measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = 1


class Failure(Exception):
    """What the functions raise, and every library retries on."""


def succeed(context: object = None) -> int:
    return VALUE


async def succeed_async() -> int:
    return VALUE


def fail_twice() -> Callable[[], int]:
    """A function whose every third call returns."""
    calls = 0

    def function() -> int:
        nonlocal calls
        calls += 1
        if calls % 3:
            raise Failure("failed")
        return VALUE

    return function


def fail_twice_async() -> Callable[[], Any]:
    """The same as a coroutine function."""
    calls = 0

    async def function() -> int:
        nonlocal calls
        calls += 1
        if calls % 3:
            raise Failure("failed")
        return VALUE

    return function


def fail() -> int:
    raise Failure("failed")


async def fail_async() -> int:
    raise Failure("failed")


@frozen
class Cell:
    """One row of the table: a function that is called through one of a library's forms."""

    key: str
    title: str
    form: str
    """The entry of ``Library.forms`` that guards the function."""
    make: Callable[[], Callable[..., Any]]
    """Makes the function."""
    attempts: int = 1
    """How many calls of the function one guarded call takes."""
    raises: bool = False
    asynchronous: bool = False


TIMED = (
    Cell("success", "success, decorated", "sync", lambda: succeed),
    Cell(
        "success_async",
        "success, decorated, async",
        "async",
        lambda: succeed_async,
        asynchronous=True,
    ),
    Cell("call", "success, `call`", "call", lambda: succeed),
    Cell("block", "success, block", "block", lambda: succeed),
    Cell("two_failures", "two failures", "sync", fail_twice, 3),
    Cell(
        "two_failures_async", "two failures, async", "async", fail_twice_async, 3, asynchronous=True
    ),
    Cell("exhausted", "exhausted", "sync", lambda: fail, 3, raises=True),
    Cell(
        "exhausted_async",
        "exhausted, async",
        "async",
        lambda: fail_async,
        3,
        raises=True,
        asynchronous=True,
    ),
    Cell("listener", "one listener", "listener", lambda: succeed),
    Cell("stateful", "stateful success", "stateful", lambda: succeed),
)

_TITLES = {
    "success": "garbage, success",
    "success_async": "garbage, success, async",
    "exhausted": "garbage, exhausted",
    "exhausted_async": "garbage, exhausted, async",
}
GARBAGE = tuple(
    evolve(cell, key=f"garbage_{cell.key}", title=_TITLES[cell.key])
    for cell in TIMED
    if cell.key in _TITLES
)

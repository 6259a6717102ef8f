"""A step that a file holds: ``job.py:step``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._internal.awaitables import is_async
from retrytemplate.cli import _files
from retrytemplate.cli.usage import UsageError, WorkError, json_or_text
from retrytemplate.errors import MisuseError, RetryError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import TypeVar

    from retrytemplate.batch import ChunkStep

    T = TypeVar("T")

__all__ = ["load_object", "parameters_of", "performed"]

EXAMPLE = "job.py:step"


def load_object(text: str) -> ChunkStep:
    """The step that *text* names.

    :raises UsageError: there is no such file, or no step of that name in it.
    """
    from retrytemplate.batch import ChunkStep

    return _files.load(text, ChunkStep, EXAMPLE)


def parameters_of(pairs: Sequence[str]) -> dict[str, Any]:
    """Parameters as JSON values; what is no JSON is text.

    >>> parameters_of(["day=2026-11-21", "limit=20", 'part="7"'])
    {'day': '2026-11-21', 'limit': 20, 'part': '7'}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or name in found:
            raise UsageError(f"--parameter: must be NAME=VALUE, each name once, got {pair!r}")
        try:
            found[name] = json_or_text(value)
        except RecursionError:
            raise UsageError(f"--parameter: {name} is nested too deeply") from None
    return found


def performed(
    step: ChunkStep,
    blocking: Callable[[], T],
    awaited: Callable[[], Coroutine[Any, Any, T]],
    *,
    asynchronous: bool,
) -> T:
    """What the step gives in this thread, by one of two ways.

    :param asynchronous: the awaited one in any case; else it is taken where a piece of the step
        can be seen to need it.
    :raises WorkError: the step refuses it, or is cut off.
    """
    import asyncio

    try:
        return asyncio.run(awaited()) if asynchronous or _is_awaited(step) else blocking()
    except MisuseError as error:
        hint = "; for this command: --async" if "run_async" in str(error) else ""
        raise UsageError(f"{error}{hint}") from None
    except RetryError as error:
        raise WorkError(str(error)) from None


def _is_awaited(step: ChunkStep) -> bool:
    pieces = [step.processor, step.writer, None if step.outbox is None else step.outbox.send]
    return any(map(is_async, pieces)) or hasattr(step.database, "sync_engine")

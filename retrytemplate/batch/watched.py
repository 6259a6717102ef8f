"""A function whose failures are written down while a template calls it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from attrs import evolve

from retrytemplate.caches.record import brief, describe
from retrytemplate.caches.worker import host_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.history import AttemptRecord
    from retrytemplate.outcome import Outcome

__all__ = ["AsyncWatched", "Watched"]


class _Notes:
    """Keeps the tracebacks of failed calls.

    :param failure: what the first call has raised already: it is raised again in its place.  So
        the first attempt of nearly every item costs no more than the call itself.
    """

    __slots__ = ("_calls", "_failure", "_function", "_texts")

    def __init__(self, function: Callable[..., Any], failure: Exception | None = None) -> None:
        self._function = function
        self._failure = failure
        self._calls = 0
        self._texts: dict[int, str] = {}

    def _first(self) -> Exception | None:
        self._calls += 1
        failure, self._failure = self._failure, None
        return failure

    def _note(self, failure: Exception) -> None:
        self._texts[self._calls] = describe(failure, None)

    def history(self, outcome: Outcome[Any]) -> tuple[AttemptRecord, ...]:
        """The failed attempts, with where each was and how it came to pass."""
        host, process = host_name(), os.getpid()
        return tuple(
            evolve(
                attempt,
                message=brief(attempt.message, None),
                traceback=self._texts.get(attempt.number, ""),
                host=host,
                process=process,
            )
            for attempt in outcome.history
        )


class Watched(_Notes):
    """Called like the function."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        failure = self._first()
        try:
            if failure is not None:
                raise failure
            return self._function(*arguments)
        except Exception as exc:
            self._note(exc)
            raise
        finally:
            del failure  # its traceback holds this frame


class AsyncWatched(_Notes):
    """Awaited like the function."""

    __slots__ = ()

    async def __call__(self, *arguments: Any) -> Any:
        failure = self._first()
        try:
            if failure is not None:
                raise failure
            return await self._function(*arguments)
        except Exception as exc:
            self._note(exc)
            raise
        finally:
            del failure

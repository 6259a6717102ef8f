"""One call under a circuit breaker, from its admission to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from retrytemplate.control.breaker import CircuitBreaker
    from retrytemplate.control.circuit import Verdict
    from retrytemplate.errors import RetryError

__all__ = ["Permit"]


class Permit:
    """One call, from where it is admitted to where it is known how it went.

    The end of the block says it: an exception as the breaker's ``failures`` judge it, else a
    success.  Inside it may be said earlier, once: what the block ends with counts no more.

    >>> from retrytemplate.control import CircuitBreaker
    >>> breaker = CircuitBreaker("billing")
    >>> with breaker.permit() as permit:
    ...     status = 503
    ...     if status >= 500:
    ...         permit.failure()
    >>> breaker.snapshot().failures
    1
    """

    __slots__ = ("_began", "_breaker", "_generation", "_number", "_open", "elapsed")

    _generation: Any
    _number: Any

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._open = False
        self.elapsed = 0.0

    def take(self) -> RetryError | None:
        """Ask for the call; the error, if it may not be made."""
        if self._open:
            return None
        self._began = self._breaker._ticks.now()
        return self._admitted(self._breaker._take(self._began))

    async def take_async(self) -> RetryError | None:
        """The same, where a shared circuit is asked in a thread."""
        if self._open:
            return None
        self._began = self._breaker._ticks.now()
        return self._admitted(await self._breaker._take_async(self._began))

    def _admitted(self, taken: tuple[Any, Any] | RetryError) -> RetryError | None:
        if isinstance(taken, tuple):
            self._generation, self._number = taken
            self._open = True
            return None
        return taken

    def success(self) -> None:
        """It went well."""
        self._say("success")

    def failure(self) -> None:
        """It failed."""
        self._say("failure")

    def ignore(self) -> None:
        """It says nothing about what was called."""
        self._say("ignored")

    def cancel(self) -> None:
        """It was given up before it was known."""
        self._say("cancelled")

    def _close(self) -> bool:
        was, self._open = self._open, False
        if was:
            self.elapsed = self._breaker._ticks.now() - self._began
        return was

    def _say(self, verdict: Verdict) -> None:
        if self._close():
            ended = self._began + self.elapsed
            self._breaker._report(self._generation, self._number, self._began, ended, verdict)

    def __enter__(self) -> Self:
        return self._entered(self.take())

    def _entered(self, refused: RetryError | None) -> Self:
        if refused is not None:
            try:
                raise refused
            finally:
                del refused  # its traceback leads back here
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception is None:
            self.success()
        elif self._close():
            self._breaker._ended(self._generation, self._number, self._began, exception)

    async def __aenter__(self) -> Self:
        return self._entered(await self.take_async())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._close():
            await self._breaker._ended_async(self._generation, self._number, self._began, exception)

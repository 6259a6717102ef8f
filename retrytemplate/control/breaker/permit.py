"""One call under a circuit breaker, from its admission to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    from typing import Self

    from retrytemplate.control.breaker.backend import Admission
    from retrytemplate.control.breaker.breaker import CircuitBreaker
    from retrytemplate.control.breaker.state_machine import Verdict
    from retrytemplate.errors import RetryError

__all__ = ["Permit"]


class Permit:
    """One call, from where it is admitted to where it is known how it went.

    The end of the block says it: an exception as the breaker's ``failures`` judge it, else a
    success.  Inside it may be said earlier, once: what the block ends with counts no more.  Where
    a store is asked, an ``async with`` reports that when it ends.

    >>> from retrytemplate.control import CircuitBreaker
    >>> breaker = CircuitBreaker("billing")
    >>> with breaker.permit() as permit:
    ...     status = 503
    ...     if status >= 500:
    ...         permit.failure()
    >>> breaker.snapshot().failures
    1
    """

    __slots__ = (
        "_began",
        "_breaker",
        "_deferred_outcomes",
        "_generation",
        "_is_held",
        "_number",
        "elapsed",
    )

    _began: float
    _generation: Any
    _number: Any
    # And when: of a block that may have to await the report.
    _deferred_outcomes: list[tuple[Verdict, float]]

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._is_held = False
        self.elapsed = 0.0

    def acquire(self) -> RetryError | None:
        """Ask for the call; the error, if it may not be made."""
        if self._is_held:
            return None
        breaker = self._breaker
        self._began = now = breaker._monotonic.now()
        try:
            admission = breaker._backend.admit(now)
        except CircuitStoreError as error:
            return breaker._on_store_error(error)
        try:
            return breaker._on_admission(self, admission)
        except BaseException:  # of a listener, or a signal: the call is not made
            if admission[0] is not None:
                breaker._report(*self._unused(admission))
            raise

    async def acquire_async(self) -> RetryError | None:
        """The same, where a shared circuit is asked in a thread."""
        if self._is_held:
            return None
        breaker = self._breaker
        self._began = now = breaker._monotonic.now()
        try:
            admission = breaker._backend.admit_without_io(now) or await breaker._admit_in_thread(
                now
            )
        except CircuitStoreError as error:
            return breaker._on_store_error(error)
        try:
            return breaker._on_admission(self, admission)
        except BaseException as exc:
            if admission[0] is not None:
                await breaker._report_after(exc, *self._unused(admission))
            raise

    def _unused(self, admission: Admission) -> tuple[Any, Any, float, float, Verdict]:
        """What is reported where no call was made."""
        self._is_held = False
        number, generation, *_ = admission
        return generation, number, self._began, self._began, "cancelled"

    def success(self) -> None:
        """It went well."""
        self._record_outcome("success")

    def failure(self) -> None:
        """It failed."""
        self._record_outcome("failure")

    def ignore(self) -> None:
        """It says nothing about what was called."""
        self._record_outcome("ignored")

    def cancel(self) -> None:
        """It was given up before it was known."""
        self._record_outcome("cancelled")

    def _close(self) -> bool:
        was, self._is_held = self._is_held, False
        if was:
            try:
                self.elapsed = self._breaker._monotonic.now() - self._began
            except BaseException:  # of a clock; in a store the permit has a lease
                backend, began = self._breaker._backend, self._began
                backend.report_without_io(self._generation, self._number, "cancelled", False, began)
                raise
        return was

    def _record_outcome(self, verdict: Verdict) -> None:
        if self._close():
            breaker, ended = self._breaker, self._began + self.elapsed
            if breaker._backend.does_io and hasattr(self, "_deferred_outcomes"):
                self._deferred_outcomes.append((verdict, ended))
            else:
                breaker._report(self._generation, self._number, self._began, ended, verdict)

    def __enter__(self) -> Self:
        return self._entered(self.acquire())

    def _entered(self, refused: RetryError | None) -> Self:
        if refused is not None:
            try:
                raise refused
            finally:
                del refused  # its traceback leads back here
        return self

    def __exit__(self, _: object, exception: BaseException | None, *__: object) -> None:
        if exception is None:
            self.success()
        elif self._close():
            self._breaker._on_call_completed(self._generation, self._number, self._began, exception)

    async def __aenter__(self) -> Self:
        if not self._breaker._backend.does_io:
            return self.__enter__()
        self._deferred_outcomes = []
        return self._entered(await self.acquire_async())

    async def __aexit__(self, *exc: Any) -> None:
        if not self._breaker._backend.does_io:
            self.__exit__(*exc)
        elif self._close():
            await self._breaker._on_call_completed_async(
                self._generation, self._number, self._began, exc[1]
            )
        elif self._deferred_outcomes:
            verdict, ended = self._deferred_outcomes.pop()
            call = self._generation, self._number, self._began, ended, verdict
            await self._breaker._report_after(exc[1], *call)

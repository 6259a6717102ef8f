"""Admission and reports of the calls under a circuit breaker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate.control._predicates import counted_failure
from retrytemplate.control._threads import run_in_thread, run_in_thread_shielded
from retrytemplate.control.breaker.events import CircuitChanged, LateResult
from retrytemplate.control.breaker.state_machine import StateTransition
from retrytemplate.control.events import CallRejected, notify_listeners
from retrytemplate.errors import CircuitOpenError, CircuitStoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self
    from weakref import ref

    from retrytemplate.control.breaker.backend import Admission, LocalBackend
    from retrytemplate.control.breaker.redis.strict import StrictRedisBackend
    from retrytemplate.control.breaker.state_machine import State, Verdict
    from retrytemplate.control.events import ControlEvent, Listeners
    from retrytemplate.errors import RetryError

    # Its ``admit`` and ``report`` may wait for a store, if it ``does_io``.  ``admit_without_io``
    # and ``report_without_io`` never do: None where it cannot be known without waiting.
    # ``fast_path`` lets a success be counted at once while the circuit is closed.
    CircuitBackend = LocalBackend | StrictRedisBackend


@define(eq=False)
class CircuitCalls:
    """Reports the calls of one breaker to its backend, and its events to its listeners.

    :param monotonic: its ``now()`` measures the calls, in seconds.
    :param slow: seconds from which a call is slow.
    """

    name: str
    monotonic: Any
    slow: float
    is_failure: Callable[[BaseException], Any]
    listeners: Listeners
    backend: CircuitBackend = field(init=False)

    async def admit_in_thread(self, now: float) -> Admission:
        """Query the store in a thread; release a permit that arrives after a cancellation."""
        backend, answers, closed = self.backend, list[Any](), list[bool]()

        def ask() -> None:
            answers.append(backend.admit(now))
            if closed:
                release()

        def release() -> None:
            try:
                number, generation, *_ = answers.pop()
            except IndexError:  # the other thread was faster
                return
            if number is not None:
                backend.report(generation, number, "cancelled", False, now)

        try:
            await run_in_thread(ask)
        except GeneratorExit:  # nothing can be awaited any more
            closed.append(True)
            release()
            raise
        except BaseException:
            if answers:
                await run_in_thread_shielded(release)
            raise
        (answer,) = answers
        return answer  # type: ignore[no-any-return]  # the backend's answer

    def reject(self, state: State, retry_after: float | None) -> CircuitOpenError:
        """The error of a call that is not admitted."""
        when = "" if retry_after is None else f", for {retry_after:.3g} more seconds"
        error = CircuitOpenError(
            f"the circuit {self.name!r} is {state}{when}", name=self.name, retry_after=retry_after
        )
        if self.backend.pending_events or self.listeners:
            self.notify(CallRejected(name=self.name, error=error))
        return error

    def _verdict(self, exc: BaseException | None) -> Verdict:
        if exc is None:
            return "success"
        failure = counted_failure(exc)
        if failure is None:
            return "cancelled"
        return "failure" if self.is_failure(failure) else "ignored"

    def complete(
        self, generation: Any, permit: Any, began: float, exc: BaseException | None
    ) -> None:
        """Report a call that returned, or raised this exception."""
        ended = began
        verdict: Verdict = "cancelled"
        try:
            ended = self.monotonic.now()
            verdict = self._verdict(exc)
        finally:  # also if the predicate or the clock raises
            self.report(generation, permit, began, ended, verdict)

    async def complete_async(
        self, generation: Any, permit: Any, began: float, exc: BaseException | None
    ) -> None:
        """Do the same where nothing may block."""
        ended = began
        verdict: Verdict = "cancelled"
        try:
            ended = self.monotonic.now()
            verdict = self._verdict(exc)
        finally:
            await self.report_after(exc, generation, permit, began, ended, verdict)

    async def report_after(self, exc: BaseException | None, *call: Any) -> None:
        """Report a call that raised this exception; nothing can be awaited in a ``close()``."""
        if isinstance(exc, GeneratorExit):
            self.report(*call)
        else:
            await self.report_async(*call)

    def report(
        self, generation: Any, permit: Any, began: float, ended: float, verdict: Verdict
    ) -> None:
        """Report a call."""
        backend, slow = self.backend, ended - began >= self.slow
        counted = backend.report(generation, permit, verdict, slow, ended)
        if backend.pending_events or not counted:
            self._notify_result(verdict, counted)

    async def report_async(
        self, generation: Any, permit: Any, began: float, ended: float, verdict: Verdict
    ) -> None:
        """Report a call without blocking the event loop."""
        call = generation, permit, verdict, ended - began >= self.slow, ended
        counted = self.backend.report_without_io(*call)
        if counted is None:
            counted = await run_in_thread_shielded(self.backend.report, *call)
        if self.backend.pending_events or not counted:
            self._notify_result(verdict, counted)

    def _notify_result(self, verdict: Verdict, counted: bool) -> None:
        self.notify(*() if counted else (LateResult(name=self.name, verdict=verdict),))

    def notify(self, *events: ControlEvent) -> None:
        """Notify the listeners of the pending events, and then of these."""
        pending_events = self.backend.drain_events() if self.backend.pending_events else []
        if self.listeners:
            notify_listeners(self.listeners, [*map(self._event, pending_events), *events])

    def _event(self, change: StateTransition | ControlEvent) -> ControlEvent:
        if not isinstance(change, StateTransition):
            return change
        manual = change.manual
        return CircuitChanged(
            name=self.name,
            before=change.before,
            after=change.after,
            generation=change.generation,
            by=None if manual is None else manual.by,
            reason=None if manual is None else manual.reason,
        )


def notify_if_alive(calls: ref[CircuitCalls]) -> None:
    """Notify the listeners of the pending events, if the breaker still exists."""
    alive = calls()
    if alive is not None:
        alive.notify()


class Permit:
    """One call, from its admission to its result.

    The end of the block reports the call: an exception as the breaker's ``failures`` classify it,
    else a success.  A method reports it earlier, once; the end of the block then reports nothing.
    With a store, an ``async with`` sends an earlier report when the block ends.

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
        "_calls",
        "_deferred_outcomes",
        "_generation",
        "_is_held",
        "_number",
        "elapsed",
    )

    _began: float
    _generation: Any
    _number: Any
    # With their times: of a block that may have to await the report.
    _deferred_outcomes: list[tuple[Verdict, float]]

    def __init__(self, calls: CircuitCalls) -> None:
        self._calls = calls
        self._is_held = False
        self.elapsed = 0.0

    def acquire(self) -> RetryError | None:
        """Request admission; return the error if the call is rejected."""
        if self._is_held:
            return None
        calls = self._calls
        self._began = now = calls.monotonic.now()
        try:
            admission = calls.backend.admit(now)
        except CircuitStoreError as error:
            calls.notify()
            return error
        try:
            return self._admitted(admission)
        except BaseException:  # of a listener, or a signal: the call is not made
            if admission[0] is not None:
                calls.report(*self._unused(admission))
            raise

    async def acquire_async(self) -> RetryError | None:
        """Request admission; a shared circuit is queried in a thread."""
        if self._is_held:
            return None
        calls = self._calls
        self._began = now = calls.monotonic.now()
        try:
            admission = calls.backend.admit_without_io(now) or await calls.admit_in_thread(now)
        except CircuitStoreError as error:
            calls.notify()
            return error
        try:
            return self._admitted(admission)
        except BaseException as exc:
            if admission[0] is not None:
                await calls.report_after(exc, *self._unused(admission))
            raise

    def _admitted(self, admission: Admission) -> RetryError | None:
        number, generation, state, retry_after = admission
        if number is None:
            return self._calls.reject(state, retry_after)
        self._number, self._generation, self._is_held = number, generation, True
        if self._calls.backend.pending_events:
            self._calls.notify()
        return None

    def _unused(self, admission: Admission) -> tuple[Any, Any, float, float, Verdict]:
        """The report of an admitted call that is not made."""
        self._is_held = False
        number, generation, *_ = admission
        return generation, number, self._began, self._began, "cancelled"

    def success(self) -> None:
        """Report a success."""
        self._record_outcome("success")

    def failure(self) -> None:
        """Report a failure."""
        self._record_outcome("failure")

    def ignore(self) -> None:
        """Report a call that counts neither as a success nor as a failure."""
        self._record_outcome("ignored")

    def cancel(self) -> None:
        """Report a call that was cancelled before its result."""
        self._record_outcome("cancelled")

    def _close(self) -> bool:
        was, self._is_held = self._is_held, False
        if was:
            try:
                self.elapsed = self._calls.monotonic.now() - self._began
            except BaseException:  # of a clock; in a store the permit has a lease
                backend, began = self._calls.backend, self._began
                backend.report_without_io(self._generation, self._number, "cancelled", False, began)
                raise
        return was

    def _record_outcome(self, verdict: Verdict) -> None:
        if self._close():
            calls, ended = self._calls, self._began + self.elapsed
            if calls.backend.does_io and hasattr(self, "_deferred_outcomes"):
                self._deferred_outcomes.append((verdict, ended))
            else:
                calls.report(self._generation, self._number, self._began, ended, verdict)

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
            self._calls.complete(self._generation, self._number, self._began, exception)

    async def __aenter__(self) -> Self:
        if not self._calls.backend.does_io:
            return self.__enter__()
        self._deferred_outcomes = []
        return self._entered(await self.acquire_async())

    async def __aexit__(
        self, kind: object, exception: BaseException | None, traceback: object
    ) -> None:
        calls = self._calls
        if not calls.backend.does_io:
            self.__exit__(kind, exception, traceback)
        elif self._close():
            await calls.complete_async(self._generation, self._number, self._began, exception)
        elif self._deferred_outcomes:
            verdict, ended = self._deferred_outcomes.pop()
            call = self._generation, self._number, self._began, ended, verdict
            await calls.report_after(exception, *call)

"""One operation under its key: its state, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from retrytemplate._engine.drivers import ASYNC, CLOSED, SYNC, perform, perform_async
from retrytemplate._engine.final_error import set_note, with_context
from retrytemplate.control.events import ControlEvent
from retrytemplate.control.idempotency.keys import OperationScope, derived
from retrytemplate.control.idempotency.reservation import (
    MISSING,
    is_unknown,
    most_severe,
)
from retrytemplate.errors import AlreadyCompletedError, MisuseError, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from retrytemplate.control.idempotency.reservation import Reservation, Steps


@frozen(kw_only=True)
class OperationReplayed(ControlEvent):
    """The operation of this key was completed before: the caller gets its result again."""

    key: Any


@frozen(kw_only=True)
class OperationUnknown(ControlEvent):
    """An operation begins again, and it is unknown whether it had its effect.

    :param attempt: the number of this attempt.
    """

    key: Any
    attempt: int


@frozen(kw_only=True)
class OperationUnrecorded(ControlEvent):
    """An operation had its effect, and the store did not record it: its caller has the result.

    :param error: the error of the store.
    """

    key: Any
    error: Exception


@frozen
class OperationResult:
    """The result of an operation, a JSON value.

    :param replayed: whether it was completed before, not now.
    """

    value: Any
    replayed: bool = False


@define(eq=False, repr=False)
class Operation:
    """An operation under its key: begun, and to be completed, or the result of one that was.

    ``key``
        as it was given to ``start_once``.
    ``attempt``
        the number of this attempt, from 1.
    ``outcome_unknown``
        whether an earlier attempt may have had the effect: look it up, or repeat it with the same
        ``idempotency_key``.
    ``result``
        the ``OperationResult`` of a completed operation; None: it is yours to do.

    As a block it ends by itself when an exception leaves it; one that ends with neither
    ``complete`` nor ``fail`` is a ``MisuseError``.
    """

    key: Any
    _reservation: Reservation
    _notify: Callable[..., None]
    attempt: int = field(default=1, init=False)
    outcome_unknown: bool = field(default=False, init=False)
    result: OperationResult | None = field(default=None, init=False)
    _begun: bool = field(default=False, init=False)
    _scope: OperationScope = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._scope = OperationScope(self.idempotency_key)

    @property
    def idempotency_key(self) -> str:
        """A key for the other side: the same for each attempt of the operation."""
        return derived(self._reservation.key)

    @property
    def fence(self) -> int | None:
        """A number that only grows per key, for your own writes; None: it was completed before."""
        return self._reservation.fence

    def complete(self, value: Any = None, *, connection: Any = None) -> Any:
        """Record the result: every later call with the key gets it, as long as it is remembered.

        :param value: a JSON value; returned as later calls will get it.
        :param connection: an open transaction on the store's database: the result commits with
            it.
        :raises LeaseLostError: another worker has taken the operation over since.
        :raises AlreadyCompletedError: it was completed before.
        :raises TypeError: the result is not a JSON value.
        :raises ValueError: for one beyond the ``record_limit`` of the store.
        """
        return perform(self._complete_steps(value, connection, SYNC))

    async def complete_async(self, value: Any = None, *, connection: Any = None) -> Any:
        """The same with an asynchronous store."""
        return await perform_async(self._complete_steps(value, connection, ASYNC))

    def fail(self, *, outcome_unknown: bool = False) -> None:
        """Record the failure: a later call may try again.

        :param outcome_unknown: whether the effect may have happened all the same.
        """
        perform(self._reservation.fail(outcome_unknown, SYNC))

    async def fail_async(self, *, outcome_unknown: bool = False) -> None:
        """The same with an asynchronous store."""
        await perform_async(self._reservation.fail(outcome_unknown, ASYNC))

    def __enter__(self) -> Self:
        try:
            self._scope.__enter__()
        except BaseException as exc:  # a signal: there will be no exit
            self.__exit__(type(exc), exc, None)
            raise
        return self

    def __exit__(self, _: object, exception: BaseException | None, *__: object) -> None:
        try:
            perform(self._exit_steps(exception, _exit_driver(exception)))
        except BaseException as exc:  # a signal, maybe
            perform(self._exit_steps(exc, _exit_driver(exception)))
            raise

    async def __aenter__(self) -> Self:
        try:
            self._scope.__enter__()
        except BaseException as exc:
            await self.__aexit__(type(exc), exc, None)
            raise
        return self

    async def __aexit__(
        self, kind: object, exception: BaseException | None, traceback: object
    ) -> None:
        if isinstance(exception, GeneratorExit):  # nothing can be awaited any more
            self.__exit__(kind, exception, traceback)
            return
        try:
            await perform_async(self._exit_steps(exception, ASYNC))
        except BaseException as exc:
            await perform_async(self._exit_steps(exc, ASYNC))
            raise

    # The steps, blocking or awaited.

    def _release_on_error(self, steps: Steps, driver: Any) -> Steps:
        """The steps, after which the key is not held where they failed, whatever cuts in."""
        try:
            value, error = yield from steps
        except GeneratorExit:  # no driver performs them any more
            raise
        except BaseException as exc:  # a signal between two of them
            value, error = None, exc
        if error is None:
            return value, None
        try:
            return (yield from self._end_failed(error, driver))
        except GeneratorExit:
            raise
        except BaseException as exc:
            return (yield from self._end_failed(with_context(error, exc), driver))

    def _begin_steps(self, fingerprint: Any, driver: Any) -> Steps:
        reservation = self._reservation
        kept, error = yield from reservation.reserve(fingerprint, driver)
        if error is not None:
            return None, error
        if kept is not MISSING:
            self.result = OperationResult(kept, replayed=True)
            self._notify(OperationReplayed, key=self.key)
            return self, None
        self.attempt, self.outcome_unknown = reservation.failures + 1, reservation.unknown
        if self.outcome_unknown:
            self._notify(OperationUnknown, key=self.key, attempt=self.attempt)
        self._begun = True
        return self, None

    def _complete_steps(self, value: Any, connection: Any, driver: Any) -> Steps:
        if self.result is not None and self._reservation.is_over:
            return None, AlreadyCompletedError(f"{self._reservation.key!r} was completed before")
        value, error = yield from self._reservation.complete(value, connection, driver)
        if error is None:
            self.result = OperationResult(value)
        return value, error

    def _end_failed(self, error: BaseException, driver: Any) -> Steps:
        """Record the failure; an error while doing so becomes a note on it."""
        self._scope.__exit__()
        if self._reservation.is_over:
            return None, error
        unknown = is_unknown(error)
        if not self._begun or (isinstance(error, Rejected) and not unknown):  # nothing was called
            _, problem = yield from self._reservation.release(driver)
        else:
            _, problem = yield from self._reservation.fail(unknown, driver)
        if problem is not None:
            set_note(error, f"the operation {self.key!r} could not be left as failed: {problem!r}")
        return None, most_severe(error, problem)

    def _exit_steps(self, error: BaseException | None, driver: Any) -> Steps:
        self._scope.__exit__()
        reservation = self._reservation
        if reservation.is_over:
            return None, None
        if error is not None:
            _, left = yield from self._end_failed(error, driver)
            return None, None if left is error else left  # the error itself is raised by the block
        if self.result is not None:  # in a transaction that has been rolled back
            self.result = None
            return (yield from reservation.undo(driver))
        forgotten = MisuseError(
            f"the operation {self.key!r} was neither completed nor failed: call complete()"
        )
        return (yield from self._end_failed(forgotten, driver))

    def __repr__(self) -> str:
        return f"<Operation {self.key!r} attempt={self.attempt} result={self.result!r}>"


def _exit_driver(exception: BaseException | None) -> Any:
    """The driver of a block's exit: a closed block calls no store."""
    return CLOSED if isinstance(exception, GeneratorExit) else SYNC

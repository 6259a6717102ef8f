"""How a call ended, as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from attrs import frozen

if TYPE_CHECKING:
    from retrytemplate.history import AttemptRecord
    from retrytemplate.stop_reasons import StopReason

__all__ = ["Outcome"]

T = TypeVar("T")


@frozen
class Outcome(Generic[T]):
    """How a call ended, without raising.

    ``stop_reason`` says why no further attempt followed; None after a success and a cancellation.

    >>> from retrytemplate import RetryTemplate
    >>> outcome = RetryTemplate().outcome(int, "17")
    >>> outcome.ok, outcome.value, outcome.attempts
    (True, 17, 1)
    >>> outcome = RetryTemplate().outcome(int, "seventeen")
    >>> outcome.ok, type(outcome.exception).__name__, outcome.attempts
    (False, 'ValueError', 3)
    >>> outcome.stop_reason
    'attempts_exhausted'
    """

    value: T | None
    exception: BaseException | None
    attempts: int
    history: tuple[AttemptRecord, ...]
    elapsed: float
    stop_reason: StopReason | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.exception is None

    def unwrap(self) -> T:
        """Return the value, or raise the exception."""
        if self.exception is not None:
            try:
                raise self.exception
            finally:
                del self  # the exception's traceback holds this frame
        return self.value  # type: ignore[return-value]  # ok: there is a value

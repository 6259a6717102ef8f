"""What may refuse an attempt or a wait: the seam for budgets, switches and nesting rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate._engine.context import RetryContext

__all__ = ["Guard", "excluding"]


class Guard:
    """Asked before every attempt and before every wait that a retry will follow.

    Refuses by raising ``Rejected``; then no attempt is made.  Under ``execute_async`` the methods
    may be coroutine functions.

    >>> from retrytemplate import KillSwitchActiveError, RetryTemplate
    >>> class Stopped(Guard):
    ...     def admit(self, context):
    ...         raise KillSwitchActiveError("no orders today")
    >>> RetryTemplate(guards=[Stopped()]).outcome(int, "17").exception
    KillSwitchActiveError('no orders today')
    """

    inherited = False
    """Whether the attempts of the templates inside are asked for, too, with their contexts."""

    def admit(self, context: RetryContext) -> Any:
        """Before every attempt.  Raising ``Rejected`` ends the execution without recovery.

        Where this would block, a coroutine method ``admit_async`` beside it is asked in its place
        under ``execute_async``.
        """

    def reserve(self, context: RetryContext, delay: float) -> Any:
        """Before a wait of *delay* seconds that a retry will follow.

        Raising ``Rejected`` means that no retry is granted: the attempts have run out.  Of a
        ``NestedRetryError`` nobody outside is told: the failure itself leaves.
        """

    def release(self, context: RetryContext) -> Any:
        """What was reserved is not needed: the wait was cut off, or no attempt follows it."""

    def on_success(self, context: RetryContext, result: Any) -> Any:
        """After an attempt that succeeded, when the listeners have been told."""


def excluding(guards: Iterable[Any], known: Iterable[Any]) -> tuple[Any, ...]:
    """The guards that are not among those: equal ones may differ by the time they are asked."""
    ids = set(map(id, known))
    return tuple(guard for guard in guards if id(guard) not in ids)

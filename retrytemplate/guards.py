"""Guards: objects that may reject an attempt or a retry, such as budgets and kill switches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate._engine.context import RetryContext

__all__ = ["Guard", "excluding"]


class Guard:
    """Is called before every attempt, and before every wait that precedes a retry.

    A guard rejects by raising ``Rejected``; no attempt is made then.  Under ``execute_async`` the
    methods may be coroutine functions.

    >>> from retrytemplate import KillSwitchActiveError, RetryTemplate
    >>> class Stopped(Guard):
    ...     def admit(self, context):
    ...         raise KillSwitchActiveError("no orders today")
    >>> RetryTemplate(guards=[Stopped()]).outcome(int, "17").exception
    KillSwitchActiveError('no orders today')
    """

    inherited = False
    """Whether it is called also for the attempts of nested templates, with their contexts."""

    def admit(self, context: RetryContext) -> Any:
        """Before every attempt.  Raising ``Rejected`` ends the execution without recovery.

        A guard that blocks here may define a coroutine method ``admit_async``, which
        ``execute_async`` calls instead.
        """

    def reserve(self, context: RetryContext, delay: float) -> Any:
        """Before a wait of *delay* seconds that precedes a retry.

        Raising ``Rejected`` rejects the retry: attempts are exhausted.  If it is a
        ``NestedRetryError``, the caller gets the failure itself.
        """

    def release(self, context: RetryContext) -> Any:
        """The reservation is not used: the wait was interrupted, or no attempt follows it."""

    def on_success(self, context: RetryContext, result: Any) -> Any:
        """After an attempt that succeeded, and after the listeners."""


def excluding(guards: Iterable[Any], known: Iterable[Any]) -> tuple[Any, ...]:
    """The guards that are not among *known*, by identity: equal guards may decide differently."""
    ids = set(map(id, known))
    return tuple(guard for guard in guards if id(guard) not in ids)

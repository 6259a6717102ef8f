"""Rejects retries inside an open transaction, which has changes of the attempt before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.validation import check_function, checked_by
from retrytemplate.classify.exceptions import safe_getattr
from retrytemplate.errors import MisuseError, Rejected
from retrytemplate.guards import Guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import RetryContext

SAYS = ("in_transaction", "is_in_transaction", "in_atomic_block")
# Of psycopg's states: no transaction, and no connection any more.
NONE_OPEN = (0, 4)


def in_transaction(connection: Any) -> bool:
    """Whether a transaction is open on a connection or a session.

    SQLAlchemy's, sync and async; those of sqlite3, psycopg, asyncpg and Django.  On one that is
    closed, or is back in its pool, none is.

    :raises MisuseError: for what does not say it.

    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:")
    >>> in_transaction(connection)
    False
    >>> connection.close()
    """
    for name in SAYS:
        try:
            says = getattr(connection, name, None)
            answer = says() if callable(says) else says
        except Exception:  # sqlite3's when it is closed, asyncpg's when it is released
            return False
        if isinstance(answer, bool):
            return answer
    status = safe_getattr(safe_getattr(connection, "info"), "transaction_status")  # psycopg's
    if isinstance(status, int):
        return status not in NONE_OPEN
    raise MisuseError(
        f"{type(connection).__name__} does not say whether a transaction is open on it; it must "
        f"have one of {', '.join(SAYS)}, or psycopg's info.transaction_status"
    )


@frozen(eq=False)
class OpenTransaction(Guard):
    """Rejects a retry in place while a transaction is open: its owner has to roll it back.

    The error is ``Rejected``, from the failure.  An attempt in a transaction that was begun before
    may have left half of its work in it, and a second one would commit both.  Begin the transaction
    inside the attempt, or make the retry stateful, so that the redelivery begins another: what a
    ``RetryState`` rethrows, the guard does not reject.

    :param current: returns the connection or session of the attempts, or None.

    >>> import sqlite3
    >>> from retrytemplate import RetryTemplate
    >>> connection = sqlite3.connect(":memory:", isolation_level=None)
    >>> template = RetryTemplate(guards=[OpenTransaction(lambda: connection)])
    >>> template.outcome(int, "x").attempts
    3
    >>> _ = connection.execute("BEGIN")
    >>> template.outcome(int, "x").attempts
    1
    >>> connection.close()
    """

    current: Callable[[], Any] = field(validator=checked_by(check_function))

    def reserve(self, context: RetryContext, delay: float) -> None:
        failure = context.last_exception
        if failure is not None and context.rethrows(failure):
            return
        connection = self.current()
        if connection is not None and in_transaction(connection):
            raise Rejected(
                "a transaction is open: it would keep what the failed attempt has done. Begin it "
                "inside the attempt, or use stateful retry",
                name="open transaction",
            )

"""Kinds of failures: transient, persistent, cascading, catastrophic."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.validation import instance_of
from retrytemplate.classify.exceptions import iter_causes
from retrytemplate.control.classification.codes import (
    CodeClassifier,
    OptionalNameClassifier,
    iter_wrapped_errors,
    mapped,
)
from retrytemplate.control.classification.timeouts import DATABASE_POOL, POOL, timeout_kind
from retrytemplate.errors import DeadlineExceededError, KillSwitchActiveError, Rejected

if TYPE_CHECKING:
    from retrytemplate.classify.exceptions import Answer, ExceptionClassifier


class FailureKind(StrEnum):
    """The kind of a failure, from the mildest to the worst.

    >>> FailureKind.CASCADING.measures
    ('bulkhead', 'circuit breaker')
    """

    TRANSIENT = "transient"
    """It passes by itself: make the call again."""
    PERSISTENT = "persistent"
    """A repeated call probably fails again, or the result is unknown: do not retry, and alert."""
    CASCADING = "cascading"
    """Something is used up, and retries use up more of it: fewer calls at once, or none."""
    CATASTROPHIC = "catastrophic"
    """Further calls do harm: an operator has to check first."""

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures to take."""
        return MEASURES[self]

    def __repr__(self) -> str:
        return f"FailureKind.{self.name}"


TRANSIENT, PERSISTENT, CASCADING, CATASTROPHIC = FailureKind

MEASURES = {
    TRANSIENT: ("retry",),
    PERSISTENT: ("circuit breaker", "alert"),
    CASCADING: ("bulkhead", "circuit breaker"),
    CATASTROPHIC: ("kill switch",),
}

STATUS: dict[int | str, FailureKind] = {
    408: TRANSIENT,
    425: TRANSIENT,
    429: TRANSIENT,
    "4xx": PERSISTENT,
    "5xx": TRANSIENT,
}
# Source: "PostgreSQL Error Codes", appendix A of its manual; the classes are those of ISO/IEC 9075.
SQLSTATE = {
    "08": TRANSIENT,  # the connection is gone
    "08007": PERSISTENT,  # it is unknown whether the transaction was committed
    "08P01": PERSISTENT,  # a violation of the protocol
    "22": PERSISTENT,  # bad data
    "23": PERSISTENT,  # a violated constraint
    "25": PERSISTENT,  # a transaction in the wrong state
    "28": PERSISTENT,  # no access
    "40": PERSISTENT,  # rolled back for a reason that stays
    "40000": TRANSIENT,  # rolled back for none that is known
    "40001": TRANSIENT,  # serialization failure
    "40P01": TRANSIENT,  # deadlock
    "42": PERSISTENT,  # bad SQL, no privilege
    "53": CASCADING,  # memory, connections, other resources
    "53100": PERSISTENT,  # the disk is full
    "55P03": TRANSIENT,  # a lock that was not granted
    "57014": PERSISTENT,  # cancelled, by a user or by a limit of the statement
    "57P01": TRANSIENT,  # the server is shut down
    "57P02": TRANSIENT,  # the server has crashed
    "57P03": TRANSIENT,  # the server is starting
    "57P05": TRANSIENT,  # the session was idle for too long
    "58": CATASTROPHIC,  # the server's own input and output
    "XX001": CATASTROPHIC,  # corrupted data
    "XX002": CATASTROPHIC,  # a corrupted index
}
# Source: "Result and Error Codes" of SQLite; "Server Error Message Reference" of MySQL 8.4.
VENDOR: dict[int | str, FailureKind] = {
    "SQLITE_BUSY": TRANSIENT,  # another connection writes
    "SQLITE_LOCKED": TRANSIENT,  # another statement of this connection, or of its cache, does
    "SQLITE_PROTOCOL": TRANSIENT,  # a race for a lock
    "SQLITE_CONSTRAINT": PERSISTENT,  # a violated constraint
    "SQLITE_FULL": PERSISTENT,  # the disk is full
    "SQLITE_READONLY": PERSISTENT,  # nothing may be written
    "SQLITE_NOMEM": CASCADING,  # no memory
    "SQLITE_CORRUPT": CATASTROPHIC,  # a corrupted file
    "SQLITE_NOTADB": CATASTROPHIC,  # no database at all
    "SQLITE_IOERR": CATASTROPHIC,  # the disk
    1205: TRANSIENT,  # a lock was waited for too long
    1213: TRANSIENT,  # deadlock
    3572: TRANSIENT,  # a lock was not granted (NOWAIT)
    1053: TRANSIENT,  # the server is shut down
    2002: TRANSIENT,  # MySQL: no connection through a socket
    2003: TRANSIENT,  # no connection through a port
    2006: TRANSIENT,  # the connection is gone
    2013: TRANSIENT,  # the connection was lost during the query
    2055: TRANSIENT,  # the connection was lost, with a system's error
    4031: TRANSIENT,  # the connection was idle for too long
    1040: CASCADING,  # too many connections
    1203: CASCADING,  # too many connections of this user
    1062: PERSISTENT,  # a duplicate
    1451: PERSISTENT,  # a foreign key, in the parent
    1452: PERSISTENT,  # a foreign key, in the child
    1317: PERSISTENT,  # interrupted
}
ERRNO = {
    "ECONNRESET": TRANSIENT,  # reset by the other side
    "ECONNABORTED": TRANSIENT,  # given up on this side
    "ECONNREFUSED": TRANSIENT,  # no server listens there at present
    "EPIPE": TRANSIENT,  # the other side has closed
    "ETIMEDOUT": TRANSIENT,  # no answer
    "EHOSTUNREACH": TRANSIENT,  # no way to the host
    "ENETUNREACH": TRANSIENT,  # no way to its network
    "ENETDOWN": TRANSIENT,  # the network is down
    "ENETRESET": TRANSIENT,  # the network was reset
    "EMFILE": CASCADING,  # too many open files, in the process
    "ENFILE": CASCADING,  # too many open files, in the system
    "ENOBUFS": CASCADING,  # no buffers
    "ENOMEM": CASCADING,  # no memory
    "ENOSPC": PERSISTENT,  # the disk is full
    "EIO": CATASTROPHIC,  # the disk fails
}
ERRORS: dict[type[BaseException], FailureKind] = {
    ConnectionError: TRANSIENT,
    TimeoutError: TRANSIENT,
    MemoryError: CASCADING,
    DeadlineExceededError: CASCADING,
    Rejected: CASCADING,
    KillSwitchActiveError: CATASTROPHIC,
}
NAMED = {
    "http.client.IncompleteRead": TRANSIENT,
    "httpx.NetworkError": TRANSIENT,
    "httpx.RemoteProtocolError": TRANSIENT,
    "httpx2.NetworkError": TRANSIENT,
    "httpx2.RemoteProtocolError": TRANSIENT,
    "requests.exceptions.ChunkedEncodingError": TRANSIENT,
    "requests.exceptions.ConnectionError": TRANSIENT,
    "requests.exceptions.SSLError": PERSISTENT,
    "aiohttp.ClientConnectionError": TRANSIENT,
    "aiohttp.ClientPayloadError": TRANSIENT,
    "aiohttp.ClientSSLError": PERSISTENT,
    "psycopg.OperationalError": TRANSIENT,  # with no SQLSTATE: there is no connection
    "psycopg2.OperationalError": TRANSIENT,
}


DEFAULTS = OptionalNameClassifier(
    ERRORS, PERSISTENT, named=NAMED, status=STATUS, sqlstate=SQLSTATE, vendor=VENDOR, errno=ERRNO
)


@frozen(eq=False, repr=False)
class FailureKinds(CodeClassifier):
    """Classifies failures by kind, by the codes that databases, HTTP and systems document.

    The classes, names and codes given here win over the defaults; the form of the codes is that of
    a ``CodeClassifier``.
    Of a group the worst counts.  Causes are looked at from the outside in.

    :param rules: exception classes and their kinds.
    :param default: of a failure that nothing is known of.
    :param traverse_causes: look at the causes as well.
    :param named: qualified names of exception classes, and their kinds.
    :param validate: look the names up now.
    :param overrides: classes or names that come before every code.
    :param status: HTTP statuses and their kinds.
    :param sqlstate: of databases, and classes of them.
    :param vendor: codes of one database, numbers or names.
    :param errno: of the operating system, numbers or names.
    :raises TypeError: a value is not a ``FailureKind``.

    >>> class LedgerCorrupted(Exception):
    ...     pass
    >>> kinds = FailureKinds({LedgerCorrupted: FailureKind.CATASTROPHIC})
    >>> [str(kinds.classify(exc)) for exc in (TimeoutError(), ValueError(), LedgerCorrupted())]
    ['transient', 'persistent', 'catastrophic']
    """

    default: Any = PERSISTENT
    traverse_causes: bool = field(default=True, validator=instance_of(bool, "True or False"))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for value in super().values():
            if not isinstance(value, FailureKind):
                raise TypeError(f"the kind of a failure must be a FailureKind, got {value!r}")

    def among(self, *kinds: FailureKind) -> ExceptionClassifier:
        """Whether it is of one of these: for a policy, a circuit breaker, a fallback.

        :raises TypeError: a kind is not a ``FailureKind``, or no kind is given.

        >>> worth = FailureKinds().among(FailureKind.TRANSIENT)
        >>> worth.classify(ConnectionResetError()), worth.classify(PermissionError())
        (True, False)
        """
        if not kinds or not all(isinstance(kind, FailureKind) for kind in kinds):
            raise TypeError(f"kinds must be one FailureKind or more, got {kinds!r}")
        return mapped(self, {kind: kind in kinds for kind in FailureKind})

    def values(self) -> tuple[Any, ...]:
        return tuple(FailureKind)

    def names_class(self, kind: type[BaseException]) -> bool:
        own = self._nearest(kind) is not None
        return super().names_class(kind) if own else DEFAULTS.names_class(kind)

    def _own(self, exc: BaseException) -> Answer:
        found, value = super()._own(exc)
        if not found and is_certificate_error(exc):
            found, value = True, PERSISTENT
        if not found:
            found, value = DEFAULTS._own(exc)
        return (True, value) if found else _timeout(exc)

    def _of_all(self, values: list[Any]) -> FailureKind:
        worst: FailureKind = max(values, key=list(FailureKind).index)
        return worst


def is_certificate_error(exc: BaseException) -> bool:
    """Whether a certificate is not trusted; httpx reports only that there is no connection."""
    ssl = sys.modules.get("ssl")
    return ssl is not None and any(
        isinstance(part, ssl.SSLCertVerificationError)
        for each in iter_causes(exc)
        for part in iter_wrapped_errors(each)
    )


def _timeout(exc: BaseException) -> Answer:
    """Of a client's timeout: for a connection of its pool all the others are waiting, too."""
    limit = timeout_kind(exc)
    return limit is not None, CASCADING if limit in (POOL, DATABASE_POOL) else TRANSIENT


TRANSIENT_ERRORS = FailureKinds().among(FailureKind.TRANSIENT)
"""Classifier of transient failures: a second call may succeed."""

"""Classifiers of one library's failures; its classes are known by name only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.validation import check_function, checked_by
from retrytemplate.backoff.retry_after import header
from retrytemplate.classify.exceptions import iter_causes, safe_getattr
from retrytemplate.control.classification.codes import (
    DelegatingClassifier,
    OptionalNames,
    iter_wrapped_errors,
    sqlstate,
)
from retrytemplate.control.classification.failure_kind import (
    TRANSIENT_ERRORS,
    FailureKind,
    FailureKinds,
    is_certificate_error,
)
from retrytemplate.control.classification.timeouts import FIRST
from retrytemplate.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retrytemplate.classify.exceptions import ExceptionClassifier

TRANSIENT, PERSISTENT, CASCADING, _ = FailureKind

# Of redis-py, and of valkey-py, which has them under the same names.
REDIS = {
    "ConnectionError": TRANSIENT,
    "TimeoutError": TRANSIENT,
    "BusyLoadingError": TRANSIENT,  # LOADING: the server reads its data
    "ReadOnlyError": TRANSIENT,  # READONLY: it has just become a replica
    "ClusterDownError": TRANSIENT,
    "MasterDownError": TRANSIENT,
    "TryAgainError": TRANSIENT,  # slots of a cluster are moving
    "WatchError": TRANSIENT,  # another client has written: nothing was done
    "AuthenticationError": PERSISTENT,
    "AuthorizationError": PERSISTENT,
    "MaxConnectionsError": CASCADING,  # of the pool, or of the server
}
# SDKs of one design.  Their other errors have a status, as litellm's have, which derive from
# these classes.
SDKS = ("openai", "anthropic", "groq")
# A status 429 that a wait does not mend: the account has no quota left.
QUOTA_EXHAUSTED = (
    "insufficient_quota",
    "credit_balance_exhausted",
    "billing_hard_limit_reached",
    "billing_not_active",
)
BUSY = re.compile("BUSY ")
CONNECTION_REJECTED = re.compile(r"FATAL:\s+(?!\s|the database system|terminating)")


@frozen(eq=False, repr=False)
class _Kinds(OptionalNames, FailureKinds):
    """Kinds of failures, also by the names of a library's classes."""


@frozen(eq=False, repr=False)
class OverridingClassifier(DelegatingClassifier):
    """The result of another classifier, unless a function overrides it.

    :param override: True or False for one failure; None: the result of the other classifier.
    """

    override: Callable[[BaseException], bool | None] = field(
        kw_only=True, validator=checked_by(check_function)
    )

    def transform(self, value: Any, exc: BaseException | None) -> Any:
        if exc is None:
            return value
        parts = list(self.parts(exc))
        if parts[0] is not exc:  # a group is retryable if all its members are
            return all(map(self.classify, parts))
        answer = self.override(exc)
        return value if answer is None else answer

    def values(self) -> tuple[Any, ...]:
        return (*self.of.values(), True, False)


def _redis(exc: BaseException) -> bool | None:
    """The error of a slow script has no class of its own, only the prefix BUSY."""
    kinds = {base.__name__ for base in type(exc).__mro__}
    return True if "ResponseError" in kinds and BUSY.match(str(exc)) else None


def _postgresql(exc: BaseException) -> bool | None:
    """False (not retryable) if the server rejected the connection; None: its SQLSTATE decides."""
    texts = (words for each in iter_causes(exc) for words in connect_error_texts(each))
    return False if any(map(CONNECTION_REJECTED.search, texts)) else None


def connect_error_texts(exc: BaseException) -> Iterator[str]:
    """The messages of failed connections of psycopg, which have no SQLSTATE."""
    for part in iter_wrapped_errors(exc):
        if type(part).__name__ == "OperationalError" and sqlstate(part) is None:
            yield str(part)


def _model(exc: BaseException) -> bool | None:
    if is_certificate_error(exc):
        return False
    for each in iter_causes(exc):
        headers = safe_getattr(safe_getattr(each, "response"), "headers")
        if header(headers, "x-should-retry") == "false" or any(
            map(QUOTA_EXHAUSTED.__contains__, _of(each))
        ):
            return False
    return _stream(exc)


def _of(exc: BaseException) -> Iterator[Any]:
    """The codes and types of a failure, in the places where SDKs put them."""
    body = safe_getattr(exc, "body")
    inner = body.get("error") if isinstance(body, dict) else None
    for name in ("code", "type"):
        yield safe_getattr(exc, name)
        for holder in (body, inner):
            if isinstance(holder, dict):
                yield holder.get(name)


def _stream(exc: BaseException) -> bool | None:
    """True for a timeout of the first item: no item was delivered, so the stream may restart."""
    return True if isinstance(exc, DeadlineExceededError) and exc.kind == FIRST else None


def _among_transient(kinds: FailureKinds, override: Callable[[BaseException], bool | None]) -> Any:
    return OverridingClassifier({}, of=kinds.among(TRANSIENT), override=override)


REDIS_ERRORS: ExceptionClassifier = _among_transient(
    _Kinds(
        {},
        named={
            f"{package}.exceptions.{name}": kind
            for package in ("redis", "valkey")
            for name, kind in REDIS.items()
        },
    ),
    _redis,
)
POSTGRESQL_ERRORS: ExceptionClassifier = _among_transient(FailureKinds(), _postgresql)
MODEL_ERRORS: ExceptionClassifier = _among_transient(
    _Kinds(
        {},
        named={f"{package}.APIConnectionError": TRANSIENT for package in SDKS},
        # Two requests at one lock.  Source: the retries of openai-python itself.
        status={409: TRANSIENT},
    ),
    _model,
)
STREAM_ERRORS: ExceptionClassifier = OverridingClassifier({}, of=TRANSIENT_ERRORS, override=_stream)

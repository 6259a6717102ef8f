"""The HTTP status that reports an error of this library to the caller of a service."""

from __future__ import annotations

from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

from retrytemplate.clock import SystemClock
from retrytemplate.errors import (
    AttemptInProgressError,
    AttemptTimeoutError,
    CacheUnavailableError,
    CircuitStoreError,
    DeadlineExceededError,
    IdempotencyKeyReusedError,
    IdempotencyRequiredError,
    RateLimitStoreError,
    Rejected,
    RetryLater,
    SwitchStoreError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

HTTP_STATUSES: Mapping[type[Exception], int] = {
    Rejected: 503,
    RetryLater: 503,
    CacheUnavailableError: 503,
    CircuitStoreError: 503,
    RateLimitStoreError: 503,
    SwitchStoreError: 503,
    DeadlineExceededError: 504,
    AttemptTimeoutError: 504,
    AttemptInProgressError: 409,
    IdempotencyRequiredError: 400,
    IdempotencyKeyReusedError: 422,
}
"""The statuses by error class; the nearest class of an error counts."""
WITH_DELAY = (409, 429, 503)
APPLICATION_ERROR = 500


def http_status(
    error: BaseException, statuses: Mapping[type[Exception], int] | None = None
) -> tuple[int, dict[str, str]]:
    """The status and the headers of the response to a request that ended with this error.

    A rejection by a circuit breaker, bulkhead, rate limiter, budget or kill switch is 503: it is
    about a called service, not about the caller.  An error of another class is 500.

    :param statuses: statuses of other classes, or other statuses; default None: none.

    The headers have ``Retry-After`` in whole seconds, rounded up and at least 1, where the error
    knows when to call again.

    >>> from retrytemplate import CircuitOpenError
    >>> http_status(CircuitOpenError("open", name="billing", retry_after=27.3))
    (503, {'Retry-After': '28'})
    >>> http_status(ValueError("no such order"))
    (500, {})
    """
    table = HTTP_STATUSES if statuses is None else {**HTTP_STATUSES, **statuses}
    for kind in type(error).__mro__:
        if kind in table:
            status = table[kind]
            return status, retry_after_header(_delay(error)) if status in WITH_DELAY else {}
    return APPLICATION_ERROR, {}


def retry_after_header(delay: float | None) -> dict[str, str]:
    """The header ``Retry-After``, if the delay is known."""
    if delay is None or not isfinite(delay):
        return {}
    return {"Retry-After": str(max(1, ceil(delay)))}


def _delay(error: Any) -> float | None:
    """Seconds until another call may succeed, as far as the error knows."""
    if isinstance(error, AttemptInProgressError):
        return None if error.lease_until is None else error.lease_until - SystemClock().time()
    delay: float | None = getattr(error, "retry_after", None)
    return delay

"""A template for HTTP calls: retries idempotent requests, and respects ``Retry-After``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.validation import check_text, checked_by, instance_of
from retrytemplate.backoff.base import Backoff
from retrytemplate.backoff.exponential import ExponentialBackoff
from retrytemplate.backoff.retry_after import RetryAfterBackoff, header
from retrytemplate.classify.exceptions import ExceptionClassifier, iter_causes, safe_getattr
from retrytemplate.control.classification.codes import (
    DelegatingClassifier,
    OptionalNameClassifier,
    iter_wrapped_errors,
)
from retrytemplate.control.classification.failure_kind import TRANSIENT_ERRORS
from retrytemplate.control.idempotency.keys import HEADER
from retrytemplate.errors import Rejected
from retrytemplate.guards import Guard
from retrytemplate.policies.simple import SimpleRetryPolicy
from retrytemplate.template import RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from retrytemplate._engine.context import RetryContext
    from retrytemplate._internal.validation import Seconds

# Their frames have the request that was being sent.
CLIENTS = ("httpx.", "httpx2.", "aiohttp.client")

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""The methods that mean the same when they come twice (RFC 9110, section 9.2.2)."""

DERIVED_SETTINGS = {"policy": "made of max_attempts, retryable, idempotent and key_header"}

# There was no connection, so that nothing can have come once.
NEVER_SENT = OptionalNameClassifier(
    {ConnectionRefusedError: True},
    named=dict.fromkeys(
        (
            "aiohttp.ClientConnectorError",
            "httpx.ConnectError",
            "httpx.ConnectTimeout",
            "httpx.PoolTimeout",
            "httpx2.ConnectError",
            "httpx2.ConnectTimeout",
            "httpx2.PoolTimeout",
            "requests.exceptions.ConnectTimeout",
            "urllib3.exceptions.ConnectTimeoutError",
            "urllib3.exceptions.NewConnectionError",
        ),
        True,
    ),
)


def http_retry(
    max_attempts: int = 5,
    backoff: Backoff | None = None,
    *,
    idempotent: bool = False,
    key_header: str = HEADER,
    retryable: ExceptionClassifier | None = None,
    give_up_above: Seconds | None = 60.0,
    jitter: float = 0.1,
    **settings: Any,
) -> RetryTemplate:
    """A template for calls with httpx, requests, aiohttp or urllib.

    A failure is retried if it may pass *and* the call may be made twice: its method is ``GET``,
    ``HEAD``, ``OPTIONS``, ``TRACE``, ``PUT`` or ``DELETE``, the request has a key, or there was no
    connection, so that nothing was sent.  The failure has the request, or the frames of httpx,
    httpx2 or aiohttp in its traceback, also after an ``attempt_timeout`` that cancelled the
    attempt.  A failure without one (urllib's, a bare ``OSError``, an attempt that was abandoned in
    a thread) is retried only where *idempotent* is declared.

    Where the failure says ``Retry-After``, that is waited instead of the backoff; a retry
    before that is rejected, also where another backoff is put into the template.

    :param max_attempts: the first included.
    :param backoff: where the server does not say how long; None: exponential, from 0.2 to 30
        seconds, with full jitter.
    :param idempotent: declares that the calls may be made twice, whatever their method is.
    :param key_header: of the key by which the server recognises a repeated call.
    :param retryable: what may pass; None: ``TRANSIENT_ERRORS``.
    :param give_up_above: a longer ``Retry-After`` ends the attempts at once; None: none is too
        long.
    :param jitter: the share by which a wait may be longer than requested.
    :param settings: the template's other ones: ``name``, ``listeners``, ``clock``, ...
    :raises ValueError: for a number out of its range.

    >>> import httpx
    >>> from retrytemplate.testing import VirtualClock
    >>> def order(method, **headers):
    ...     request = httpx.Request(method, "http://localhost/orders", headers=headers)
    ...     response = httpx.Response(503, headers={"Retry-After": "7"}, request=request)
    ...     response.raise_for_status()
    >>> template = http_retry(3, clock=VirtualClock())
    >>> template.outcome(order, "GET").attempts, template.outcome(order, "POST").attempts
    (3, 1)
    >>> template.outcome(order, "POST", **{"Idempotency-Key": "order-17"}).attempts
    3
    """
    reject_derived_settings(settings, DERIVED_SETTINGS)
    if not isinstance(retryable, ExceptionClassifier | None):
        raise TypeError(f"retryable must be an ExceptionClassifier or None, got {retryable!r}")
    if not isinstance(backoff, Backoff | None):
        raise TypeError(f"backoff must be a Backoff or None, got {backoff!r}")
    passing = TRANSIENT_ERRORS if retryable is None else retryable
    classifier = IdempotentRequestClassifier(
        {}, of=passing, idempotent=idempotent, key_header=key_header
    )
    clock = {"clock": settings["clock"]} if settings.get("clock") is not None else {}
    fallback = ExponentialBackoff(0.2, 2.0, 30.0, jitter="full") if backoff is None else backoff
    wait = RetryAfterBackoff(fallback, give_up_above, jitter, **clock)
    policy = SimpleRetryPolicy(max_attempts, classifier=classifier)
    template = RetryTemplate(policy, wait, **settings)
    return template.with_(guards=(*template.guards, RetryAfterGuard(wait)))


def reject_derived_settings(settings: Mapping[str, Any], made: Mapping[str, str]) -> None:
    """Raise for a setting of the template that is derived from other settings.

    :param made: what of, in words.
    """
    for name, what in made.items():
        if name in settings:
            raise TypeError(f"{name} must be left out: it is {what}, got {settings[name]!r}")


@frozen(eq=False, repr=False)
class IdempotentRequestClassifier(DelegatingClassifier):
    """The result of another classifier if the request may be repeated, else not retryable."""

    idempotent: bool = field(kw_only=True, validator=instance_of(bool, "True or False"))
    key_header: str = field(kw_only=True, validator=checked_by(check_text))

    def transform(self, value: Any, exc: BaseException | None) -> Any:
        if not value or exc is None or self.idempotent:
            return value
        return value if all(map(self._repeatable, self.parts(exc))) else False

    def _repeatable(self, exc: BaseException) -> bool:
        if _not_sent(exc):
            return True
        request = _request(exc)
        if request is None:
            return False
        if safe_getattr(request, "method").upper() in IDEMPOTENT:
            return True
        return bool(header(safe_getattr(request, "headers"), self.key_header))

    def values(self) -> tuple[Any, ...]:
        return (*self.of.values(), False)


def _not_sent(exc: BaseException) -> bool:
    return any(
        NEVER_SENT.classify(part) for each in iter_causes(exc) for part in iter_wrapped_errors(each)
    )


def _request(exc: BaseException) -> Any:
    """The request that the failed call began with; None if it is unknown."""
    for each in iter_causes(exc):
        response = safe_getattr(each, "response")
        for holder in (response, each, *_in_frames(each.__traceback__)):
            # After a redirect the last request may be a GET that a POST has led to.
            for holds in (_redirect(holder), holder):
                for name in ("request", "request_info", "req"):
                    request = safe_getattr(holds, name)
                    if isinstance(safe_getattr(request, "method"), str):
                        return request
    return None


def _in_frames(traceback: TracebackType | None) -> Iterator[Any]:
    """The local variables of the frames of a client that failed, outermost first.

    A cancellation carries no request, and few of aiohttp's errors do.
    """
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals.get("__name__", "").startswith(CLIENTS):
            yield SimpleNamespace(**frame.f_locals)
            yield frame.f_locals.get("self")
        traceback = traceback.tb_next


def _redirect(holder: Any) -> Any:
    """The first response of a chain of redirects."""
    history = safe_getattr(holder, "history")
    return history[0] if isinstance(history, list | tuple) and history else None


@frozen(eq=False)
class RetryAfterGuard(Guard):
    """Rejects a retry before the time that the server has named."""

    backoff: RetryAfterBackoff

    def reserve(self, context: RetryContext, delay: float) -> None:
        failure = context.last_exception
        requested = None if failure is None else self.backoff.requested_delay(failure)
        if requested is not None and delay < requested:
            raise Rejected(
                f"a retry in {delay:g} s would be too early: Retry-After says {requested:g} s",
                name="Retry-After",
                retry_after=requested,
            )

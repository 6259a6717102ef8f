"""Backoff by the ``Retry-After`` of a server."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from retrytemplate._internal import validation
from retrytemplate.backoff import base
from retrytemplate.backoff.base import JSON, Backoff
from retrytemplate.classify.exceptions import safe_getattr
from retrytemplate.clock import Clock, SystemClock, check_clock
from retrytemplate.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retrytemplate.backoff.base import RandomSource

__all__ = ["RetryAfterBackoff", "header"]

PUSHBACK = "grpc-retry-pushback-ms"
MILLISECONDS = "retry-after-ms"  # of OpenAI's services and compatible ones


def _float_or_none(value: validation.Seconds | None) -> Any:
    return None if value is None else base.as_float(value)


def _check_jitter(name: str, value: Any) -> None:
    validation.check_at_least(name, value, 0, finite=True)


@frozen(eq=False, repr=False)
class RetryAfterBackoff(Backoff):
    """Wait as long as the failure's ``Retry-After`` requests, else as long as the fallback.

    Reads the errors of httpx, requests, aiohttp and urllib: seconds, HTTP dates, and the
    milliseconds of ``retry-after-ms``, which takes precedence; the pushback of gRPC; and
    ``retry_after`` of this library's ``Rejected``.  If a failure requests no delay, its cause is
    read; for an exception group the longest delay of its members and its cause applies.  A date is
    compared with the ``Date`` of the response, which does not depend on the local time; without
    one, with the clock.  The delay is at least the requested one, and longer by a random part of up
    to *jitter* times that, so that clients with the same ``Retry-After`` do not retry together.

    The requested delay is set on the failure as the attribute ``retry_after`` (seconds), if the
    failure accepts attributes.

    A value that is not a time, or is in the past, is ignored: the fallback applies, and the failure
    gets a note.  A listener finds it in ``on_backoff`` in ``context.last_exception.__notes__``.

    If a gRPC server requests that the call is not retried, no further attempt is made.

    :param fallback: the backoff for failures that request no delay.
    :param give_up_above: seconds or a ``timedelta``; if a longer delay is requested, no further
        attempt is made and the failure gets a note.  Default None: no limit.
    :param jitter: the random part that is added, as a fraction of the requested delay; default 0.1,
        at least 0.
    :param clock: the time that dates are compared with if the response has no ``Date``.
    :raises ValueError: if a time or ``jitter`` is below 0.
    :raises TypeError: if ``fallback`` is not a backoff, or another value is not a number.

    Source: RFC 9110, section 10.2.3; gRPC's proposal A6, "Pushback".

    >>> from retrytemplate.backoff import FixedBackoff
    >>> from retrytemplate.errors import CircuitOpenError
    >>> backoff = RetryAfterBackoff(fallback=FixedBackoff(1.0), give_up_above=60.0, jitter=0.0)
    >>> backoff.next(backoff.start(), CircuitOpenError(retry_after=7.0), None)[0]
    7.0
    >>> backoff.next(backoff.start(), CircuitOpenError(retry_after=3600.0), None)[0] is None
    True
    >>> backoff.next(backoff.start(), ValueError(), None)[0]
    1.0
    """

    fallback: Backoff = field(validator=validation.instance_of(Backoff, "a Backoff"))
    give_up_above: Any = field(
        default=None,
        converter=_float_or_none,
        validator=validation.checked_by(validation.check_limit_or_none),
    )
    jitter: float = field(default=0.1, validator=validation.checked_by(_check_jitter))
    clock: Clock = field(
        factory=SystemClock, kw_only=True, validator=validation.checked_by(check_clock)
    )

    def __attrs_post_init__(self) -> None:
        # An import at the first failure could be interrupted by a signal handler that uses it.
        import email.utils  # noqa: F401  # loads it

    def start(self) -> JSON:
        """The state of the fallback; it changes only when the fallback applies."""
        return self.fallback.start()

    def next(
        self, state: JSON, failure: BaseException, random: RandomSource
    ) -> tuple[float | None, JSON]:
        requested = self.requested_delay(failure)
        if requested is None:
            return self.fallback.next(state, failure, random)
        with suppress(Exception):  # a frozen exception does not take it
            failure.retry_after = requested  # type: ignore[attr-defined]  # for the caller
        limit = self.give_up_above
        if requested == inf:
            _note(failure, f"{PUSHBACK}: the server requests no retry")
            return None, state
        if limit is not None and requested > limit:
            _note(failure, f"Retry-After: {requested:g} s, longer than give_up_above={limit:g} s")
            return None, state
        longer = requested * self.jitter * random.random() if self.jitter else 0.0
        return min(requested + longer, base.MAX_DELAY), state

    def requested_delay(self, failure: BaseException) -> float | None:
        """The longest delay that the failure, its members or its causes request.

        In seconds; infinite if a server requests no retry; None if no delay is requested.
        """
        longest: float | None = None
        waiting: list[BaseException] = [failure]
        seen: set[int] = set()
        while waiting:
            each = waiting.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            wait = self._hint(each, failure)
            if wait is not None:
                longest = wait if longest is None else max(longest, wait)
            elif each.__cause__ is not None:
                waiting.append(each.__cause__)
            if isinstance(each, BaseExceptionGroup):
                waiting.extend(each.exceptions)
        return longest

    def _hint(self, exc: BaseException, failure: BaseException) -> float | None:
        if isinstance(exc, Rejected):
            return _future_delay(safe_getattr(exc, "retry_after"))
        pushback = _pushback(exc)
        if pushback is not None:
            return pushback
        for headers in _headers(exc):
            for name, read in ((MILLISECONDS, _milliseconds), ("Retry-After", self._seconds)):
                value = header(headers, name)
                if value is not None:
                    wait = _future_delay(read(value, headers))
                    if wait is not None:
                        return wait
                    _note(failure, f"{name} ignored, not a time in the future: {value[:100]!r}")
        return None

    def _seconds(self, value: str, headers: Any) -> float | None:
        number = _number(value)
        if number is not None:
            return number
        until = _date(value)
        if until is None:
            return None
        answered = _date(header(headers, "Date") or "")
        return until - (self.clock.time() if answered is None else answered)

    @property
    def dynamic(self) -> bool:
        return self.fallback.dynamic

    def resolved(self) -> RetryAfterBackoff:
        return evolve(self, fallback=self.fallback.resolved()) if self.dynamic else self


def _headers(exc: BaseException) -> Iterator[Any]:
    """The response's headers where httpx and requests keep them, then aiohttp and urllib."""
    # Not "if response": a response of requests is false when its status is an error.
    for holder in (safe_getattr(exc, "response"), exc):
        yield safe_getattr(holder, "headers")


def header(headers: Any, name: str) -> str | None:
    """The value of a header of a response or request; None if it is missing."""
    try:
        value = headers.get(name)
        if value is None:
            value = headers.get(name.lower())
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    except Exception:  # attributes of the failure may be of any type; a cancellation passes
        return None
    return None if value is None else text.strip()


def _pushback(exc: BaseException) -> float | None:
    """The delay that a gRPC server requests with its status; infinite if it is not a number."""
    trailing = safe_getattr(exc, "trailing_metadata")
    try:
        values = [value for key, value in trailing() or () if key == PUSHBACK]
    except Exception:  # not an error of gRPC
        return None
    if not values:
        return None
    text = values[-1]
    is_wait = isinstance(text, str) and text.isascii() and text.isdigit()
    return float(text) / 1000 if is_wait else inf


def _milliseconds(value: str, headers: Any) -> float | None:
    number = _number(value)
    return None if number is None else number / 1000


def _number(value: str) -> float | None:
    """The number, or the greatest of a header that was sent twice; None if it is not a number."""
    numbers = [number.strip() for number in value.split(",")]
    return max(map(float, numbers)) if all(map(_is_number, numbers)) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit()


def _future_delay(value: Any) -> float | None:
    """The value in seconds, at most MAX_DELAY; None if it is not a time or in the past."""
    seconds = base.as_float(value)
    if isinstance(seconds, bool) or not isinstance(seconds, float | int) or not seconds >= 0:
        return None
    return min(seconds, base.MAX_DELAY)


def _date(value: str) -> float | None:
    """Seconds since the epoch of an HTTP date in any of its three forms."""
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(value)
        # An HTTP date is in UTC; the oldest form does not say so.
        return date.replace(tzinfo=date.tzinfo or UTC).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _note(failure: BaseException, text: str) -> None:
    with suppress(Exception):
        if text not in getattr(failure, "__notes__", ()):
            failure.add_note(text)

"""Headers between processes: the number of the attempt, its depth and the remaining time."""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from attrs import field, frozen
from attrs.validators import optional

from retrytemplate._engine import frames as _frames
from retrytemplate._engine.deadline import Deadline
from retrytemplate._engine.frames import (
    CURRENT,
    DEADLINE,
    detach_frame,
    enclosing_frame,
    exit_frame,
)
from retrytemplate._internal.validation import (
    check_at_least_one,
    check_span,
    checked_by,
    to_seconds,
)
from retrytemplate.clock import SystemClock, check_clock
from retrytemplate.control.propagation.nesting import Nesting, current_nesting
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextvars import Context

TOKEN = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # what HTTP allows as a name


def _name(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, str) and TOKEN.fullmatch(value)):
        raise ValueError(f"{name} must be the name of a header or None, got {value!r}")


def _header(default: str) -> Any:
    return field(default=default, kw_only=True, validator=checked_by(_name))


@frozen(eq=False)
class Propagation:
    """Headers that carry the retries and deadlines of a call to the next process.

    :param attempt: the header with the number of the attempt, from 1; None: without it.
    :param depth: the header with the number of layers that retry.
    :param no_retry: the header that forbids retries.
    :param deadline: the header with the time that is left, in milliseconds.
    :param max_depth: a greater depth counts as this one.
    :param max_timeout: the longest time that a request gets, also one that says nothing; seconds or
        a ``timedelta``.
    :param clock: measures.

    Two names bring a meaning with them: ``grpc-previous-rpc-attempts`` counts the attempts before
    this one, and ``grpc-timeout`` is written as gRPC writes it (``1500m``).

    >>> from retrytemplate import RetryTemplate
    >>> propagation = Propagation()
    >>> headers = RetryTemplate().call(propagation.outgoing)
    >>> headers
    {'X-Retry-Attempt': '1', 'X-Retry-Depth': '1'}
    >>> with propagation.incoming(headers) as nesting:      # in the next process
    ...     print(nesting)
    Nesting(depth=1, attempt=1, no_retry=False)
    """

    attempt: str | None = _header("X-Retry-Attempt")
    depth: str | None = _header("X-Retry-Depth")
    no_retry: str | None = _header("X-No-Retry")
    deadline: str | None = _header("X-Request-Timeout-Ms")
    max_depth: int = field(default=16, kw_only=True, validator=checked_by(check_at_least_one))
    max_timeout: float | None = field(
        default=None, kw_only=True, converter=to_seconds, validator=optional(checked_by(check_span))
    )
    clock: Any = field(
        factory=SystemClock, kw_only=True, validator=checked_by(check_clock), repr=False
    )

    def __attrs_post_init__(self) -> None:
        names = [name.lower() for name in self._names()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"header names must differ, got {twice!r} twice")

    def _names(self) -> Iterator[str]:
        names = (self.attempt, self.depth, self.no_retry, self.deadline)
        return (name for name in names if name is not None)

    # Out.

    def outgoing(self, *, no_retry: bool = False) -> dict[str, str]:
        """The headers for a request that is made now, inside the attempt that makes it.

        :param no_retry: forbid retries in the services behind this call.

        Unknown values are left out: the result is empty without a template, a deadline and incoming
        headers.  Time is sent as the remaining time, since clocks differ.
        """
        here, limit = Nesting.current(), Deadline.current()
        headers: dict[str, str | None] = {}
        if self.attempt is not None and (here.depth or here.attempt > 1):
            headers[self.attempt] = write_attempt(self.attempt, here.attempt)
        if self.depth is not None and here.depth:
            headers[self.depth] = str(min(here.depth, self.max_depth))
        if self.no_retry is not None and (here.no_retry or no_retry):
            headers[self.no_retry] = "1"
        if self.deadline is not None and limit is not None and math.isfinite(limit.remaining()):
            headers[self.deadline] = write_timeout(self.deadline, limit.remaining())
        return {name: value for name, value in headers.items() if value is not None}

    # In.

    def incoming(self, headers: Any) -> Incoming:
        """Apply the headers of a request to a block: ``with`` or ``async with``.

        :param headers: a mapping, or pairs of names and values, text or bytes.

        From any sender they can only restrict: more depth, less time.  Names in any case; a
        value that is not a number is ignored; of a header that comes more than once the
        strictest value counts.  ``async with`` also cuts the block when the time is over.
        """
        found = collect_headers(headers, self._names())
        incoming = Nesting(
            max(_parse_values(found, self.depth, self._read_depth), default=0),
            max(_parse_values(found, self.attempt, read_attempt), default=1),
            any(_parse_values(found, self.no_retry, read_flag)),
        )
        times = _parse_values(found, self.deadline, read_timeout)
        if self.max_timeout is not None:
            times.append(self.max_timeout)
        return Incoming(incoming, min(times, default=None), self.clock)

    def _read_depth(self, name: str, text: str) -> int | None:
        return read_number(text, self.max_depth)

    # For servers.

    def asgi(self, app: Callable[..., Any]) -> Callable[..., Any]:
        """An ASGI application around which ``incoming`` is open for each request."""
        _check_app(app)

        async def within(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":  # it may run as long as the server
                await app(scope, receive, send)
                return
            # Not cancelled at the deadline: the application decides its response.
            with self.incoming(scope["headers"]):
                await app(scope, receive, send)

        return within

    def wsgi(self, app: Callable[..., Any]) -> Callable[..., Any]:
        """A WSGI application around which ``incoming`` is open for each request, body included."""
        _check_app(app)
        keys = {f"HTTP_{name.upper().replace('-', '_')}": name for name in self._names()}

        def within(environ: Any, start_response: Any) -> Any:
            # In a context of its own, which is never left: a server that never closes a body
            # would let the thread's next request find it.
            inside = copy_context()
            headers = {name: environ[key] for key, name in keys.items() if key in environ}
            inside.run(self.incoming(headers).__enter__)
            body = inside.run(app, environ, start_response)
            return body if isinstance(body, list | tuple) else _Body(inside, body)

        return within


def _check_app(app: Any) -> None:
    if not callable(app):
        raise TypeError(f"app must be callable, got {app!r}")


class _Body:
    """A body that is made item by item, each in the context of its request."""

    def __init__(self, inside: Context, body: Any) -> None:
        self._inside = inside
        self._body = body
        self._items: Any = None

    def __iter__(self) -> Iterator[bytes]:
        self._items = self._inside.run(iter, self._body)
        return self

    def __next__(self) -> bytes:
        item: bytes = self._inside.run(next, self._items)
        return item

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            self._inside.run(close)


def _parse_values(
    found: dict[str, list[str]], name: str | None, read: Callable[..., Any]
) -> list[Any]:
    """The valid values of a header."""
    values = [] if name is None else [read(name, text) for text in found[name.lower()]]
    return [value for value in values if value is not None]


class Incoming:
    """The values of a request's headers, in force in a block; from ``Propagation.incoming``."""

    def __init__(self, incoming: Nesting, timeout: float | None, clock: Any) -> None:
        self.incoming = incoming
        self.timeout = timeout
        self._clock = clock
        self._deadline: Any = nullcontext()
        self._entered = False
        self._frame: Any = None
        self._token: Any = None

    def _enter(self) -> Nesting:
        if self._entered:
            raise MisuseError("incoming() must be entered once; call it again for each request")
        self._entered = True
        outer = enclosing_frame()
        # In one process, as in a test, both the headers and the frames have the outer retries.
        here = self.incoming.merge(current_nesting(outer))
        # There is something to look for, as where a deadline is entered.
        _frames.any_deadline_entered = True
        self._frame = [None, None, None if outer is None else outer[DEADLINE], outer, here]
        self._token = CURRENT.set(self._frame)
        if self.timeout is not None:
            self._deadline = Deadline(self.timeout, kind="caller", clock=self._clock)
        return here

    def _leave(self) -> None:
        exit_frame(self._frame, self._token)
        detach_frame(self._frame)  # for a task that was started here, and continues
        self._frame = self._token = None

    def __enter__(self) -> Nesting:
        here = self._enter()
        self._deadline.__enter__()
        return here

    def __exit__(self, *exc: Any) -> None:
        try:
            self._deadline.__exit__(*exc)
        finally:
            self._leave()

    async def __aenter__(self) -> Nesting:
        here = self._enter()
        try:
            await self._deadline.__aenter__()
        except BaseException:
            self._leave()
            raise
        return here

    async def __aexit__(self, *exc: Any) -> None:
        try:
            await self._deadline.__aexit__(*exc)
        finally:
            self._leave()


# Values of headers: written exactly, read leniently.

# Two gRPC headers with their own format: a time with a unit, and the previous attempts.
GRPC_TIMEOUT = "grpc-timeout"
GRPC_ATTEMPTS = "grpc-previous-rpc-attempts"
GRPC_TIME = re.compile("([0-9]{1,8})([HMSmun])")
GRPC_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "S": 1.0, "M": 60.0, "H": 3600.0}
GRPC_MOST = 99_999_999

DIGITS = re.compile("[0-9]+")
MOST_MILLISECONDS = 9_999_999_999  # about four months: ten digits, as the Connect protocol has it
MOST_ATTEMPTS = 1000


def collect_headers(headers: Any, names: Iterable[str]) -> dict[str, list[str]]:
    """The values of these headers, from a mapping or from pairs, as in ASGI and gRPC.

    One that comes more than once, or is joined with commas, has several.
    """
    found: dict[str, list[str]] = {name.lower(): [] for name in names}
    for name, value in headers.items() if hasattr(headers, "items") else headers or ():
        values = found.get(_text(name).lower())
        if values is not None:
            values += [each.strip(" \t") for each in _text(value).split(",")]
    return found


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def read_number(text: str, most: int) -> int | None:
    """A whole number, at most *most*; None: not a number."""
    if not DIGITS.fullmatch(text):
        return None
    digits = text.lstrip("0")
    return most if len(digits) > len(str(most)) else min(int(digits or "0"), most)


def read_flag(name: str, text: str) -> bool:
    """Whether the flag is set."""
    return text.lower() in ("1", "true")


def read_attempt(name: str, text: str) -> int | None:
    """The number of an attempt, from 1."""
    number = read_number(text, MOST_ATTEMPTS)
    if number is not None and name.lower() == GRPC_ATTEMPTS:
        return number + 1
    return number


def write_attempt(name: str, attempt: int) -> str | None:
    """The same as text; None: no header is sent."""
    if name.lower() == GRPC_ATTEMPTS:
        return str(attempt - 1) if attempt > 1 else None
    return str(attempt)


def read_timeout(name: str, text: str) -> float | None:
    """Seconds; None: it is no time."""
    if name.lower() == GRPC_TIMEOUT:
        match = GRPC_TIME.fullmatch(text)
        return None if match is None else int(match[1]) * GRPC_UNITS[match[2]]
    number = read_number(text, MOST_MILLISECONDS)
    return None if number is None else number / 1000


def write_timeout(name: str, seconds: float) -> str:
    """Time left as text, never more than there is: cut off after the last digit."""
    if name.lower() != GRPC_TIMEOUT:
        return str(int(min(seconds * 1000, MOST_MILLISECONDS)))
    for unit in "mSMH":
        number = seconds / GRPC_UNITS[unit]
        if number < GRPC_MOST:
            return f"{int(number)}{unit}" if number >= 1 else "1n"  # 0 is not allowed there
    return f"{GRPC_MOST}H"

"""Headers between processes: the number of the attempt, its depth and the remaining time."""

from __future__ import annotations

import math
import re
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
from retrytemplate.control.propagation.headers import (
    collect_headers,
    read_attempt,
    read_flag,
    read_number,
    read_timeout,
    write_attempt,
    write_timeout,
)
from retrytemplate.control.propagation.nesting import Nesting, current_nesting
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Incoming", "Propagation"]

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
        from retrytemplate.control.propagation.middleware import asgi

        return asgi(self.incoming, app)

    def wsgi(self, app: Callable[..., Any]) -> Callable[..., Any]:
        """A WSGI application around which ``incoming`` is open for each request."""
        from retrytemplate.control.propagation.middleware import wsgi

        return wsgi(self.incoming, self._names(), app)


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
        self._deadline: Deadline | None = None
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
        if self._deadline is not None:
            self._deadline.__enter__()
        return here

    def __exit__(self, *exc: Any) -> None:
        try:
            if self._deadline is not None:
                self._deadline.__exit__(*exc)
        finally:
            self._leave()

    async def __aenter__(self) -> Nesting:
        here = self._enter()
        if self._deadline is not None:
            try:
                await self._deadline.__aenter__()
            except BaseException:
                self._leave()
                raise
        return here

    async def __aexit__(self, *exc: Any) -> None:
        try:
            if self._deadline is not None:
                await self._deadline.__aexit__(*exc)
        finally:
            self._leave()

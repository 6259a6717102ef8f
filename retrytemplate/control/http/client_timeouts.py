"""The remaining time of a deadline as the timeouts of HTTP clients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.deadline import MINIMUM, Deadline, remaining_time
from retrytemplate._internal.validation import check_span_or_none, to_seconds

if TYPE_CHECKING:
    import aiohttp
    import httpx

    from retrytemplate._internal.validation import Seconds


def time_left(
    seconds: Seconds | None = None, *, deadline: Deadline | None = None, minimum: Seconds = MINIMUM
) -> float | None:
    """Seconds for a client that takes a number: its own limit, or the remaining time if less.

    :param seconds: the limit of the call itself; None: it has none.
    :param deadline: None: the one in force here, the nearest.
    :param minimum: with less left the call is not worth making.
    :raises DeadlineExceededError: less is left.
    :raises ValueError: for a limit that is not above 0.

    None where nothing limits it.

    >>> time_left(30.0), time_left()
    (30.0, None)
    >>> from retrytemplate.testing import VirtualClock
    >>> with Deadline(2.0, clock=VirtualClock()):
    ...     time_left(30.0), time_left(0.5)
    (2.0, 0.5)
    """
    left: float | None = _limits({"seconds": seconds}, deadline, minimum)["seconds"]
    return left


def httpx_timeout(
    *,
    connect: Seconds | None = 5.0,
    read: Seconds | None = 30.0,
    write: Seconds | None = 5.0,
    pool: Seconds | None = 10.0,
    deadline: Deadline | None = None,
    minimum: Seconds = MINIMUM,
) -> httpx.Timeout:
    """The timeouts of an httpx request.

    Each is its own limit, or the deadline's remaining time if that is shorter.

    :param connect: seconds to connect; None, as for the others: no limit of its own.
    :param read: seconds for each chunk of the response.
    :param write: seconds for each chunk of the request body.
    :param pool: seconds to get a pooled connection.
    :param deadline: as in ``time_left``.
    :param minimum: as in ``time_left``.

    >>> from retrytemplate.testing import VirtualClock
    >>> with Deadline(7.0, clock=VirtualClock()):
    ...     httpx_timeout()
    Timeout(connect=5.0, read=7.0, write=5.0, pool=7.0)
    """
    import httpx

    own = {"connect": connect, "read": read, "write": write, "pool": pool}
    return httpx.Timeout(**_limits(own, deadline, minimum))


def requests_timeout(
    *,
    connect: Seconds | None = 5.0,
    read: Seconds | None = 30.0,
    deadline: Deadline | None = None,
    minimum: Seconds = MINIMUM,
) -> tuple[float | None, float | None]:
    """The limits of a request with requests; arguments as of ``httpx_timeout``.

    >>> from retrytemplate.testing import VirtualClock
    >>> with Deadline(7.0, clock=VirtualClock()):
    ...     requests_timeout()
    (5.0, 7.0)
    """
    limits = _limits({"connect": connect, "read": read}, deadline, minimum)
    return limits["connect"], limits["read"]


def aiohttp_timeout(
    *,
    total: Seconds | None = None,
    connect: Seconds | None = 10.0,
    sock_connect: Seconds | None = 5.0,
    sock_read: Seconds | None = 30.0,
    deadline: Deadline | None = None,
    minimum: Seconds = MINIMUM,
) -> aiohttp.ClientTimeout:
    """The limits of a request with aiohttp: each its own, or the remaining time if less.

    :param total: for all of the request.
    :param connect: for a connection, out of the pool or new.
    :param sock_connect: for a new one.
    :param sock_read: for each piece of the answer.
    :param deadline: as in ``time_left``, and ``minimum`` likewise.

    >>> from retrytemplate.testing import VirtualClock
    >>> with Deadline(7.0, clock=VirtualClock()):
    ...     limits = aiohttp_timeout()
    >>> limits.total, limits.connect, limits.sock_connect, limits.sock_read
    (7.0, 7.0, 5.0, 7.0)
    """
    import aiohttp

    own = {
        "total": total,
        "connect": connect,
        "sock_connect": sock_connect,
        "sock_read": sock_read,
    }
    return aiohttp.ClientTimeout(**_limits(own, deadline, minimum))


def _limits(own: dict[str, Any], deadline: Deadline | None, minimum: Any) -> dict[str, Any]:
    """Each limit, or the remaining time if less; None: unlimited."""
    for name in own:
        own[name] = to_seconds(own[name])
        check_span_or_none(name, own[name])
    left = remaining_time(deadline, minimum)
    nearest = {name: left if each is None else min(each, left) for name, each in own.items()}
    return {name: None if math.isinf(each) else each for name, each in nearest.items()}

"""A connection of psycopg that does not wait for ever for a server that fell silent."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["bound"]


def bound(connection: Any, seconds: float) -> None:
    """Close the connection where the server takes longer than this to answer.

    A server whose process is stopped does not cancel what it is asked to, and its machine
    acknowledges all that is sent to it.
    """
    wait = connection.wait

    def bounded(generator: Any, *args: Any, **settings: Any) -> Any:
        until = monotonic() + seconds
        return wait(_until(until, generator, connection.pgconn), *args, **settings)

    connection.wait = bounded


def _until(until: float, generator: Any, pgconn: Any) -> Generator[Any, Any, Any]:
    """What psycopg asks for, and is told many times a second, ready or not."""
    from psycopg import OperationalError

    try:
        wanted = next(generator)
        while True:
            ready = yield wanted
            if not ready and monotonic() > until:
                pgconn.finish()
                raise OperationalError("the server did not answer in time")
            wanted = generator.send(ready)
    except StopIteration as stop:
        return stop.value

"""Middleware that enters the incoming headers around each request: ASGI and WSGI."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextvars import Context

__all__ = ["asgi", "wsgi"]


def asgi(incoming: Callable[..., Any], app: Callable[..., Any]) -> Callable[..., Any]:
    """The application with the headers entered around each HTTP request."""
    _check(app)

    async def within(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":  # it may run as long as the server
            await app(scope, receive, send)
            return
        # Not cancelled at the deadline: the application decides its response.
        with incoming(scope["headers"]):
            await app(scope, receive, send)

    return within


def wsgi(
    incoming: Callable[..., Any], names: Iterable[str], app: Callable[..., Any]
) -> Callable[..., Any]:
    """The application with the headers entered around it, and around its response body."""
    _check(app)
    keys = {f"HTTP_{name.upper().replace('-', '_')}": name for name in names}

    def within(environ: Any, start_response: Any) -> Any:
        # In a context of its own, which is never left: a server that never closes a body
        # would let the thread's next request find it.
        inside = copy_context()
        headers = {name: environ[key] for key, name in keys.items() if key in environ}
        inside.run(incoming(headers).__enter__)
        body = inside.run(app, environ, start_response)
        return body if isinstance(body, list | tuple) else _Body(inside, body)

    return within


def _check(app: Any) -> None:
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

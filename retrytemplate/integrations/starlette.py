"""FastAPI and Starlette: responses for errors, an inbound rate limit, deadlines of callers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.awaitables import is_awaitable
from retrytemplate._internal.imports import extra
from retrytemplate._internal.validation import check_int
from retrytemplate.control.http.status import HTTP_STATUSES, http_status, retry_after_header
from retrytemplate.control.propagation.propagation import Propagation
from retrytemplate.control.rate_limiter.rate_limiter import RateLimiter
from retrytemplate.errors import MisuseError, RateLimitedError, RateLimitStoreError, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["PropagationMiddleware", "RateLimitMiddleware", "add_exception_handlers"]

PROBLEM = "application/problem+json"
TOO_MANY_REQUESTS = 429
LEAST_STATUS, MOST_STATUS = 400, 599


def add_exception_handlers(
    app: Starlette,
    *,
    statuses: Mapping[type[Exception], int] | None = None,
    expose_names: bool = False,
) -> None:
    """Answer the errors of this library with their status and ``Retry-After``, not with 500.

    :param app: a ``FastAPI`` or ``Starlette`` application.  A mounted application has handlers of
        its own: call this for it, too.
    :param statuses: other statuses by error class, also for your classes; 400 to 599.
    :param expose_names: whether the body has the text of the error, and the name and kind of the
        component; default False: it has the status only.
    :raises ValueError: a status is out of its range.

    The body is ``application/problem+json`` (RFC 9457).  The statuses are those of ``http_status``;
    the last error of an exhausted retry stays an error of the application.

    >>> from starlette.applications import Starlette
    >>> add_exception_handlers(Starlette(), statuses={ConnectionError: 502})
    """
    table = dict(HTTP_STATUSES)
    kind: Any
    for kind, status in (statuses or {}).items():
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"statuses must map exception classes, got {kind!r}")
        check_int("statuses: each", status, LEAST_STATUS)
        if status > MOST_STATUS:
            raise ValueError(f"statuses: each must be at most {MOST_STATUS}, got {status!r}")
        table[kind] = status
    if not isinstance(expose_names, bool):
        raise TypeError(f"expose_names must be True or False, got {expose_names!r}")

    async def answer(request: Any, error: Exception) -> Any:
        if request.scope["type"] != "http":  # a websocket has no status any more
            raise error
        status, headers = http_status(error, table)
        return _problem(status, headers, error if expose_names else None)

    for kind in table:
        app.add_exception_handler(kind, answer)


class RateLimitMiddleware:
    """Limits the requests that the application gets; the others are answered with 429.

    :param app: the application; ``add_middleware`` passes it.
    :param limiter: a ``RateLimiter``; with ``max_wait`` a request waits before it is rejected.
    :param key: a function of the ``starlette.requests.Request``, asynchronous or not, that returns
        the key whose limit applies, such as the address of the client; default None: no key.
    :raises MisuseError: there is a key, and the limiter has no limit per key.

    429 says that this client sends too much.  The limit of a called service is another one: its
    ``RateLimitedError`` is answered with 503 by ``add_exception_handlers``.

    >>> from starlette.applications import Starlette
    >>> from retrytemplate.control import RateLimiter
    >>> per_client = RateLimiter("clients", permits=10, per_key=True)
    >>> app = Starlette()
    >>> app.add_middleware(
    ...     RateLimitMiddleware, limiter=per_client, key=lambda request: request.client.host
    ... )
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limiter: RateLimiter,
        key: Callable[[Request], Any] | None = None,
    ) -> None:
        if not isinstance(limiter, RateLimiter):
            raise TypeError(f"limiter must be a RateLimiter, got {limiter!r}")
        if key is not None:
            if not callable(key):
                raise TypeError(f"key must be callable, got {key!r}")
            if not limiter.per_key:
                raise MisuseError(
                    f"the rate limiter {limiter.name!r} has one limit for all keys; make it with "
                    "per_key=True, or leave the key out"
                )
        self._app = app
        self._limiter = limiter
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an HTTP request on, or answer it; other connections are passed on."""
        response = await self._rejection(scope) if scope["type"] == "http" else None
        await (response or self._app)(scope, receive, send)

    async def _rejection(self, scope: Scope) -> Any:
        """The response to a request that is not admitted."""
        try:
            await self._limiter.acquire_async(key=await self._key_of(scope))
        except RateLimitedError as error:
            return _problem(TOO_MANY_REQUESTS, retry_after_header(error.retry_after))
        except RateLimitStoreError as error:
            return _problem(*http_status(error))
        return None

    async def _key_of(self, scope: Scope) -> Any:
        if self._key is None:
            return None
        from starlette.requests import Request

        key = self._key(Request(scope))
        return await key if is_awaitable(key) else key


class PropagationMiddleware:
    """Applies the deadline and the retry headers of the caller to each request.

    :param app: the application; ``add_middleware`` passes it.
    :param propagation: a ``Propagation``; default None: one with the default settings.

    It is ``Propagation.asgi`` as a class.

    >>> from starlette.applications import Starlette
    >>> app = Starlette()
    >>> app.add_middleware(PropagationMiddleware, propagation=Propagation(max_timeout=10.0))
    """

    def __init__(self, app: ASGIApp, *, propagation: Propagation | None = None) -> None:
        if not isinstance(propagation, Propagation | None):
            raise TypeError(f"propagation must be a Propagation or None, got {propagation!r}")
        self._app = (propagation or Propagation()).asgi(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the connection on, an HTTP request within its deadline."""
        await self._app(scope, receive, send)


def _problem(status: int, headers: dict[str, str], error: Exception | None = None) -> Any:
    """A response with problem details.

    :param error: shown in the body; None: not shown.
    """
    with extra("starlette", "a response"):
        from starlette.responses import JSONResponse

    title = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
    body: dict[str, Any] = {"type": "about:blank", "title": title, "status": status}
    if error is not None:
        body["detail"] = str(error)
        if isinstance(error, Rejected):
            body |= {"component": error.component, "name": error.name}
    return JSONResponse(body, status, headers, PROBLEM)

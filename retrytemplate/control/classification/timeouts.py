"""What clients raise when their own time limits are over, and which limit it was."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from retrytemplate.classify.exceptions import ExceptionClassifier, safe_getattr
from retrytemplate.errors import AttemptTimeoutError, DeadlineExceededError, RetryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Kinds = dict[type[BaseException], str | None]

__all__ = ["DATABASE_STATEMENT", "LOCK", "timeout_kind", "timeouts_of"]

CONNECT, READ, WRITE = "partner connect", "partner read", "partner write"
POOL, TOTAL = "partner pool", "partner total"
DATABASE_STATEMENT, LOCK = "database statement", "lock acquire"
DATABASE_POOL, DATABASE_CONNECT = "database pool", "database connect"
ATTEMPT, DEADLINE = "attempt", "deadline"

FIRST = "first item"
"""The kind of the time limit of a stream's first item."""


def timeouts_of(*libraries: str) -> ExceptionClassifier:
    """A classifier of the timeouts that client libraries raise: which limit it was, else None.

    They are named one by one: not all of them are a ``TimeoutError``.

    :param libraries: ``"httpx"``, ``"httpx2"``, ``"requests"``, ``"urllib3"``, ``"aiohttp"``,
        ``"sqlalchemy"``, ``"psycopg"``, ``"redis"``.
    :raises ValueError: for another one.
    :raises ImportError: for one that is not installed.

    For a policy, and to ask what it was.  Errors of this library are none of theirs, whatever
    caused them.

    >>> import httpx
    >>> timeouts = timeouts_of("httpx")
    >>> timeouts.classify(httpx.ReadTimeout("slow")), timeouts.classify(TimeoutError())
    ('partner read', None)
    >>> from retrytemplate import RetryTemplate, SimpleRetryPolicy
    >>> template = RetryTemplate(SimpleRetryPolicy(3, classifier=timeouts))
    """
    unknown = sorted(map(str, set(libraries) - KINDS.keys()))
    if unknown or not libraries:
        raise ValueError(
            f"libraries must be among {', '.join(KINDS)}, got {', '.join(unknown) or 'none'}"
        )
    return _of([KINDS[each]() for each in libraries], traverse_causes=True)


def timeout_kind(exc: BaseException) -> str | None:
    """Which limit was over: this library's, a client's, or just a ``TimeoutError``; else None.

    >>> timeout_kind(DeadlineExceededError(kind="request"))
    'request'
    >>> timeout_kind(AttemptTimeoutError()), timeout_kind(TimeoutError()), timeout_kind(OSError())
    ('attempt', 'partner total', None)
    """
    if isinstance(exc, DeadlineExceededError):
        return exc.kind or DEADLINE
    if isinstance(exc, AttemptTimeoutError):
        return ATTEMPT
    rules = _of([{TimeoutError: TOTAL}, *_loaded()])
    kind: str | None = rules.classify(exc)
    # SQLAlchemy wraps what the driver raised.
    return kind or rules.classify(safe_getattr(exc, "orig"))


def _loaded() -> Iterator[Kinds]:
    for library, kinds in KINDS.items():
        if sys.modules.get(library):
            # It may be half loaded by another thread, or a module of somebody else's.
            with suppress(ImportError, AttributeError):
                yield kinds()


def _of(many: list[Kinds], *, traverse_causes: bool = False) -> ExceptionClassifier:
    rules: Kinds = {RetryError: None}
    for kinds in many:
        rules |= kinds
    return ExceptionClassifier(rules, default=None, traverse_causes=traverse_causes)


def _httpx() -> Kinds:
    import httpx

    return _of_httpx(httpx)


def _httpx2() -> Kinds:
    import httpx2

    return _of_httpx(httpx2)


def _of_httpx(module: Any) -> Kinds:
    return {
        module.TimeoutException: TOTAL,
        module.ConnectTimeout: CONNECT,
        module.ReadTimeout: READ,
        module.WriteTimeout: WRITE,
        module.PoolTimeout: POOL,
    }


def _requests() -> Kinds:
    import requests

    return {
        requests.Timeout: TOTAL,
        requests.ConnectTimeout: CONNECT,
        requests.ReadTimeout: READ,
    }


def _urllib3() -> Kinds:
    from urllib3 import exceptions

    return {
        exceptions.TimeoutError: TOTAL,
        exceptions.ConnectTimeoutError: CONNECT,
        exceptions.ReadTimeoutError: READ,
    }


def _aiohttp() -> Kinds:
    import aiohttp

    named: Any = vars(aiohttp)  # the two below are not there before 3.10
    kinds: Kinds = {aiohttp.ServerTimeoutError: TOTAL}
    for name, kind in (("ConnectionTimeoutError", CONNECT), ("SocketTimeoutError", READ)):
        if name in named:
            kinds[named[name]] = kind
    return kinds


def _sqlalchemy() -> Kinds:
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError

    return {PoolTimeoutError: DATABASE_POOL}


def _psycopg() -> Kinds:
    from psycopg import errors

    return {
        errors.ConnectionTimeout: DATABASE_CONNECT,
        errors.QueryCanceled: DATABASE_STATEMENT,
        errors.LockNotAvailable: LOCK,
    }


def _redis() -> Kinds:
    from redis.exceptions import TimeoutError as RedisTimeoutError

    return {RedisTimeoutError: READ}


KINDS: dict[str, Callable[[], Kinds]] = {
    "httpx": _httpx,
    "httpx2": _httpx2,
    "requests": _requests,
    "urllib3": _urllib3,
    "aiohttp": _aiohttp,
    "sqlalchemy": _sqlalchemy,
    "psycopg": _psycopg,
    "redis": _redis,
}

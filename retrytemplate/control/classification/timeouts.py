"""Timeout errors of clients, and the kinds of their limits."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from retrytemplate.classify.exceptions import ExceptionClassifier, safe_getattr
from retrytemplate.errors import AttemptTimeoutError, DeadlineExceededError, RetryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    Kinds = dict[type[BaseException], str | None]

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

    For a policy, or to look the kind up.  Errors of this library are none of theirs, whatever
    caused them.

    >>> import httpx
    >>> timeouts = timeouts_of("httpx")
    >>> timeouts.classify(httpx.ReadTimeout("slow")), timeouts.classify(TimeoutError())
    ('partner read', None)
    >>> from retrytemplate import RetryTemplate, SimpleRetryPolicy
    >>> template = RetryTemplate(SimpleRetryPolicy(3, classifier=timeouts))
    """
    unknown = sorted(map(str, set(libraries) - TIMEOUTS.keys()))
    if unknown or not libraries:
        raise ValueError(
            f"libraries must be among {', '.join(TIMEOUTS)}, got {', '.join(unknown) or 'none'}"
        )
    return _of([_kinds(each) for each in libraries], traverse_causes=True)


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
    for library in TIMEOUTS:
        if sys.modules.get(library):
            with suppress(ImportError):  # another thread may be loading it
                yield _kinds(library)


def _of(many: list[Kinds], *, traverse_causes: bool = False) -> ExceptionClassifier:
    rules: Kinds = {RetryError: None}
    for kinds in many:
        rules |= kinds
    return ExceptionClassifier(rules, default=None, traverse_causes=traverse_causes)


def _kinds(library: str) -> Kinds:
    """The timeouts of a library, which is imported."""
    module = import_module(MODULES.get(library, library))
    names = TIMEOUTS[library].items()
    return {getattr(module, name): kind for name, kind in names if hasattr(module, name)}


HTTPX = {
    "TimeoutException": TOTAL,
    "ConnectTimeout": CONNECT,
    "ReadTimeout": READ,
    "WriteTimeout": WRITE,
    "PoolTimeout": POOL,
}
TIMEOUTS: dict[str, dict[str, str]] = {
    "httpx": HTTPX,
    "httpx2": HTTPX,
    "requests": {"Timeout": TOTAL, "ConnectTimeout": CONNECT, "ReadTimeout": READ},
    "urllib3": {"TimeoutError": TOTAL, "ConnectTimeoutError": CONNECT, "ReadTimeoutError": READ},
    "aiohttp": {  # the last two exist since version 3.10
        "ServerTimeoutError": TOTAL,
        "ConnectionTimeoutError": CONNECT,
        "SocketTimeoutError": READ,
    },
    "sqlalchemy": {"TimeoutError": DATABASE_POOL},
    "psycopg": {
        "ConnectionTimeout": DATABASE_CONNECT,
        "QueryCanceled": DATABASE_STATEMENT,
        "LockNotAvailable": LOCK,
    },
    "redis": {"TimeoutError": READ},
}
MODULES = {
    "urllib3": "urllib3.exceptions",
    "sqlalchemy": "sqlalchemy.exc",
    "psycopg": "psycopg.errors",
    "redis": "redis.exceptions",
}

"""Stores and journals that a command opens."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

from retrytemplate.cli.errors import CommandFailed, UsageError
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from retrytemplate.backends.inspection import ContextInspector
    from retrytemplate.batch import JobRepository

__all__ = [
    "REDIS",
    "SQL",
    "STORE_VARIABLE",
    "journal_options",
    "mask_error",
    "mask_passwords",
    "open_entries",
    "open_journal",
    "option_error",
    "options",
    "parse_store_url",
    "store_url",
]


STORE_VARIABLE = "RETRYTEMPLATE_STORE"
SCHEME = re.compile(r"([a-z0-9]+)(\+[a-z0-9_]+)?://", re.IGNORECASE)
SQL, REDIS = "sql", "redis"
SQL_SCHEMES = ("sqlite", "postgresql")
REDIS_SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
ALLOWED = "of SQLite, PostgreSQL, Redis or Valkey, such as sqlite:///retry.db"

ASYNC_DRIVERS = ("+aiosqlite", "+asyncpg", "+psycopg_async")

MASK = "***"
# Between user and host (a message may have cut the host off), or in the query.
PASSWORD = re.compile(
    r"(://[^\s/?#:@]*:)(\S+(?=@)|(?!\d+\b)[^\s'\"/?#]+)|([?&][^=&\s]*pass[^=&\s]*=)([^&\s'\"]+)"
)


def options(prefix: str = "retry", of: str = "its cache") -> ArgumentParser:
    """The options that name a store, for the parsers of verbs.

    :param prefix: the default prefix.
    :param of: the object that has this prefix.
    """
    parser = ArgumentParser(add_help=False)
    add = parser.add_argument_group("the store").add_argument
    add("--store", metavar="URL", help=f"its URL (default: the environment's {STORE_VARIABLE})")
    add(
        "--store-prefix",
        default=prefix,
        metavar="NAME",
        help=f"the prefix that {of} was made with (default: %(default)s)",
    )
    return parser


@contextmanager
def open_entries(args: Namespace) -> Iterator[ContextInspector]:
    """The store that the arguments name; nothing is created in it.

    :raises UsageError: the URL is missing or not valid.
    :raises CommandFailed: the store cannot be reached, or its tables are missing.
    """
    url = store_url(args)
    try:
        entries = _entries(url, args.store_prefix)
        try:
            yield entries
        finally:
            entries.close()
    except CacheUnavailableError as error:
        raise CommandFailed(mask_error(error, url)) from None


def store_url(args: Namespace, allowed: str = ALLOWED) -> str:
    """The URL of the arguments or of the environment."""
    url: str | None = args.store or os.environ.get(STORE_VARIABLE)
    if not url:
        raise UsageError(f"--store: a URL is needed, here or as {STORE_VARIABLE}: one {allowed}")
    return url


def _entries(url: str, prefix: str) -> ContextInspector:
    family, driven = parse_store_url(url)
    kind: Callable[[str, str], ContextInspector]
    if family == SQL:
        from retrytemplate.backends.sql.inspection import SQLEntries as kind
    else:
        from retrytemplate.backends.redis.inspection import RedisEntries as kind
    try:
        return kind(driven, prefix)
    except (TypeError, ValueError) as error:
        raise option_error(error, url) from None


def parse_store_url(url: str) -> tuple[str, str]:
    """The family of a URL, ``SQL`` or ``REDIS``, and the URL of its synchronous driver.

    :raises UsageError: the URL belongs to neither.

    >>> parse_store_url("valkey://localhost/0"), parse_store_url("sqlite+aiosqlite:///retry.db")
    (('redis', 'valkey://localhost/0'), ('sql', 'sqlite:///retry.db'))
    """
    found = SCHEME.match(url)
    if found is None:
        raise UsageError(f"--store: this is no URL; one {ALLOWED}")
    scheme = found[1].lower()
    if scheme in SQL_SCHEMES:
        # The URL may name the driver of an asynchronous service; the command is synchronous.
        return SQL, url.replace(found[2], "", 1) if found[2] in ASYNC_DRIVERS else url
    if scheme in REDIS_SCHEMES:
        return REDIS, scheme + url[len(scheme) :]
    raise UsageError(f"--store: a URL {ALLOWED}, got one of {found[1]!r}")


def option_error(error: Exception, url: str) -> UsageError:
    """The error of an invalid URL or prefix, with the name of its option."""
    option = "--store-prefix" if str(error).startswith("prefix") else "--store"
    return UsageError(f"{option}: {mask_error(error, url)}")


def mask_passwords(text: str) -> str:
    """The text with the passwords of its URLs masked.

    >>> mask_passwords("no answer from redis://me:secret@host/0?password=secret")
    'no answer from redis://me:***@host/0?password=***'
    """
    return PASSWORD.sub(lambda found: f"{found[1] or found[3]}{MASK}", text)


def mask_error(error: Exception, url: str) -> str:
    """The text of an error with all passwords of the URL masked."""
    text = str(error)
    for found in PASSWORD.finditer(url):
        secret = found[2] or found[4]
        for form in filter(None, (secret, unquote(secret or ""))):
            text = text.replace(form, MASK)
    return mask_passwords(text)


JOURNAL_URLS = "of SQLite or PostgreSQL, such as sqlite:///jobs.db"


def journal_options() -> ArgumentParser:
    """The options that name a job repository, for the parsers of verbs."""
    return options("batch", "its job repository")


@contextmanager
def open_journal(args: Namespace) -> Iterator[JobRepository]:
    """The repository that the arguments name; nothing is created in it.

    :raises UsageError: the URL is missing or not valid.
    :raises CommandFailed: the database cannot be reached, or its tables are missing.
    """
    from retrytemplate.batch import JobRepository, JobRepositoryError

    url = store_url(args, JOURNAL_URLS)
    try:
        repository = JobRepository(url, prefix=args.store_prefix)
    except (TypeError, ValueError) as error:
        raise option_error(error, url) from None
    try:
        yield repository
    except JobRepositoryError as error:
        raise CommandFailed(mask_error(error, url)) from None
    finally:
        repository.close()

"""Stores and journals that a command opens."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

from retrytemplate.cli.errors import UsageError, WorkError
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from retrytemplate.backends.inspection import Entries
    from retrytemplate.batch import JobRepository

__all__ = [
    "NAMED",
    "REDIS",
    "SQL",
    "hidden",
    "journal_options",
    "located",
    "open_journal",
    "opened",
    "options",
    "refused",
    "url_of",
    "without_secrets",
]


NAMED = "RETRYTEMPLATE_STORE"
SCHEME = re.compile(r"([a-z0-9]+)(\+[a-z0-9_]+)?://", re.IGNORECASE)
SQL, REDIS = "sql", "redis"
ON_SQL = ("sqlite", "postgresql")
ON_REDIS = ("redis", "rediss", "unix", "valkey", "valkeys")
ALLOWED = "of SQLite, PostgreSQL, Redis or Valkey, such as sqlite:///retry.db"

ASYNCHRONOUS = ("+aiosqlite", "+asyncpg", "+psycopg_async")

STARS = "***"
# Between the name and the host, the host missing where a message cut the URL; or in the query.
PASSWORD = re.compile(
    r"(://[^\s/?#:@]*:)(\S+(?=@)|(?!\d+\b)[^\s'\"/?#]+)|([?&][^=&\s]*pass[^=&\s]*=)([^&\s'\"]+)"
)


def options(prefix: str = "retry", of: str = "its cache") -> ArgumentParser:
    """The options that say which store, for the parsers of verbs.

    :param prefix: the usual one.
    :param of: what was made with it.
    """
    parser = ArgumentParser(add_help=False)
    add = parser.add_argument_group("the store").add_argument
    add("--store", metavar="URL", help=f"its URL (default: the environment's {NAMED})")
    add(
        "--store-prefix",
        default=prefix,
        metavar="NAME",
        help=f"the prefix that {of} was made with (default: %(default)s)",
    )
    return parser


@contextmanager
def opened(args: Namespace) -> Iterator[Entries]:
    """The store that the arguments name; nothing is made in it.

    :raises UsageError: there is no URL, or none that can serve.
    :raises WorkError: the store cannot be reached, or has nothing there.
    """
    url = url_of(args)
    try:
        entries = _entries(url, args.store_prefix)
        try:
            yield entries
        finally:
            entries.close()
    except CacheUnavailableError as error:
        raise WorkError(without_secrets(error, url)) from None


def url_of(args: Namespace, allowed: str = ALLOWED) -> str:
    """The URL that the arguments or the environment give."""
    url: str | None = args.store or os.environ.get(NAMED)
    if not url:
        raise UsageError(f"--store: a URL is needed, here or as {NAMED}: one {allowed}")
    return url


def _entries(url: str, prefix: str) -> Entries:
    family, driven = located(url)
    kind: Callable[[str, str], Entries]
    if family == SQL:
        from retrytemplate.backends.sql.inspection import SQLEntries as kind
    else:
        from retrytemplate.backends.redis.inspection import RedisEntries as kind
    try:
        return kind(driven, prefix)
    except (TypeError, ValueError) as error:
        raise refused(error, url) from None


def located(url: str) -> tuple[str, str]:
    """What a URL leads to, ``SQL`` or ``REDIS``, and the URL for a driver that blocks.

    :raises UsageError: it leads to neither.

    >>> located("valkey://localhost/0"), located("sqlite+aiosqlite:///retry.db")
    (('redis', 'valkey://localhost/0'), ('sql', 'sqlite:///retry.db'))
    """
    found = SCHEME.match(url)
    if found is None:
        raise UsageError(f"--store: this is no URL; one {ALLOWED}")
    scheme = found[1].lower()
    if scheme in ON_SQL:
        # Of the service; the command waits by itself.
        return SQL, url.replace(found[2], "", 1) if found[2] in ASYNCHRONOUS else url
    if scheme in ON_REDIS:
        return REDIS, scheme + url[len(scheme) :]
    raise UsageError(f"--store: a URL {ALLOWED}, got one of {found[1]!r}")


def refused(error: Exception, url: str) -> UsageError:
    """The error of a URL or a prefix that cannot serve, by the option that gave it."""
    option = "--store-prefix" if str(error).startswith("prefix") else "--store"
    return UsageError(f"{option}: {without_secrets(error, url)}")


def hidden(text: str) -> str:
    """The text without the passwords of URLs in it.

    >>> hidden("no answer from redis://me:secret@host/0?password=secret")
    'no answer from redis://me:***@host/0?password=***'
    """
    return PASSWORD.sub(lambda found: f"{found[1] or found[3]}{STARS}", text)


def without_secrets(error: Exception, url: str) -> str:
    """What an error says, the passwords of the URL taken out wherever they stand."""
    text = str(error)
    for found in PASSWORD.finditer(url):
        secret = found[2] or found[4]
        for form in filter(None, (secret, unquote(secret or ""))):
            text = text.replace(form, STARS)
    return hidden(text)


JOURNAL_URLS = "of SQLite or PostgreSQL, such as sqlite:///jobs.db"


def journal_options() -> ArgumentParser:
    """The options that say which repository, for the parsers of verbs."""
    return options("batch", "its job repository")


@contextmanager
def open_journal(args: Namespace) -> Iterator[JobRepository]:
    """The repository that the arguments name; nothing is made in it.

    :raises UsageError: there is no URL, or none that can serve.
    :raises WorkError: the database cannot be reached, or has nothing there.
    """
    from retrytemplate.batch import JobRepository, JobRepositoryError

    url = url_of(args, JOURNAL_URLS)
    try:
        repository = JobRepository(url, prefix=args.store_prefix)
    except (TypeError, ValueError) as error:
        raise refused(error, url) from None
    try:
        yield repository
    except JobRepositoryError as error:
        raise WorkError(without_secrets(error, url)) from None
    finally:
        repository.close()

"""Stores and journals that a command opens."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from retrytemplate.cli.errors import CommandFailed, UsageError
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractContextManager

    from retrytemplate.backends.inspection import ContextInspector
    from retrytemplate.batch import JobRepository, Runs, RunStatus
    from retrytemplate.observe.sinks.pages import EventReader
    from retrytemplate.workers import JobQueue

STORE_VARIABLE = "RETRYTEMPLATE_STORE"
SCHEME = re.compile(r"([a-z0-9]+)(\+[a-z0-9_]+)?://", re.IGNORECASE)
SQL, REDIS = "sql", "redis"
SQL_SCHEMES = ("sqlite", "postgresql")
REDIS_SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
ALLOWED = "of SQLite, PostgreSQL, Redis or Valkey, such as sqlite:///retry.db"

REDIS_URLS = "of Redis or Valkey, such as redis://host/0"
ASYNC_DRIVERS = ("+aiosqlite", "+asyncpg", "+psycopg_async")

MASK = "***"
# Between user and host (a message may have cut the host off), or in the query.
PASSWORD = re.compile(
    r"(://[^\s/?#:@]*:)(\S+(?=@)|(?!\d+\b)[^\s'\"/?#]+)|([?&][^=&\s]*pass[^=&\s]*=)([^&\s'\"]+)"
)


def options(prefix: str | tuple[str, ...] = "retry", of: str = "its cache") -> ArgumentParser:
    """The options that name a store, for the parsers of verbs.

    :param prefix: the default prefix; of several ones, None is the option's default.
    :param of: the object that has this prefix.
    """
    shown = prefix if isinstance(prefix, str) else " and ".join(prefix)
    parser = ArgumentParser(add_help=False)
    add = parser.add_argument_group("the store").add_argument
    add("--store", metavar="URL", help=f"its URL (default: the environment's {STORE_VARIABLE})")
    add(
        "--store-prefix",
        default=prefix if isinstance(prefix, str) else None,
        metavar="NAME",
        help=f"the prefix that {of} was made with (default: {shown})",
    )
    return parser


C = TypeVar("C", bound=Any)


@contextmanager
def opened(url: str, make: Callable[[], C], *errors: type[Exception]) -> Iterator[C]:
    """The object that *make* returns, closed at the end.

    :raises UsageError: it rejects the URL or the prefix.
    :raises CommandFailed: one of *errors*, without the passwords of the URL.
    """
    try:
        try:
            made = make()
        except (TypeError, ValueError) as error:
            raise option_error(error, url) from None
        with closing(made):
            yield made
    except errors as error:
        raise CommandFailed(mask_error(error, url)) from None


def open_entries(
    args: Namespace, prefix: str | None = None
) -> AbstractContextManager[ContextInspector]:
    """The store that the arguments name; nothing is created in it.

    :param prefix: None: that of the arguments.
    :raises UsageError: the URL is missing or not valid.
    :raises CommandFailed: the store cannot be reached, or its tables are missing.
    """
    url = store_url(args)
    family, driven = parse_store_url(url)
    kind: Callable[[str, str], ContextInspector]
    if family == SQL:
        from retrytemplate.backends.sql.inspection import SQLEntries as kind
    else:
        from retrytemplate.backends.redis.inspection import RedisEntries as kind
    return opened(url, partial(kind, driven, prefix or args.store_prefix), CacheUnavailableError)


def open_redis(
    args: Namespace, kind: Callable[..., C], content: str, error: type[Exception]
) -> AbstractContextManager[C]:
    """The store in Redis or Valkey that the arguments name, of the *content* that its error names.

    :raises UsageError: the URL is missing or not valid.
    :raises CommandFailed: the store cannot be reached.
    """
    url = store_url(args, REDIS_URLS)
    family, driven = parse_store_url(url)
    if family != REDIS:
        raise UsageError(f"--store must be a URL {REDIS_URLS}; other stores have no {content}")
    return opened(url, partial(kind, driven, prefix=args.store_prefix), error)


def store_url(args: Namespace, allowed: str = ALLOWED) -> str:
    """The URL of the arguments or of the environment."""
    url: str | None = args.store or os.environ.get(STORE_VARIABLE)
    if not url:
        raise UsageError(f"pass --store or set {STORE_VARIABLE}: a URL {allowed}")
    return url


def parse_store_url(url: str) -> tuple[str, str]:
    """The family of a URL, ``SQL`` or ``REDIS``, and the URL of its synchronous driver.

    :raises UsageError: the URL belongs to neither.

    >>> parse_store_url("valkey://localhost/0"), parse_store_url("sqlite+aiosqlite:///retry.db")
    (('redis', 'valkey://localhost/0'), ('sql', 'sqlite:///retry.db'))
    """
    found = SCHEME.match(url)
    if found is None:
        raise UsageError(f"--store must be a URL {ALLOWED}")
    scheme = found[1].lower()
    if scheme in SQL_SCHEMES:
        # The URL may name the driver of an asynchronous service; the command is synchronous.
        return SQL, url.replace(found[2], "", 1) if found[2] in ASYNC_DRIVERS else url
    if scheme in REDIS_SCHEMES:
        return REDIS, scheme + url[len(scheme) :]
    raise UsageError(f"--store must be a URL {ALLOWED}, got scheme {found[1]!r}")


def option_error(error: Exception, url: str) -> UsageError:
    """The error of an invalid URL or prefix, with the name of its option."""
    name, _, rest = mask_error(error, url).partition(" ")
    option = {"url": "--store", "prefix": "--store-prefix"}.get(name)
    return UsageError(f"{option} {rest}" if option else f"--store: {name} {rest}")


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


def open_journal(args: Namespace) -> AbstractContextManager[JobRepository]:
    """The repository that the arguments name; nothing is created in it.

    :raises UsageError: the URL is missing or not valid.
    :raises CommandFailed: the database cannot be reached, or its tables are missing.
    """
    from retrytemplate.batch import JobRepository, JobRepositoryError

    url = store_url(args, JOURNAL_URLS)
    return opened(url, partial(JobRepository, url, prefix=args.store_prefix), JobRepositoryError)


@contextmanager
def open_events(args: Namespace) -> Iterator[EventReader]:
    """The file or the table of events that the arguments name; nothing is created.

    :raises UsageError: the URL is missing or not valid.
    :raises CommandFailed: the file or the table is missing, or cannot be read.
    """
    from retrytemplate.observe import EventStoreError, JsonLinesSink, SQLEventSink

    if args.file is not None:
        if args.store is not None:
            raise UsageError("pass either --store or --file")
        try:
            with open(args.file, "rb"):
                yield JsonLinesSink(args.file)
        except OSError as error:
            raise CommandFailed(f"cannot read {args.file}: {error.strerror}") from None
        return
    url = store_url(args, JOURNAL_URLS)
    with opened(url, partial(SQLEventSink, url, args.store_prefix), EventStoreError) as sink:
        if not sink.exists():
            raise CommandFailed(f"the database has no table {sink.prefix}_event")
        yield sink


def check_run_filter(args: Namespace, repository: JobRepository) -> None:
    """Check that the run of the option ``--run`` exists, if it is given.

    :raises CommandFailed: the repository has no such run.
    """
    from retrytemplate.batch import Runs

    run_id = getattr(args, "of_run", None)
    if run_id is not None:
        find_run(Runs(repository), run_id)


def find_run(runs: Runs, run_id: int) -> RunStatus:
    """The run of this number.

    :raises CommandFailed: the repository has no such run.
    """
    found = runs.find(run_id)
    if found is None:
        raise CommandFailed(f"there is no run {run_id}")
    return found


def queue_options() -> ArgumentParser:
    """The options that name a job queue, for the parsers of verbs."""
    parser = options("queue", "its job queue")
    parser.add_argument(
        "--queue", default="jobs", metavar="NAME", help="its name (default: %(default)s)"
    )
    return parser


@asynccontextmanager
async def open_queue(args: Namespace) -> AsyncIterator[JobQueue]:
    """The job queue that the arguments name; no table is created.

    :raises UsageError: the URL is missing or not valid.
    :raises CommandFailed: the database cannot be reached, or its tables are missing.
    """
    from retrytemplate._storage.sql_engine import missing_file
    from retrytemplate.workers import JobQueue, JobQueueError

    url = store_url(args, JOURNAL_URLS)
    try:
        jobs = JobQueue(url, args.queue, args.store_prefix)
    except (TypeError, ValueError) as error:
        raise option_error(error, url) from None
    missing = missing_file(jobs.database.engine.url)
    if missing:
        raise CommandFailed(f"there is no file {missing}")
    try:
        if not await jobs.perform("open", jobs.tables.found()):
            raise CommandFailed(f"the database has no tables {jobs.prefix}_*")
        yield jobs
    except JobQueueError as error:
        raise CommandFailed(mask_error(error, url)) from None
    finally:
        await jobs.close()

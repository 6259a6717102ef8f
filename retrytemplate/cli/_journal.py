"""The job repository that a verb works on: ``--store URL``, or what the environment names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from retrytemplate.cli import _stores
from retrytemplate.cli.usage import WorkError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from retrytemplate.batch import JobRepository

__all__ = ["journal_options", "open_journal"]

JOURNAL_URLS = "of SQLite or PostgreSQL, such as sqlite:///jobs.db"


def journal_options() -> ArgumentParser:
    """The options that say which repository, for the parsers of verbs."""
    return _stores.options("batch", "its job repository")


@contextmanager
def open_journal(args: Namespace) -> Iterator[JobRepository]:
    """The repository that the arguments name; nothing is made in it.

    :raises UsageError: there is no URL, or none that can serve.
    :raises WorkError: the database cannot be reached, or has nothing there.
    """
    from retrytemplate.batch import JobRepository, JobRepositoryError

    url = _stores.url_of(args, JOURNAL_URLS)
    try:
        repository = JobRepository(url, prefix=args.store_prefix)
    except (TypeError, ValueError) as error:
        raise _stores.refused(error, url) from None
    try:
        yield repository
    except JobRepositoryError as error:
        raise WorkError(_stores.without_secrets(error, url)) from None
    finally:
        repository.close()

"""Packages that an extra brings: the error that names it where they are missing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from retrytemplate.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["extra"]


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Around imports that an extra brings: a missing package becomes an error that names it.

    >>> with extra("cli", "the table"):
    ...     import absent
    Traceback (most recent call last):
        ...
    retrytemplate.errors.MissingExtraError: the table needs absent: pip install 'retrytemplate[cli]'
    """
    try:
        yield
    except ImportError as error:
        missing = error.name or str(error)
        raise MissingExtraError(
            f"{purpose} needs {missing}: pip install 'retrytemplate[{name}]'", name=error.name
        ) from error

"""Owners of data in a store, named in messages."""

from __future__ import annotations

from attrs import frozen


@frozen
class StoreRole:
    """A component that keeps its data in a store, and advice for its error messages.

    :param name: follows "a" and "the".
    :param in_memory: what to use instead of a SQLite database in memory.
    :param locked: what to do if a transaction of the caller holds a file of SQLite.
    :param extra: the extra of this library that installs SQLAlchemy.
    """

    name: str
    in_memory: str = ""
    locked: str = ""
    extra: str = "sql"


CONTEXT_CACHE = StoreRole(
    "context cache",
    "for contexts that live as long as the process use MemoryRetryContextCache",
    "where it is the one around execute(), give the cache a file of its own",
)

"""Who keeps something in a store, in the words of messages."""

from __future__ import annotations

from attrs import frozen

__all__ = ["CONTEXT_CACHE", "StoreRole"]


@frozen
class StoreRole:
    """What has a store behind it, and what it advises where a database cannot serve.

    :param name: follows "a" and "the".
    :param in_memory: what to use in the place of a database in memory.
    :param extra: of this library, which brings SQLAlchemy.
    :param locked: what to do where a file of SQLite is held by a transaction of the caller's.
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

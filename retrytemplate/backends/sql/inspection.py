"""Entries of a cache on SQL, read without a claim; no table is created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from retrytemplate._storage.column_keys import from_column_key, to_column_key
from retrytemplate._storage.sql_engine import missing_file
from retrytemplate.backends.inspection import ContextInspector, Entry, entry
from retrytemplate.backends.sql import statements as sql
from retrytemplate.backends.sql.cache import SQLRetryContextCache
from retrytemplate.backends.sql.operations import Steps
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from retrytemplate._storage.operation_runner import Operation

    T = TypeVar("T")

# Each key that begins with a text sorts before that text followed by these.
BEHIND_ALL = "\U0010ffff" * 250
COLUMNS = "key, record, phase, fence, worker, lease_until, updated, expires, ${now}"
PAGE = f"""
SELECT {COLUMNS} FROM ${{prefix}}_contexts AS c
WHERE key > :after AND key >= :first AND key <= :last AND NOT {sql.OVER}
ORDER BY key LIMIT :limit"""
ONE = f"SELECT {COLUMNS} FROM ${{prefix}}_contexts AS c WHERE key = :key AND NOT {sql.OVER}"


class _LookingSteps(Steps):
    """Operations on existing tables."""

    def listing(self, prefix: str, after: str, limit: int) -> Operation[list[Entry]]:
        yield from self.prepare()
        first = to_column_key(prefix)
        bounds = {"after": to_column_key(after), "first": first, "last": first + BEHIND_ALL}
        rows = yield self._order(PAGE, **bounds, limit=limit, ttl=self.ttl)
        return [_entry(*row) for row in rows]

    def search(self, key: str) -> Operation[Entry | None]:
        yield from self.prepare()
        rows = yield self._order(ONE, key=to_column_key(key), ttl=self.ttl)
        return _entry(*rows[0]) if rows else None

    def exists(self) -> Operation[bool]:
        return self._tables.found()

    def prepare(self) -> Operation[None]:
        if not (yield from self.exists()):
            raise CacheUnavailableError(f"the database has no tables {self.prefix}_*")


class SQLEntries(ContextInspector):
    """The entries in the tables of a context cache on SQL.

    :param url: of the database, as ``SQLRetryContextCache`` takes it.
    :param prefix: of the tables' names.
    """

    def __init__(self, url: str, prefix: str = "retry") -> None:
        cache = SQLRetryContextCache(url, prefix=prefix)
        engine = cache._store.engine
        self._url = engine.url
        self._steps_on_tables = _LookingSteps(engine.dialect.name, prefix, cache.lease, None)
        super().__init__(cache, self._steps_on_tables)

    def exists(self) -> bool:
        return self._perform(self._steps_on_tables.exists())

    def _perform(self, step: Operation[T]) -> T:
        missing = missing_file(self._url)
        if missing:
            raise CacheUnavailableError(f"there is no file {missing}")
        return super()._perform(step)


def _entry(key: str, text: str | None, *columns: Any) -> Entry:
    names = ("phase", "fence", "worker", "lease_until", "updated", "expires", "now")
    return entry(from_column_key(key), text, **dict(zip(names, columns, strict=True)))

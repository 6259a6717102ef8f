"""The tables of one prefix: created on first use, rejected if their version is later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._storage.operation_runner import Operation, retry_once_if_answer_lost
from retrytemplate._storage.sql_dialect import FOUND, TABLE, WRITE_AHEAD, in_dialect
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import TextClause

    Order = tuple[TextClause, dict[str, Any]]
    Rows = Sequence[Sequence[Any]]

CREATIONS = 20


class LockedError(CacheUnavailableError):
    """Raised by a cache: another transaction holds the row or the file for too long."""


@frozen
class Schema:
    """Version of the tables of one owner, and the statements that create them.

    :param name: of the row that holds the version.
    :param creating: the statements for a dialect; the last one writes the version.
    """

    name: str
    version: int
    creating: Callable[[str], list[str]]


class Tables:
    """The tables of one prefix, and orders on them.

    :param dialect: as SQLAlchemy names it.
    """

    def __init__(self, dialect: str, prefix: str, schema: Schema) -> None:
        self._dialect = dialect
        self._prefix = prefix
        self._schema = schema
        self._ready = False
        self._made: dict[str, TextClause] = {}

    def order(self, statement: str, **parameters: Any) -> Order:
        """A statement on these tables in the dialect, with its parameters."""
        made = self._made.get(statement)
        if made is None:
            from sqlalchemy import text

            made = text(in_dialect(statement, self._dialect, self._prefix))
            self._made[statement] = made
        return made, parameters

    def prepare(self) -> Operation[None]:
        """Create the tables if they are missing."""
        creations = 0
        while not self._ready:
            self._ready = yield from self.found()
            if self._ready:
                return
            creations += 1
            statement = ""
            try:
                for statement in self._schema.creating(self._dialect):
                    yield self.order(statement)
            except CacheUnavailableError as exc:  # concurrent creations may conflict
                waited = isinstance(exc, LockedError) and statement != WRITE_AHEAD
                if waited or creations == CREATIONS:
                    raise

    def found(self) -> Operation[bool]:
        """Whether all tables exist.

        :raises CacheUnavailableError: their version is later than this library knows.
        """
        if not (
            yield from retry_once_if_answer_lost(self.order(TABLE, table=f"{self._prefix}_meta"))
        ):
            return False
        rows = yield from retry_once_if_answer_lost(self.order(FOUND, name=self._schema.name))
        if rows and rows[0][0] > self._schema.version:
            raise CacheUnavailableError(
                f"the tables {self._prefix}_* have version {rows[0][0]}, "
                f"this version of the library knows up to {self._schema.version}"
            )
        return bool(rows)

"""The tables of one prefix: made on first use, refused where they are of a later version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._storage.operation_runner import retry_once_if_answer_lost
from retrytemplate._storage.sql_dialect import FOUND, TABLE, WRITE_AHEAD, in_dialect
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import TextClause

    from retrytemplate._storage.operation_runner import Operation

    Order = tuple[TextClause, dict[str, Any]]
    Rows = Sequence[Sequence[Any]]

__all__ = ["LockedError", "Schema", "Tables"]

CREATIONS = 20


class LockedError(CacheUnavailableError):
    """Raised by a cache: another transaction holds what was to be written, and did not end."""


@frozen
class Schema:
    """What makes the tables of one owner, and their version.

    :param name: under which the version is kept.
    :param creating: the statements for a dialect; the one that writes the version comes last.
    """

    name: str
    version: int
    creating: Callable[[str], list[str]]


class Tables:
    """The tables of one prefix, and orders about them.

    :param dialect: as SQLAlchemy names it.
    """

    def __init__(self, dialect: str, prefix: str, schema: Schema) -> None:
        self._dialect = dialect
        self._prefix = prefix
        self._schema = schema
        self._ready = False
        self._made: dict[str, TextClause] = {}

    def order(self, statement: str, **parameters: Any) -> Order:
        """A statement in the dialect's words on these tables, with its parameters."""
        made = self._made.get(statement)
        if made is None:
            from sqlalchemy import text

            made = text(in_dialect(statement, self._dialect, self._prefix))
            self._made[statement] = made
        return made, parameters

    def prepare(self) -> Operation[None]:
        """See that the tables are there; make them where they are missing."""
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
            except CacheUnavailableError as exc:  # two at once may be in each other's way
                waited = isinstance(exc, LockedError) and statement != WRITE_AHEAD
                if waited or creations == CREATIONS:
                    raise

    def found(self) -> Operation[bool]:
        """Whether the tables are there, all of them; an error where they are of a later version."""
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

"""Effects of the rules of a run, and the results that a driver returns."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import Factory, define, frozen

from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retrytemplate._internal.values import JSON
    from retrytemplate.batch.journal.run import JournalUpdate
    from retrytemplate.batch.readers.base import Records
    from retrytemplate.history import AttemptRecord


class Fatal(Exception):
    """Ends the run; its only argument is the cause.  Raised by the rules or by a driver."""


@contextmanager
def failing() -> Iterator[None]:
    """An error that is raised here by a component of the step ends the run.

    Wrong use of the step is raised as it is.
    """
    try:
        yield
    except (Fatal, MisuseError):
        raise
    except Exception as exc:
        raise Fatal(exc) from None


@frozen
class EnterGate:
    """Leave the isolation gate if it was entered, and enter it.  Answer: None."""

    exclusive: bool


@frozen
class Read:
    """Up to *limit* records from this position on.  Answer: ``ReadRecords``."""

    position: JSON
    limit: int


@frozen
class ReadRecords:
    """Records, the position after them, and the part of the source that was read, if known."""

    records: Records
    position: JSON
    progress: float | None = None


@frozen
class Process:
    """Every item, each with the step's retries.  Answer: ``Processed``.

    After a failure that no skip policy covers, no further item is started.
    """

    items: Sequence[Any]


@define
class Processed:
    """Results of the processor by item: None for a filtered or failed item.

    :param failures: the last exception of each item that failed.
    :param fatal: those of them that end the run.
    :param histories: failed attempts, also of items that succeeded later.
    """

    values: list[Any] = Factory(list)
    failures: dict[int, BaseException] = Factory(dict)
    fatal: set[int] = Factory(set)
    histories: dict[int, tuple[AttemptRecord, ...]] = Factory(dict)
    retries: int = 0


@frozen
class Write:
    """Write these items and close, in one transaction.

    Answer: an ``Outcome``, whose value maps indexes in *items* to written values; a missing one was
    filtered.

    :param once: this part is one of several that were tried together: a failure is not retried.
    :param with_tracebacks: whether a history has them: an item may be given up for a failure.
    """

    items: Sequence[Any]
    update: JournalUpdate
    once: bool = False
    with_tracebacks: bool = True


@frozen
class Try:
    """Write these items in the open transaction of a search; the first one begins it.

    A failure keeps the parts written in it before.  Answer: as to ``Write``; None: the transaction
    is lost, with all its parts.
    """

    items: Sequence[Any]
    once: bool
    with_tracebacks: bool


@frozen
class Commit:
    """Close, and commit the transaction of a search.  Answer: whether that was done."""

    update: JournalUpdate


@frozen
class WriteJournal:
    """Write this to the journal alone.  Answer: None."""

    update: JournalUpdate


@frozen
class AfterCommit:
    """These items are written and committed: the step's hook is called.  Answer: None."""

    items: Sequence[Any]

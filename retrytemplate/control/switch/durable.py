"""What the durable stores of a kill switch have in common: each method a step, performed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from retrytemplate._internal.validation import waiting
from retrytemplate._storage.fork_safety import follow, keep
from retrytemplate._storage.operation_runner import AnswerLateError, AnswerLostError
from retrytemplate._storage.store_role import Owner
from retrytemplate.control.switch.stores import StoredRecord
from retrytemplate.errors import CacheUnavailableError, SwitchStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeVar

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.operation_runner import Step
    from retrytemplate.backends.durable import Prefixes

    T = TypeVar("T")

__all__ = ["KILL_SWITCH", "DurableSwitchStore", "Steps", "kept", "typed", "unreadable"]

KILL_SWITCH = Owner(
    "kill switch",
    "for what is stopped in one process use MemorySwitchStore",
    "give the switch a file of its own",
)


class Steps(Protocol):
    """What a store does, step by step."""

    def load(self, known: int | None) -> Step[tuple[int, str] | None]: ...

    def commit(
        self, expected: int, document: str, records: Sequence[str], again: bool
    ) -> Step[bool]:
        """Write, if the version is as expected.

        :param again: it may have been written before, and then counts as written now.
        """
        ...

    def records(self, before: int | None, limit: int) -> Step[list[StoredRecord]]: ...

    def claim_untold(self, worker: str, lease: float, limit: int) -> Step[list[StoredRecord]]: ...

    def told(self, numbers: Sequence[int], worker: str) -> Step[None]: ...


class DurableSwitchStore(ABC):
    """The methods of a store that outlives the process; a store says how to perform a step."""

    shared = True

    _prefixes: Prefixes
    _steps: Steps

    def __init__(self, prefix: Any, timeout: Seconds) -> None:
        self.prefix = self._prefixes.checked(prefix)
        self.timeout = waiting("timeout", timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place()} prefix={self.prefix!r}>"

    def load(self, known: int | None) -> tuple[int, str] | None:
        """The version and the document, in one round trip; None: the version is still *known*."""
        with typed():
            return self._perform(self._steps.load(known))

    def commit(self, expected: int, document: str, records: Sequence[str]) -> bool:
        """Write the document and add the records, unless the version is no longer *expected*.

        Where the answer was lost, what was written is recognised by its records.
        """
        with typed():
            try:
                return self._together(self._steps.commit(expected, document, records, False))
            except (AnswerLateError, AnswerLostError):
                return self._commit_again(expected, document, records)

    def _commit_again(self, expected: int, document: str, records: Sequence[str]) -> bool:
        return self._together(self._steps.commit(expected, document, records, True))

    def records(self, *, before: int | None = None, limit: int = 100) -> list[StoredRecord]:
        """The newest records, newest first; of those with a number below *before*."""
        with typed():
            return self._perform(self._steps.records(before, limit))

    def claim_untold(self, worker: str, lease: float, limit: int) -> list[StoredRecord]:
        """The oldest records that are not told, and that nobody else has claimed."""
        with typed():
            return self._perform(self._steps.claim_untold(worker, lease, limit))

    def told(self, numbers: Sequence[int], worker: str) -> None:
        """The notifiers have been told of these; those that another has claimed since stay his."""
        if not numbers:
            return
        with typed():
            try:
                self._together(self._steps.told(numbers, worker))
            except AnswerLostError:
                self._together(self._steps.told(numbers, worker))

    def is_made(self) -> bool:
        """Whether all is there that it keeps things in; the first use of the others makes it.

        :raises SwitchStoreError: it cannot be reached, or is of a later version.
        """
        return True

    @abstractmethod
    def close(self) -> None:
        """Close the connections that are the store's own; what is used after that opens others."""

    @abstractmethod
    def _place(self) -> object:
        """Where the store is, without a password."""

    @abstractmethod
    def _perform(self, step: Step[T]) -> T:
        """Run a step that is one order."""

    @abstractmethod
    def _together(self, step: Step[T]) -> T:
        """Run a step whose orders are done all or not at all."""

    @abstractmethod
    def _reconnect(self) -> object:
        """Have connections of one's own from now on; those before, which nobody closes."""

    def _begin_life(self) -> None:
        follow(self)

    def _forked(self) -> None:
        """In a child process: leave the connections to the parent."""
        keep(self._reconnect())


@contextmanager
def typed() -> Iterator[None]:
    """Let what the store is refused be an error of the switch."""
    try:
        yield
    except CacheUnavailableError as exc:
        raise SwitchStoreError(str(exc)) from exc.__cause__


def kept(number: Any, text: Any, told: Any) -> StoredRecord:
    """A record from what the store has of it; what is no text must not hide the others."""
    if not isinstance(number, int):
        raise unreadable(f"record {number!r}")
    return StoredRecord(number, text if isinstance(text, str) else "", bool(told))


def unreadable(what: str) -> CacheUnavailableError:
    """The store holds something else than a switch has written."""
    return CacheUnavailableError(f"{what} in the store of the kill switch cannot be read")

"""Dead letters: items that were given up, with their history."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from retrytemplate.caches.record import Record, brief, shortened
from retrytemplate.caches.record_limit import truncate_to_limit
from retrytemplate.caches.record_schema import ATTEMPT, OF_EVERY_ATTEMPT, objects
from retrytemplate.errors import RecordedFailure
from retrytemplate.history import AttemptRecord, truncate_history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


# Characters of the name of an exception's class.
NAME_LIMIT = 300
LONGEST = 500
"""Characters of what an index holds: 2,700 bytes on PostgreSQL, of which one may take four."""


@frozen
class Letter:
    """An item that was given up.

    :param source: where it came from, and its number there, from 1.
    :param key: the step's key of it, as text.
    :param phase: what failed at last: "read", "process", "write", or "crash".
    :param payload: the item as text.
    :param replayable: whether the codec can make the item of it again.
    :param attempts: its failed attempts, the crashes of its process among them.
    """

    source: str
    number: int
    key: str
    phase: str
    payload: str
    replayable: bool
    error_type: str
    error_message: str
    attempts: tuple[AttemptRecord, ...]


@frozen
class RecordLimits:
    """Limits of the failures that a repository keeps; the rules are those of a context cache.

    :param redact: applied to messages and tracebacks; None: they are kept as they are.
    :param limit: bytes of a failure and its history as JSON.
    """

    redact: Callable[[str], str] | None
    limit: int

    def text(self, message: str) -> str:
        """The message, redacted and then cut."""
        return brief(message, self.redact)

    def fit(
        self, failure: RecordedFailure, history: Iterable[AttemptRecord] = ()
    ) -> tuple[tuple[AttemptRecord, ...], RecordedFailure]:
        """The history and the failure as they are stored; the history is redacted already."""
        name = shortened(failure.type_name, NAME_LIMIT)
        last = RecordedFailure(name, self.text(failure.message), None)
        record = truncate_to_limit(Record(last=last, history=tuple(history)), self.limit)
        assert record.last is not None
        return record.history, record.last


def joined(
    before: Sequence[AttemptRecord], more: Iterable[AttemptRecord]
) -> tuple[AttemptRecord, ...]:
    """Attempts that follow others, numbered on: the last number is the count of all.

    Only the first and the last ones are kept, see ``bounded``.
    """
    count = before[-1].number if before else 0
    return truncate_history((*before, *(evolve(each, number=count + each.number) for each in more)))


def attempts_from(data: Any) -> tuple[AttemptRecord, ...]:
    """The attempts that a JSON list holds."""
    attempts = tuple(AttemptRecord(**each) for each in objects(data, ATTEMPT, OF_EVERY_ATTEMPT))
    for place, (before, each) in enumerate(pairwise(attempts), 1):
        if each.number <= before.number:
            raise ValueError(f"[{place}].number must be higher than the one before it")
    return attempts


def sanitize_text(text: str) -> str:
    """The text, with surrogates and NUL, which some databases reject, escaped in ASCII.

    >>> sanitize_text("a\\ud800b")
    'a\\\\ud800b'
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def digest(text: str) -> str:
    """The SHA-256 digest of a text, in hexadecimal digits."""
    return sha256(text.encode()).hexdigest()


def indexable_text(text: str) -> str:
    """The text as a column with an index keeps it: of a long one the beginning, and its digest.

    >>> indexable_text("order-1"), len(indexable_text("order" * 1000))
    ('order-1', 500)
    """
    kept = sanitize_text(text)
    if len(kept) <= LONGEST:
        return kept
    suffix = f"...{digest(kept)}"
    return kept[: LONGEST - len(suffix)] + suffix

"""The errors of chunk steps.  Each says who raises it and what to do about it."""

from __future__ import annotations

from retrytemplate.errors import RetryError

__all__ = [
    "ReadError",
    "ReaderError",
]


class ReadError(RetryError):
    """A record that cannot be read; those after it can.

    Given by a reader in ``Records.broken``.  It counts as a failure of its item, which trying again
    does not mend: skip it, and it is a dead letter with its ``text`` as it stands in the source.
    ``number`` is the record's in the ``source``, from 1.
    """

    def __init__(self, problem: str, *, text: str, source: str, number: int) -> None:
        super().__init__(f"{source}, record {number}: {problem}")
        self.text = text
        self.source = source
        self.number = number


class ReaderError(RetryError):
    """The source cannot be read, or not from where it is to go on.

    Raised by a reader when it is opened or read; it ends the run.  The message names the source and
    what to do; what the system said, if anything, is the ``__cause__``.
    """

"""The errors of chunk steps.  Each says who raises it and what to do about it."""

from __future__ import annotations

from retrytemplate.errors import LeaseLostError, RetryError

__all__ = [
    "CrashLoopError",
    "JobRepositoryError",
    "NotResumableError",
    "ProcessCrashedError",
    "ReadError",
    "ReaderError",
    "RunAbandonedError",
    "RunExistsError",
    "RunInProgressError",
    "RunLostError",
    "SkipLimitExceededError",
]


class ReadError(RetryError, ValueError):
    """A record that cannot be read; those after it can.

    Given by a reader in ``Records.broken``.  It counts as a failure of its item, which trying again
    does not mend: skip it, and it is a dead letter with its ``text`` as it stands in the source.
    ``number`` is the record's in the ``source``, from 1.
    """

    def __init__(self, problem: str, *, text: str, source: str, number: int) -> None:
        super().__init__(f"{source}, record {number}: {problem}")
        self.problem = problem
        self.text = text
        self.source = source
        self.number = number


class ReaderError(RetryError):
    """The source cannot be read, or not from where it is to go on.

    Raised by a reader when it is opened or read; it ends the run.  The message names the source and
    what to do; what the system said, if anything, is the ``__cause__``.
    """


class RunInProgressError(RetryError):
    """Another process is at work on this run, and its lease is not over.

    Raised by ``ChunkStep.run``; nothing was done.  ``worker`` has the run until ``lease_until``
    (seconds since the epoch, by the repository's clock), longer while it lives.
    """

    def __init__(self, message: str, *, worker: str, lease_until: float) -> None:
        super().__init__(message)
        self.worker = worker
        self.lease_until = lease_until


class RunExistsError(RetryError):
    """There is a run of this name and these parameters already.

    Raised by ``ChunkStep.run(on_existing="refuse")``; nothing was done.  Resume it or restart it.
    """


class RunAbandonedError(RetryError):
    """The run was given up by hand.

    Raised by ``ChunkStep.run`` when it is asked to resume such a run.  Begin anew with
    ``on_existing="restart"``.
    """


class NotResumableError(RetryError):
    """The run cannot go on where it stopped: its reader cannot give those items again.

    Raised by ``ChunkStep.run`` for a reader that reads forward only and keeps no journal.
    Begin anew with ``on_existing="restart"``.
    """


class RunLostError(LeaseLostError):
    """Another process has taken the run over, or resolved the dead letter.

    Raised by ``ChunkStep.run`` when this process shows no sign of life for longer than the lease,
    and writes again.  What it was about to write was rolled back; the other one goes on.
    """


class SkipLimitExceededError(RetryError):
    """One more item was to be skipped than the skip policy allows.

    Ends a run; the item's own failure is the ``__cause__``.  The items that were skipped before are
    dead letters already, and the run can be resumed when the cause is mended.
    """


class CrashLoopError(RetryError):
    """The process died again and again where no item was under way by itself.

    Ends a run: what kills the process is none of the items that the step could set aside (the
    reader, the machine).  Mend that, and resume the run.
    """


class ProcessCrashedError(RetryError):
    """An item was under way, and the process that had it died.

    Never raised: it stands in the history of a dead letter, one for each death that was charged.
    """


class JobRepositoryError(RetryError):
    """The job repository, or the database of a step's items, cannot be reached, or cannot be read.

    Raised by whatever uses the repository.  What was committed stands; the run can be resumed when
    the database is back.
    """

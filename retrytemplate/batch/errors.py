"""The errors of chunk steps.  Each documents its raiser and the remedy."""

from __future__ import annotations

from retrytemplate.errors import LeaseLostError, RetryError

__all__ = [
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

    A reader puts it in ``Records.broken``.  It counts as a failure of its item that no retry mends:
    skip it, and it becomes a dead letter with its ``text`` as in the source.
    ``number`` is the record's in the ``source``, from 1.
    """

    def __init__(self, problem: str, *, text: str, source: str, number: int) -> None:
        super().__init__(f"{source}, record {number}: {problem}")
        self.problem = problem
        self.text = text
        self.source = source
        self.number = number


class ReaderError(RetryError):
    """The source cannot be read, or not from the position of the run.

    Raised by a reader when it is opened or read; it ends the run.  The message names the source and
    the remedy; an error of the system is the ``__cause__``.
    """


class RunInProgressError(RetryError):
    """Another process or thread holds this run, and its lease has not expired.

    Raised by ``ChunkStep.run``, which has no effect then.  ``worker`` holds the run until
    ``lease_until`` (seconds since the epoch, by the repository's clock), and renews it meanwhile.
    """

    def __init__(self, message: str, *, worker: str, lease_until: float) -> None:
        super().__init__(message)
        self.worker = worker
        self.lease_until = lease_until


class RunExistsError(RetryError):
    """A run with this name and these parameters exists.

    Raised by ``ChunkStep.run(on_existing="refuse")``, which has no effect then.
    Resume it or restart it.
    """


class RunAbandonedError(RetryError):
    """The run was abandoned by an operator.

    Raised by ``ChunkStep.run`` when it would resume such a run.  Start again with
    ``on_existing="restart"``.
    """


class NotResumableError(RetryError):
    """The run cannot be resumed: its reader cannot read those items again.

    Raised by ``ChunkStep.run`` for a reader that reads forward only and keeps no journal.
    Start again with ``on_existing="restart"``.
    """


class RunLostError(LeaseLostError):
    """Another process has taken the run over, or resolved the dead letter.

    Raised by ``ChunkStep.run`` when this process did not renew its lease in time, and writes again.
    Its transaction is rolled back; the other process continues.
    """


class SkipLimitExceededError(RetryError):
    """More items would be skipped than the skip policy allows.

    Ends a run; the failure of the item is the ``__cause__``.  Items that were skipped before are
    dead letters, and the run can be resumed when the cause is mended.
    """


class ProcessCrashedError(RetryError):
    """The process crashed while an item was isolated.

    Never raised: the history of a dead letter has one for each crash attributed to its item.
    """


class JobRepositoryError(RetryError):
    """The job repository, or the database of a step's items, cannot be reached, or cannot be read.

    Raised by everything that uses the repository.  Committed transactions stay; the run can be
    resumed when the database is available.
    """

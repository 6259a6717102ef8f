"""The report of a run."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

from retrytemplate.errors import RecordedFailure, RetryError

Status = Literal["running", "completed", "stopped", "failed", "abandoned"]


@frozen(kw_only=True)
class Report:
    """Counts and status of a run, over all its restarts, from its journal.

    At any time ``read == written + filtered + dead_lettered + pending``.

    :param status: "completed"; "stopped": ended on request; "failed": ended by ``error``;
        "running"; "abandoned": by an operator.  All but the first and the last can be resumed.
    :param filtered: items for which the processor returned None.
    :param dead_lettered: dead letters: skipped, or given up for crashes of their process.
    :param skipped: dead letters of the skip policy.
    :param pending: items that are read, but not decided yet.
    :param retries: attempts that followed a failed one.
    :param rollbacks: transactions that were rolled back, and rollbacks to a savepoint.
    :param crashes: processes that crashed with this run.
    :param exactly_once: whether items and journal are written in one transaction; False: in two
        databases, where a crash between the two commits writes a chunk twice.
    :param unsent: number of messages of the run that wait in the outbox.
    :param error: the failure that ended the run.
    :param already_completed: True: the run was completed before this call, which read and wrote
        nothing.
    :param exception: the same as an exception, if this process raised it.
    """

    name: str
    run_id: int
    status: Status
    read: int
    written: int
    filtered: int
    dead_lettered: int
    skipped: int
    pending: int
    retries: int
    rollbacks: int
    crashes: int
    exactly_once: bool
    unsent: int = 0
    error: RecordedFailure | None = None
    already_completed: bool = field(default=False, eq=False)
    exception: BaseException | None = field(default=None, eq=False)

    def raise_for_status(self) -> Report:
        """Return itself if the run is completed.

        :raises StepFailedError: it is not; the failure that ended it is the cause.
        """
        if self.status == "completed":
            return self
        why = f": {self.error}" if self.error else ""
        raise StepFailedError(f"run {self.run_id} of {self.name!r} {self.status}{why}", self) from (
            self.exception or self.error
        )


class StepFailedError(RetryError):
    """A run did not complete.

    Raised by ``Report.raise_for_status``; the failure that ended the run is the ``__cause__``, and
    ``report`` has its counts.
    """

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report

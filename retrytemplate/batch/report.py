"""How a run went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import field, frozen

from retrytemplate.errors import RetryError

if TYPE_CHECKING:
    from retrytemplate.errors import RecordedFailure

__all__ = ["Report", "Status", "StepFailedError"]


Status = Literal["running", "completed", "stopped", "failed", "abandoned"]


@frozen(kw_only=True)
class Report:
    """What became of the items of a run, over all its restarts, as the journal has it.

    At any time ``read == written + filtered + dead_lettered + pending``.

    :param status: "completed"; "stopped": ended on request; "failed": ended by ``error``;
        "running"; "abandoned": given up by hand.  All but the first and the last can be resumed.
    :param filtered: items for which the processor gave None.
    :param dead_lettered: dead letters: skipped, or given up for crashes of their process.
    :param skipped: those of them that the skip policy gave up.
    :param pending: read, and neither of the others yet.
    :param retries: attempts that followed a failed one.
    :param rollbacks: transactions that were rolled back.
    :param crashes: processes that died with this run.
    :param exactly_once: whether what was written is in the transaction that says so; False: in
        another database, where a crash between the two commits writes a chunk twice.
    :param unsent: number of messages of the run that wait in the outbox.
    :param error: what ended the run.
    :param already_completed: True: the run was completed before this call, which read and wrote
        nothing.
    :param exception: the same as the live exception, where this process had it.
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

        :raises StepFailedError: it is not; the cause is what ended it.
        """
        if self.status == "completed":
            return self
        why = f": {self.error}" if self.error else ""
        raise StepFailedError(f"run {self.run_id} of {self.name!r} {self.status}{why}", self) from (
            self.exception or self.error
        )


class StepFailedError(RetryError):
    """A run did not come to its end.

    Raised by ``Report.raise_for_status``; what ended the run is the ``__cause__``, and ``report``
    says how far it came.
    """

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report

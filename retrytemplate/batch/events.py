"""What a run tells its listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retrytemplate.errors import RecordedFailure

    Kind = Literal[
        "started",
        "read",
        "processed",
        "filtered",
        "failed",
        "rolled back",
        "written",
        "given up",
        "died",
        "not sent",
        "ended",
    ]

__all__ = ["Event", "StepListener", "error_as_json"]


@frozen(kw_only=True)
class Event:
    """One thing that happened in a run.

    :param kind: "started", "ended": the run; "read": *numbers* were; "processed", "filtered":
        items were; "failed": an attempt to process an item did; "rolled back": an attempt to write
        *numbers* was; "written": *numbers* were; "given up": an item has a dead letter; "died": the
        process that had the run; "not sent": a message is still in the outbox.
    :param phase: "read", "process", "write" or "crash".
    :param numbers: of the items in their source, from 1.
    :param attempt: which attempt of this item, or of this part, from 1.
    :param transaction: the number of the transaction in this process, from 1; None: it happened
        outside of one.
    :param committed: True: that transaction is committed, what the event says stands.  False: it
        was rolled back, nothing is left of it.  None: there was none.
    :param status: with "ended" how the run ended.
    """

    kind: Kind
    step: str
    run_id: int
    source: str | None = None
    numbers: Sequence[int] = ()
    phase: str | None = None
    attempt: int | None = None
    transaction: int | None = None
    committed: bool | None = None
    error: RecordedFailure | None = None
    status: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        named = {name: getattr(self, name) for name in NAMES}
        return named | {"numbers": list(self.numbers), "error": error_as_json(self.error)}


def error_as_json(error: RecordedFailure | None) -> dict[str, str] | None:
    """A failure as a JSON object."""
    return None if error is None else {"type": error.type_name, "message": error.message}


NAMES = (
    "kind",
    "step",
    "run_id",
    "source",
    "phase",
    "attempt",
    "transaction",
    "committed",
    "status",
)


class StepListener:
    """Told of all that happens in a run, after it happened: it cannot change anything.

    Under ``run_async`` the method may be a coroutine function.  What it raises is logged, and the
    run goes on.

    >>> class Watch(StepListener):
    ...     def on_event(self, event):
    ...         print(event.kind, *event.numbers)
    """

    def on_event(self, event: Event) -> Any:
        """Called in the order of the events."""

"""The errors of tasks and workers.  Each docstring says what raises the error and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate.errors import Rejected, RetryError

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["JobQueueError", "SourceUnavailableError", "SupervisorStoppedError"]
__all__ += ["TaskInProgressError", "TaskLimitError"]


class JobQueueError(RetryError):
    """The database of a job queue cannot be used, or a row in it is damaged.

    Raised by a ``JobQueue`` and a ``SQLSource``.  Repeat the call: an ``enqueue`` with the same
    idempotency key registers the job once.
    """


class SourceUnavailableError(RetryError):
    """The server of a source cannot be reached, does not answer in time, or rejects a command.

    Raised by a ``RedisStreamSource``; the cause is the client's error.  A runtime calls again after
    a delay.  Without one, repeat the call: a message that was not settled is delivered again.
    """


class SupervisorStoppedError(RetryError):
    """The supervisor stops or has stopped, and starts no task.

    Raised by a ``TaskSupervisor``.  Do the work in a process that is not stopping; work that must
    not be lost belongs into a durable queue.
    """


class TaskLimitError(Rejected):
    """As many tasks run as the supervisor may have; nothing was started.

    Raised by a ``TaskSupervisor`` with a ``limit``.  Drop the work, or wait with
    ``start_when_free``.
    """

    component = "task supervisor"


class TaskInProgressError(RetryError):
    """A task with this key is running; nothing was started.

    Raised by a ``TaskSupervisor``.  Leave the work to the running task, or wait for it with
    ``on_duplicate="join"``.  ``key`` is the key.
    """

    def __init__(self, message: str, *, key: Hashable = None) -> None:
        super().__init__(message)
        self.key = key

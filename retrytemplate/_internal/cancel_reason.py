"""Why a task was cancelled."""

from enum import StrEnum

__all__ = ["CancelReason"]


class CancelReason(StrEnum):
    """Why a task was cancelled.

    >>> str(CancelReason.SERVER_SHUTDOWN)
    'server_shutdown'
    """

    CLIENT_DISCONNECTED = "client_disconnected"
    """The caller of the service closed its connection and does not wait for the result."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The time limit of the work passed."""

    SERVER_SHUTDOWN = "server_shutdown"
    """The process, or the supervisor of the task, stops."""

    PARENT_FAILED = "parent_failed"
    """The task or block that started this task failed."""

    SIBLING_FAILED = "sibling_failed"
    """Another task of the same group failed."""

    MANUAL = "manual"
    """No other reason is known: a plain ``task.cancel()``, or the cancel of another library."""

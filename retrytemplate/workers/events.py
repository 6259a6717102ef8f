"""Events of tasks and messages, given to ``listeners`` as ``ControlListener.on_event``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate.control.events import ControlEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate._engine.deadline import Deadline
    from retrytemplate._internal.cancel_reason import CancelReason


@frozen(kw_only=True)
class TaskEvent(ControlEvent):
    """Something happened to a task; ``name`` is the supervisor's.

    :param operation: qualified name of the function that the task runs.
    :param task: name of the task.
    :param message_id: of the message that the task handles, if it is known.
    :param deadline: of the task; None: the one in force where the listener is called.
    """

    operation: str
    task: str
    message_id: str | None = None
    deadline: Deadline | None = None


@frozen(kw_only=True)
class TaskStarted(TaskEvent):
    """A task was started."""


@frozen(kw_only=True)
class TaskFailed(TaskEvent):
    """A task ended with an exception, not by a cancellation.

    :param error: the exception.
    :param elapsed: seconds since its start.
    :param cleanup: False: a shielded cleanup of the task has failed.
    """

    error: BaseException
    elapsed: float
    cleanup: bool = True


@frozen(kw_only=True)
class TaskCancelled(TaskEvent):
    """A task ended by a cancellation.

    :param reason: of the cancellation.
    :param elapsed: seconds since its start.
    :param cleanup: False: a shielded cleanup of the task has failed.
    """

    reason: CancelReason
    elapsed: float
    cleanup: bool = True


@frozen(kw_only=True)
class TaskStuck(TaskEvent):
    """A task was cancelled, and did not end within the limit.

    :param reason: of the cancellation.
    :param elapsed: seconds since its cancellation.
    :param stack: its stack at this moment, as text.
    """

    reason: CancelReason
    elapsed: float
    stack: str


@frozen(kw_only=True)
class TaskCleanupFailed(TaskEvent):
    """A shielded cleanup failed, or did not end within its limit.

    :param resource: the resource that may be left in use.
    :param error: the exception; a ``TimeoutError`` at the limit.
    :param will_retry: whether a further try is planned.
    """

    resource: str
    error: BaseException
    will_retry: bool = False


@frozen(kw_only=True)
class JobReplayed(ControlEvent):
    """A dead-lettered job was made ready again; ``name`` is the queue's.

    :param job_id: of the job.
    :param by: the operator.
    :param reason: of the operator.
    """

    job_id: str
    by: str
    reason: str


@frozen(kw_only=True)
class QueueEvent(ControlEvent):
    """Something happened between a runtime and its queue; ``name`` is the runtime's.

    :param queue_name: name of the queue.
    """

    queue_name: str


@frozen(kw_only=True)
class MessageEvent(QueueEvent):
    """Something happened to a message.

    :param key: of the message's attempts.
    """

    key: Any


@frozen(kw_only=True)
class MessageSettled(MessageEvent):
    """A message was acknowledged, requeued, dead-lettered or released, or is another worker's.

    :param action: "acknowledge", "requeue", "dead_letter", "release", or "none": the queue delivers
        the message again by itself, or another worker settles it.
    :param outcome: the row of the table of outcomes, such as "failed" or "in_progress".
    :param attempt: number of the last attempt; 0 if there was none in this delivery.
    :param crashes: crashes attributed to the message so far.
    :param reason: one line; empty after a success.
    :param error_type: qualified name of the class of the failure; None if there was none.
    """

    action: str
    outcome: str
    attempt: int
    crashes: int
    reason: str
    error_type: str | None


@frozen(kw_only=True)
class MessageSuspected(MessageEvent):
    """A message has a lost attempt: its next attempts are exclusive."""


@frozen(kw_only=True)
class MessageExclusive(MessageEvent):
    """An exclusive attempt ended.

    :param waited: seconds until the other attempts in its failure domain had ended.
    :param ran: seconds in which no other attempt ran.
    """

    waited: float
    ran: float


@frozen(kw_only=True)
class MessageExclusiveTimedOut(MessageEvent):
    """The attempts beside a suspect did not end in time; the suspect was released."""


@frozen(kw_only=True)
class MessageCrashAttributed(MessageEvent):
    """A crash was attributed to a message: its process ended in an exclusive attempt.

    :param crashes: crashes attributed to the message so far.
    """

    crashes: int


@frozen(kw_only=True)
class QueuePaused(QueueEvent):
    """A runtime receives no messages for a time.

    :param reason: in words.
    :param seconds: the length of the pause.
    """

    reason: str
    seconds: float


@frozen(kw_only=True)
class QueueAckFailed(QueueEvent):
    """The queue did not settle messages in time; it delivers them again.

    :param reason: "rejected" (owned by another worker), "timeout", or the class of the error.
    :param count: number of messages.
    """

    reason: str
    count: int


@frozen(kw_only=True)
class QueueReceiveFailed(QueueEvent):
    """The queue could not be read; the runtime tries again."""

    error: Exception


@frozen(kw_only=True)
class WorkerStopping(QueueEvent):
    """A step of a runtime's shutdown began.

    :param step: "intake", "grace", "cancel" or "cleanup".
    :param reason: why the runtime stops.
    """

    step: str
    reason: CancelReason


@frozen(kw_only=True)
class WorkerStopped(QueueEvent):
    """A runtime stopped.

    :param reason: why it stopped.
    :param report: the numbers of its ``ShutdownReport``.
    """

    reason: CancelReason
    report: Mapping[str, Any]

"""Reports of tasks and queues that the program runs itself, as the workers package reports its own.

Each report is an event of the workers package, so that events and metrics do not depend on where a
task runs.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.deadline import Deadline
from retrytemplate._internal.validation import (
    check_flag,
    check_function,
    check_text,
    check_text_or_none,
)
from retrytemplate._storage.fork_safety import register
from retrytemplate.control._predicates import without_cancellation
from retrytemplate.control.classification.timeouts import timeout_kind
from retrytemplate.control.events import notify_listeners
from retrytemplate.observe.failure_log import FailureLog
from retrytemplate.observe.observer_snapshot import ObserverSnapshot, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from retrytemplate.clock import Clock
    from retrytemplate.workers.events import TaskEvent

UNKNOWN_DEPTH = "the depth of a queue could not be read (%d so far)"


class TaskScope:
    """Reports a block of code as a task; made by ``Observer.task``.

    A context manager for ``with`` and ``async with``, used once.  Its events: ``task.started``;
    then ``task.cancelled`` if a cancellation leaves the block, ``task.timed_out`` if the exception
    of a time limit does, and ``task.cleanup_failed`` if another exception replaces a cancellation.
    It changes no exception, and limits nothing.
    """

    def __init__(
        self,
        events: Any,
        observer: TaskReports,
        now: Callable[[], float],
        values: dict[str, Any],
    ) -> None:
        self._events, self._observer, self._now, self._values = events, observer, now, values
        self._active = observer.active_tasks
        self._began = now()
        self._cleanup = True

    def cleanup_failed(
        self, resource: str, error: BaseException, *, will_retry: bool = False
    ) -> None:
        """Report that a cleanup failed: the event ``task.cleanup_failed``.

        :param resource: the resource that may be left in use.
        :param error: the exception.
        :param will_retry: whether a further try is planned: then the event is a WARNING; default
            False: an ERROR.
        """
        check_text("resource", resource)
        if not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception, got {error!r}")
        check_flag("will_retry", will_retry)
        self._cleanup = False
        about: dict[str, Any] = {"error": error, "will_retry": will_retry}
        self._report(self._events.TaskCleanupFailed, resource=resource, **about)

    def __enter__(self) -> Self:
        self._began = self._now()
        self._active[id(self)] = self._values["name"], self._values["operation"]
        self._report(self._events.TaskStarted)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._active.pop(id(self), None)
        if error is None:
            return
        about: dict[str, Any] = {"elapsed": self._now() - self._began, "cleanup": self._cleanup}
        if without_cancellation(error) is None:
            from retrytemplate.workers.supervisor.cancellation import cancel_reason

            self._report(self._events.TaskCancelled, reason=cancel_reason(), **about)
        elif isinstance(error, Exception):
            if timeout_kind(error) is None and _replaces_cancellation(error):
                self.cleanup_failed(self._values["operation"], error)
            self._report(self._events.TaskFailed, error=error, **about)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.__exit__(kind, error, traceback)

    def _report(self, kind: type[TaskEvent], **about: Any) -> None:
        notify_listeners([self._observer], [kind(**self._values, **about)])


class TaskReports:
    """The methods of an ``Observer`` for tasks and queues of the program's own."""

    if TYPE_CHECKING:
        _clock: Clock

    def __init__(self) -> None:
        self.active_tasks: dict[int, tuple[str, str]] = {}
        register(self)
        self.queue_depths: dict[str, Callable[[], int]] = {}
        self._unknown_depths = FailureLog(UNKNOWN_DEPTH)

    def _forked(self) -> None:
        self.active_tasks.clear()  # they run in the parent

    def task(
        self,
        *,
        owner: str,
        operation: str,
        message_id: str | None = None,
        deadline: Deadline | None = None,
    ) -> TaskScope:
        """Report a block of code as a task, with the events of a ``TaskSupervisor``.

        :param owner: of the task, such as the name of a service; the subject of its events.
        :param operation: the task's work, such as the name of a function.
        :param message_id: of the message that the task handles; default None.
        :param deadline: the deadline that the events report; None: the one in force.
        :raises TypeError: an argument has another type.

        >>> from retrytemplate.observe import MemorySink, Observer
        >>> kept = MemorySink()
        >>> observer = Observer(sinks=[kept])
        >>> with observer.task(owner="mailer", operation="send", message_id="m-9"):
        ...     pass
        >>> [(event.type, event.subject) for event in kept.events]
        [('task.started', 'mailer')]
        """
        check_text("owner", owner)
        check_text("operation", operation)
        check_text_or_none("message_id", message_id)
        if not isinstance(deadline, Deadline | None):
            raise TypeError(f"deadline must be a Deadline or None, got {deadline!r}")
        from retrytemplate.workers import events

        values: dict[str, Any] = {"name": owner, "operation": operation}
        values |= {"task": message_id or operation, "message_id": message_id, "deadline": deadline}
        return TaskScope(events, self, self._clock.monotonic, values)

    def watch_queue(self, queue_name: str, depth: Callable[[], int]) -> None:
        """Measure the depth of a queue: the metric ``queue.depth``.

        :param queue_name: of the queue; a second call with the same name replaces the function.
        :param depth: returns the number of waiting messages, at each reading of the metrics.
        :raises TypeError: ``depth`` is not a function.
        """
        check_text("queue_name", queue_name)
        check_function("depth", depth)
        self.queue_depths[queue_name] = depth

    def ack_failed(self, queue_name: str, reason: str) -> None:
        """Report that a queue did not settle a message: the event ``queue.ack_failed``.

        :param queue_name: of the queue.
        :param reason: a fixed word, such as ``"rejected"`` or ``"timeout"``: it is a label.
        """
        check_text("queue_name", queue_name)
        check_text("reason", reason)
        from retrytemplate.workers import events

        names = {"name": queue_name, "queue_name": queue_name}
        notify_listeners([self], [events.QueueAckFailed(**names, reason=reason, count=1)])

    def snapshot(self) -> ObserverSnapshot:
        """The depths of the watched queues, and the running tasks."""
        return snapshot_of(self, self._unknown_depths)


def deadline_data(deadline: Deadline | None, now: float) -> dict[str, float | None]:
    """The end of a deadline in seconds since the epoch, and the seconds left.

    :param deadline: None: the one in force here.
    :param now: in seconds since the epoch.
    """
    deadline = deadline or Deadline.current()
    if deadline is None or not isfinite(deadline.granted):
        return {"deadline": None, "remaining": None}
    left = deadline.granted - deadline.elapsed()
    return {"deadline": now + left, "remaining": max(0.0, left)}


def _replaces_cancellation(error: BaseException) -> bool:
    """Whether the exception was raised while a cancellation was handled."""
    seen = set[int]()
    cause = error.__context__
    while cause is not None and id(cause) not in seen:
        if without_cancellation(cause) is None:
            return True
        seen.add(id(cause))
        cause = cause.__context__
    return False

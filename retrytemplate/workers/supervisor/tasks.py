"""``TaskSupervisor``: starts tasks, observes their ends, stops them."""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.cancel_reason import CancelReason
from retrytemplate._internal.formatting import format_count
from retrytemplate._internal.validation import (
    check_at_least_one,
    check_choice,
    check_function,
    check_text,
    read_seconds,
)
from retrytemplate.clock import given_or_system
from retrytemplate.control.events import (
    Observable,
    call_listener,
    notify_listeners,
    reject,
    to_listeners,
)
from retrytemplate.errors import MisuseError
from retrytemplate.workers import errors, events
from retrytemplate.workers.supervisor.cancellation import Cancellation, known_reason
from retrytemplate.workers.supervisor.event_loops import run_shielded, task_starter
from retrytemplate.workers.supervisor.handles import (
    StopReport,
    SupervisorSnapshot,
    TaskHandle,
    close_work,
    coroutine_of,
    log_stuck,
    operation_of_coroutine,
)
from retrytemplate.workers.supervisor.places import Places

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterable
    from typing import Literal, Self

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.control.events import ControlListener
    from retrytemplate.workers.supervisor.event_loops import Event, TaskStarter
    from retrytemplate.workers.supervisor.handles import Failure


class TaskSupervisor(Observable):
    """Owner of background tasks: starts them, observes their ends, and stops them.

    A context manager for ``async with``, in asyncio and trio: leaving the block stops the tasks
    that still run.  Used in the event loop of the block only; ``snapshot`` also in other threads.
    Not durable: a crash of the process loses the tasks.

    :param name: in events, logs and names of tasks.
    :param limit: tasks that may run at the same time, at least 1; default None: not limited.
    :param stop_timeout: seconds that ``stop`` waits for the ends of the tasks; default 10.
    :param on_failure: called with the handle and the exception of each task that fails, instead of
        the log record.
    :param listeners: objects with ``on_event(event)`` for ``TaskEvent``.
    :param clock: measures durations.

    >>> import asyncio
    >>> from retrytemplate.workers import TaskSupervisor
    >>> async def send(number):
    ...     print("sent", number)
    >>> async def main():
    ...     async with TaskSupervisor(limit=100) as supervisor:
    ...         task = supervisor.start(send, 17)
    ...         await task.wait()
    >>> asyncio.run(main())
    sent 17

    Sources: N. J. Smith, Notes on structured concurrency; ``asyncio.TaskGroup``.
    """

    def __init__(
        self,
        name: str = "tasks",
        *,
        limit: int | None = None,
        stop_timeout: Seconds = 10.0,
        on_failure: Callable[[TaskHandle, Exception], object] | None = None,
        listeners: Iterable[ControlListener] = (),
        clock: Clock | None = None,
    ) -> None:
        check_text("name", name)
        if limit is not None:
            check_at_least_one("limit", limit)
        self.stop_timeout: float = read_seconds("stop_timeout", stop_timeout)
        if on_failure is not None:
            check_function("on_failure", on_failure)
        self.listeners = to_listeners(listeners)
        self.name = name
        self.limit, self.on_failure = limit, on_failure
        self.clock = given_or_system(clock)
        self._now = self.clock.monotonic
        self._starter: TaskStarter | None = None
        self._stopping = self._stopped = self._closed = False
        self._tasks: set[TaskHandle] = set()
        self._keys: dict[Hashable, TaskHandle] = {}
        self._started = 0
        self._counts: Counter[str] = Counter()
        self._places = Places(limit, self._tasks)
        self._idle: set[Event] = set()
        self._unobserved: set[weakref.ref[Failure]] = set()
        self._track()

    async def __aenter__(self) -> Self:
        if self._starter is not None:
            raise MisuseError(
                f"the supervisor {self.name!r} was entered before; create one for each block"
            )
        self._starter = task_starter()
        await self._starter.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        starter = self._starter
        assert starter is not None
        if isinstance(error, GeneratorExit) and not starter.is_current():
            for task in tuple(self._tasks):  # nothing can be awaited; the loop may be closed
                with suppress(RuntimeError):
                    task._native.cancel()
            return False
        reason = CancelReason.PARENT_FAILED
        if not isinstance(error, Exception):  # a cancellation has a reason, perhaps
            reason = known_reason() or CancelReason.SERVER_SHUTDOWN
        cancelled = None
        if not self._stopped:
            _, cancelled = await run_shielded(self._stop(self.stop_timeout, reason))
        try:
            swallowed = await starter.__aexit__(kind, error, trace)
            self._closed = True
            if cancelled is not None and (error is None or isinstance(error, Exception)):
                raise cancelled
            return swallowed
        finally:
            del cancelled, error, trace  # their tracebacks hold this frame

    def start(
        self,
        work: Callable[..., Coroutine[Any, Any, Any]] | Coroutine[Any, Any, Any],
        /,
        *args: Any,
        name: str | None = None,
        key: Hashable = None,
        on_duplicate: Literal["reject", "join"] = "reject",
        **kwargs: Any,
    ) -> TaskHandle:
        """Start a task, in a copy of the present context.

        The supervisor keeps a reference to the task until it ends.  A failure that no caller reads
        from the handle is logged once.

        :param work: a coroutine function, called with the further arguments, or a coroutine, which
            is closed if no task is started.  For arguments named as those of ``start`` use
            ``functools.partial``.
        :param name: of the task; default: the supervisor's name and a number.
        :param key: at most one task with a key runs at a time; default None: not checked.
        :param on_duplicate: for a key whose task is running: ``"reject"`` raises, ``"join"``
            returns the handle of the running task.
        :raises SupervisorStoppedError: ``stop`` was called, or the block was left.
        :raises TaskLimitError: ``limit`` tasks run.
        :raises TaskInProgressError: a task with this key is running.
        :raises MisuseError: outside of the block, or of its event loop.
        """
        try:
            if name is not None:
                check_text("name", name)
            starter = self._entered()
            running = self._admit(key, on_duplicate)
        except BaseException:
            close_work(work)
            raise
        if running is not None:
            close_work(work)
            return running
        coroutine = coroutine_of(work, args, kwargs)
        self._started += 1
        try:
            handle = TaskHandle(
                self,
                starter,
                coroutine,
                Cancellation(self),
                work if callable(work) else operation_of_coroutine(work),
                name or f"{self.name}-{self._started}",
                key,
            )
        except BaseException:
            coroutine.close()
            raise
        self._tasks.add(handle)
        if key is not None:
            self._keys[key] = handle
        if self.listeners:
            self._notify(events.TaskStarted, handle)
        return handle

    async def start_when_free(
        self,
        work: Callable[..., Coroutine[Any, Any, Any]] | Coroutine[Any, Any, Any],
        /,
        *args: Any,
        name: str | None = None,
        key: Hashable = None,
        on_duplicate: Literal["reject", "join"] = "reject",
        **kwargs: Any,
    ) -> TaskHandle:
        """Wait while ``limit`` tasks run, then start a task as ``start`` does.

        Callers get their places in the order in which they called.
        """
        try:
            starter = self._entered()
            if self._places.is_full() and not self._stopping and key not in self._keys:
                await self._places.wait(starter.event())
        except BaseException:  # a cancellation, too
            close_work(work)
            raise
        try:
            return self.start(work, *args, name=name, key=key, on_duplicate=on_duplicate, **kwargs)
        finally:
            self._places.hand_over()  # its place, if no task was started

    async def stop(
        self, timeout: Seconds | None = None, *, reason: CancelReason = CancelReason.SERVER_SHUTDOWN
    ) -> StopReport:
        """Cancel all tasks and wait for their ends; no task can be started any more.

        A task that has not ended at the limit is stuck: it is logged with its stack, and the stop
        does not wait for it.  The block of trio ends with its last task.  A cancellation of the
        caller is raised after the stop.

        :param timeout: seconds; default: ``stop_timeout``.
        :param reason: for ``cancel_reason()`` in the tasks.
        :raises MisuseError: in a task of this supervisor, outside of the block or its event loop.
        """
        self._entered()
        seconds = read_seconds("timeout", self.stop_timeout if timeout is None else timeout)
        current = Cancellation.current()
        if any(task._cancellation is current for task in self._tasks):
            raise MisuseError(
                f"stop() of the supervisor {self.name!r} was called in one of its tasks, and would "
                "wait for itself; call it in the block"
            )
        report, cancelled = await run_shielded(self._stop(seconds, CancelReason(reason)))
        try:
            if cancelled is not None:
                raise cancelled
            assert report is not None  # it is None only with a cancellation
            return report
        finally:
            del cancelled  # its traceback holds this frame

    def snapshot(self) -> SupervisorSnapshot:
        """The state at this moment; may be called in any thread."""
        tasks, now = tuple(self._tasks), self._now()
        return SupervisorSnapshot(
            name=self.name,
            active=dict(Counter(task.operation for task in tasks)),
            oldest=max((now - task._started_at for task in tasks), default=None),
            started=self._started,
            failed=self._counts["failed"],
            cancelled=self._counts["cancelled"],
            stuck=sum(task._is_stuck() for task in tasks),
            cleanups_failed=self._counts["cleanups_failed"],
        )

    # Starts.

    def _entered(self) -> TaskStarter:
        starter = self._starter
        if starter is not None and starter.is_current():
            return starter
        if starter is None:
            raise MisuseError(
                f"the supervisor {self.name!r} was not entered: `async with supervisor: ...`"
            )
        raise MisuseError(
            f"the supervisor {self.name!r} belongs to another event loop or thread; use it in the "
            "event loop of its block"
        )

    def _admit(self, key: Hashable, on_duplicate: str) -> TaskHandle | None:
        """Raise unless a task may start; return the running task to join, if there is one."""
        if self._stopping:
            raise errors.SupervisorStoppedError(
                f"the supervisor {self.name!r} is stopping or has stopped and starts no task"
            )
        running = None if key is None else self._keys.get(key)
        check_choice("on_duplicate", on_duplicate, "reject", "join")
        if running is not None:
            if on_duplicate == "join":
                return running
            raise errors.TaskInProgressError(
                f"a task with the key {key!r} is running: {running.name!r}", key=key
            )
        if self._places.is_full():
            text = f"the supervisor {self.name!r} runs {format_count(self.limit or 0, 'task')}"
            reject(self.listeners, errors.TaskLimitError(text, name=self.name))
        return None

    def _usable_starter(self) -> TaskStarter | None:
        """For a cleanup in a task of this supervisor; None outside of the block."""
        starter = self._starter
        return starter if starter and not self._closed and starter.is_current() else None

    # Ends.

    def _on_end(self, task: TaskHandle) -> None:
        self._tasks.discard(task)
        if task.key is not None:
            self._keys.pop(task.key, None)
        self._places.hand_over()
        if self._idle and not self._tasks:
            for event in self._idle:
                event.set()
        if task._state == "succeeded":
            return
        self._counts[task._state] += 1
        elapsed, cleanup = self._now() - task._started_at, task._cancellation.cleanup
        about: dict[str, Any] = {"elapsed": elapsed, "cleanup": cleanup}
        if task._state == "cancelled":
            self._notify(events.TaskCancelled, task, reason=task._reason, **about)
        else:
            self._on_failure(task, task._result, about)

    def _on_failure(self, task: TaskHandle, failure: Failure, about: dict[str, Any]) -> None:
        error = failure.error
        self._notify(events.TaskFailed, task, error=error, **about)
        if self.on_failure is not None and isinstance(error, Exception):
            hook = partial(self.on_failure, task)
            failure.observed |= call_listener(hook, error)
        if not failure.observed:
            self._unobserved.add(weakref.ref(failure, self._unobserved.discard))

    def _notify(self, kind: type[events.TaskEvent], task: TaskHandle, **fields: Any) -> None:
        if self.listeners:
            event = kind(name=self.name, operation=task.operation, task=task.name, **fields)
            notify_listeners(self.listeners, [event])

    # The stop.

    async def _stop(self, seconds: float, reason: CancelReason) -> StopReport:
        self._stopping = True
        self._places.close()
        began = self._now()
        tasks = tuple(self._tasks)
        for task in tasks:
            if task._cancelled_at is None or task._is_stuck():
                task.cancel(reason)
        if tasks:
            starter = self._entered()
            self._idle.add(idle := starter.event())
            await starter.wait(idle, seconds)
            self._idle.discard(idle)
        for reference in tuple(self._unobserved):
            failure = reference()
            if failure is not None:
                failure.log()
        self._stopped = True
        stuck = tuple(sorted(self._tasks, key=attrgetter("_started_at")))
        for task in stuck:
            self._report_stuck(task)
        return StopReport(
            ended=sum(task.done for task in tasks),
            failed=tuple(task for task in tasks if task._state == "failed"),
            stuck=stuck,
            elapsed=self._now() - began,
        )

    def _report_stuck(self, task: TaskHandle) -> None:
        elapsed, stack = task._overdue(), log_stuck(task)
        self._notify(events.TaskStuck, task, reason=task._reason, elapsed=elapsed, stack=stack)

    # Cleanups of its tasks.

    def _adopt(self, task: TaskHandle) -> None:
        """Own the task of a cleanup that is stuck."""
        task._owner = self
        self._tasks.add(task)
        self._report_stuck(task)

    def _on_cleanup_failed(self, task: TaskHandle, resource: str, error: BaseException) -> None:
        self._counts["cleanups_failed"] += 1
        self._notify(events.TaskCleanupFailed, task, resource=resource, error=error)

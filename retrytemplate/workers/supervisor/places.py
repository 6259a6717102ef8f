"""Places for a limited number of tasks, and the callers that wait for one."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sized

    from retrytemplate.workers.supervisor.event_loops import Event


class Places:
    """Places for at most *limit* tasks; a free place is reserved for the caller waiting longest.

    :param limit: None: not limited.
    :param tasks: those that have a place.
    """

    def __init__(self, limit: int | None, tasks: Sized) -> None:
        self.limit = limit
        self._tasks = tasks
        self._waiting: OrderedDict[Event, None] = OrderedDict()  # any one is removed fast
        self._reserved = 0
        self._closed = False

    def is_full(self) -> bool:
        """Whether a task that starts now exceeds the limit."""
        return self.limit is not None and len(self._tasks) + self._reserved >= self.limit

    async def wait(self, event: Event) -> None:
        """Wait for a place, or for ``close``; the place is free for the caller until it awaits."""
        self._waiting[event] = None
        try:
            await event.wait()
        except BaseException:  # a cancellation, too: the place goes to the next caller
            if event.is_set():
                self._reserved -= 1
                self.hand_over()
            else:
                del self._waiting[event]
            raise
        self._reserved -= 1

    def hand_over(self) -> None:
        """Reserve the free places for those that wait."""
        while self._waiting and (self._closed or not self.is_full()):
            self._reserved += 1
            event, _ = self._waiting.popitem(last=False)
            event.set()

    def close(self) -> None:
        """End all waits."""
        self._closed = True
        self.hand_over()

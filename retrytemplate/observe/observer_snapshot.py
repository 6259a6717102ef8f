"""The state that an observer shows: queues and tasks of the program's own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.observe.failure_log import FailureLog


@frozen
class ObserverSnapshot:
    """The queues and tasks that the program reports to an observer.

    :param queue_depths: messages by name of the queue.
    :param active_tasks: running tasks by owner and operation.
    """

    queue_depths: Mapping[str, int]
    active_tasks: Mapping[tuple[str, str], int]


def snapshot_of(observer: Any, failures: FailureLog) -> ObserverSnapshot:
    """The present state.

    :param failures: of functions that return the depth of a queue, which is left out then.
    """
    depths = {}
    for name, depth in tuple(observer.queue_depths.items()):
        try:
            depths[name] = int(depth())
        except Exception:
            failures.add()
    return ObserverSnapshot(depths, Counter(tuple(observer.active_tasks.values())))

"""What has to end before a thread that a signal interrupts goes on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from retrytemplate._internal.threads import Threads
from retrytemplate.batch.errors import JobRepositoryError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_uninterrupted"]


def run_uninterrupted(work: Callable[[], object], limit: float | None = None) -> None:
    """Make a last step on the database in another thread: signals interrupt the main one.

    One interrupt of the wait for it is raised when the step has ended, a second one at once.

    :param limit: seconds to wait at most: a signal that interrupts a pool of SQLAlchemy can leave
        it locked.  None: no limit.
    """

    def step() -> None:
        with suppress(JobRepositoryError):
            work()

    threads = Threads("retrytemplate-end", [step])
    try:
        threads.start()
        threads.wait(limit)
    except Exception:  # the system has no thread left
        raise
    except BaseException:
        threads.start()  # does nothing where it has started
        threads.wait(limit)
        raise
    threads.check()

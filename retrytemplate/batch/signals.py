"""What has to end before a thread that a signal interrupts goes on."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from retrytemplate.batch.errors import JobRepositoryError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["uncut"]


def uncut(work: Callable[[], object]) -> None:
    """A last step on the database, tried in a thread of its own: signals interrupt the main one.

    What interrupts the waiting for it is raised at its end.
    """
    taken, done = threading.Lock(), threading.Event()
    interrupted: BaseException | None = None

    def work_once() -> None:
        if taken.acquire(blocking=False):
            try:
                with suppress(JobRepositoryError):
                    work()
            finally:
                done.set()

    while not done.is_set():
        try:
            if not taken.locked():  # also where the start was interrupted
                threading.Thread(target=work_once, name="retrytemplate-end").start()
            done.wait()
        except Exception:  # there is no thread to be had
            raise
        except BaseException as exc:
            interrupted = exc
    if interrupted is not None:
        raise interrupted

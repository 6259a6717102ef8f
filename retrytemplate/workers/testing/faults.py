"""Scripted faults of a simulated cluster: outages, crashes at a step, stalls of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate._internal.validation import check_choice
from retrytemplate.errors import CacheUnavailableError
from retrytemplate.testing.event_loops import VirtualLoop
from retrytemplate.workers.testing.simulated_worker import CURRENT_WORKER

if TYPE_CHECKING:
    import asyncio

    from retrytemplate.workers.testing.simulated_worker import SimulatedWorker

__all__ = ["STEPS", "Faults", "StallingLoop"]

STEPS = "begin", "succeed", "fail", "release", "acknowledge", "dead_letter"
ERRORS: dict[str, type[Exception]] = {"queue": ConnectionError, "store": CacheUnavailableError}


@define
class Faults:
    """The script of a cluster.

    :param outages: of "queue" or "store", with begin and end.
    :param steps: crashes that have not happened yet: step, message id, whether after the step.
    """

    outages: list[tuple[str, float, float]] = field(factory=list)
    steps: set[tuple[str, str | None, bool]] = field(factory=set)

    def add_outage(self, part: str, begin: float, end: float) -> None:
        """Make the queue or the store unreachable between two virtual times."""
        check_choice("part", part, *ERRORS)
        self.outages.append((part, begin, end))

    def add_step(self, step: str, key: str, after: bool) -> None:
        """Crash the worker that is at a step of a message."""
        check_choice("step", step, *STEPS)
        self.steps.add((step, key, after))

    def check(self, part: str, now: float) -> None:
        """Raise the error of an outage."""
        for each, begin, end in self.outages:
            if each == part and begin <= now < end:
                raise ERRORS[part](f"the {part} is unreachable from {begin:g} s to {end:g} s")


class StallingLoop(VirtualLoop):
    """A virtual loop that can stop the tasks of a worker, as SIGSTOP stops a process."""

    def __init__(self, clock: Any) -> None:
        self._held: dict[SimulatedWorker | None, list[asyncio.Handle]] = {}
        super().__init__(clock, 0.0)

    def stop_worker(self, worker: SimulatedWorker) -> None:
        """Run nothing of this worker until ``continue_worker``."""
        self._held.setdefault(worker, [])

    def continue_worker(self, worker: SimulatedWorker) -> None:
        """Run the callbacks that were held back."""
        self._ready.extend(self._held.pop(worker, ()))

    def _run_ready(self) -> None:
        if self._held:
            ready: Any = self._ready
            for _ in range(len(ready)):
                handle = ready.popleft()
                held = self._held.get(handle._context.get(CURRENT_WORKER))
                (ready if held is None else held).append(handle)
        super()._run_ready()

"""Scripted faults of a simulated cluster: outages, crashes at a step, stalls of a worker."""

from __future__ import annotations

from asyncio import Handle
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate._internal.validation import check_choice
from retrytemplate.errors import CacheUnavailableError
from retrytemplate.testing.event_loops import VirtualLoop
from retrytemplate.workers.testing.simulated_worker import CURRENT_WORKER

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context
    from typing import TypeVarTuple, Unpack

    from retrytemplate.testing.clock import VirtualClock
    from retrytemplate.workers.testing.simulated_worker import SimulatedWorker

    Arguments = TypeVarTuple("Arguments")

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

    def __init__(self, clock: VirtualClock) -> None:
        self._held: dict[SimulatedWorker | None, list[tuple[Any, ...]]] = {}
        super().__init__(clock, 0.0)

    def stop_worker(self, worker: SimulatedWorker) -> None:
        """Run no callback of this worker until ``continue_worker``, but those that are ready."""
        self._held.setdefault(worker, [])

    def continue_worker(self, worker: SimulatedWorker) -> None:
        """Run the callbacks that were held back."""
        for context, *call in self._held.pop(worker, ()):
            super().call_soon(_run, *call, context=context)

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> Handle:
        if self._held:
            context = copy_context() if context is None else context
            held = self._held.get(context.get(CURRENT_WORKER))
            if held is not None:
                handle = Handle(callback, args, self, context)
                held.append((context, handle, callback, args))
                return handle
        return super().call_soon(callback, *args, context=context)


def _run(handle: Handle, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
    if not handle.cancelled():
        callback(*args)

"""The state of a runtime at one moment."""

from __future__ import annotations

from typing import Any, Literal

from attrs import asdict, field, frozen

from retrytemplate.caches.record import shortened

LONGEST_ERROR = 500  # characters

RuntimeState = Literal["starting", "running", "paused", "draining", "stopped"]


def _short(text: str) -> str:
    return shortened(text, LONGEST_ERROR)


@frozen(kw_only=True)
class LastFailure:
    """The last attempt of a runtime that failed.

    :param at: seconds since the epoch.
    :param key: of the message, as text.
    :param attempt: its number.
    :param max_attempts: of the redelivery policy; None: no limit.
    :param error: class and first line of the error.
    :param action: how the message was settled: "requeue", "dead_letter", "release" or "none".
    :param delay: seconds until the next attempt, after "requeue".
    """

    at: float
    key: str
    attempt: int
    max_attempts: int | None
    error: str = field(converter=_short)
    action: str
    delay: float


@frozen(kw_only=True)
class RuntimeSnapshot:
    """The state of a runtime at one moment, and its counts since the start.

    :param pause_reason: why it receives nothing at present; None: it does.
    :param in_flight: messages whose processing began and that are not settled.
    :param prefetched: received messages that wait for their first attempt here.
    :param delayed: messages that wait here for their next attempt.
    :param suspects: messages with a lost attempt that are not settled.
    :param exclusive: seconds since the exclusive attempt in flight began; None: no such attempt.
    :param oldest_attempt: seconds since the oldest attempt in flight began; None: no attempt.
    :param requeued: failed attempts that are made again.
    :param crashes: crashes that were attributed to messages.
    :param stuck: attempts that ignore their cancellation.
    :param abandoned_threads: threads of a plain handler that still run, although their attempts
        have ended, at the attempt timeout or in a shutdown.
    :param longest_stall: longest time for which the event loop was blocked, in seconds.
    :param last_failure: the last failed attempt; None: no attempt failed.
    """

    name: str
    queue_name: str
    state: RuntimeState
    pause_reason: str | None = None
    concurrency: int
    in_flight: int = 0
    prefetched: int = 0
    delayed: int = 0
    suspects: int = 0
    exclusive: float | None = None
    oldest_attempt: float | None = None
    acknowledged: int = 0
    requeued: int = 0
    dead_lettered: int = 0
    released: int = 0
    crashes: int = 0
    stuck: int = 0
    abandoned_threads: int = 0
    ack_failed: int = 0
    receive_failed: int = 0
    longest_stall: float = 0.0
    last_failure: LastFailure | None = None

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def snapshot_of(run: Any) -> RuntimeSnapshot:
    """The snapshot of a ``Run``."""
    intake, counts, now = run.intake, run.counts, run.clock.monotonic()
    slots = list(run.slots)  # another thread may ask while the set changes
    began = [each for each in (slot.began for slot in slots) if each is not None]
    exclusive = [each for each in (slot.exclusive_since for slot in slots) if each is not None]
    state: RuntimeState = "running" if intake.pause_reason is None else "paused"
    if intake.is_stopped:
        state = "stopped" if run.is_over else "draining"
    return RuntimeSnapshot(
        name=run.runtime.name,
        queue_name=run.source.name,
        state=state,
        pause_reason=intake.pause_reason,
        concurrency=run.runtime.concurrency,
        in_flight=run.busy,
        prefetched=len(intake.ready),
        delayed=len(intake.delayed),
        suspects=len(run.suspects),
        exclusive=now - min(exclusive) if exclusive else None,
        oldest_attempt=now - min(began) if began else None,
        acknowledged=counts["acknowledge"],
        requeued=counts["requeue"],
        dead_lettered=counts["dead_letter"],
        released=counts["release"],
        crashes=counts["crashes"],
        stuck=run.stuck,
        abandoned_threads=run.threads.abandoned,
        ack_failed=counts["ack_failed"],
        receive_failed=counts["receive_failed"],
        longest_stall=run.longest_stall,
        last_failure=run.last_failure,
    )

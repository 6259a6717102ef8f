"""Draw timelines: attempts, the states of a circuit, a chunk with a bad item, a key, a crash.

python tools/timelines.py            # write docs/images/{attempts,circuit,chunk,key,poison}.svg

Each picture shows a real execution, on virtual time; nothing in it is written by hand.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from attrs import frozen
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from sqlalchemy import text

from retrytemplate import (
    CircuitOpenError,
    ExponentialBackoff,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    SQLRetryContextCache,
)
from retrytemplate.backends.sql.inspection import SQLEntries
from retrytemplate.batch import ChunkStep, JobRepository, SkipPolicy, StepListener
from retrytemplate.control import CircuitBreaker, Consecutive
from retrytemplate.testing import VirtualClock
from retrytemplate.workers import WorkerRuntime
from retrytemplate.workers.testing import SimulatedCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from retrytemplate import Backoff
    from retrytemplate.batch import Event

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
INK, WAIT, GOOD, BAD, OTHER = "#333333", "#dddddd", "#0072b2", "#d55e00", "#e69f00"
ATTEMPT = 0.4  # seconds


@frozen
class Bar:
    """A part of a lane: from *start* to *end*, in the unit of the picture."""

    lane: str
    start: float
    end: float
    color: str
    label: str = ""


def attempts() -> list[Bar]:
    """Four clients whose first three attempts fail, without jitter and with full jitter."""
    plain = ExponentialBackoff(initial=1.0, maximum=30.0)
    jittered = ExponentialBackoff(initial=1.0, maximum=30.0, jitter="full")
    bars = _client("no jitter", plain, 0)
    for seed in range(1, 4):
        bars += _client(f"full jitter, client {seed}", jittered, seed)
    return bars


def _client(lane: str, backoff: Backoff, seed: int) -> list[Bar]:
    clock, bars = VirtualClock(), list[Bar]()
    template = RetryTemplate(SimpleRetryPolicy(4), backoff, clock=clock, random=Random(seed))
    beginning = clock.monotonic()

    def call(context: Any) -> None:
        start = clock.monotonic() - beginning
        if bars:
            bars.append(Bar(lane, bars[-1].end, start, WAIT))
        clock.advance(ATTEMPT)
        last = context.attempt == 4
        bars.append(Bar(lane, start, start + ATTEMPT, GOOD if last else BAD, str(context.attempt)))
        if not last:
            raise ConnectionError("reset")

    template.execute(call)
    return bars


def circuit() -> list[Bar]:
    """A circuit whose service fails from second 4 to 17, called every half second."""
    clock = VirtualClock()
    breaker = CircuitBreaker(
        "search",
        window=Consecutive(3),
        reset_timeout=5.0,
        reset_jitter=0.0,
        half_open_calls=1,
        required_successes=2,
        clock=clock,
    )
    beginning, bars = clock.monotonic(), list[Bar]()
    colors = {"closed": GOOD, "open": BAD, "half_open": OTHER}

    def call() -> None:
        if 4 <= clock.monotonic() - beginning < 17:
            raise ConnectionError("unreachable")

    while (now := clock.monotonic() - beginning) < 26:
        outcome = breaker.outcome(call)
        rejected = isinstance(outcome.exception, CircuitOpenError)
        color = GOOD if outcome.ok else WAIT if rejected else BAD
        bars.append(Bar("calls", now, now + 0.35, color))
        state = breaker.snapshot().state
        bars.append(Bar("circuit", now, now + 0.5, colors[state]))
        clock.advance(0.5)
    return bars


class _Steps(StepListener):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def chunk() -> list[Bar]:
    """A chunk of four items whose third one cannot be written: one column an event."""
    steps = _Steps()
    with TemporaryDirectory() as folder, JobRepository(f"sqlite:///{folder}/jobs.db") as jobs:
        with jobs.transaction() as transaction:
            transaction.execute(text("CREATE TABLE numbers (n INTEGER CHECK (n <> 3))"))

        def write(items: Sequence[int], transaction: Any) -> None:
            rows = [{"n": item} for item in items]
            transaction.execute(text("INSERT INTO numbers VALUES (:n)"), rows)

        ChunkStep(
            "load",
            reader=[1, 2, 3, 4],
            writer=write,
            repository=jobs,
            chunk_size=4,
            skip=SkipPolicy(on=Exception, limit=10),
            listeners=[steps],
        ).run()
    colors = {"written": GOOD, "rolled_back": BAD, "dead_lettered": OTHER}
    seen = [event for event in steps.events if event.kind in colors]
    return [
        Bar(f"item {number}", at, at + 0.9, colors[event.kind], f"tx {event.transaction}")
        for at, event in enumerate(seen)
        for number in event.numbers
    ]


def key() -> list[Bar]:
    """The record of a key over four deliveries of a message; the fourth calls the recovery."""
    bars, at = list[Bar](), 0.0
    colors = {"attempting": OTHER, "idle": BAD, "recovering": GOOD, "no record": WAIT}
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/retry.db"

        def show(duration: float) -> None:
            nonlocal at
            with closing(SQLEntries(url)) as inspector:
                entry = inspector.find("orders/s:m1")
            phase = entry.phase if entry else "no record"
            label = f"{phase}\n{entry.record.failures} failed" if entry else phase
            bars.append(Bar("record", at, at + duration, colors[phase], label))
            at += duration

        for delivery in range(1, 5):
            clock = VirtualClock()
            cache = SQLRetryContextCache(url, lease=10.0)
            template = RetryTemplate(SimpleRetryPolicy(3), name="orders", cache=cache, clock=clock)
            start = at

            def work() -> None:
                show(1.0)
                raise ConnectionError("reset")

            def recovery(_: Any) -> str:
                show(1.0)
                return "dead letter"

            with cache:
                outcome = template.bind(state=RetryState("m1"), recovery=recovery).outcome(work)
                label = "dead letter" if outcome.ok else "rolled back"
                bars.append(
                    Bar("delivery", start, at, GOOD if outcome.ok else BAD, f"{delivery}: {label}")
                )
                show(0.6)
    return bars


POISON, NEIGHBORS = "poison", ("neighbor 1", "neighbor 2")
OTHERS = 40  # further messages


class _Messages:
    """The bars of a cluster of two workers, with a lane for each of three messages."""

    def __init__(self) -> None:
        self.bars = [Bar(lane, 0.0, 0.0, WAIT) for lane in (POISON, *NEIGHBORS)]
        self._since = dict.fromkeys((POISON, *NEIGHBORS), 0.0)
        self._crashes = 0

    def runtime(self, worker: Any) -> WorkerRuntime:
        async def handle(message: Any, context: Any) -> None:
            is_exclusive = worker.inside[asyncio.current_task()]
            mode = "exclusive" if is_exclusive else "shared"
            start = worker.clock.monotonic()
            try:
                await asyncio.sleep(worker.random.uniform(0.9, 1.1))
            except asyncio.CancelledError:
                self._add(worker, message.id, start, OTHER, f"{mode},\nlost")
                raise
            if message.id == POISON:
                self._crashes += is_exclusive
                counted = f"crash {self._crashes} of 2" if is_exclusive else "crash"
                self._add(worker, message.id, start, BAD, f"{mode},\n{counted}")
                await worker.crash()
            self._add(worker, message.id, start, GOOD, mode)

        return WorkerRuntime(
            worker.source,
            handle,
            name="orders",
            cache=worker.cache,
            gate=worker.gate,
            clock=worker.clock,
            random=worker.random,
            listeners=[worker],
            concurrency=3,
            prefetch=3,
        )

    def _add(self, worker: Any, message: str, start: float, color: str, label: str) -> None:
        now = worker.clock.monotonic()
        if message in self._since:
            self.bars.append(Bar(message, self._since[message], start, WAIT))
            self._since[message] = now
            self.bars.append(Bar(message, start, now, color, label))
        else:
            self.bars.append(Bar(f"others, worker {worker.number + 1}", start, now, color))


def poison() -> list[Bar]:
    """A message that crashes each process that runs it, beside messages that do not."""
    seen = _Messages()
    cluster = SimulatedCluster(
        seen.runtime, workers=2, seed=4, lease=1.2, visibility_timeout=1.2, restart_after=0.3
    )

    def send(number: int) -> None:
        cluster.queue.put(b"", id=f"order-{number}")

    for number in range(OTHERS):
        cluster.at(number * 0.22, partial(send, number))
    report = cluster.run([POISON, *NEIGHBORS])
    report.raise_for_violations()
    [letter] = report.letters
    time = letter.dead_lettered_at - (letter.message.enqueued_at or 0.0)
    seen.bars.append(Bar(POISON, seen._since[POISON], time, WAIT))
    seen.bars.append(Bar(POISON, time, time + 1.0, INK, "dead letter"))
    others = sorted({bar.lane for bar in seen.bars if bar.lane.startswith("others")})
    lanes = [POISON, *NEIGHBORS, *others]
    return sorted(seen.bars, key=lambda bar: lanes.index(bar.lane))


PICTURES: dict[str, tuple[Callable[[], list[Bar]], str, str, dict[str, str]]] = {
    "attempts": (
        attempts,
        "Four attempts, three failures",
        "seconds",
        {"attempt failed": BAD, "attempt succeeded": GOOD, "wait": WAIT},
    ),
    "circuit": (
        circuit,
        "A service fails from second 4 to 17",
        "seconds",
        {
            "call succeeded, circuit closed": GOOD,
            "call failed, circuit open": BAD,
            "call rejected": WAIT,
            "circuit half-open": OTHER,
        },
    ),
    "chunk": (
        chunk,
        "A chunk of four items; item 3 violates a constraint",
        "events in their order",
        {"rolled back": BAD, "written and committed": GOOD, "dead letter": OTHER},
    ),
    "key": (
        key,
        "One message, delivered four times",
        "time",
        {
            "attempt recorded": OTHER,
            "failure kept": BAD,
            "recovery": GOOD,
            "no record": WAIT,
        },
    ),
    "poison": (
        poison,
        f"Two workers; one of {3 + OTHERS} messages crashes each process that runs it",
        "seconds",
        {
            "acknowledged": GOOD,
            "crashed its process": BAD,
            "lost in that crash": OTHER,
            "waits": WAIT,
            "dead letter": INK,
        },
    ),
}


def draw(name: str, folder: Path = IMAGES) -> None:
    """Write a picture; the same bytes every time."""
    bars_of, title, unit, legend = PICTURES[name]
    bars = bars_of()
    lanes = list(dict.fromkeys(bar.lane for bar in bars))
    settings: Any = {
        "font.size": 9,
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "text.color": INK,
    }
    with rc_context(settings):
        figure = Figure(figsize=(8.4, 1.2 + 0.45 * len(lanes)), layout="constrained")
        panel = figure.subplots()
        for bar in bars:
            lane, width = lanes.index(bar.lane), bar.end - bar.start
            panel.barh(lane, width, left=bar.start, color=bar.color, height=0.7)
            center = (bar.start + bar.end) / 2
            ink = "white" if bar.color in (GOOD, BAD, INK) else INK
            panel.text(center, lane, bar.label, ha="center", va="center", fontsize=7, color=ink)
        panel.set_yticks(range(len(lanes)), lanes)
        panel.invert_yaxis()
        panel.set_xlabel(unit)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(left=False)
        if unit != "seconds":
            panel.set_xticks([])
        handles = [Patch(color=color, label=label) for label, color in legend.items()]
        figure.legend(
            handles=handles, loc="outside lower center", ncols=len(handles), frameon=False
        )
        figure.suptitle(title, fontsize=10)
        figure.savefig(
            folder / f"{name}.svg", format="svg", metadata={"Date": None, "Creator": None}
        )


if __name__ == "__main__":
    for each in PICTURES:
        draw(each)

"""The processes of a worker as one, and their reports: a live table, lines, or JSON."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import Factory, define, field

from retrytemplate.cli.signals import print_stderr
from retrytemplate.cli.tables import Screen, on_terminal
from retrytemplate.workers import RuntimeSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from rich.console import RenderableType

    from retrytemplate.control.pipeline.lint import LintWarning
    from retrytemplate.control.process_group import ProcessCrashed
    from retrytemplate.workers import LastFailure, WorkerRuntime

COUNTS = "acknowledged requeued dead_lettered released crashes ack_failed receive_failed".split()
NOW = "concurrency in_flight prefetched delayed suspects stuck abandoned_threads".split()
LONGEST = "exclusive oldest_attempt longest_stall".split()
# The state of several processes is the first of these that one of them has.
STATES = ("running", "paused", "draining", "starting", "stopped")
STATE_STYLES = {"running": "green", "paused": "yellow", "draining": "yellow"}
RATE_WINDOW = 10.0
TICK, LINE_INTERVAL = 0.5, 10.0
"""Seconds between two looks at the snapshots, and between two lines."""
MINUTE, HOUR = 60, 3600


@define
class Fleet:
    """The snapshots of all processes of a worker.

    :param place: of the queue, for people.
    :param is_group: whether its processes are restarted: then crashes are those of processes.
    :param is_over: whether all processes have ended.
    """

    name: str
    place: str
    is_group: bool = False
    now: Callable[[], float] = time.monotonic
    process_crashes: int = 0
    is_over: bool = False
    began: float = field(init=False)
    _present: dict[int, RuntimeSnapshot] = Factory(dict)
    _ended: Counter[str] = Factory(Counter)
    _last_failure: LastFailure | None = None
    _rates: deque[tuple[float, int]] = Factory(deque)

    def __attrs_post_init__(self) -> None:
        self.began = self.now()
        self._rates.append((self.began, 0))

    @property
    def processes(self) -> int:
        """The number of processes that have reported and run."""
        return len(self._present)

    def add(self, number: int, snapshot: RuntimeSnapshot) -> None:
        """Take the newest snapshot of a process."""
        self._present[number] = snapshot
        failure, last = snapshot.last_failure, self._last_failure
        if failure is not None and (last is None or failure.at >= last.at):
            self._last_failure = failure

    def remove(self, number: int) -> None:
        """Keep the counts of a process that has ended; those after its last report are unknown."""
        snapshot = self._present.pop(number, None)
        if snapshot is not None:
            self._ended.update({name: getattr(snapshot, name) for name in COUNTS})

    def totals(self) -> RuntimeSnapshot:
        """The sums of all processes."""
        present = list(self._present.values())
        states = {snapshot.state for snapshot in present}
        none: Any = "stopped" if self.is_over else "starting"
        state: Any = next((each for each in STATES if each in states), none)
        found: dict[str, Any] = {
            name: sum(getattr(snapshot, name) for snapshot in present) for name in NOW
        }
        for name in COUNTS:
            found[name] = self._ended[name] + sum(getattr(each, name) for each in present)
        for name in LONGEST:
            times = [getattr(each, name) for each in present if getattr(each, name) is not None]
            found[name] = max(times, default=0.0 if name == "longest_stall" else None)
        reasons = [each.pause_reason for each in present if each.state == state]
        return RuntimeSnapshot(
            name=self.name,
            queue_name=present[0].queue_name if present else "",
            state=state,
            pause_reason=reasons[0] if reasons else None,
            last_failure=self._last_failure,
            **found,
        )

    def rate(self, acknowledged: int) -> float:
        """Acknowledged messages per second, in the last ten seconds."""
        now, seen = self.now(), self._rates
        seen.append((now, acknowledged))
        while len(seen) > 2 and seen[1][0] <= now - RATE_WINDOW:
            seen.popleft()
        began, before = seen[0]
        return max(0, acknowledged - before) / (now - began) if now > began else 0.0

    def as_json(self) -> dict[str, Any]:
        """The totals as JSON values."""
        more = {"processes": self.processes, "process_crashes": self.process_crashes}
        return self.totals().as_json() | more | {"elapsed": round(self.now() - self.began, 3)}


def place_of(runtime: WorkerRuntime) -> str:
    """The queue of a runtime, for people, without a password."""
    source = runtime.source
    if type(source).__str__ is object.__str__:
        return source.name
    return str(source)


@contextmanager
def opened(
    fleet: Fleet, as_json: bool, seconds: float | None, output: TextIO
) -> Iterator[Reporter]:
    """The reporter for standard output.

    :param output: for JSON.
    :param seconds: between two lines; None: 10.
    """
    interval = LINE_INTERVAL if seconds is None else seconds
    if as_json:
        yield JsonReporter(fleet, interval, output)
    elif on_terminal():
        with LiveReporter(fleet, seconds or TICK).display() as live:
            yield live
    else:
        yield LineReporter(fleet, interval)


@define
class Reporter:
    """Shows the state of a fleet at intervals; this one shows nothing."""

    fleet: Fleet
    interval: float
    _shown: float | None = field(default=None, kw_only=True)

    @property
    def tick(self) -> float:
        """Seconds between two looks at the fleet."""
        return min(self.interval, TICK)

    def show(self, *, at_end: bool = False) -> None:
        """Show the present state, if it is due."""

    def notice(self, text: str) -> None:
        """Show a line of text."""

    def crashed(self, event: ProcessCrashed) -> None:
        """Show the crash of a process."""

    def warn(self, warning: LintWarning) -> None:
        """Show a warning about the settings."""

    def is_due(self, at_end: bool) -> bool:
        """Whether the state is to be shown now, at the end in any case."""
        self.fleet.is_over = at_end
        now = self.fleet.now()
        if self._shown is None:
            self._shown = self.fleet.began
        if not at_end and now - self._shown < self.interval:
            return False
        self._shown = now
        return True


@define
class JsonReporter(Reporter):
    """Prints an object per line."""

    stream: TextIO = Factory(lambda: sys.stdout)

    def show(self, *, at_end: bool = False) -> None:
        if self.is_due(at_end):
            self._print("stopped" if at_end else "snapshot", **self.fleet.as_json())

    def warn(self, warning: LintWarning) -> None:
        self._print("warning", rule=warning.rule, reason=warning.reason, remedy=warning.remedy)

    def crashed(self, event: ProcessCrashed) -> None:
        self._print(
            "process_crashed",
            process=event.number + 1,
            exit_code=event.exit_code,
            restart_in=event.delay,
        )

    def _print(self, kind: str, **values: Any) -> None:
        print(json.dumps({"type": kind, **values}), file=self.stream, flush=True)

    def notice(self, text: str) -> None:
        print_stderr(text)


@define
class LineReporter(Reporter):
    """Prints a line at intervals."""

    screen: Screen = Factory(Screen)

    def show(self, *, at_end: bool = False) -> None:
        if self.is_due(at_end):
            head, *lines = describe(self.fleet, ", ")
            self.notice("; ".join([" ".join(head), *lines]))

    def warn(self, warning: LintWarning) -> None:
        self.notice(f"warning {warning.rule}: {warning.reason}; {warning.remedy}")

    def crashed(self, event: ProcessCrashed) -> None:
        then = "" if event.delay is None else f"; it is started again in {event.delay:g} s"
        self.notice(f"process {event.number + 1} crashed ({_reason(event.exit_code)}){then}")

    def notice(self, text: str) -> None:
        self.screen.say(text)
        self.screen.console.file.flush()


@define
class LiveReporter(LineReporter):
    """A table of three lines that is redrawn in place; other lines are printed above it."""

    _live: Any = field(default=None, kw_only=True)

    @contextmanager
    def display(self) -> Iterator[LiveReporter]:
        """Show the table during the block."""
        from rich.live import Live

        with Live(console=self.screen.console, auto_refresh=False) as live:
            self._live = live
            yield self

    def show(self, *, at_end: bool = False) -> None:
        if self.is_due(at_end):
            self._live.update(self.render(), refresh=True)

    def render(self) -> RenderableType:
        """The table for the present state."""
        from rich.console import Group
        from rich.text import Text

        separator = " · " if self.screen.console.encoding.startswith("utf") else ", "
        (name, state, *rest), *lines = describe(self.fleet, separator)
        title = Text(no_wrap=True, overflow="ellipsis")
        title.append(self.screen.clean(name), "bold").append("  ")
        title.append(state, STATE_STYLES.get(state, ""))
        title.append("".join(f"  {self.screen.clean(each)}" for each in rest))
        shown = [Text(self.screen.clean(each), no_wrap=True, overflow="ellipsis") for each in lines]
        return Group(title, *shown)


def describe(fleet: Fleet, separator: str) -> tuple[list[str], str, str] | tuple[Any, ...]:
    """The head of the table in parts, and its other lines."""
    totals = fleet.totals()
    paused = f" ({totals.pause_reason})" if totals.pause_reason else ""
    number = fleet.processes
    processes = [f"{number} process{'' if number == 1 else 'es'}"] if fleet.is_group else []
    elapsed = int(fleet.now() - fleet.began)
    clock = f"{elapsed // HOUR:02}:{elapsed // MINUTE % MINUTE:02}:{elapsed % MINUTE:02}"
    head = [totals.name, totals.state + paused, *processes, fleet.place, clock]
    lines = [separator.join(_present(totals)), separator.join(_counts(fleet, totals))]
    if totals.last_failure is not None:
        lines.append(f"last failure  {_failure(totals.last_failure)}")
    return head, *lines


def _present(totals: RuntimeSnapshot) -> Iterator[str]:
    yield f"in flight {totals.in_flight}/{totals.concurrency}"
    yield f"prefetched {totals.prefetched}"
    yield f"delayed {totals.delayed}"
    exclusive = "" if totals.exclusive is None else f" (exclusive, {totals.exclusive:.1f} s)"
    yield f"suspects {totals.suspects}{exclusive}"
    if totals.oldest_attempt is not None:
        yield f"oldest attempt {totals.oldest_attempt:.1f} s"


def _counts(fleet: Fleet, totals: RuntimeSnapshot) -> Iterator[str]:
    rate = fleet.rate(totals.acknowledged)
    yield f"acknowledged {totals.acknowledged:,} ({rate:,.0f}/s)"
    yield f"retried {totals.requeued:,}"
    yield f"dead-lettered {totals.dead_lettered:,}"
    yield f"released {totals.released:,}"
    yield f"crashes {fleet.process_crashes if fleet.is_group else totals.crashes:,}"
    yield f"stuck {totals.stuck}"
    if totals.abandoned_threads:
        yield f"abandoned threads {totals.abandoned_threads}"


def _failure(failure: LastFailure) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(failure.at))
    of = "" if failure.max_attempts is None else f" of {failure.max_attempts}"
    then = failure.action.replace("_", "-")
    if failure.action == "requeue":
        rest = max(0.0, failure.at + failure.delay - time.time())
        then = f"next attempt in {rest:.0f} s" if rest else "requeued"
    return f"{at}  {failure.key}  attempt {failure.attempt}{of}  {failure.error}; {then}"


def _reason(exit_code: int) -> str:
    if exit_code < 0:
        try:
            return signal.Signals(-exit_code).name
        except ValueError:
            return f"signal {-exit_code}"
    return f"exit code {exit_code}"

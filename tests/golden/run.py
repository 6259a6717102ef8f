"""Run a scenario against the library, and record its events in the notation of the file.

One millisecond of a trace is one second here, so that every number stays whole.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import trio
from attrs import define, field, frozen

from retrytemplate import (
    MemoryRetryContextCache,
    RecordedFailure,
    RetryContext,
    RetryListener,
    RetryTemplate,
    StatisticsListener,
    current_context,
)
from retrytemplate._internal.awaitables import in_trio
from tests.golden.build import built_backoff, built_policy, built_state
from tests.golden.compare import contextless, differences, unheard
from tests.golden.model import (
    JSON,
    Hard,
    Interrupted,
    UnknownFieldError,
    check_known,
    described,
    raised,
    type_name,
)

LINE = ("id", "group", "note", "tags", "scenario", "trace")
TAGS = {
    "cache_full",
    "empty_composite",
    "hard",
    "interrupt",
    "java_npe",
    "max_zero",
    "ms_truncation",
    "nested_not_recoverable",
    "recovery_keeps_key",
    "sync_leak",
    "veto_keeps_history",
}
SCENARIO = ("policy", "backoff", "listeners", "throw_last", "cache_capacity", "stats", "calls")
FLAGS = ("closed", "exhausted", "no_recovery", "recovered")
STATISTICS = ("started", "complete", "recovery", "error", "abort")


@frozen
class Mode:
    """One way to run a scenario.

    ``inline`` runs without any listener, so that the fast path serves it; ``entrance`` says how the
    callback goes in: "execute" and "block" with a context, the others without.
    """

    name: str
    asynchronous: bool = False
    inline: bool = False
    entrance: str = "execute"
    trio: bool = False

    @property
    def contextless(self) -> bool:
        return self.entrance not in ("execute", "block")

    def serves(self, scenario: JSON) -> bool:
        """Without listeners only scenarios can run whose listeners only record."""
        return not self.inline or not any(scenario.get("listeners", []))


ENTRANCES = ("execute", "call", "wrap", "outcome", "block")

MODES = {
    mode.name: mode
    for mode in (
        Mode("sync"),
        Mode("async", asynchronous=True),
        Mode("trio", asynchronous=True, trio=True),
        Mode("block", entrance="block"),
        Mode("block_async", asynchronous=True, entrance="block"),
        *(Mode(f"inline {name}", inline=True, entrance=name) for name in ENTRANCES),
        *(
            Mode(f"inline {name}_async", asynchronous=True, inline=True, entrance=name)
            for name in ENTRANCES
        ),
    )
}


@define(eq=False)
class Journal:
    """The state of a scene: the time, the present call, and the events of the innermost record."""

    mode: Mode
    interrupt_at: int | None = None
    stats: bool = False
    now: float = 0.0
    call: int = 0
    sleeps: int = 0
    levels: list[list[JSON]] = field(factory=lambda: [[]])
    context: RetryContext | None = None

    def note(self, *event: JSON) -> None:
        self.levels[-1].append(list(event))


async def pause() -> None:
    """Let the event loop run other tasks, as a callback that waits does."""
    if in_trio():
        await trio.lowlevel.checkpoint()
    else:
        await asyncio.sleep(0)


def whole(number: float) -> float:
    """A whole number as an int, as the file has it."""
    return round(number) if abs(number - round(number)) <= 1e-9 else number


@frozen(eq=False)
class VirtualClock:
    """Sleeps in no time, records it, and interrupts the sleep that the scenario names."""

    journal: Journal

    def monotonic(self) -> float:
        return 10_000.0 + self.journal.now

    def time(self) -> float:
        return 1_800_000_000.0 + self.journal.now

    def sleep(self, delay: float) -> None:
        self.journal.sleeps += 1
        if self.journal.sleeps == self.journal.interrupt_at:
            self.journal.note("sleep_interrupted", whole(delay))
            raise Interrupted
        self.journal.note("sleep", whole(delay))
        self.journal.now += delay

    async def sleep_async(self, delay: float) -> None:
        await pause()
        self.sleep(delay)


def flags_of(context: RetryContext) -> list[str]:
    return [flag for flag in FLAGS if getattr(context, flag)]


def depth_of(context: RetryContext | None) -> int:
    depth = 0
    while context is not None:
        depth, context = depth + 1, context.parent
    return depth


class Silent(RetryListener):
    """Gets the context of an execution that calls nothing; not part of a trace."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def close(self, context: RetryContext, exception: BaseException | None) -> None:
        self.journal.context = context


class Recorder(RetryListener):
    """A listener of the file: records, then acts as its specification says."""

    def __init__(self, journal: Journal, index: int, spec: JSON) -> None:
        check_listener(spec)
        self.journal, self.index, self.spec = journal, index, spec

    def error_of(self, chain: JSON, hook: str) -> BaseException:
        return raised(chain, f"c{self.journal.call}.{hook}{self.index}")

    def open(self, context: RetryContext) -> Any:
        action = self.spec.get("open")
        if self.journal.call not in self.spec.get("open_calls", (self.journal.call,)):
            action = None
        if isinstance(action, dict):
            self.journal.note("open", self.index, "raise")
            raise self.error_of(action["raise"], "open")
        if action is None:
            self.journal.note("open", self.index)
            return True
        self.journal.note("open", self.index, action)
        if action == "exhaust":
            context.give_up()
        return action != "veto"

    def on_success(self, context: RetryContext, result: Any) -> Any:
        chain = self.spec.get("reject", {}).get(result)
        if chain is None:
            self.journal.note("success", self.index, result)
            return
        self.journal.note("success", self.index, result, "reject")
        raise self.error_of(chain, "reject")

    def on_error(self, context: RetryContext, exception: BaseException) -> Any:
        name = type_name(exception)
        event = ("error", self.index, context.retry_count, name)
        action = self.spec.get("error", {})
        if action.get("on", name) != name:
            action = {}
        if "raise" in action:
            self.journal.note(*event, "raise")
            raise self.error_of(action["raise"], "error")
        if action.get("exhaust", False):
            self.journal.note(*event, "exhaust")
            context.give_up()
        else:
            self.journal.note(*event)

    def close(self, context: RetryContext, exception: BaseException | None) -> Any:
        event = ("close", self.index, type_name(exception), flags_of(context))
        if "close" in self.spec:
            self.journal.note(*event, "raise")
            raise self.error_of(self.spec["close"]["raise"], "close")
        self.journal.note(*event)


class Awaited(RetryListener):
    """The same listener with a coroutine function for every hook."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    async def open(self, context: RetryContext) -> Any:
        await pause()
        return self.recorder.open(context)

    async def on_success(self, context: RetryContext, result: Any) -> Any:
        await pause()
        self.recorder.on_success(context, result)

    async def on_error(self, context: RetryContext, exception: BaseException) -> Any:
        await pause()
        self.recorder.on_error(context, exception)

    async def close(self, context: RetryContext, exception: BaseException | None) -> Any:
        await pause()
        self.recorder.close(context, exception)


class Execution:
    """One call of the file, or one nested in a callback: what its callback and recovery do."""

    def __init__(
        self, journal: Journal, template: RetryTemplate, spec: JSON, identity: str, level: int
    ) -> None:
        self.journal, self.template, self.spec = journal, template, spec
        self.identity, self.level = identity, level
        self.attempts = 0
        self.context: RetryContext | None = None
        self.record: JSON = None
        self.state = built_state(spec["state"]) if "state" in spec else None

    # What happens inside; the same in every mode.

    def begin(self, context: RetryContext | None) -> JSON:
        """The start of a callback, up to its outcome."""
        self.attempts += 1
        if context is None:
            self.journal.note("callback", self.attempts)
        else:
            self.context = context
            depth = depth_of(current_context())
            self.journal.note("callback", self.attempts, context.retry_count, depth)
            if self.journal.stats:
                context.name = "op"
        outcomes = self.spec["outcomes"]
        if self.attempts > len(outcomes):
            return {"return": "end"}
        outcome = outcomes[self.attempts - 1]
        self.journal.now += outcome.get("advance", 0)
        if outcome.get("exhaust", False):
            present = context or current_context()
            assert present is not None
            present.give_up()
        return outcome

    def end(self, outcome: JSON) -> Any:
        if "return" in outcome:
            return outcome["return"]
        raise raised(outcome["raise"], f"{self.identity}.a{self.attempts}")

    def recover(self, context: RetryContext) -> Any:
        self.context = context
        self.journal.note("recover", context.retry_count, type_name(context.last_exception))
        recovery = self.spec["recovery"]
        if "return" in recovery:
            return recovery["return"]
        raise raised(recovery["raise"], f"{self.identity}.recover")

    def inner(self, outcome: JSON) -> Execution:
        """The execution nested in the present callback."""
        spec = outcome["nested"]
        listeners = () if self.journal.mode.inline else (Silent(self.journal),)
        template = RetryTemplate(
            policy=built_policy(spec["policy"]),
            listeners=listeners,
            clock=VirtualClock(self.journal),
        )
        identity = f"{self.identity}.a{self.attempts}:c{self.journal.call}"
        return Execution(self.journal, template, spec, identity, self.level + 1)

    def restored(self, before: RetryContext | None) -> bool:
        present = current_context()
        if self.journal.mode.contextless:
            return depth_of(present) == self.level
        return present is before

    # How it goes in and out, one way or the other.

    def callback(self, context: RetryContext | None = None) -> Any:
        outcome = self.begin(context)
        if "nested" not in outcome:
            return self.end(outcome)
        before = None if context is None else current_context()
        inner = self.inner(outcome)
        try:
            return inner.perform()
        finally:
            self.journal.note("nested", inner.record)
            self.journal.note("sync_restored", self.restored(before))

    async def callback_async(self, context: RetryContext | None = None) -> Any:
        await pause()
        outcome = self.begin(context)
        if "nested" not in outcome:
            return self.end(outcome)
        before = None if context is None else current_context()
        inner = self.inner(outcome)
        try:
            return await inner.perform_async()
        finally:
            self.journal.note("nested", inner.record)
            self.journal.note("sync_restored", self.restored(before))

    async def recover_async(self, context: RetryContext) -> Any:
        await pause()
        return self.recover(context)

    def perform(self) -> Any:
        """Run it, keep its record, and return its value or raise its exception."""
        self.journal.levels.append([])
        try:
            value = self.entered()
        except (Exception, Hard) as error:
            self.record = self.written({"raise": self.described_error(error)})
            raise
        self.record = self.written({"return": value})
        return value

    async def perform_async(self) -> Any:
        self.journal.levels.append([])
        try:
            value = await self.entered_async()
        except (Exception, Hard) as error:
            self.record = self.written({"raise": self.described_error(error)})
            raise
        self.record = self.written({"return": value})
        return value

    def entered(self) -> Any:
        recovery = self.recover if "recovery" in self.spec else None
        if self.journal.mode.entrance == "execute":
            return self.template.execute(self.callback, recovery=recovery, state=self.state)
        bound = self.template.bind(recovery=recovery, state=self.state)
        match self.journal.mode.entrance:
            case "call":
                return bound.call(self.callback)
            case "wrap":
                return bound.wrap(lambda: self.callback())()
            case "block":
                attempts = bound.attempts()
                for attempt in attempts:
                    with attempt as context:
                        attempt.result = self.callback(context)
                return attempts.result
            case _:
                return bound.outcome(self.callback).unwrap()

    async def entered_async(self) -> Any:
        recovery = self.chosen(self.recover, self.recover_async)
        if self.journal.mode.entrance == "execute":
            return await self.template.execute_async(
                self.callback_async, recovery=recovery, state=self.state
            )
        bound = self.template.bind(recovery=recovery, state=self.state)
        match self.journal.mode.entrance:
            case "call":
                return await bound.call_async(self.callback_async)
            case "wrap":

                async def wrapped() -> Any:
                    return await self.callback_async()

                return await bound.wrap(wrapped)()
            case "block":
                attempts = bound.attempts()
                async for attempt in attempts:
                    async with attempt as context:
                        attempt.result = await self.callback_async(context)
                return attempts.result
            case _:
                return (await bound.outcome_async(self.callback_async)).unwrap()

    def chosen(self, plain: Callable[..., Any], awaited: Callable[..., Any]) -> Any:
        """Alternate between coroutine functions and plain functions as recoveries."""
        if "recovery" not in self.spec:
            return None
        return awaited if self.journal.call % 2 else plain

    # The recorded part.

    def described_error(self, error: BaseException) -> JSON:
        entry = described(error)
        if entry == {"type": "ExhaustedRetryException"} and self.state is None:
            # Nothing ever failed: the original has another type for it without a state.
            return {"type": "RetryException"}
        return entry

    def written(self, result: JSON) -> JSON:
        events = self.journal.levels.pop()
        context = self.journal.context or self.context
        self.journal.context = None
        record = {"events": events, "result": result}
        return record if context is None else record | {"context": seen_after(context)}


def seen_after(context: RetryContext) -> JSON:
    """The context as it is after the call."""
    last = context.last_exception
    assert last is None or isinstance(last, RecordedFailure), f"{last!r} is kept alive"
    record = {
        "retry_count": context.retry_count,
        "last": described(last),
        "exhausted_only": context.gave_up,
        "flags": flags_of(context),
        "max_attempts": -1 if context.max_attempts is None else context.max_attempts,
    }
    for ours, theirs in (
        ("circuit.open", "circuit_open"),
        ("circuit.short_count", "circuit_short_count"),
    ):
        if ours in context.attributes:
            record[theirs] = context.attributes[ours]
    return record


class Scene:
    """A scenario in progress: its template, its cache, its calls in order."""

    def __init__(self, scenario: JSON, mode: Mode, leave_out: frozenset[int] = frozenset()) -> None:
        check_known("scenario", scenario, *SCENARIO)
        self.scenario, self.leave_out = scenario, leave_out
        for call in scenario["calls"]:
            check_call(call)
        backoff = scenario.get("backoff", {"type": "none"})
        self.journal = Journal(
            mode, backoff.get("interrupt_at"), scenario.get("stats", False) and not mode.inline
        )
        clock = VirtualClock(self.journal)
        self.statistics = StatisticsListener(clock=clock)
        room = {"capacity": scenario["cache_capacity"]} if "cache_capacity" in scenario else {}
        self.cache = MemoryRetryContextCache(**room)
        self.template = RetryTemplate(
            policy=built_policy(scenario["policy"]),
            backoff=built_backoff(backoff),
            listeners=self.listeners(),
            cache=self.cache,
            raise_last=scenario.get("throw_last", False),
            clock=clock,
            name="golden",
        )
        keys = {call["state"]["key"] for call in scenario["calls"] if "state" in call}
        self.keys = sorted(keys - {None})

    def listeners(self) -> tuple[RetryListener, ...]:
        recorders = [
            Recorder(self.journal, index, spec)
            for index, spec in enumerate(self.scenario.get("listeners", []))
        ]
        if self.journal.mode.inline:
            return ()
        listeners: list[RetryListener] = [Silent(self.journal)]
        for recorder in recorders:
            awaited = self.journal.mode.asynchronous and recorder.index % 2
            listeners.append(Awaited(recorder) if awaited else recorder)
        if self.journal.stats:
            listeners.append(self.statistics)
        return tuple(listeners)

    def prepared(self, number: int, call: JSON) -> Execution | None:
        """The next call, after its ``advance``; None if it is left out."""
        self.journal.now += call.get("advance", 0)
        self.journal.call = number
        if number in self.leave_out:
            return None
        return Execution(self.journal, self.template, call, f"c{number}", level=1)

    def written(self, record: JSON) -> JSON:
        """A call's record with the fields that only the whole scene has."""
        if self.keys:
            kept = {key: self.cache.peek(self.template.scoped_key(key)) for key in self.keys}
            record["cache"] = {
                key: entry.failures for key, entry in kept.items() if entry is not None
            }
        if self.journal.stats:
            found = self.statistics.find("op")
            record["stats"] = found and {name: getattr(found, name) for name in STATISTICS}
        record["clock"] = whole(self.journal.now)
        if current_context() is not None:
            record["sync_leak"] = True
        return record

    def played(self) -> list[JSON]:
        records: list[JSON] = []
        for number, call in enumerate(self.scenario["calls"], 1):
            execution = self.prepared(number, call)
            if execution is None:
                records.append(None)
                continue
            try:
                execution.perform()
            except (Exception, Hard) as error:
                check_understood(error)
            records.append(self.written(execution.record))
        return records

    async def played_async(self) -> list[JSON]:
        records: list[JSON] = []
        for number, call in enumerate(self.scenario["calls"], 1):
            execution = self.prepared(number, call)
            if execution is None:
                records.append(None)
                continue
            try:
                await execution.perform_async()
            except (Exception, Hard) as error:
                check_understood(error)
            records.append(self.written(execution.record))
        return records


def check_understood(error: BaseException) -> None:
    """Report an error of the runner apart from failures of the library."""
    if isinstance(error, UnknownFieldError):
        raise error


def check_listener(spec: JSON) -> None:
    """Reject scenarios that the runner does not know, before anything runs."""
    check_known("listener", spec, "open", "open_calls", "reject", "error", "close")
    action = spec.get("open")
    if isinstance(action, dict):
        check_known("listener open", action, "raise")
        raised(action["raise"], "")
    elif action not in (None, "veto", "exhaust"):
        raise UnknownFieldError(f"listener open: unknown action {action!r}")
    for chain in spec.get("reject", {}).values():
        raised(chain, "")
    check_known("listener error", spec.get("error", {}), "raise", "exhaust", "on")
    check_known("listener close", spec.get("close", {}), "raise")
    for hook in ("error", "close"):
        if "raise" in spec.get(hook, {}):
            raised(spec[hook]["raise"], "")


def check_call(call: JSON, *, nested: bool = False) -> None:
    """The same for a call, also for the parts that the scenario does not reach."""
    if nested:
        check_known("nested", call, "policy", "recovery", "outcomes")
    else:
        check_known("call", call, "outcomes", "state", "recovery", "advance")
    if "recovery" in call:
        check_known("recovery", call["recovery"], "return", "raise")
        check_one_action("recovery", call["recovery"])
    for outcome in call["outcomes"]:
        check_known("outcome", outcome, "advance", "exhaust", "return", "raise", "nested")
        check_one_action("outcome", outcome)
        if "nested" in outcome:
            check_call(outcome["nested"], nested=True)


def check_one_action(where: str, spec: JSON) -> None:
    if len(spec.keys() & {"return", "raise", "nested"}) != 1:
        raise UnknownFieldError(f"{where}: one of return, raise, nested was expected in {spec!r}")
    if "raise" in spec:
        raised(spec["raise"], "")


def run(
    scenario: JSON,
    mode: Mode,
    loop: asyncio.AbstractEventLoop | None = None,
    leave_out: frozenset[int] = frozenset(),
) -> list[JSON]:
    """The trace of a scenario in a mode: a record a call.

    *leave_out* names calls (from 1) that are passed over, with None for their record.  Without a
    *loop* an asyncio mode makes one of its own.
    """
    present = contextvars.copy_context()
    scene = present.run(Scene, scenario, mode, leave_out)
    if not mode.asynchronous:
        return present.run(scene.played)
    if mode.trio:
        return present.run(trio.run, scene.played_async)
    if loop is not None:
        return loop.run_until_complete(loop.create_task(scene.played_async(), context=present))
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(loop.create_task(scene.played_async(), context=present))
    finally:
        loop.close()


def check(line: JSON, mode: Mode, loop: asyncio.AbstractEventLoop | None = None) -> list[str]:
    """The differences between a line's trace and what the library does."""
    check_known("line", line, *LINE)
    unknown = set(line.get("tags", ())) - TAGS
    if unknown:
        raise UnknownFieldError(f"line: unknown tags {sorted(unknown)}")
    return compared(line["trace"], run(line["scenario"], mode, loop), mode)


def compared(expected: JSON, actual: list[JSON], mode: Mode) -> list[str]:
    """The differences that count in a mode."""
    if mode.contextless:
        return differences([contextless(r) for r in expected], [contextless(r) for r in actual])
    if not mode.inline:
        return differences(expected, actual)
    expected = [without_stats(unheard(record)) for record in expected]
    for left, right in zip(expected, actual, strict=False):
        if "context" not in right:
            # No code got the context: nothing was called.
            left.pop("context", None)
    return differences(expected, actual)


def without_stats(record: JSON) -> JSON:
    return {key: value for key, value in record.items() if key != "stats"}

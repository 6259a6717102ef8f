"""Time and garbage of calls, and the time of imports."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from attrs import define
from cells import GARBAGE, TIMED, VALUE, Cell, Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from libraries import Forms, Library

GARBAGE_CALLS = 200


def _repeat(call: Callable[[], Any], times: range, raises: bool) -> int:
    if raises:
        start = perf_counter_ns()
        for _ in times:
            try:
                call()
            except Failure:
                continue
        return perf_counter_ns() - start
    start = perf_counter_ns()
    for _ in times:
        call()
    return perf_counter_ns() - start


async def _repeat_async(call: Callable[[], Awaitable[Any]], times: range, raises: bool) -> int:
    if raises:
        start = perf_counter_ns()
        for _ in times:
            try:
                await call()
            except Failure:
                continue
        return perf_counter_ns() - start
    start = perf_counter_ns()
    for _ in times:
        await call()
    return perf_counter_ns() - start


@define
class Measurement:
    """One cell of one library: the call, and its shortest time."""

    library: str
    cell: Cell
    call: Callable[[], Any]
    times: int = 1
    nanoseconds: float = float("inf")

    def nanoseconds_of(self, times: int, loop: asyncio.AbstractEventLoop) -> int:
        """The time of *number* calls."""
        if self.cell.asynchronous:
            work = _repeat_async(self.call, range(times), self.cell.raises)
            return loop.run_until_complete(work)
        return _repeat(self.call, range(times), self.cell.raises)

    def calibrate(self, target: int, loop: asyncio.AbstractEventLoop) -> None:
        """Find how many calls take about *target* nanoseconds."""
        self.nanoseconds_of(3, loop)
        while (taken := self.nanoseconds_of(self.times, loop)) < target / 4:
            self.times *= 2
        self.times = max(1, self.times * target // taken)

    def time(self, loop: asyncio.AbstractEventLoop) -> None:
        """Time it once more; the shortest time stays."""
        self.nanoseconds = min(self.nanoseconds, self.nanoseconds_of(self.times, loop) / self.times)


def _tried(library: str, cell: Cell, forms: Forms, loop: asyncio.AbstractEventLoop) -> Measurement:
    """The measurement, once it is certain that the library does what the cell is about."""
    inner, calls = cell.make(), 0

    def counting(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return inner(*args)

    async def counting_async() -> Any:
        nonlocal calls
        calls += 1
        return await inner()

    guard = forms[cell.form]
    trial = guard(counting_async if cell.asynchronous else counting)
    try:
        result = loop.run_until_complete(trial()) if cell.asynchronous else trial()
    except Failure:
        result = Failure
    if (result, calls) != (Failure if cell.raises else VALUE, cell.attempts):
        raise AssertionError(f"{library}, {cell.title}: {result!r} after {calls} calls")
    return Measurement(library, cell, guard(cell.make()))


def _garbage(measurement: Measurement, loop: asyncio.AbstractEventLoop) -> float:
    """The objects per call that only the cyclic garbage collector can free."""
    measurement.nanoseconds_of(20, loop)
    gc.collect()
    gc.disable()
    try:
        if not measurement.cell.asynchronous:
            measurement.nanoseconds_of(GARBAGE_CALLS, loop)
            return gc.collect() / GARBAGE_CALLS

        async def count() -> int:
            await _repeat_async(measurement.call, range(GARBAGE_CALLS), measurement.cell.raises)
            return gc.collect()

        return loop.run_until_complete(count()) / GARBAGE_CALLS
    finally:
        gc.enable()


def no_sleep(seconds: float = 0.0) -> None:
    """Stands for ``time.sleep``."""


async def no_sleep_async(seconds: float = 0.0, result: Any = None) -> Any:
    """Stands for ``asyncio.sleep``."""
    return result


def one_run(libraries: Sequence[Library], rounds: int, target: int) -> dict[str, dict[str, float]]:
    """Nanoseconds, and objects of garbage, by library and key of cell: in this process."""
    with (
        patch("time.sleep", no_sleep),
        patch("asyncio.sleep", no_sleep_async),
        asyncio.Runner() as runner,
    ):
        loop = runner.get_loop()
        forms = {library.name: library.forms() for library in libraries}

        def tried(cells: Iterable[Cell]) -> list[Measurement]:
            return [
                _tried(name, cell, able, loop)
                for cell in cells
                for name, able in forms.items()
                if cell.form in able
            ]

        timed = tried(TIMED)
        _time_in_turn(timed, rounds, target, loop)
        figures: dict[str, dict[str, float]] = {name: {} for name in forms}
        for each in timed:
            figures[each.library][each.cell.key] = each.nanoseconds
        for each in tried(GARBAGE):
            figures[each.library][each.cell.key] = _garbage(each, loop)
        return figures


def _time_in_turn(
    timed: list[Measurement], rounds: int, target: int, loop: asyncio.AbstractEventLoop
) -> None:
    gc.collect()
    gc.freeze()  # existing objects are not part of any call
    for each in timed:
        each.calibrate(target, loop)
    for _ in range(rounds):
        for each in timed:
            each.time(loop)
    gc.unfreeze()


def import_times(packages: Sequence[str], rounds: int) -> dict[str, float]:
    """Milliseconds by package: a fresh process that imports it, less one that imports nothing."""
    programs = {package: f"import {package}" for package in packages} | {"": "pass"}
    shortest = dict.fromkeys(programs, float("inf"))
    # The first turn writes the bytecode, and is not counted.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for turn in range(rounds + 1):
        for package, program in programs.items():
            start = perf_counter_ns()
            subprocess.run([sys.executable, "-c", program], check=True, env=environment)
            taken = (perf_counter_ns() - start) / 1e6
            if turn:
                shortest[package] = min(shortest[package], taken)
    return {package: shortest[package] - shortest[""] for package in packages}

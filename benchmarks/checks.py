"""What it costs to ask a kill switch: ``python benchmarks/checks.py``.

While nothing is stopped, which is nearly always, and while something else or this is.  In memory,
and with a store in a file of SQLite of which each process keeps a copy.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from timeit import Timer
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pages import update

from retrytemplate import KillSwitchActiveError
from retrytemplate.control import KillSwitch, SQLSwitchStore

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = 0.3
"""Microseconds of a guard while nothing is stopped."""

REASON = "to see what a check costs"
SECONDS = 0.004  # of a round


def calls(switch: KillSwitch) -> dict[str, Callable[[], Any]]:
    """What is measured, by title."""
    guard = switch.guard(segment="finance")

    def admit() -> None:
        guard.admit(None)

    def check() -> None:
        switch.check(segment="finance")

    def refused() -> None:
        with suppress(KillSwitchActiveError):
            guard.admit(None)

    return {"guard": admit, "`check`": check, "guard, refused": refused}


def fastest(call: Callable[[], Any], rounds: int) -> float:
    """Microseconds of a call, by the fastest of many short rounds."""
    timer = Timer(call)
    number = 1
    while timer.timeit(number) < SECONDS:
        number *= 2
    empty = min(Timer(_nothing).repeat(rounds, number))
    return (min(timer.repeat(rounds, number)) - empty) / number * 1e6


def _nothing() -> None:
    """What it costs to call something that does nothing."""


def measured(switch: KillSwitch, rounds: int) -> dict[str, float]:
    """Microseconds by title, with one store."""
    switch.start()
    wanted = calls(switch)
    found = {f"{each}, nothing is stopped": fastest(wanted[each], rounds) for each in wanted}
    del found["guard, refused, nothing is stopped"]
    switch.stop(segment="search", reason=REASON, by="the benchmark", permanent=True)
    found["guard, something else is stopped"] = fastest(wanted["guard"], rounds)
    switch.stop(segment="finance", reason=REASON, by="the benchmark", permanent=True)
    found["guard, refused"] = fastest(wanted["guard, refused"], rounds)
    return found


def both(rounds: int) -> dict[str, dict[str, float]]:
    """The same in memory, and with a store."""
    with TemporaryDirectory() as folder:
        store = SQLSwitchStore(f"sqlite:///{folder}/switch.db")
        with KillSwitch() as here, KillSwitch(store, 60) as shared:
            found = {"in memory": measured(here, rounds), "store": measured(shared, rounds)}
        store.close()
    return found


def table(found: dict[str, dict[str, float]]) -> list[str]:
    """The rows of the table, in Markdown."""
    here, shared = found["in memory"], found["store"]
    rows = (f"| {each} | {here[each]:.2f} | {shared[each]:.2f} |" for each in here)
    return ["| µs | in memory | with a store |", "|---|---:|---:|", *rows]


def remark(found: dict[str, dict[str, float]]) -> str:
    """What stands below the table."""
    slowest = max(each["guard, nothing is stopped"] for each in found.values())
    verdict = "within" if round(slowest, 2) <= GOAL else "over"
    where = f"{platform.python_implementation()} {platform.python_version()}"
    return f"A guard while nothing is stopped is {verdict} its goal, {GOAL:g} µs. {where}."


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a moment, and rough figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the microseconds")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write the table into a page")
    wanted = parser.parse_args()
    found = both(3 if wanted.quick else 200)
    text = "\n".join([*table(found), "", remark(found)])
    print(text)
    if wanted.json:
        wanted.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if wanted.update:
        update(wanted.update, "checks", text)


if __name__ == "__main__":
    main()

"""The cost of a check of a kill switch: ``python benchmarks/checks.py``.

While nothing is stopped, which is nearly always, and while something else or this is; and what a
call with retry costs with a guard and without.  In memory, and with a store in a file of SQLite of
which each process keeps a copy.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from timeit import Timer
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pages import INTERPRETER, options, show

from retrytemplate import KillSwitchActiveError, RetryTemplate
from retrytemplate.control import KillSwitch, SQLSwitchStore

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = 0.3
"""Microseconds of a guard that admits a call."""

REASON = "to see what a check costs"
SECONDS = 0.004  # of a round


def calls(switch: KillSwitch) -> dict[str, Callable[[], Any]]:
    """The measured calls, by title."""
    guard = switch.guard(segment="finance")

    def admit() -> None:
        guard.admit(None)

    def check() -> None:
        switch.check(segment="finance")

    def rejected() -> None:
        with suppress(KillSwitchActiveError):
            guard.admit(None)

    return {"guard": admit, "`check`": check, "guard, rejected": rejected}


def fastest(call: Callable[[], Any], rounds: int) -> float:
    """Microseconds of a call, by the fastest of many short rounds."""
    timer = Timer(call)
    number = 1
    while timer.timeit(number) < SECONDS:
        number *= 2
    empty = min(Timer(_nothing).repeat(rounds, number))
    return (min(timer.repeat(rounds, number)) - empty) / number * 1e6


def _nothing() -> None:
    """A function that does nothing, to subtract the cost of a call."""


def measured(switch: KillSwitch, rounds: int) -> dict[str, float]:
    """Microseconds by title, with one store."""
    switch.start()
    wanted = calls(switch)
    found = {f"{each}, nothing is stopped": fastest(wanted[each], rounds) for each in wanted}
    del found["guard, rejected, nothing is stopped"]
    bare, guarded = RetryTemplate(), RetryTemplate(guards=[switch.guard(segment="finance")])
    found["a template's call, no guard"] = fastest(lambda: bare.call(_nothing), rounds)
    found["a template's call, guarded"] = fastest(lambda: guarded.call(_nothing), rounds)
    switch.stop(segment="search", reason=REASON, by="the benchmark", permanent=True)
    found["guard, something else is stopped"] = fastest(wanted["guard"], rounds)
    switch.stop(segment="finance", reason=REASON, by="the benchmark", permanent=True)
    found["guard, rejected"] = fastest(wanted["guard, rejected"], rounds)
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
    passing = [f"guard, {what} is stopped" for what in ("nothing", "something else")]
    slowest = max(each[title] for each in found.values() for title in passing)
    verdict = "reached" if round(slowest, 2) <= GOAL else "not reached"
    return f"The goal of a guard that admits a call is {GOAL:g} µs: {verdict}. {INTERPRETER}."


def main() -> None:
    """Run the benchmark."""
    wanted = options(__doc__, figures="the microseconds").parse_args()
    found = both(3 if wanted.quick else 200)
    text = "\n".join([*table(found), "", remark(found)])
    show(wanted, "checks", text, found)


if __name__ == "__main__":
    main()

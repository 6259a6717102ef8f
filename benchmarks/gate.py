"""Time to enter and leave an isolation gate, beside a lock of the standard library.

python benchmarks/gate.py
python benchmarks/gate.py --update docs/control/isolation-gate.md
"""

from __future__ import annotations

import asyncio
import threading
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from pages import INTERPRETER, options, show

from retrytemplate.control import HostGate, ProcessGate

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS, ROUNDS = 500, 200


def in_thread(entry: Callable[[], Any]) -> float:
    """Nanoseconds of one pair, by one round."""
    began = perf_counter_ns()
    for _ in range(CALLS):
        with entry():
            pass
    return (perf_counter_ns() - began) / CALLS


def in_task(entry: Callable[[], Any]) -> float:
    """The same in a task of asyncio."""

    async def main() -> float:
        began = perf_counter_ns()
        for _ in range(CALLS):
            async with entry():
                pass
        return (perf_counter_ns() - began) / CALLS

    return asyncio.run(main())


def main() -> None:
    """Run the benchmark."""
    wanted = options(__doc__, figures="the nanoseconds").parse_args()
    lock, gate = threading.Lock(), ProcessGate()
    with TemporaryDirectory() as folder:
        host = HostGate(directory=folder)
        cells: dict[str, tuple[Any, Any]] = {
            "`threading.Lock`": (in_thread, lambda: lock),
            "`ProcessGate`, shared": (in_thread, gate.shared),
            "`ProcessGate`, exclusive": (in_thread, gate.exclusive),
            "`ProcessGate`, shared, asyncio": (in_task, gate.shared),
            "`HostGate`, shared": (in_thread, host.shared),
            "`HostGate`, exclusive": (in_thread, host.exclusive),
        }
        best = dict.fromkeys(cells, float("inf"))
        for _ in range(3 if wanted.quick else ROUNDS):
            for name, (measure, entry) in cells.items():
                best[name] = min(best[name], measure(entry))
    rows = [f"| {name} | {nanoseconds / 1000:.2f} |" for name, nanoseconds in best.items()]
    table = "\n".join(["| entered and left | µs |", "|---|---:|", *rows])
    show(wanted, "gate", f"{table}\n\n{INTERPRETER}.", best)


if __name__ == "__main__":
    main()

"""A million messages in a simulated cluster: ``python benchmarks/simulation.py``.

100 workers with 16 slots, handlers of about a second, a poison message among each 10,000, and
outages of the queue and the store.  The invariants are checked; a violation ends the benchmark with
an error.  The limits are 90 seconds of processor time and 1 GB of memory.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pages import INTERPRETER, options, show

from retrytemplate.workers import WorkerRuntime
from retrytemplate.workers.testing import SimulatedCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.workers.testing import ClusterReport

POISONS = 10_000  # messages for each poison
MESSAGES, WORKERS = 1_000_000, 100


def runtime_factory(poisons: set[str]) -> Callable[[Any], WorkerRuntime]:
    """Make runtimes whose handler crashes its worker at a poison message."""

    def make(worker: Any) -> WorkerRuntime:
        async def handle(message: Any, context: Any) -> None:
            await asyncio.sleep(worker.random.uniform(0.5, 1.5))
            if message.id in poisons:
                await worker.crash()

        return WorkerRuntime(
            worker.source,
            handle,
            name="billing",
            cache=worker.cache,
            gate=worker.gate,
            clock=worker.clock,
            random=worker.random,
            listeners=[worker],
            concurrency=16,
            receive_wait=20.0,  # an idle worker takes a step for each call
        )

    return make


def simulate(messages: int, workers: int) -> ClusterReport:
    """Run the cluster; raise if an invariant does not hold."""
    poisons = {f"m-{number}" for number in range(0, messages, POISONS)}
    cluster = SimulatedCluster(runtime_factory(poisons), workers, seed=1, keep_events=False)
    cluster.outage("store", 20.0, 25.0)
    cluster.outage("queue", 40.0, 45.0)
    report = cluster.run(messages)
    report.raise_for_violations()
    assert {letter.message.id for letter in report.letters} == poisons
    return report


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__, figures="the seconds and megabytes")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    wanted = parser.parse_args()
    messages, workers = (2_000, 4) if wanted.quick else (wanted.messages, WORKERS)
    logging.disable(logging.CRITICAL)  # each crash logs its suspects
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    report = simulate(messages, workers)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds, megabytes = used.ru_utime - before, used.ru_maxrss / 1024
    rows = [
        "| messages | workers | processor, s | µs for each | memory, MB | simulated, s |",
        "|---|---:|---:|---:|---:|---:|",
        f"| {messages:,} | {workers} | {seconds:.1f} | {seconds / messages * 1e6:.0f} "
        f"| {megabytes:.0f} | {report.elapsed:.0f} |",
    ]
    show(wanted, "simulation", "\n".join([*rows, "", f"{INTERPRETER}."]), {"seconds": seconds})


if __name__ == "__main__":
    main()

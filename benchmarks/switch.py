"""How soon all processes heed a kill switch: from a stop's acknowledgement to the last check
that let something through.

python benchmarks/switch.py                                     # on SQLite
python benchmarks/switch.py --url postgresql://user@localhost/scratch --url redis://localhost
python benchmarks/switch.py --update docs/control/kill-switch.md
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from contextlib import closing, contextmanager
from random import uniform
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pages import CHECKOUT, INTERPRETER, options, show

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from retrytemplate.control import KillSwitch

    Pipe = Connection[Any, Any]

NAME = "measured"
BY = "the benchmark"
PROCESSES = 8
TITLES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "redis": "Valkey", "rediss": "Valkey"}


@contextmanager
def switch_at(url: str, stale_after: float) -> Iterator[KillSwitch]:
    """A switch of this process, on the store of a URL."""
    from retrytemplate.control import KillSwitch, RedisSwitchStore, SQLSwitchStore

    kind = RedisSwitchStore if url.startswith("redis") else SQLSwitchStore
    with closing(kind(url, NAME)) as store, KillSwitch(store, stale_after) as switch:
        yield switch


def work(url: str, stale_after: float, pipe: Pipe) -> None:
    """Check a thousand times a second; on a message, send the time of the last admission."""
    with switch_at(url, stale_after) as switch:
        last = 0.0
        while True:
            at = time.monotonic()
            if switch.check(segment=NAME):
                last = at
            if pipe.poll(0.001):
                if pipe.recv() == "end":
                    return
                pipe.send(last)


def delays(url: str, stale_after: float, rounds: int, processes: int) -> list[float]:
    """Seconds after the acknowledgement, for each process in each round."""
    found = []
    pipes, workers = [], []
    for _ in range(processes):
        here, there = multiprocessing.Pipe()
        worker = multiprocessing.Process(target=work, args=(url, stale_after, there), daemon=True)
        worker.start()
        pipes.append(here)
        workers.append(worker)
    ask(pipes)  # they have begun
    with switch_at(url, stale_after) as switch:
        for _ in range(rounds):
            time.sleep(stale_after * uniform(1.2, 2.2))
            switch.stop(segment=NAME, reason="how soon is it heeded", by=BY, permanent=True)
            acknowledged = time.monotonic()
            time.sleep(stale_after * 1.2 + 0.05)
            found += [max(0.0, last - acknowledged) for last in ask(pipes)]
            switch.resume(segment=NAME, by=BY, justification="it has been heeded")
    for pipe, worker in zip(pipes, workers, strict=True):
        pipe.send("end")
        worker.join()
    return found


def ask(pipes: list[Pipe]) -> list[float]:
    """When each process was last let through."""
    for pipe in pipes:
        pipe.send("when")
    return [pipe.recv() for pipe in pipes]


def table(urls: list[str], stale: list[float], *, quick: bool) -> list[str]:
    """All lines, in Markdown."""
    lines = [
        "| seconds | `stale_after` | until half of them have stopped | until the last has |",
        "|---|---:|---:|---:|",
    ]
    rounds, processes = (1, 2) if quick else (25, PROCESSES)
    with TemporaryDirectory() as folder:
        for url in [f"sqlite:///{folder}/switch.db", *urls]:
            name = TITLES[url.partition(":")[0].partition("+")[0]]
            for each in stale:
                found = delays(url, each, rounds, processes)
                half, last = f"{median(found):.3f}", f"{max(found):.3f}"
                lines.append(f"| {name} | {each:g} | {half} | {last} |")
    return lines


def main() -> None:
    """Measure, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--url", action="append", default=[], help="another store to measure")
    parser.add_argument("--stale-after", type=float, action="append", metavar="SECONDS")
    wanted = parser.parse_args()
    stale = wanted.stale_after or ([0.1] if wanted.quick else [1.0, 0.2])
    text = "\n".join([*table(wanted.url, stale, quick=wanted.quick), "", f"{INTERPRETER}."])
    show(wanted, "switch", text)


if __name__ == "__main__":
    # The checkout that this file is in is measured, whether it is installed or not.
    sys.path.insert(0, CHECKOUT)
    main()

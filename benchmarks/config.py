"""The cost of a configuration file: ``python benchmarks/config.py``.

Processor time to load 500 endpoints, each time in a new process; and a call of an endpoint,
relative to the same pipeline written in code.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from inspect import iscoroutinefunction
from itertools import chain
from math import inf
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from typing import TYPE_CHECKING, Any

from pages import CHECKOUT, INTERPRETER, options, show

from retrytemplate.config import load
from retrytemplate.control import HTTPX, Bulkhead, CircuitBreaker, Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

ENDPOINTS, CALLS = 500, 200
SECONDS, RATIO = 0.5, 1.3
"""The bounds."""
SETTINGS = {
    "retry": "{preset: httpx, max_attempts: 4, attempt_timeout: null}",
    "breaker": "{failure_rate: 20%, reset_timeout: 30s}",
    "bulkhead": "{limit: 20, queue: 100}",
}
LOADING = """
import time
from retrytemplate.config import load
began = time.process_time()
assert len(load({!r}).names) == {}
print(time.process_time() - began)
"""


def write(path: Path, endpoints: int) -> Path:
    """A file with that number of endpoints."""
    sections = (
        [f"{section}:", "  endpoints:", *(f"    e{n}: {each}" for n in range(endpoints))]
        for section, each in SETTINGS.items()
    )
    path.write_text("\n".join(chain.from_iterable(sections)) + "\n", encoding="utf-8")
    return path


def seconds_to_load(path: Path, runs: int) -> float:
    """The median of new processes, in seconds of processor time."""
    command = [sys.executable, "-c", LOADING.format(str(path), ENDPOINTS)]
    found = [
        float(subprocess.run(command, capture_output=True, check=True, cwd=CHECKOUT).stdout)
        for _ in range(runs)
    ]
    return median(found)


def pairs(path: Path) -> dict[str, tuple[Any, Any]]:
    """A function of each kind, wrapped by the pipeline in code and by the endpoint of the file."""
    template = HTTPX.with_(attempt_timeout=None).template(name="e0")
    breaker = CircuitBreaker("e0", failure_rate=0.2, reset_timeout=30.0)
    pipeline = Pipeline(template, breaker, Bulkhead("e0", limit=20, queue=100))
    endpoint = load(path).endpoint("e0")
    return {
        "call of an endpoint": (pipeline.wrap(answer), endpoint.wrap(answer)),
        "the same, asynchronous": (pipeline.wrap(answer_async), endpoint.wrap(answer_async)),
    }


def answer() -> int:
    return 1


async def answer_async() -> int:
    return 1


async def microseconds(call: Callable[[], Any]) -> float:
    """One round."""
    is_async = iscoroutinefunction(call)
    began = time.process_time_ns()
    for _ in range(CALLS):
        value = call()
        if is_async:
            await value
    return (time.process_time_ns() - began) / CALLS / 1000


async def ratios(path: Path, rounds: int) -> dict[str, float]:
    """The ratio of the fastest rounds, of each pair; all calls in turn."""
    wanted = pairs(path)
    best = {name: [inf, inf] for name in wanted}
    for _ in range(rounds):
        for name, pair in wanted.items():
            for place, call in enumerate(pair):
                best[name][place] = min(best[name][place], await microseconds(call))
    return {name: file / code for name, (code, file) in best.items()}


def table(seconds: float, found: dict[str, float]) -> list[str]:
    """The rows of the table, in Markdown."""
    return [
        "| measure | result | bound |",
        "|---|---:|---:|",
        f"| load of {ENDPOINTS} endpoints | {seconds:.2f} s | {SECONDS:g} s |",
        *(f"| {name} | {each:.2f} | {RATIO:g} |" for name, each in found.items()),
        "",
        "Processor time of a new process, without imports; calls relative to the same pipeline in "
        f"code. Each endpoint has a retry, a breaker and a bulkhead. {INTERPRETER}.",
    ]


def main() -> None:
    """Run the benchmark."""
    wanted = options(__doc__, figures="the seconds and ratios").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "resilience.yaml"), ENDPOINTS)
        seconds = seconds_to_load(path, 1 if wanted.quick else 7)
        found = asyncio.run(ratios(write(path, 1), 3 if wanted.quick else 500))
    show(wanted, "config", "\n".join(table(seconds, found)), {"load": seconds, **found})


if __name__ == "__main__":
    main()

"""What a key that failed takes: as JSON, in a SQLite file, in memory.

python benchmarks/records.py                             # some seconds, a table
python benchmarks/records.py --update docs/guide/durable.md    # write the table into that page
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pages import CHECKOUT, INTERPRETER, options, show

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate import RetryTemplate

FAILURES = (1, 3, 20)
KEYS = 200
QUICK_KEYS = 5

Made = Callable[[Any, str], "RetryTemplate"]


class CardRefused(Exception):
    """What a service of the user's raises."""


def charge(order: str, depth: int) -> None:
    """A callback whose failure comes from some levels down, with a cause."""
    if depth:
        charge(order, depth - 1)
    try:
        raise ConnectionError("host db-17 does not answer")
    except ConnectionError as error:
        raise CardRefused(f"no answer about the card of {order}") from error


def fail(template: RetryTemplate, keys: Iterable[str], failures: int) -> None:
    """Let each key fail *failures* times."""
    from retrytemplate import RetryState

    def work(context: Any) -> None:
        context.attributes["page"] = context.attempt
        charge(context.key, 3)

    for key in keys:
        for _ in range(failures):
            try:
                template.execute(work, state=RetryState(key))
            except CardRefused:
                continue


def template_on(cache: Any) -> RetryTemplate:
    """A template whose keys may fail for a long time."""
    from retrytemplate import RetryTemplate, SimpleRetryPolicy

    return RetryTemplate(SimpleRetryPolicy(1000), name="charge", cache=cache)


def named(keys: int) -> list[str]:
    """The names of *keys* keys."""
    return [f"order-{number:06}" for number in range(keys)]


def in_memory(keys: int, failures: int) -> tuple[float, float]:
    """Bytes of a record as JSON, and of a key in the memory of the process."""
    from retrytemplate import MemoryRetryContextCache
    from retrytemplate.caches.record import to_text

    cache = MemoryRetryContextCache(capacity=keys + 1)
    template = template_on(cache)
    fail(template, ["warm"], failures)  # so that imports of the first failure are not measured
    names = named(keys)
    gc.collect()
    tracemalloc.start()
    fail(template, names, failures)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    records = [cache.peek(template.scoped_key(name)) for name in names]
    return mean(len(to_text(record)) for record in records if record is not None), taken / keys


def in_sqlite(keys: int, failures: int) -> float:
    """Bytes of a key in a SQLite file."""
    from retrytemplate import SQLRetryContextCache

    with TemporaryDirectory() as folder:
        path = Path(folder) / "retry.db"
        with SQLRetryContextCache(f"sqlite:///{path}") as cache:
            template = template_on(cache)
            cache.keys()  # makes the tables
        empty = path.stat().st_size
        with cache:
            fail(template, named(keys), failures)
        return (path.stat().st_size - empty) / keys


def kib(size: float) -> str:
    """Bytes as KiB."""
    return f"{size / 1024:.1f} KiB"


def table(keys: int) -> list[str]:
    """The rows, in Markdown."""
    lines = [
        "| a key that failed | record as JSON | in a SQLite file | in memory |",
        "|---|---:|---:|---:|",
    ]
    for failures in FAILURES:
        text, memory = in_memory(keys, failures)
        stored = in_sqlite(max(keys // 5, 1), failures)
        times = "once" if failures == 1 else f"{failures} times"
        lines.append(f"| {times} | {kib(text)} | {kib(stored)} | {kib(memory)} |")
    return lines


def main() -> None:
    """Measure, and print the table."""
    wanted = options(__doc__).parse_args()
    text = "\n".join([*table(QUICK_KEYS if wanted.quick else KEYS), "", f"{INTERPRETER}."])
    show(wanted, "records", text)


if __name__ == "__main__":
    # The checkout that this file is in is measured, whether it is installed or not.
    sys.path.insert(0, CHECKOUT)
    main()

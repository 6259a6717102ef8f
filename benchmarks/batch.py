"""What a chunk step costs beside a bare loop that reads, calls the same function and writes.

python benchmarks/batch.py                                      # on SQLite, 1 000 000 rows
python benchmarks/batch.py --rows 100000 --url postgresql://user@localhost/scratch
python benchmarks/batch.py --update docs/operations/performance.md
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import resource
import sqlite3
import sys
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pages import update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
CHUNK = 1000
ROWS = 1_000_000
SMALL = 10  # times fewer rows: what does not grow with the file is seen there

CREATE = "CREATE TABLE priced (id integer PRIMARY KEY, name text, cents integer)"
UPSERT = """INSERT INTO priced (id, name, cents) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, cents = excluded.cents"""

Row = dict[str, str]
Priced = tuple[int, str, int]


class TransientError(Exception):
    """Succeeds at the second attempt."""


class PoisonError(Exception):
    """Never succeeds."""


def price(row: Row) -> Priced:
    """The work: a line of the file as a row of the table."""
    return int(row["id"]), row["name"], int(float(row["price"]) * 100)


class Faulty:
    """The same, with one item of a hundred failing once, and one of a thousand always."""

    def __init__(self) -> None:
        self.met: set[str] = set()

    def __call__(self, row: Row) -> Priced:
        """Price it, perhaps."""
        self.fail(row["id"])
        return price(row)

    def fail(self, number: str) -> None:
        """Raise the failure planned for this item."""
        if number.endswith("500"):
            raise PoisonError(number)
        if number.endswith("77") and number not in self.met:
            self.met.add(number)
            raise TransientError(number)


def make(path: Path, rows: int) -> None:
    """A file of orders."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "name", "price"])
        writer.writerows((n, f"order {n}", f"{n % 1000}.50") for n in range(rows))


def chunks(path: Path) -> Iterator[list[Priced]]:
    """What the bare loop writes, chunk by chunk."""
    with path.open(newline="") as file:
        reader = csv.reader(file)
        names = next(reader)
        while rows := [price(dict(zip(names, row, strict=False))) for row in islice(reader, CHUNK)]:
            yield rows


def bare(path: Path, url: str) -> None:
    """The loop, by the driver itself."""
    connection: Any
    if url.startswith("sqlite"):
        connection, statement = sqlite3.connect(url.removeprefix("sqlite:///")), UPSERT
        connection.execute("PRAGMA journal_mode = WAL")
    else:
        import psycopg

        connection, statement = psycopg.connect(url), UPSERT.replace("?", "%s")
    cursor = connection.cursor()
    for rows in chunks(path):
        cursor.executemany(statement, rows)
        connection.commit()
    connection.close()


def ours(path: Path, url: str, faults: str = "") -> None:
    """The step, its writer by the same statement."""
    from retrytemplate import SimpleRetryPolicy
    from retrytemplate.batch import ChunkStep, CsvReader, JobRepository, SkipPolicy

    statement = UPSERT if url.startswith("sqlite") else UPSERT.replace("?", "%s")
    faulty = Faulty()

    def write(items: Any, transaction: Any) -> None:
        if faults == "writer":
            for item in items:
                faulty.fail(str(item[0]))
        transaction.exec_driver_sql(statement, items)

    with JobRepository(url) as repository:
        step = ChunkStep(
            "price",
            reader=CsvReader(path),
            processor=faulty if faults == "processor" else price,
            writer=write,
            chunk_size=CHUNK,
            repository=repository,
            retry=SimpleRetryPolicy(2),
            skip=SkipPolicy(on=PoisonError),
        )
        step.run().raise_for_status()


def prepared(url: str) -> None:
    """An empty table, and no run."""
    from sqlalchemy import create_engine, text

    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for name in ("priced", "batch_outbox", "batch_letters", "batch_runs", "batch_meta"):
            connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
        connection.execute(text(CREATE))
    engine.dispose()


def warm() -> None:
    """Load what the first step of a process loads: a fifth of a second, whatever the file."""
    with TemporaryDirectory() as folder:
        path, url = Path(folder, "few.csv"), f"sqlite:///{folder}/few.db"
        make(path, 10)
        prepared(url)
        ours(path, url)


def measured(does: Callable[..., None], *arguments: Any) -> tuple[float, float]:
    """Seconds, and MB that the process took more, of one run in a process of its own."""
    context = get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def child() -> None:
        warm()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = perf_counter()
        does(*arguments)
        seconds = perf_counter() - began
        send.send((seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))

    process = context.Process(target=child)
    process.start()
    send.close()
    answer: tuple[float, float] = receive.recv()
    process.join()
    return answer


def best(turns: int, does: Callable[..., None], path: Path, url: str, *more: str) -> Any:
    """The fastest of some runs, each on an empty table."""
    runs = []
    for _ in range(turns):
        prepared(url)
        runs.append(measured(does, path, url, *more))
    return min(runs)


def rows_of(url: str, folder: Path, rows: int, turns: int) -> Iterator[str]:
    """The lines of one database."""
    name = url.partition(":")[0]
    sizes = (rows // SMALL, rows)
    found: dict[int, tuple[float, float, float, float]] = {}
    for size in sizes:
        path = folder / f"{size}.csv"
        if not path.exists():
            make(path, size)
        loop, _ = best(turns, bare, path, url)
        step, memory = best(turns, ours, path, url)
        found[size] = loop, step, memory, loop / step
        yield f"| {name} | {size:,} | {loop:.2f} | {step:.2f} | {loop / step:.2f} | {memory:.0f} |"
    path, loop = folder / f"{rows}.csv", found[rows][0]
    for where in ("processor", "writer"):
        faulty, memory = best(turns, ours, path, url, where)
        title = f"{name}, faults in the {where}"
        ratio = f"{loop:.2f} | {faulty:.2f} | {loop / faulty:.2f}"
        yield f"| {title} | {rows:,} | {ratio} | {memory:.0f} |"


def table(urls: list[str], rows: int, turns: int) -> list[str]:
    """All lines, in Markdown."""
    lines = [
        "| database | rows | bare loop, s | chunk step, s | ratio of the rates | memory, MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    with TemporaryDirectory() as folder:
        for url in [f"sqlite:///{folder}/jobs.db", *urls]:
            lines += rows_of(url, Path(folder), rows, turns)
    return lines


def main() -> None:
    """Measure, print, and with the option write into a page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--url", action="append", default=[], help="a database beside SQLite")
    parser.add_argument("--update", type=Path, help="the page to write the table into")
    args = parser.parse_args()
    lines = table(args.url, args.rows, args.turns)
    where = f"Python {platform.python_version()}, {os.cpu_count()} cores, chunks of {CHUNK}"
    print(where, *lines, sep="\n")
    if args.update:
        update(args.update, "batch", "\n".join([*lines, "", f"{where}."]))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()

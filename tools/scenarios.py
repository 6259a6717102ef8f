"""Write docs/batch/scenarios.md: chunk steps and the reference in failure scenarios.

    python tools/scenarios.py            # run every scenario, write the page
    python tools/scenarios.py --check    # fail if the page differs from the result

The measured results of the reference are in docs/batch/scenarios.toml.  The results of this library
come from a real step that the tool runs on SQLite.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from attrs import Factory, define, field, frozen
from sqlalchemy import text

from retrytemplate import SimpleRetryPolicy
from retrytemplate.batch import ChunkStep, DeadLetters, Explanation, JobRepository, SkipPolicy
from retrytemplate.batch.explain import TransactionTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from retrytemplate.batch import Report

ROOT = Path(__file__).resolve().parent.parent


class Bad(Exception):
    """What an item at fault raises."""


class Equal:
    """An item that is equal to every other one of the same value; the value may change."""

    def __init__(self, number: int) -> None:
        self.number, self.value = number, 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


def number_of(item: Any) -> int:
    """The number of an item, which is one or has one."""
    return item.number if isinstance(item, Equal) else item


def always(*at_fault: int) -> Callable[[Any], None]:
    """Fails for these items."""

    def fail(item: Any) -> None:
        if number_of(item) in at_fault:
            raise Bad

    return fail


def once(at_fault: int) -> Callable[[Any], None]:
    """Fails for this item, the first time."""
    left = [at_fault]

    def fail(item: Any) -> None:
        if item in left:
            left.remove(item)
            raise Bad

    return fail


def change(item: Equal) -> None:
    """Change the item, so that it is unequal to its former self."""
    item.value += 1


def change_and_fail(item: Equal) -> None:
    """The same, and fail."""
    change(item)
    raise Bad


def nothing(_: Any) -> None:
    """Neither fails nor changes anything."""


@define
class World:
    """A database with a table, and a step that writes to it."""

    folder: str
    process: Callable[[Any], None] = nothing
    write: Callable[[Any], None] = nothing
    items: Iterable[Any] = (1, 2, 3)
    settings: dict[str, Any] = Factory(dict)
    table: TransactionTable = field(init=False, factory=TransactionTable)

    def run(self) -> Outcome:
        """Run the step to its end."""
        with JobRepository(f"sqlite:///{self.folder}/jobs.db") as jobs:
            with jobs.transaction() as transaction:
                transaction.execute(text("CREATE TABLE IF NOT EXISTS stored (item INTEGER)"))
            given = {"chunk_size": 3, "retry": SimpleRetryPolicy(1), **self.settings}
            report = ChunkStep(
                "copy",
                reader=self.items,
                processor=self._process,
                writer=self._write,
                repository=jobs,
                listeners=[self.table],
                **given,
            ).run()
            letters = [letter.number for letter in DeadLetters(jobs).page()]
            with jobs.transaction() as transaction:
                stored = transaction.execute(text("SELECT item FROM stored")).scalars().all()
        return Outcome(self.lines(), report, stored, letters)

    def lines(self) -> tuple[str, ...]:
        """What happened, transaction by transaction."""
        done = self.table.done()
        return tuple(text if tx is None else f"tx{tx}: {text}" for tx, text in done)

    def _process(self, item: Any) -> Any:
        self.process(item)
        return item

    def _write(self, items: Sequence[Any], transaction: Any) -> None:
        for item in items:
            self.write(item)
            row = {"item": number_of(item)}
            transaction.execute(text("INSERT INTO stored VALUES (:item)"), row)


@frozen
class Outcome:
    """The result of a run."""

    lines: tuple[str, ...]
    report: Report
    stored: Sequence[int]
    letters: Sequence[int]

    @property
    def counts(self) -> str:
        """The report in short, without the counts that are zero."""
        return re.sub(r", \w+ 0\b", "", str(Explanation((), self.report)))

    @property
    def end(self) -> str:
        """Where the items are."""
        letters = f"; dead letter {listed(self.letters)}" if self.letters else ""
        return f"stored {listed(self.stored) or 'nothing'}{letters}"


def listed(numbers: Iterable[int]) -> str:
    """Numbers for a sentence."""
    return ", ".join(map(str, numbers))


def step(**settings: Any) -> Callable[[str], Outcome]:
    """A scenario in which one step runs to its end."""
    return lambda folder: World(folder, **settings).run()


def skipping(attempts: int = 1, **settings: Any) -> dict[str, Any]:
    """The settings of a step that gives items up."""
    return {"skip": SkipPolicy(on=Bad), "retry": SimpleRetryPolicy(attempts), **settings}


def killed(folder: str) -> Outcome:
    """A run whose process ends while it searches a chunk, and the run after it."""
    state = Path(folder, "state.json")
    settings = skipping(chunk_size=5)

    fail = once(3)

    def kill(item: int) -> None:
        fail(item)
        if item == 3:  # items 1 and 2 are in the open transaction
            state.write_text(json.dumps(first.lines()), encoding="utf-8")
            os._exit(9)

    first = World(folder, write=kill, items=range(1, 8), settings=settings)
    child = os.fork()
    if child == 0:
        try:
            first.run()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 9:
        raise RuntimeError("the process that was to be killed ended in another way")
    second = World(folder, items=range(1, 8), settings=settings).run()
    before = json.loads(state.read_text(encoding="utf-8"))
    lines = (*before, "killed in the write of 3", *second.lines)
    return Outcome(lines, second.report, second.stored, second.letters)


OURS: dict[str, Callable[[str], Outcome]] = {
    "A": step(process=once(2), settings={"retry": SimpleRetryPolicy(2)}),
    "B": step(process=always(2), settings=skipping(2)),
    "C": step(write=always(2), items=(1, 2, 3, 4), settings=skipping(chunk_size=4)),
    "D": step(write=once(3), settings={"retry": SimpleRetryPolicy(2)}),
    "E": killed,
    "F": step(process=always(1), write=always(2), settings=skipping()),
    "G": step(process=always(2)),
    "H": step(process=always(2), settings=skipping()),
    "I": step(write=always(2), items=iter([1, 2, 3]), settings=skipping()),
    "J": step(process=change, write=always(1), items=[Equal(1)], settings=skipping(3)),
    "K": step(process=change_and_fail, items=[Equal(1)], settings=skipping(3)),
    "L": step(process=always(2), items=[Equal(1), Equal(2)], settings=skipping(3)),
}


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |\n"


def section(letter: str, about: dict[str, Any]) -> str:
    """A scenario as a part of the page."""
    with TemporaryDirectory() as folder:
        ours = OURS[letter](folder)
    old, new = about["old"], about.get("new", ["not measured"])
    ends = (*about["end"], *[""] * (2 - len(about["end"])), ours.end)
    parts = [
        f"\n## {letter}. {about['title']}\n\n{about['about'].strip()}\n\n",
        row("old", "new", "ours"),
        "|---|---|---|\n",
        *(row(*cells) for cells in zip_longest(old, new, ours.lines, fillvalue="")),
        row(*(f"**{end}**" if end else "" for end in ends)),
        f"\nReport: {ours.counts.replace(': ', ', ', 1)}.\n",
        f"\n{about['more'].strip()}\n" if "more" in about else "",
    ]
    return "".join(parts)


def render(head: str, scenarios: dict[str, Any]) -> str:
    """The page as text."""
    if scenarios.keys() != OURS.keys():
        raise SystemExit(f"listed are {', '.join(scenarios)}; run are {', '.join(OURS)}")
    return head.lstrip() + "".join(section(letter, about) for letter, about in scenarios.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a difference")
    check = parser.parse_args(arguments).check
    page = ROOT / "docs/batch/scenarios.md"
    about = tomllib.loads(page.with_suffix(".toml").read_text(encoding="utf-8"))
    made = render(about.pop("head"), about)
    print(f"{len(OURS)} scenarios")
    if not check:
        page.write_text(made, encoding="utf-8")
    elif not page.is_file() or page.read_text(encoding="utf-8") != made:
        print(f"{page} differs from the result: run python tools/scenarios.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a guarded call costs, as a ratio to a hand-written loop in the same run.

python benchmarks/bench.py                                 # five runs, medians, a table
python benchmarks/bench.py --quick --only ours,loop        # whether it works
python benchmarks/bench.py --update docs/operations/performance.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING

import goals
from attrs import frozen
from cells import GARBAGE, TIMED
from libraries import LIBRARIES, Library
from measuring import import_times, one_run
from pages import CHECKOUT, INTERPRETER, options, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NAMES = [library.name for library in LIBRARIES]

Figures = dict[str, dict[str, float]]


@frozen
class Effort:
    """How much is repeated."""

    runs: int
    rounds: int
    target: int
    """Nanoseconds that one round gives to one cell."""
    imports: int


FULL = Effort(runs=5, rounds=40, target=4_000_000, imports=20)
QUICK = Effort(runs=1, rounds=2, target=200_000, imports=1)


@frozen
class Results:
    """The medians over all runs."""

    loop: dict[str, float]
    """Nanoseconds of the loop by key of cell."""
    ratios: Figures
    """Time divided by the loop's of the same run, by library and key of cell."""
    garbage: Figures
    imports: dict[str, float]
    """Milliseconds by package."""

    def beyond_attrs(self, package: str) -> float:
        """Milliseconds that the import of a package takes more than that of attrs."""
        return self.imports[package] - self.imports["attrs"]

    @classmethod
    def of(cls, runs: Sequence[Figures], imports: dict[str, float]) -> Results:
        """The medians of the figures of some runs."""
        timed, counted = ({cell.key for cell in cells} for cells in (TIMED, GARBAGE))
        ratios: Figures = {}
        garbage: Figures = {}
        for name, figures in runs[0].items():
            ratios[name] = {
                key: median(run[name][key] / run["loop"][key] for run in runs)
                for key in figures.keys() & timed
            }
            garbage[name] = {
                key: median(run[name][key] for run in runs) for key in figures.keys() & counted
            }
        loop = {key: median(run["loop"][key] for run in runs) for key in timed}
        return cls(loop, ratios, garbage, imports)


def run_apart(libraries: Sequence[Library], effort: Effort) -> Figures:
    """One run in a process of its own."""
    names = ",".join(library.name for library in libraries)
    command = [sys.executable, "-W", "ignore", __file__, "--one-run", "--only", names]
    if effort is QUICK:
        command.append("--quick")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def installed(wanted: Sequence[str]) -> tuple[list[Library], list[str]]:
    """The libraries that are wanted and there, always with the loop, and those that are not."""
    chosen = [library for library in LIBRARIES if library.name in {"loop", *wanted}]
    missing = [each.name for each in chosen if each.package and not find_spec(each.package)]
    return [library for library in chosen if library.name not in missing], missing


def count(value: float | None) -> str:
    """Objects per call: nearly always a whole number."""
    return "-" if value is None else f"{value:.3g}"


def number(value: float | None) -> str:
    """Two decimals below ten, none from there: nothing is measured more closely."""
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.0f}"


def table(libraries: Sequence[Library], results: Results) -> list[str]:
    """The rows of the table, in Markdown."""
    others = [library for library in libraries if library.package]
    heads = ["", "loop", *(str(library.package) for library in others), "goal"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]

    def row(title: str, loop: str, figures: Iterable[str], goal: str) -> None:
        lines.append(f"| {' | '.join([title, loop, *figures, goal])} |")

    for cell in TIMED:
        ratios = (results.ratios[each.name].get(cell.key) for each in others)
        loop = f"{results.loop[cell.key] / 1000:.2f} µs"
        goal = goals.OWN_MULTIPLES.get(cell.key)
        meant = f"{goal:g} (relative)" if goal else f"{goals.RATIOS[cell.key]:g}"
        row(cell.title, loop, map(number, ratios), meant)
    for cell in GARBAGE:
        loop, *counts = (count(results.garbage[name].get(cell.key)) for name in results.garbage)
        row(cell.title, loop, counts, f"{goals.GARBAGE:g}")
    beyond = (f"{results.beyond_attrs(str(each.package)):.1f}" for each in others)
    row("import, ms", "-", beyond, f"{goals.IMPORT:g}")
    return lines


def against_goals(results: Results) -> list[str]:
    """How this library stands to its goals, by the figures as they are printed."""
    ours, garbage = results.ratios["ours"], results.garbage["ours"]
    success = ours["success"] * results.loop["success"]
    multiples = {key: ours[key] * results.loop[key] / success for key in goals.OWN_MULTIPLES}
    over = [
        f"{cell.title} ({figures[cell.key]:.2f}, goal {goal:g})"
        for cells, figures, meant in (
            (TIMED, ours, goals.RATIOS),
            (TIMED, multiples, goals.OWN_MULTIPLES),
            (GARBAGE, garbage, dict.fromkeys(garbage, goals.GARBAGE)),
        )
        for cell in cells
        if (goal := meant.get(cell.key)) is not None and round(figures[cell.key], 2) > goal
    ]
    if (beyond := results.beyond_attrs("retrytemplate")) > goals.IMPORT:
        over.append(f"import ({beyond:.1f} ms, goal {goals.IMPORT:g} ms)")
    return [
        "A goal marked (relative) is for the time divided by that of retrytemplate's "
        f"decorated success; measured: {multiples['listener']:.2f} for one listener, "
        f"{multiples['stateful']:.2f} for a stateful success.",
        f"Rows over their goal: {'; '.join(over)}." if over else "No row is over its goal.",
    ]


def remarks(libraries: Sequence[Library], results: Results, missing: list[str]) -> list[str]:
    """What stands below the table, a paragraph each."""
    peers = [str(each.package) for each in libraries if each.package and each.name != "ours"]
    where = [
        INTERPRETER,
        f"{platform.system()} on {platform.machine()}",
        *(f"{package} {version(package)}" for package in peers),
    ]
    lines = [f"{', '.join(where)}. `import attrs` takes {results.imports['attrs']:.1f} ms."]
    if "ours" in results.ratios:
        lines += against_goals(results)
    if missing:
        lines.append(f"Not installed, and so not measured: {', '.join(missing)}.")
    return lines


def names_of(text: str) -> list[str]:
    """The argument of ``--only``."""
    names = text.split(",")
    if unknown := sorted(set(names) - set(NAMES)):
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return names


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = options(__doc__, figures="the figures of every run")
    parser.add_argument("--only", type=names_of, default=NAMES, help="some of " + ",".join(NAMES))
    parser.add_argument("--one-run", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run the benchmark."""
    wanted = arguments()
    effort = QUICK if wanted.quick else FULL
    libraries, missing = installed(wanted.only)
    if wanted.one_run:
        json.dump(one_run(libraries, effort.rounds, effort.target), sys.stdout)
        return
    runs = []
    for turn in range(effort.runs):
        runs.append(run_apart(libraries, effort))
        print(f"run {turn + 1} of {effort.runs} is done", file=sys.stderr)
    packages = ["attrs", *(library.package for library in libraries if library.package)]
    imports = import_times(packages, effort.imports)
    results = Results.of(runs, imports)
    paragraphs = ["\n".join(table(libraries, results)), *remarks(libraries, results, missing)]
    text = "\n\n".join(paragraphs)
    show(wanted, "results", text, {"runs": runs, "imports": imports})


if __name__ == "__main__":
    # The checkout that this file is in is measured, whether it is installed or not.
    sys.path.insert(0, CHECKOUT)
    paths = filter(None, (CHECKOUT, os.environ.get("PYTHONPATH")))
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    main()

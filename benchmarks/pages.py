"""The command line of a benchmark, and its results on a page of the documentation."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

__all__ = ["CHECKOUT", "INTERPRETER", "options", "show", "update"]

# The measured libraries, installed or not.
CHECKOUT = str(Path(__file__).resolve().parent.parent)
INTERPRETER = f"{platform.python_implementation()} {platform.python_version()}"


def options(doc: str | None, *, figures: str = "") -> argparse.ArgumentParser:
    """Those that benchmarks share, under the first paragraph of what the module says.

    :param figures: what can be written as JSON, if anything can.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a moment, and rough figures")
    if figures:
        parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {figures}")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write the table into a page")
    return parser


def show(wanted: argparse.Namespace, name: str, text: str, figures: object = None) -> None:
    """Print the results, and write them where they are wanted."""
    print(text)
    if figures and wanted.json:
        wanted.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if wanted.update:
        update(wanted.update, name, text)


def update(page: Path, name: str, text: str) -> None:
    """Write the results between the two marks of this name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page} has no {begin} with {end} after it")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")

"""Runs the code of a page: Python blocks, programs in files, commands, and their output.

- A ``python`` block runs in the namespace of the page, as a program does; the ``text`` block below
  it shows its output.
- A ``python`` block that begins with ``# file: NAME`` is written to that file.
- A ``console`` block runs on a page that wrote a file: each line that begins with ``$``, with its
  output below it; a command is continued after a backslash at the end of its line.

The working directory of a page is an empty folder of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from doctest import DONT_ACCEPT_BLANKLINE, ELLIPSIS, REPORT_NDIFF, OutputChecker
from doctest import Example as Expectation
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sybil.evaluators.python import PythonEvaluator
from sybil.parsers import myst

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sybil import Example

FILE = "# file: "
_run = PythonEvaluator()


def run(examples: Iterable[Example]) -> Iterator[Example]:
    """Run the examples of a page in their order; yields each before it runs."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, chdir(folder):
        printed = StringIO()
        with redirect_stdout(printed):
            for example in examples:
                yield example
                example.namespace.update(_printed=printed, __name__="__main__")
                example.evaluate()
        _check_all_shown(printed)


def _python(example: Example) -> None:
    _check_all_shown(example.namespace["_printed"])
    source = example.parsed
    if source.startswith(FILE):
        name = source.partition("\n")[0].removeprefix(FILE)
        Path(name).write_text(source, encoding="utf-8")
    else:
        _run(example)


def _text(example: Example) -> None:
    printed: StringIO = example.namespace["_printed"]
    _compare(example.parsed, printed.getvalue())
    printed.seek(0)
    printed.truncate()


def _console(example: Example) -> None:
    _check_all_shown(example.namespace["_printed"])
    if not any(Path().iterdir()):
        return
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    lines = example.parsed.replace("\\\n", "")
    for command in lines.removeprefix("$ ").split("\n$ "):
        line, _, output = command.partition("\n")
        done = subprocess.run(
            line, shell=True, env=environment, capture_output=True, text=True, check=False
        )
        _compare(output, done.stdout + done.stderr)


def _compare(expected: str, printed: str) -> None:
    checker = OutputChecker()
    expected, printed = _trimmed(expected), _trimmed(printed)
    if not checker.check_output(expected, printed, ELLIPSIS | DONT_ACCEPT_BLANKLINE):
        difference = checker.output_difference(Expectation("", expected), printed, REPORT_NDIFF)
        raise AssertionError(f"the output differs:\n{difference}")


def _trimmed(output: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in output.rstrip().splitlines())


def _check_all_shown(printed: StringIO) -> None:
    if text := printed.getvalue():
        raise AssertionError(f"a text block must show the output of the code above it: {text}")


PARSERS = [
    myst.CodeBlockParser("python", _python),
    myst.CodeBlockParser("text", _text),
    myst.CodeBlockParser("console", _console),
]

"""Runs the code of a page: Python blocks, programs in files, commands, and their output.

- A ``python`` block runs in the namespace of the page, as a program does; the ``text`` block below
  it shows its output.
- A ``python``, ``yaml`` or ``toml`` block that begins with ``# file: NAME`` is written to that
  file.
- A ``console`` block runs on a page that wrote a file: each line that begins with ``$``, with its
  output below it; a command is continued after a backslash at the end of its line.  A Python
  program is forked from a server; a line with other programs or syntax of a shell runs in a shell.

The working directory of a page is an empty folder of its own.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir, contextmanager, redirect_stdout
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
SHELL_SYNTAX = re.compile(r"^\w+=|[|&;<>$*`]")
# The options of an interpreter, by the command.
PROGRAMS: dict[str, tuple[str, ...]] = {"retrytemplate": ("-m", "retrytemplate.cli"), "python": ()}
_run = PythonEvaluator()


def run(examples: Iterable[Example]) -> Iterator[Example]:
    """Run the examples of a page in their order; yields each before it runs."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, chdir(folder), _root_logger():
        printed = StringIO()
        with redirect_stdout(printed):
            for example in examples:
                yield example
                example.namespace.update(_printed=printed, __name__="__main__")
                example.evaluate()
        _check_all_shown(printed)


@contextmanager
def _root_logger() -> Iterator[None]:
    """Restore the root logger: a page may call ``basicConfig``."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def _python(example: Example) -> None:
    _check_all_shown(example.namespace["_printed"])
    if example.parsed.startswith(FILE):
        _file(example)
    else:
        _run(example)


def _file(example: Example) -> None:
    source = example.parsed
    if source.startswith(FILE):
        name = source.partition("\n")[0].removeprefix(FILE)
        Path(name).write_text(source, encoding="utf-8")


def _text(example: Example) -> None:
    printed: StringIO = example.namespace["_printed"]
    _compare(example.parsed, printed.getvalue())
    printed.seek(0)
    printed.truncate()


def _console(example: Example) -> None:
    _check_all_shown(example.namespace["_printed"])
    if not any(Path().iterdir()):
        return
    lines = example.parsed.replace("\\\n", "")
    for command in lines.removeprefix("$ ").split("\n$ "):
        line, _, output = command.partition("\n")
        done = _completed(line)
        _compare(output, done.stdout + done.stderr)


def _completed(line: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(line)
    if program in PROGRAMS and not SHELL_SYNTAX.search(line):
        from tests.support import forked_python  # starts the server, which few pages need

        return forked_python.run([sys.executable, *PROGRAMS[program], *arguments])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        line,
        shell=True,
        env=dict(os.environ, PATH=path),
        capture_output=True,
        text=True,
        check=False,
    )


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
    myst.CodeBlockParser("yaml", _file),
    myst.CodeBlockParser("toml", _file),
    myst.CodeBlockParser("text", _text),
    myst.CodeBlockParser("console", _console),
]

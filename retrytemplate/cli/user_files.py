"""Files of the user that a command reads or imports."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.failure_text import summary
from retrytemplate.cli.arguments import json_or_text
from retrytemplate.cli.errors import CommandFailed, UsageError
from retrytemplate.errors import MisuseError, RetryError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from types import ModuleType
    from typing import TypeVar

    from retrytemplate.batch import ChunkStep

    T = TypeVar("T")

# Frames that are left out of tracebacks of the user's code.
ON_EXISTING = re.compile(r"on_existing='(\w+)'")
OWN_FILES = (__file__, "<frozen importlib", importlib.__file__)


def load_object(text: str, kind: type[T], example: str) -> T:
    """The object that ``FILE:NAME`` names; the file is run, like an imported module.

    In place of the file, the name of a module, which is imported: ``app:runtime``.

    :param kind: the class of the object, or of the result of a function of that name.
    :raises UsageError: the file is missing, or has no such object.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not file or not name:
        raise UsageError(f"{text!r}: must be FILE:NAME, such as {example}")
    module = _import(file) if _is_module_name(file) else _run(Path(file))
    found = getattr(module, name, None)
    if found is None:
        others = [each for each, value in vars(module).items() if isinstance(value, kind)]
        there = f", only {', '.join(others)}" if others else ""
        raise UsageError(f"{file} has no {name}{there}")
    if callable(found):
        with _report_errors(f"{name}() of {file}"):
            found = found()
    if not isinstance(found, kind):
        raise UsageError(
            f"{name} of {file} must be a {kind.__name__}, or a function without arguments that "
            f"returns one, got {found!r}"
        )
    return found


def _is_module_name(text: str) -> bool:
    parts = text.split(".")
    return parts[-1] != "py" and all(part.isidentifier() for part in parts)


def _import(name: str) -> ModuleType:
    """The module of this name; the present folder is searched, too."""
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.insert(0, str(Path.cwd()))
    found = None
    with _report_errors(f"the package of {name}"), suppress(ModuleNotFoundError):
        found = find_spec(name)
    if found is None:
        raise UsageError(f"there is no module {name}")
    with _report_errors(f"the module {name}"):
        return importlib.import_module(name)


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    # Like a script, the file can import its neighbours.  Its classes are named after the file, as
    # if another module had imported it.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem not in sys.modules else f"job_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # classes look their module up there
    with _report_errors(str(path)):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _report_errors(subject: str) -> Iterator[None]:
    """Print the traceback of user code that fails, without the frames of this command."""
    try:
        yield
    except (Exception, SystemExit) as error:
        shown = traceback.TracebackException.from_exception(error)
        theirs = [each for each in shown.stack if not each.filename.startswith(OWN_FILES)]
        if theirs:
            shown.stack = traceback.StackSummary.from_list(theirs)
            print("".join(shown.format()), end="", file=sys.stderr)
        raise UsageError(f"{subject} cannot be run: {summary(error)}") from None


@contextmanager
def open_step(args: Namespace) -> Iterator[ChunkStep]:
    """The step that ``args.job`` names; its repository is closed at the end.

    With ``--json``, output of the user's code goes to standard error.

    :raises UsageError: there is no such file, or no step of that name in it.
    """
    from retrytemplate.batch import ChunkStep

    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        step = load_object(args.job, ChunkStep, "job.py:step")
        try:
            yield step
        finally:
            step.repository.close()


def parse_parameters(pairs: Sequence[str]) -> dict[str, Any]:
    """Parameters as JSON values; other text is used unchanged.

    >>> parse_parameters(["day=2026-11-21", "limit=20", 'part="7"'])
    {'day': '2026-11-21', 'limit': 20, 'part': '7'}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or name in found:
            raise UsageError(f"--parameter: must be NAME=VALUE, each name once, got {pair!r}")
        try:
            found[name] = json_or_text(value)
        except RecursionError:
            raise UsageError(f"--parameter: {name} is nested too deeply") from None
    return found


def run_step(
    step: ChunkStep,
    blocking: Callable[[], T],
    awaited: Callable[[], Coroutine[Any, Any, T]],
    *,
    asynchronous: bool,
) -> T:
    """Call a method of the step, or its asynchronous variant, and return the result.

    :param asynchronous: True: always the asynchronous variant; False: only if a component is a
        coroutine function or the database is an ``AsyncEngine``.
    :raises UsageError: the step cannot run in this mode.
    :raises CommandFailed: the step fails.
    """
    import asyncio

    try:
        return asyncio.run(awaited()) if asynchronous or _needs_async(step) else blocking()
    except MisuseError as error:
        hint = "; for this command: --async" if "_async()" in str(error) else ""
        raise UsageError(f"{error}{hint}") from None
    except RetryError as error:
        raise CommandFailed(ON_EXISTING.sub(r"--on-existing \1", str(error))) from None


def _needs_async(step: ChunkStep) -> bool:
    components = [step.processor, step.writer, None if step.outbox is None else step.outbox.send]
    return any(map(is_async, components)) or hasattr(step.database, "sync_engine")

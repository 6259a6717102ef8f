"""Errors of commands, and the console."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import printable
from retrytemplate._internal.imports import extra

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

# For an environment that reports a terminal of 0 columns.
DEFAULT_WIDTH = 80


class UsageError(Exception):
    """Wrong use of the command: the message names the allowed values.  ``main`` exits with 2."""


class CommandFailed(Exception):
    """The work failed; the message gives the reason.  ``main`` exits with 1."""


def console(purpose: str) -> Console:
    """Standard output through rich, without markup."""
    with extra("cli", purpose):
        from rich.console import Console

    made = Console(highlight=False, markup=False)
    if not made.width:
        made.width = DEFAULT_WIDTH
    return made


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    import json

    print(json.dumps(value, indent=2))


def confirm(question: str, facts: Iterable[str]) -> bool:
    """Ask the operator at the terminal; without a terminal, True."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    for fact in facts:
        print(printable(fact), file=sys.stderr)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")

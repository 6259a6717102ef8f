"""The command ``retrytemplate``: one module for each verb.

A verb is a module with ``add_parser(subparsers)`` and ``run(args) -> int``, and an entry of
``VERBS``.
"""

from __future__ import annotations

import os
import sys
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from retrytemplate._internal.formatting import printable
from retrytemplate._internal.suggestions import did_you_mean
from retrytemplate.cli.commands import (
    breaker,
    config,
    context,
    demo,
    dlq,
    events,
    outbox,
    queue,
    rate_limiter,
    simulate,
    slo,
)
from retrytemplate.cli.commands.batch import commands as batch
from retrytemplate.cli.commands.switch import commands as switch
from retrytemplate.cli.commands.worker import commands as worker
from retrytemplate.cli.errors import CommandFailed, UsageError
from retrytemplate.cli.signals import INTERRUPTED
from retrytemplate.cli.stores import mask_passwords
from retrytemplate.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["VERBS", "main"]

FAILED, WRONG_USE = 1, 2


class _Parser(ArgumentParser):
    """The parser of the command and of its verbs: argparse uses the same class for both."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]  # of overloads
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Print the help if the verb is missing; reject unknown arguments with a hint."""
        args = sys.argv[1:] if args is None else list(args)
        if not args and self._subparsers is not None:
            self.print_help(sys.stderr)
            self.exit(WRONG_USE)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [each for each in self._option_string_actions if each.startswith("--")]
            hints = [did_you_mean(each.partition("=")[0], options) for each in unknown]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(hints)}")
        return found, unknown

    def _check_value(self, action: Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            error.message += did_you_mean(str(value), map(str, action.choices or ()))
            raise

    def error(self, message: str) -> NoReturn:
        """Print the error without passwords: the message may quote a URL."""
        super().error(mask_passwords(message))


class Verb(Protocol):
    """The functions of a verb's module."""

    def add_parser(self, subparsers: Any) -> None:
        """Add the verb's parser, under the verb's name."""

    def run(self, args: Namespace) -> int:
        """Run the verb.  0: done, 1: the work failed, 2: wrong use, 130: interrupted."""
        ...


VERBS: Mapping[str, Verb] = {
    "batch": batch,
    "breaker": breaker,
    "config": config,
    "context": context,
    "demo": demo,
    "dlq": dlq,
    "events": events,
    "outbox": outbox,
    "queue": queue,
    "rate-limiter": rate_limiter,
    "simulate": simulate,
    "slo": slo,
    "switch": switch,
    "worker": worker,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0: done, 1: the work failed, 2: wrong use, 130: interrupted.
    Invalid arguments and ``--help`` raise ``SystemExit``, as argparse does.
    """
    parser = _Parser(prog="retrytemplate", description="Retry with templates.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version(parser.prog)}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS.values():
        verb.add_parser(subparsers)
    name = parser.prog
    try:
        try:
            args = parser.parse_args(argv)
            name = f"{parser.prog} {args.verb}"
            return VERBS[args.verb].run(args)
        finally:
            if sys.stdout is not None:  # None if the shell closed it
                sys.stdout.flush()
    except (UsageError, MissingExtraError) as error:
        print(f"{name}: {printable(str(error))}", file=sys.stderr)
        return WRONG_USE
    except CommandFailed as error:
        print(f"{name}: {printable(str(error))}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the pipe ended (| head)
        _drop_output()
        return FAILED
    except OSError as error:  # not handled by a verb: the output cannot be written
        print(f"{name}: {printable(str(error))}", file=sys.stderr)
        _drop_output()
        return FAILED


def _drop_output() -> None:
    """Discard the buffered output: the interpreter flushes it again at exit."""
    with suppress(AttributeError, OSError):  # no standard output, or one without a file
        output = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)

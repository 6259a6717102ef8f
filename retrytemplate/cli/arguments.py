"""Arguments of commands."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from math import inf, nan
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Longest number that is parsed; longer ones exceed every limit.
DIGITS = 20
EXITS: Mapping[int, str] = {0: "done", 2: "wrong use", 130: "interrupted"}


def add_command(
    commands: Any, name: str, does: str, description: str, epilog: str, *options: ArgumentParser
) -> ArgumentParser:
    """The parser of a command; *description* and *epilog* keep their line breaks.

    :param does: its line in the list of commands.
    :param options: parsers whose options it takes over.
    """
    parser: ArgumentParser = commands.add_parser(
        name,
        help=does,
        description=description,
        epilog=epilog,
        parents=options,
        formatter_class=RawDescriptionHelpFormatter,
    )
    return parser


@frozen
class Verbs:
    """The verbs of a command, whose help shows the first example of each."""

    parser: ArgumentParser
    commands: Any

    def add(self, name: str, does: str, epilog: str, *options: ArgumentParser) -> ArgumentParser:
        """Add a verb with ``--json``; the *epilog* has examples."""
        description = f"{does[0].upper()}{does[1:]}."
        parser = add_command(self.commands, name, does, description, epilog, *options)
        parser.add_argument("--json", action="store_true", help="print it as JSON")
        lines = epilog.splitlines()
        examples, _, rest = (self.parser.epilog or "").partition("\n\n")
        self.parser.epilog = f"{examples}\n{lines[lines.index('examples:') + 1]}\n\n{rest}"
        return parser


def add_verbs(
    commands: Any, name: str, does: str, description: str, exits: Mapping[int, str]
) -> Verbs:
    """Add a command that has verbs; see ``exit_codes``."""
    epilog = f"examples:\n\n{exit_codes(exits)}"
    parser = add_command(commands, name, does, description, epilog)
    return Verbs(parser, parser.add_subparsers(dest="action", metavar="VERB", required=True))


def exit_codes(exits: Mapping[int, str]) -> str:
    """The part of a help that explains the exit codes, those of *exits* and the usual ones."""
    lines = (f"{code:>5}  {text}" for code, text in sorted({**EXITS, **exits}.items()))
    return "\n".join(["exit codes:", *lines])


def add_step(parser: ArgumentParser, awaited: str) -> None:
    """Add the step in a file of the user, and ``--async``.

    :param awaited: what ``--async`` does.
    """
    add = parser.add_argument
    add("job", metavar="FILE:NAME", help="the file, and the name of the step in it")
    add("--async", action="store_true", dest="asynchronous", help=awaited)


def text(given: str) -> str:
    """Read an argument that must not be empty."""
    if not given:
        raise ArgumentTypeError("must be a non-empty string")
    return given


def stored_text(given: str) -> str:
    """Read an argument that is used unchanged in a database query."""
    from retrytemplate.batch.journal.letters import sanitize_text

    if sanitize_text(text(given)) != given:
        raise ArgumentTypeError(f"must be a string that a database can store, got {given!r}")
    return given


def current_user(named: str | None) -> str:
    """The name that was passed, or the user who is logged in."""
    if named is not None:
        return named
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # the type depends on the version of Python
        raise UsageError("--by: no user is logged in; pass a name") from None


def whole_number(most: int, least: int = 1) -> Callable[[str], int]:
    """Read an argument that must be a whole number from *least* to *most*."""

    def read(text: str) -> int:
        # int() rejects numbers with too many digits.
        fits = text.strip().isdecimal() and len(text) <= DIGITS
        number = int(text) if fits else least - 1
        if not least <= number <= most:
            raise ArgumentTypeError(
                f"must be a whole number from {least} to {most}, got {text[:DIGITS]!r}"
            )
        return number

    return read


row_number = whole_number(2**63 - 1)


def add_limit(parser: ArgumentParser, what: str, *, after: str | None = None) -> None:
    """Add ``--limit``, the largest number of rows of a page.

    :param after: adds ``--after``, the number of the row before the page, with this name.
    """
    add = parser.add_argument
    if after is not None:
        add("--after", type=row_number, default=0, metavar=after, help="the next page")
    add(
        "--limit",
        type=whole_number(10_000),
        default=50,
        metavar="N",
        help=f"at most N {what} (default: %(default)s)",
    )


def seconds(least: float, most: float = inf) -> Callable[[str], float]:
    """Read an argument that must be a finite number of seconds in this range."""
    limits = f"from {least:g}" if most == inf else f"from {least:g} to {most:g}"

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = nan
        if not (least <= number <= most and number < inf):
            raise ArgumentTypeError(f"must be a number of seconds {limits}, got {text!r}")
        return number

    return read


def json_or_text(given: str) -> Any:
    """The value of JSON; other text is returned unchanged.

    :raises RecursionError: it is nested too deeply.

    >>> json_or_text("17"), json_or_text("order-17"), json_or_text('"17"')
    (17, 'order-17', '17')
    """
    from retrytemplate.caches.record_schema import loads

    try:
        return loads(given)
    except ValueError:
        return given

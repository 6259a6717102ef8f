"""Arguments of ``retrytemplate switch``: scopes, durations, percentages, keys."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import printable
from retrytemplate.cli.arguments import json_or_text, text
from retrytemplate.cli.errors import CommandFailed, UsageError
from retrytemplate.errors import SwitchRefusedError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator

    from retrytemplate.control import KillSwitch
    from retrytemplate.control.switch.model import SwitchScope

NAMED = ("segment", "feature", "experiment")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?[smhdw])+", re.ASCII)
DURATION_PART = re.compile(r"([0-9.]+)([smhdw])")
STDERR = 2  # the file descriptor of standard error
DURATIONS = "a duration of at most ten years, such as 90m, 24h, 1w or 1d12h (s, m, h, d, w)"
# Python code in the errors of a switch, and the options of the command.
OPTION_NAMES = {
    "resume(canary=(5, 25, 100))": "resume --canary 5,25,100",
    "canary=(5, 25, 100)": "--canary 5,25,100",
    "override=True": "--override",
}
SHARES = "increasing percentages up to 100, such as 5,25,100"


def add_scope(parser: ArgumentParser) -> None:
    """Add the options that name a scope; exactly one is required."""
    group = parser.add_argument_group("scope, exactly one").add_mutually_exclusive_group(
        required=True
    )
    group.add_argument("--global", action="store_true", dest="everything", help="everything")
    _add(group)


def add_names(parser: ArgumentParser) -> None:
    """Add the options that name the scopes of a check."""
    _add(parser.add_argument_group("show the decision of a check of these scopes"))


def _add(group: Any) -> None:
    for kind in NAMED:
        group.add_argument(
            f"--{kind}", type=parse_encodable, metavar="NAME", help=f"the {kind} of this name"
        )


def scope_arguments(args: Namespace) -> dict[str, Any]:
    """The scope as arguments of the methods of a switch."""
    return {kind: getattr(args, kind) for kind in NAMED}


def required_scopes(args: Namespace, switch: KillSwitch) -> tuple[SwitchScope, ...]:
    """All scopes that must not be stopped, in the order of a check.

    :raises CommandFailed: the switch has no such name.
    """
    with translate_errors():
        return switch.guard(**scope_arguments(args)).scopes


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the errors of a switch to the options of the command.

    :raises CommandFailed: the rules reject the change.
    :raises UsageError: an argument is not valid.
    """
    try:
        yield
    except SwitchRefusedError as error:
        raise CommandFailed(to_option_names(str(error))) from None
    except (TypeError, ValueError) as error:  # the message begins with the name of the argument
        raise UsageError(f"--{error}") from None


def parse_key(given: str | None) -> Any:
    """The key as JSON or as text; a list becomes a tuple.

    >>> parse_key("user-17"), parse_key("17"), parse_key('["eu", 17]')
    ('user-17', 17, ('eu', 17))
    """
    from retrytemplate.errors import InconsistentKeyError
    from retrytemplate.state import encode_key

    if given is None:
        return None
    try:
        key = _tuples(json_or_text(given))
        encode_key(key)
    except RecursionError:
        raise UsageError("--key: it is nested too deeply") from None
    except InconsistentKeyError:
        raise UsageError(
            f"--key: must be a string, a whole number, or a list of them, got {given!r}; quote a "
            "string that looks like JSON: '\"1.5\"'"
        ) from None
    return key


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def parse_encodable(given: str) -> str:
    """Read an argument that must be valid in the encoding of the terminal.

    >>> parse_encodable("finänz")
    'finänz'
    """
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ArgumentTypeError(
            f"must be valid in the encoding of this terminal, got {given!r}"
        ) from None
    return given


def parse_text(given: str) -> str:
    """Read an argument that must not be empty, in the encoding of the terminal."""
    return text(parse_encodable(given))


def parse_duration(given: str) -> float:
    """Read an argument that must be a duration.

    >>> parse_duration("24h"), parse_duration("1d12h"), parse_duration("1.5m")
    (86400.0, 129600.0, 90.0)
    """
    from retrytemplate.control.switch.validation import check_expires_in

    seconds = 0.0
    if DURATION.fullmatch(given):
        seconds = sum(float(number) * UNITS[unit] for number, unit in DURATION_PART.findall(given))
    try:
        check_expires_in("it", seconds)
    except ValueError:
        raise ArgumentTypeError(f"must be {DURATIONS}, got {given!r}") from None
    return seconds


def parse_shares(given: str) -> tuple[float, ...]:
    """Read an argument that must be the steps of a canary.

    >>> parse_shares("5,25,100")
    (5.0, 25.0, 100.0)
    """
    from retrytemplate.control.switch.canary import parse_canary

    try:
        return parse_canary([float(each) for each in given.split(",")])
    except ValueError:
        raise ArgumentTypeError(f"must be {SHARES}, got {given!r}") from None


def health_check(command: str) -> Callable[[], bool]:
    """A function that runs the command; its result is whether the exit code is 0.

    :raises UsageError: the command cannot be run.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--check: {error}, got {command!r}") from None
    if not words or shutil.which(words[0]) is None:
        raise UsageError(f"--check: must be a command that exists, got {command!r}")

    def look() -> bool:
        try:  # its output must not mix with the output of this command
            return subprocess.run(words, stdout=STDERR, check=False).returncode == 0
        except OSError as error:  # found, but not a program
            print(f"{command!r} cannot be run: {printable(str(error))}", file=sys.stderr)
            return False

    return look


def to_option_names(message: str) -> str:
    """The message of a switch with the options of the command.

    >>> to_option_names("use canary=(5, 25, 100), or override=True")
    'use --canary 5,25,100, or --override'
    """
    for word, option in OPTION_NAMES.items():
        message = message.replace(word, option)
    return message

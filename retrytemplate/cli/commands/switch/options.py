"""What the verbs of ``retrytemplate switch`` are told: scopes, lengths of time, shares, keys."""

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

__all__ = [
    "add_names",
    "add_scope",
    "health_check",
    "parse_duration",
    "parse_key",
    "parse_shares",
    "parse_text",
    "required_scopes",
    "scope_arguments",
    "to_option_names",
    "translate_errors",
]

NAMED = ("segment", "feature", "experiment")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?[smhdw])+", re.ASCII)
DURATION_PART = re.compile(r"([0-9.]+)([smhdw])")
STDERR = 2  # the file of standard error
DURATIONS = "a length of time such as 90m, 24h, 1w or 1d12h (s, m, h, d, w), of ten years at most"
# What the rules say to those who write Python, for those who type.
OPTION_NAMES = {
    "resume(canary=(5, 25, 100))": "resume --canary 5,25,100",
    "canary=(5, 25, 100)": "--canary 5,25,100",
    "override=True": "--override",
}
SHARES = "shares in per cent that grow up to 100, such as 5,25,100"


def add_scope(parser: ArgumentParser) -> None:
    """The options of which exactly one says what is meant."""
    group = parser.add_argument_group("what, exactly one").add_mutually_exclusive_group(
        required=True
    )
    group.add_argument("--global", action="store_true", dest="everything", help="everything")
    _add(group)


def add_names(parser: ArgumentParser) -> None:
    """The options that say what somebody wants to run."""
    _add(parser.add_argument_group("what a check would decide for all of"))


def _add(group: Any) -> None:
    for kind in NAMED:
        group.add_argument(
            f"--{kind}", type=parse_encodable, metavar="NAME", help=f"the {kind} of this name"
        )


def scope_arguments(args: Namespace) -> dict[str, Any]:
    """The options of what is meant, as the methods of a switch take them."""
    return {kind: getattr(args, kind) for kind in NAMED}


def required_scopes(args: Namespace, switch: KillSwitch) -> tuple[SwitchScope, ...]:
    """What has to run for all that is meant, in the order in which a check asks.

    :raises CommandFailed: the switch has no such name.
    """
    with translate_errors():
        return switch.guard(**scope_arguments(args)).scopes


@contextmanager
def translate_errors() -> Iterator[None]:
    """Let what a switch refuses be said in the words of the command.

    :raises CommandFailed: the rules refuse it.
    """
    try:
        yield
    except SwitchRefusedError as error:
        raise CommandFailed(to_option_names(str(error))) from None
    except (TypeError, ValueError) as error:  # they begin with what it is that cannot be
        raise UsageError(f"--{error}") from None


def parse_key(given: str | None) -> Any:
    """The key, as JSON or as text; a list is a tuple.


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
            f"--key: must be a text, a whole number, or a list of them, got {given!r}; where text "
            "looks like JSON, quote it: '\"1.5\"'"
        ) from None
    return key


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def parse_encodable(given: str) -> str:
    """Read an argument that must be text in this terminal's encoding: else it means another name.

    >>> parse_encodable("finänz")
    'finänz'
    """
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ArgumentTypeError(
            f"could not be read in the encoding of this terminal, got {given!r}"
        ) from None
    return given


def parse_text(given: str) -> str:
    """Read an argument that must say something, in this terminal's encoding."""
    return text(parse_encodable(given))


def parse_duration(given: str) -> float:
    """Read an argument that must be a length of time.

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
    """A function that runs the command, whose end says whether all is well.

    :raises UsageError: it cannot be run.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--check: {error}, got {command!r}") from None
    if not words or shutil.which(words[0]) is None:
        raise UsageError(f"--check: there is no such command, got {command!r}")

    def look() -> bool:
        try:  # what it prints is no part of what this command says
            return subprocess.run(words, stdout=STDERR, check=False).returncode == 0
        except OSError as error:  # no program after all: who cannot look does not know
            print(f"{command!r} cannot be run: {printable(str(error))}", file=sys.stderr)
            return False

    return look


def to_option_names(message: str) -> str:
    """What the rules say, in the words of the command.

    >>> to_option_names("resume with canary=(5, 25, 100), or say override=True")
    'resume with --canary 5,25,100, or say --override'
    """
    for word, option in OPTION_NAMES.items():
        message = message.replace(word, option)
    return message

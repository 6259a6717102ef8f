"""Policies and backoffs as text: ``simple:max_attempts=5``, ``fixed:0.5``.

A kind, then its settings: by name, or in order without names.  Policies combine with ``&`` (all
must allow) and ``|`` (any may allow); ``&`` binds closer.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.suggestions import did_you_mean
from retrytemplate.backoff.base import NoBackoff
from retrytemplate.backoff.exponential import JITTERS, ExponentialBackoff
from retrytemplate.backoff.fixed import FixedBackoff, UniformRandomBackoff
from retrytemplate.cli.errors import UsageError
from retrytemplate.policies.basic import (
    AlwaysRetryPolicy,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    TimeoutRetryPolicy,
)
from retrytemplate.policies.simple import SimpleRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from retrytemplate.backoff.base import Backoff
    from retrytemplate.policies.base import RetryPolicy


@frozen
class Setting:
    """Parser and allowed values of a setting.

    :param allowed: in the form of a command line.
    :param words: in the words of an error message.
    """

    read: Callable[[str], Any]
    allowed: str
    words: str


@frozen
class Kind:
    """A function, its settings, and the names of the required ones."""

    make: Callable[..., Any]
    settings: Mapping[str, Setting] = field(factory=dict)
    required: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ",".join(f"{name}={each.allowed}" for name, each in self.settings.items())


def _jitter(text: str) -> str | None:
    return None if text == "none" else text


WHOLE = Setting(int, "N", "an integer of at least 1")
SECONDS = Setting(float, "SECONDS", "a number of seconds")
NUMBER = Setting(float, "NUMBER", "a number")
JITTER_NAMES = [each or "none" for each in JITTERS]
JITTER = Setting(_jitter, "|".join(JITTER_NAMES), " or ".join(JITTER_NAMES))

POLICIES = {
    "simple": Kind(SimpleRetryPolicy, {"max_attempts": WHOLE}),
    "max_attempts": Kind(MaxAttemptsRetryPolicy, {"max_attempts": WHOLE}),
    "timeout": Kind(TimeoutRetryPolicy, {"timeout": SECONDS}, ("timeout",)),
    "always": Kind(AlwaysRetryPolicy),
    "never": Kind(NeverRetryPolicy),
}

BACKOFFS = {
    "none": Kind(NoBackoff),
    "fixed": Kind(FixedBackoff, {"delay": SECONDS}, ("delay",)),
    "uniform": Kind(UniformRandomBackoff, {"minimum": SECONDS, "maximum": SECONDS}),
    "exponential": Kind(
        ExponentialBackoff,
        {"initial": SECONDS, "multiplier": NUMBER, "maximum": SECONDS, "jitter": JITTER},
    ),
}


def parse_policy(text: str) -> RetryPolicy:
    """The policy that the text describes.

    :raises UsageError: the text is not valid; the message names the allowed values.

    >>> parse_policy("simple:5 & timeout:30").max_attempts
    5
    """
    alternatives = [
        reduce(and_, (build("policy", part, POLICIES) for part in side.split("&")))
        for side in text.split("|")
    ]
    combined: RetryPolicy = reduce(or_, alternatives)
    return combined


def parse_backoff(text: str) -> Backoff:
    """The backoff that the text describes.

    :raises UsageError: the text is not valid; the message names the allowed values.

    >>> parse_backoff("uniform:minimum=1,maximum=2")
    UniformRandomBackoff(minimum=1.0, maximum=2.0)
    """
    found: Backoff = build("backoff", text, BACKOFFS)
    return found


def describe_kinds(kinds: Mapping[str, Kind]) -> Iterator[str]:
    """The kinds and their settings, a line each."""
    for name, kind in kinds.items():
        yield f"{name}:{kind}" if kind.settings else name


def build(what: str, text: str, kinds: Mapping[str, Kind]) -> Any:
    """The object that the text describes.

    :raises UsageError: the text is not valid; the message names the allowed values.
    """
    name, _, rest = text.strip().partition(":")
    if name not in kinds:
        allowed = ", ".join(kinds)
        hint = did_you_mean(name, kinds)
        raise UsageError(f"there is no {what} {name!r}; allowed: {allowed}{hint}")
    kind = kinds[name]
    given = _parse_settings(f"{what} {name!r}", rest, kind)
    try:
        return kind.make(**given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} {name!r}: {error}") from error


def _parse_settings(what: str, text: str, kind: Kind) -> dict[str, Any]:
    """The parsed settings by name."""
    given: dict[str, Any] = {}
    order = iter(kind.settings)
    for item in text.split(",") if text.strip() else ():
        name, equals, value = (part.strip() for part in item.rpartition("="))
        if not equals:
            name = next(order, value) if len(given) < len(kind.settings) else value
        if name not in kind.settings or name in given:
            allowed = str(kind) or "no settings"
            hint = did_you_mean(name, kind.settings.keys() - given.keys())
            raise UsageError(f"{what} cannot take {item.strip()!r}; allowed: {allowed}{hint}")
        setting = kind.settings[name]
        try:
            given[name] = setting.read(value)
        except ValueError:
            raise UsageError(f"{what}: {name} must be {setting.words}, got {value!r}") from None
    missing = [name for name in kind.required if name not in given]
    if missing:
        raise UsageError(f"{what} needs {' and '.join(missing)}; allowed: {kind}")
    return given

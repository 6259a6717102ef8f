"""Checks of reasons and of expiries."""

from __future__ import annotations

import re
from typing import Any

from attrs import field, frozen

from retrytemplate._internal.validation import (
    SECONDS,
    check_at_least_one,
    check_choice,
    check_flag,
    check_number,
    checked_by,
    read_seconds,
)
from retrytemplate.errors import SwitchRefusedError


def _pattern(value: Any) -> re.Pattern[str] | None:
    if value is None:
        return None
    try:
        found = re.compile(value)
    except (re.error, TypeError) as exc:
        raise ValueError(f"incident must be a regular expression, got {value!r}: {exc}") from None
    if not isinstance(found.pattern, str):
        raise TypeError(f"incident must be a regular expression of text, got {value!r}")
    return found


@frozen
class ReasonPolicy:
    """Requirements of a reason.

    :param reason_length: characters of a reason or justification, at least; surrounding spaces do
        not count.
    :param incident: a pattern that a reason must contain; None: no pattern.

    >>> ReasonPolicy(12, r"INC-[0-9]+").check_reason("charged twice, INC-4711")
    """

    reason_length: int = field(validator=checked_by(check_at_least_one))
    incident: re.Pattern[str] | None = field(converter=_pattern)

    def check(self, name: str, value: Any) -> None:
        """Raise unless the text is long enough.

        :raises SwitchRefusedError: it is shorter than ``reason_length``.
        """
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, got {value!r}")
        if len(value.strip()) < self.reason_length:
            raise SwitchRefusedError(
                f"{name} must have at least {self.reason_length} characters, got {value!r}"
            )

    def check_reason(self, value: Any) -> None:
        """The same, and it has to name the incident, where that is required."""
        self.check("reason", value)
        if self.incident is not None and not self.incident.search(value):
            raise SwitchRefusedError(
                f"reason must contain {self.incident.pattern!r}, got {value!r}"
            )


WHEN_EXPIRED = "resume", "keep"
MAX_EXPIRY = 10 * 366 * 86400.0
"""Ten years: what lasts longer is meant to be permanent."""


def check_expires_in(name: str, value: Any) -> None:
    """Raise unless it is a length that ends within a life."""
    allowed = f"{SECONDS} > 0, of ten years at most"
    check_number(name, value, allowed, lambda seconds: 0 < seconds <= MAX_EXPIRY)


def check_when_expired(name: str, value: Any) -> None:
    """Raise unless it is one of the two."""
    check_choice(name, value, *WHEN_EXPIRED)


def resolve_expiry(expires_in: Any, permanent: Any, when_expired: Any) -> float | None:
    """For how many seconds something is stopped; None: permanently.

    :param when_expired: what happens then; None: not given.
    :raises SwitchRefusedError: no end is given, or two that exclude each other.
    """
    check_flag("permanent", permanent)
    if when_expired is not None:
        check_when_expired("when_expired", when_expired)
    if (expires_in is None) != permanent:
        got = "both" if permanent else "neither"
        raise SwitchRefusedError(
            "a stop needs an end: pass expires_in= (86400 for a day, 604800 for a week), or "
            f"permanent=True, got {got}"
        )
    if permanent:
        if when_expired == "resume":
            raise SwitchRefusedError(
                "a permanent stop never expires: pass expires_in= with "
                "when_expired='resume', or permanent=True without, got permanent=True with it"
            )
        return None
    seconds: float = read_seconds("expires_in", expires_in, check_expires_in)
    return seconds

"""What operators have to say, so that those who were not there understand it."""

from __future__ import annotations

import re
from typing import Any

from attrs import field, frozen

from retrytemplate._internal.validation import checked_by, whole
from retrytemplate.errors import SwitchRefusedError

__all__ = ["Words"]


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


def _at_least_one(name: str, value: Any) -> None:
    whole(name, value, 1)


@frozen
class Words:
    """What a reason has to be like.

    :param reason_length: characters of a reason or justification, at least; surrounding spaces do
        not count.
    :param incident: what it has to contain; None: nothing.

    >>> Words(12, r"INC-[0-9]+").check_reason("charged twice, INC-4711")
    """

    reason_length: int = field(validator=checked_by(_at_least_one))
    incident: re.Pattern[str] | None = field(converter=_pattern)

    def check(self, name: str, value: Any) -> None:
        """Raise unless the text is long enough.

        :raises SwitchRefusedError: it is shorter than ``reason_length``.
        """
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a text, got {value!r}")
        if len(value.strip()) < self.reason_length:
            raise SwitchRefusedError(
                f"{name} must have at least {self.reason_length} characters, got {value!r}"
            )

    def check_reason(self, value: Any) -> None:
        """The same, and it has to name the incident, where that is asked for."""
        self.check("reason", value)
        if self.incident is not None and not self.incident.search(value):
            raise SwitchRefusedError(
                f"reason must contain {self.incident.pattern!r}, got {value!r}"
            )

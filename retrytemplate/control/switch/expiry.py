"""How long a stop lasts, and what happens then."""

from __future__ import annotations

from typing import Any

from retrytemplate._internal.validation import SECONDS, duration, span
from retrytemplate.errors import SwitchRefusedError

__all__ = ["WHEN_EXPIRED", "check_expires_in", "check_when_expired", "lasting"]

WHEN_EXPIRED = "lift", "stay"
LONGEST = 10 * 366 * 86400.0
"""Ten years: what lasts longer is meant to be permanent."""


def check_expires_in(name: str, value: Any) -> None:
    """Raise unless it is a length that ends within a life."""
    span(name, value)
    if value > LONGEST:
        raise ValueError(f"{name} must be {SECONDS} of ten years at most, got {value!r}")


def check_when_expired(name: str, value: Any) -> None:
    """Raise unless it is one of the two."""
    if value not in WHEN_EXPIRED:
        raise ValueError(f"{name} must be one of {', '.join(WHEN_EXPIRED)}, got {value!r}")


def lasting(expires_in: Any, permanent: Any, when_expired: Any) -> float | None:
    """For how many seconds something is stopped; None: for good.

    :param when_expired: what happens then; None: nobody has said so.
    :raises SwitchRefusedError: nothing was said about the end, or what cannot both be.
    """
    if not isinstance(permanent, bool):
        raise TypeError(f"permanent must be True or False, got {permanent!r}")
    if when_expired is not None:
        check_when_expired("when_expired", when_expired)
    if (expires_in is None) != permanent:
        got = "both" if permanent else "neither"
        raise SwitchRefusedError(
            "a stop needs an end: say expires_in= (86400 for a day, 604800 for a week), or "
            f"permanent=True, got {got}"
        )
    if permanent:
        if when_expired == "lift":
            raise SwitchRefusedError(
                "a permanent stop is never lifted by itself: say expires_in= with "
                "when_expired='lift', or permanent=True without, got permanent=True with it"
            )
        return None
    seconds: float = duration(expires_in)
    check_expires_in("expires_in", seconds)
    return seconds

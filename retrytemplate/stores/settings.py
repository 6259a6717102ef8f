"""What every durable cache is made of, and how it is checked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, get_args

from attrs import frozen

from retrytemplate._checks import SECONDS, check_at_least, duration, plain
from retrytemplate.caches.sizes import check_record_limit
from retrytemplate.clock import given_or_system

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._checks import Seconds
    from retrytemplate.clock import Clock

__all__ = [
    "KEY_PREFIXES",
    "TABLE_PREFIXES",
    "OnStoreError",
    "Settings",
    "check_records",
    "seconds",
    "waiting",
]

LEAST = 0.01
LONGEST_WAIT = 1_000_000  # twice as many milliseconds are no more than 32 bits hold
OnStoreError = Literal["raise", "run_unguarded"]
CHOICES = get_args(OnStoreError)


@frozen
class Prefixes:
    """What the names in a store may begin with."""

    pattern: re.Pattern[str]
    allowed: str

    def checked(self, prefix: Any) -> str:
        if not isinstance(prefix, str) or self.pattern.fullmatch(prefix) is None:
            raise ValueError(f"prefix must be {self.allowed}, got {prefix!r}")
        return prefix


TABLE_PREFIXES = Prefixes(
    re.compile(r"[a-z_][a-z0-9_]{0,39}"),
    "1 to 40 of a-z, 0-9 and _, with no digit at the beginning",
)
KEY_PREFIXES = Prefixes(
    re.compile(r"[A-Za-z0-9_.:-]{1,100}"), "1 to 100 of letters, digits and _ . : -"
)


class Settings:
    """Lease, prefix, timeout, redact, record limit, clock, and what happens without the store.

    The time to live is each store's own matter.
    """

    durable = True

    prefixes: Prefixes

    def __init__(
        self,
        lease: Seconds,
        prefix: Any,
        timeout: Seconds,
        redact: Callable[[str], str] | None,
        record_limit: int,
        clock: Clock | None,
        on_store_error: OnStoreError,
    ) -> None:
        self.lease: float = seconds("lease", lease)
        self.prefix: str = self.prefixes.checked(prefix)
        self.timeout: float = waiting("timeout", timeout)
        check_records(redact, record_limit)
        self.redact = redact
        self.record_limit = record_limit
        if on_store_error not in CHOICES:
            raise ValueError(
                f"on_store_error must be one of {', '.join(CHOICES)}, got {on_store_error!r}"
            )
        self.on_store_error = on_store_error
        self._monotonic = given_or_system(clock).monotonic


def check_records(redact: Any, record_limit: Any) -> None:
    """Raise unless these say what is stored of failures, and how much of it."""
    if redact is not None:
        plain("redact", redact)
    check_record_limit(record_limit)


def seconds(name: str, value: Any) -> float:
    """The seconds of a duration that has to last a while, and to end."""
    made: float = duration(value)
    allowed = f"{SECONDS} >= {LEAST} and finite"
    check_at_least(name, made, LEAST, allowed=allowed, finite=True)
    return made


def waiting(name: str, value: Any) -> float:
    """The seconds of a duration that a driver is to wait, in whatever it counts them."""
    made: float = duration(value)
    allowed = f"{SECONDS} from {LEAST} to {LONGEST_WAIT}"
    check_at_least(name, made, LEAST, allowed=allowed)
    if made > LONGEST_WAIT:
        raise ValueError(f"{name} must be {allowed}, got {made!r}")
    return made

"""Retry numbers and times in headers: written exactly, read leniently."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "collect_headers",
    "read_attempt",
    "read_flag",
    "read_number",
    "read_timeout",
    "write_attempt",
    "write_timeout",
]

# Two gRPC headers with their own format: a time with a unit, and the previous attempts.
GRPC_TIMEOUT = "grpc-timeout"
GRPC_ATTEMPTS = "grpc-previous-rpc-attempts"
GRPC_TIME = re.compile("([0-9]{1,8})([HMSmun])")
GRPC_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "S": 1.0, "M": 60.0, "H": 3600.0}
GRPC_MOST = 99_999_999

DIGITS = re.compile("[0-9]+")
MOST_MILLISECONDS = 9_999_999_999  # about four months: ten digits, as the Connect protocol has it
MOST_ATTEMPTS = 1000


def collect_headers(headers: Any, names: Iterable[str]) -> dict[str, list[str]]:
    """The values of these headers, from a mapping or from pairs, as in ASGI and gRPC.

    One that comes more than once, or is joined with commas, has several.
    """
    found: dict[str, list[str]] = {name.lower(): [] for name in names}
    for name, value in headers.items() if hasattr(headers, "items") else headers or ():
        values = found.get(_text(name).lower())
        if values is not None:
            values += [each.strip(" \t") for each in _text(value).split(",")]
    return found


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def read_number(text: str, most: int) -> int | None:
    """A whole number, at most *most*; None: not a number."""
    if not DIGITS.fullmatch(text):
        return None
    digits = text.lstrip("0")
    return most if len(digits) > len(str(most)) else min(int(digits or "0"), most)


def read_flag(name: str, text: str) -> bool:
    """Whether the flag is set."""
    return text.lower() in ("1", "true")


def read_attempt(name: str, text: str) -> int | None:
    """The number of an attempt, from 1."""
    number = read_number(text, MOST_ATTEMPTS)
    if number is not None and name.lower() == GRPC_ATTEMPTS:
        return number + 1
    return number


def write_attempt(name: str, attempt: int) -> str | None:
    """The same as text; None: no header is sent."""
    if name.lower() == GRPC_ATTEMPTS:
        return str(attempt - 1) if attempt > 1 else None
    return str(attempt)


def read_timeout(name: str, text: str) -> float | None:
    """Seconds; None: it is no time."""
    if name.lower() == GRPC_TIMEOUT:
        match = GRPC_TIME.fullmatch(text)
        return None if match is None else int(match[1]) * GRPC_UNITS[match[2]]
    number = read_number(text, MOST_MILLISECONDS)
    return None if number is None else number / 1000


def write_timeout(name: str, seconds: float) -> str:
    """Time left as text, never more than there is: cut off after the last digit."""
    if name.lower() != GRPC_TIMEOUT:
        return str(int(min(seconds * 1000, MOST_MILLISECONDS)))
    for unit in "mSMH":
        number = seconds / GRPC_UNITS[unit]
        if number < GRPC_MOST:
            return f"{int(number)}{unit}" if number >= 1 else "1n"  # 0 is not allowed there
    return f"{GRPC_MOST}H"

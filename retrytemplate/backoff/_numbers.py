"""The numbers of backoffs: floats, factors, and what callables give."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from retrytemplate import _checks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LARGEST", "as_float", "factor", "given"]

LARGEST = sys.float_info.max
"""Where delays stop growing: infinity is no JSON."""


def as_float(value: _checks.Seconds | Callable[..., _checks.Seconds]) -> Any:
    """A ``timedelta`` or an int as a float; everything else is left to the check."""
    number: Any = _checks.duration(value)
    if isinstance(number, int) and not isinstance(number, bool):
        try:
            return float(number)
        except OverflowError:
            return number
    return number


def factor(name: str, value: Any) -> None:
    """Raise unless the value is a finite number of at least one."""
    _checks.check_at_least(name, value, 1, finite=True)


def given(name: str, value: Any, check: Callable[[str, Any], None]) -> float:
    """The number itself, or what its callable gives now."""
    return float(_checks.read(name, value, check))

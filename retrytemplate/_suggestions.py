"""The known name that is nearest to an unknown one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'policy'?"`` for ``"polcy"``; empty if no known name is similar.

    >>> did_you_mean("polcy", ["policy", "backoff"]), did_you_mean("x", ["policy"])
    ("; did you mean 'policy'?", '')
    """
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""

"""Suggestions for unknown names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["check_names", "did_you_mean", "nearest"]


def check_names(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise ``TypeError`` for a name that is unknown."""
    for name in names:
        if name not in known:
            raise TypeError(
                f"{what} must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}"
            )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar, whatever its case; None if no name is similar."""
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'policy'?"`` for ``"polcy"``; empty if no known name is similar.

    >>> did_you_mean("polcy", ["policy", "backoff"]), did_you_mean("x", ["policy"])
    ("; did you mean 'policy'?", '')
    """
    found = nearest(name, known)
    return f"; did you mean {found!r}?" if found else ""

"""What verbs share: wrong use, packages that are not there, and the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate.extras import extra

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["UsageError", "console", "extra"]

# Where the environment says that the terminal has no columns at all.
USUAL_WIDTH = 80


class UsageError(Exception):
    """Wrong use of the command: the message says what is allowed.  ``main`` exits with 2."""


def console(purpose: str) -> Console:
    """Standard output, through rich; what is printed is text, no markup."""
    with extra("cli", purpose):
        from rich.console import Console

    made = Console(highlight=False, markup=False)
    if not made.width:
        made.width = USUAL_WIDTH
    return made

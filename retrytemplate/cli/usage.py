"""What verbs share: wrong use, and packages that are not there."""

from __future__ import annotations

from retrytemplate.extras import extra

__all__ = ["UsageError", "extra"]


class UsageError(Exception):
    """Wrong use of the command: the message says what is allowed.  ``main`` exits with 2."""

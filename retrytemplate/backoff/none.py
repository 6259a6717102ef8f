"""No wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from retrytemplate.backoff.base import JSON, Backoff

if TYPE_CHECKING:
    from retrytemplate.backoff.base import RandomSource

__all__ = ["NoBackoff"]


@frozen(eq=False, repr=False)
class NoBackoff(Backoff):
    """The next attempt at once.

    Source: ``org.springframework.retry.backoff.NoBackOffPolicy``.

    >>> NoBackoff().never_waits
    True
    """

    never_waits = True

    def start(self) -> JSON:
        return None

    def next(
        self, state: JSON, failure: BaseException, random: RandomSource
    ) -> tuple[float | None, JSON]:
        return 0.0, state

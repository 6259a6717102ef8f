"""So many attempts, whatever the exception."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

from retrytemplate import _checks
from retrytemplate.policies.base import NumberOfAttempts

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MaxAttemptsRetryPolicy"]


@frozen(eq=False, repr=False)
class MaxAttemptsRetryPolicy(NumberOfAttempts):
    """A number of attempts, whatever the exception.

    :param max_attempts: attempts in all, the first included; or a callable that gives the number,
        read once per execution.
    :raises ValueError: for fewer than one attempt.

    Source: ``org.springframework.retry.policy.MaxAttemptsRetryPolicy``.

    >>> policy = MaxAttemptsRetryPolicy(2)
    >>> policy.allows(1, ValueError()), policy.allows(2, ValueError())
    (True, False)
    """

    _max_attempts: int | Callable[[], int] = field(
        default=3, alias="max_attempts", validator=_checks.number_or_callable(_checks.at_least_one)
    )

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        limit = self._max_attempts
        if callable(limit):
            return self.resolved().allows(failures, failure)
        return failures < limit

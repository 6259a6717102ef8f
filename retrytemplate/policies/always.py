"""As many attempts as it takes."""

from __future__ import annotations

from attrs import frozen

from retrytemplate.policies.base import RetryPolicy

__all__ = ["AlwaysRetryPolicy"]


@frozen(eq=False, repr=False)
class AlwaysRetryPolicy(RetryPolicy):
    """Another attempt after every failure.

    Bound it: with a deadline, or ``AlwaysRetryPolicy() & TimeoutRetryPolicy(60)``.

    Source: ``org.springframework.retry.policy.AlwaysRetryPolicy``.

    >>> AlwaysRetryPolicy().allows(1_000_000, ValueError())
    True
    """

    @property
    def never_ends(self) -> bool:
        return True

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        return True

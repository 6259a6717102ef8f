"""One attempt."""

from __future__ import annotations

from attrs import frozen

from retrytemplate.policies.base import RetryPolicy

__all__ = ["NeverRetryPolicy"]


@frozen(eq=False, repr=False)
class NeverRetryPolicy(RetryPolicy):
    """The first attempt and no other.

    Source: ``org.springframework.retry.policy.NeverRetryPolicy``.

    >>> policy = NeverRetryPolicy()
    >>> policy.allows(0, None), policy.allows(1, ValueError())
    (True, False)
    """

    @property
    def attempt_limit(self) -> int | None:
        return 1

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        return failures == 0

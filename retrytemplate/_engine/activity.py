"""The process-wide switch that turns retries off, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate.listeners.defaults import notify_followers

if TYPE_CHECKING:
    from retrytemplate.policies.base import RetryPolicy

__all__ = ["is_active", "policy_in_force", "set_active"]

_replacement: RetryPolicy | None = None  # the policy of every template while retries are off


def set_active(active: bool) -> None:
    """Switch the retries of the whole process off or on; for tests.

    While they are off, every template behaves as with ``NeverRetryPolicy()``: one attempt, then
    its recovery or its failure.  Running executions keep the policy they started with.

    :param active: whether templates retry; at the start of a process they do.
    :raises TypeError: for any other value than True or False.

    >>> from retrytemplate import RetryTemplate
    >>> set_active(False)
    >>> outcome = RetryTemplate().outcome(int, "x")
    >>> set_active(True)
    >>> outcome.attempts, outcome.stop_reason
    (1, 'inactive')
    """
    global _replacement
    if not isinstance(active, bool):
        raise TypeError(f"active must be True or False, got {active!r}")
    if active:
        _replacement = None
    else:
        from retrytemplate.policies.basic import InactivePolicy

        _replacement = InactivePolicy()
    notify_followers()


def is_active() -> bool:
    """Whether templates retry; see ``set_active``.

    >>> is_active()
    True
    """
    return _replacement is None


def policy_in_force(policy: RetryPolicy) -> RetryPolicy:
    """The policy of a template, or the one that replaces it while retries are off."""
    return _replacement or policy

"""A deciding policy as a member of one that keeps state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

from retrytemplate.policies.base import JSON, RetryPolicy, StatefulRetryPolicy

if TYPE_CHECKING:
    from retrytemplate.stop_reasons import StopReason

__all__ = ["DecidingMember", "keeping_state"]


@frozen(eq=False, repr=False)
class DecidingMember(StatefulRetryPolicy):
    """Carries what a deciding policy decides by: ``[failures, allowed, no recovery]``.

    The policy is asked when the failure is recorded, where the exception is.
    """

    policy: RetryPolicy = field()

    def start(self, now: float) -> JSON:
        return [0, bool(self.policy.allows(0, None)), False]

    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        failures = state[0] + 1
        allowed = bool(self.policy.allows(failures, failure))
        forbidden = not allowed and bool(self.policy.forbids_recovery(failures, failure))
        return [failures, allowed, forbidden]

    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        return state[1], state

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        return self.policy.stop_reason(state[0], failure)

    def recovery_forbidden(self, state: JSON) -> bool:
        return bool(state[2])


def keeping_state(policy: RetryPolicy) -> StatefulRetryPolicy:
    """The policy itself where it keeps state, else carried by one that does."""
    if isinstance(policy, StatefulRetryPolicy) and policy.needs_state:
        return policy
    return DecidingMember(policy)

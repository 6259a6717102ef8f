"""Run a policy as an execution does, with its state converted to JSON at every step."""

from __future__ import annotations

from typing import Any

from attrs import define, field

from retrytemplate import RetryPolicy, StatefulRetryPolicy
from tests.support.pickling import restored


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@define
class Driven:
    policy: RetryPolicy
    now: float = 0.0
    failures: int = field(default=0, init=False)
    last: BaseException | None = field(default=None, init=False)
    state: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.state = restored(self.stateful.start(self.now)) if self.stateful else None

    @property
    def stateful(self) -> StatefulRetryPolicy | None:
        return self.policy if self.policy.needs_state else None

    def fail(self, failure: BaseException, *, after: float = 0.0) -> Driven:
        self.now += after
        self.failures += 1
        self.last = failure
        if self.stateful:
            self.state = restored(self.stateful.record(self.state, failure, self.now))
        return self

    def allowed(self, *, after: float = 0.0) -> bool:
        self.now += after
        if not self.stateful:
            return self.policy.allows(self.failures, self.last)
        answer, state = self.stateful.decide(self.state, self.now)
        self.state = restored(state)
        return answer

    def recovery_forbidden(self) -> bool:
        assert not self.allowed()
        if not self.stateful:
            return self.policy.forbids_recovery(self.failures, self.last)
        return self.stateful.recovery_forbidden(self.state)

    @property
    def shown(self) -> dict[str, Any]:
        return dict(self.stateful.attributes(self.state))


def attempts(policy: RetryPolicy, *failures: BaseException) -> int:
    """The number of attempts for these failures, the last one repeated."""
    driven = Driven(policy)
    number = 0
    while driven.allowed() and number < 100:
        driven.fail(failures[min(number, len(failures) - 1)])
        number += 1
    return number

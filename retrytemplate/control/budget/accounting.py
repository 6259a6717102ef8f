"""Accounting of a retry budget: a ratio of the calls, or a token bucket.

Free of time and threads: the caller says what time it is, one at a time.
"""

from __future__ import annotations

from typing import Protocol

from attrs import define, field

__all__ = ["BudgetAccounting", "RatioBudget", "TokenBucket"]

STEPS = 10
# So far sums of floats may be off, and no further: it is less than any cost.
ROUNDING = 1e-9


class BudgetAccounting(Protocol):
    """Where retries are paid from."""

    def call(self, now: float) -> None:
        """A call began."""
        ...

    def available(self, now: float) -> float:
        """The amount available now."""
        ...

    @property
    def left(self) -> float:
        """The balance at the last update; changes nothing."""
        ...

    def withdraw(self, cost: float, now: float) -> bool:
        """Withdraw the cost of a retry; False: the balance is too low."""
        ...

    def refund(self, amount: float, now: float) -> None:
        """Refund up to the capacity."""
        ...

    def wait_for(self, cost: float, now: float) -> float | None:
        """Seconds until time alone has brought so much; None: it will not."""
        ...


@define
class Sliding:
    """A sum over the last seconds, in ten steps."""

    length: float
    bucket: int | None = None
    buckets: list[float] = field(factory=lambda: [0.0] * STEPS)

    def add(self, amount: float, now: float) -> None:
        self.evict(now)
        assert self.bucket is not None
        self.buckets[self.bucket % STEPS] += amount

    def evict(self, now: float) -> float:
        """The sum."""
        bucket, last = int(now // self.length), self.bucket
        if last is None:
            self.bucket = bucket
        elif bucket > last:
            self.bucket = bucket
            for gone in range(last + 1, min(bucket, last + STEPS) + 1):
                self.buckets[gone % STEPS] = 0.0
        return sum(self.buckets)


@define
class RatioBudget:
    """Retries up to a share of the calls of the last seconds, and a few more in any case."""

    ratio: float
    floor: float
    ttl: float
    _calls: Sliding = field(init=False)
    _withdrawn: Sliding = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._calls = Sliding(self.ttl / STEPS)
        self._withdrawn = Sliding(self.ttl / STEPS)

    def call(self, now: float) -> None:
        self._calls.add(1.0, now)

    def available(self, now: float) -> float:
        self._calls.evict(now)
        self._withdrawn.evict(now)
        return self.left

    @property
    def left(self) -> float:
        earned = self.ratio * sum(self._calls.buckets) + self.floor
        return max(0.0, earned - sum(self._withdrawn.buckets))

    def withdraw(self, cost: float, now: float) -> bool:
        if self.available(now) < cost - ROUNDING:
            return False
        self._withdrawn.add(cost, now)
        return True

    def refund(self, amount: float, now: float) -> None:
        """Refund a withdrawal; one that has left the window is not refunded."""
        self._withdrawn.add(-min(amount, self._withdrawn.evict(now)), now)

    def wait_for(self, cost: float, now: float) -> float | None:
        return None  # it depends on the calls to come


@define
class TokenBucket:
    """Tokens, refilled by time and by success, up to a capacity."""

    capacity: float
    per_second: float
    tokens: float = field(init=False)
    at: float | None = None

    def __attrs_post_init__(self) -> None:
        self.tokens = self.capacity

    def call(self, now: float) -> None:
        """Deposit nothing."""

    def available(self, now: float) -> float:
        if self.at is None or now > self.at:  # else another thread read its clock a moment later
            passed = 0.0 if self.at is None else now - self.at
            self.tokens = min(self.capacity, self.tokens + passed * self.per_second)
            self.at = now
        return self.tokens

    @property
    def left(self) -> float:
        return self.tokens

    def withdraw(self, cost: float, now: float) -> bool:
        if self.available(now) < cost - ROUNDING:
            return False
        self.tokens = max(0.0, self.tokens - cost)
        return True

    def refund(self, amount: float, now: float) -> None:
        self.tokens = min(self.capacity, self.available(now) + amount)

    def wait_for(self, cost: float, now: float) -> float | None:
        missing = cost - self.available(now)
        if cost > self.capacity or not self.per_second:
            return None
        return max(0.0, missing / self.per_second)

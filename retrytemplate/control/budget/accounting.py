"""Accounting of a retry budget: a ratio of the calls, or a token bucket.

Free of time and threads: the caller says what time it is, one at a time.
"""

from __future__ import annotations

from attrs import define, field

STEPS = 10
# So far sums of floats may be off, and no further: it is less than any cost.
ROUNDING = 1e-9


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

    def by_age(self, now: float) -> list[float]:
        """The sums of the steps, the newest first."""
        self.evict(now)
        assert self.bucket is not None
        return [self.buckets[(self.bucket - age) % STEPS] for age in range(STEPS)]

    def fill(self, sums: list[float], now: float) -> None:
        """Replace the sums of the steps; the newest is first."""
        self.evict(now)
        assert self.bucket is not None
        for age, each in enumerate(sums):
            self.buckets[(self.bucket - age) % STEPS] = each


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
        """A call began."""
        self._calls.add(1.0, now)

    def available(self, now: float) -> float:
        """The amount available now."""
        self._calls.evict(now)
        self._withdrawn.evict(now)
        return self.left

    @property
    def left(self) -> float:
        """The balance at the last update; changes nothing."""
        earned = self.ratio * sum(self._calls.buckets) + self.floor
        return max(0.0, earned - sum(self._withdrawn.buckets))

    def withdraw(self, cost: float, now: float) -> bool:
        """Withdraw the cost of a retry; False: the balance is too low."""
        if self.available(now) < cost - ROUNDING:
            return False
        self._withdrawn.add(cost, now)
        return True

    def refund(self, amount: float, now: float) -> None:
        """Refund a withdrawal; one that has left the window is not refunded."""
        self._withdrawn.add(-min(amount, self._withdrawn.evict(now)), now)

    def wait_for(self, cost: float, now: float) -> float | None:
        """Seconds until time alone has brought so much; None: it will not."""
        return None  # it depends on the calls to come

    def saved(self, now: float) -> tuple[list[float], list[float]]:
        """The calls per second, and the shares of the allowance in use, by age in steps."""
        calls = self._calls.by_age(now)
        allowance = self.ratio * sum(calls) + self.floor
        withdrawn = self._withdrawn.by_age(now)
        shares = [each / allowance if allowance else 0.0 for each in withdrawn]
        return [each / self.ttl for each in calls], shares

    def restore(self, saved: tuple[list[float], list[float]], now: float) -> None:
        """Continue with the calls and shares of another budget."""
        calls = [each * self.ttl for each in saved[0]]
        allowance = self.ratio * sum(calls) + self.floor
        self._calls.fill(calls, now)
        self._withdrawn.fill([each * allowance for each in saved[1]], now)


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
        """The amount available now."""
        if self.at is None or now > self.at:  # else another thread read its clock a moment later
            passed = 0.0 if self.at is None else now - self.at
            self.tokens = min(self.capacity, self.tokens + passed * self.per_second)
            self.at = now
        return self.tokens

    @property
    def left(self) -> float:
        """The balance at the last update; changes nothing."""
        return self.tokens

    def withdraw(self, cost: float, now: float) -> bool:
        """Withdraw the cost of a retry; False: the balance is too low."""
        if self.available(now) < cost - ROUNDING:
            return False
        self.tokens = max(0.0, self.tokens - cost)
        return True

    def refund(self, amount: float, now: float) -> None:
        """Refund up to the capacity."""
        self.tokens = min(self.capacity, self.available(now) + amount)

    def wait_for(self, cost: float, now: float) -> float | None:
        """Seconds until time alone has brought so much; None: it will not."""
        missing = cost - self.available(now)
        if cost > self.capacity or not self.per_second:
            return None
        return max(0.0, missing / self.per_second)

    def saved(self, now: float) -> float:
        """The share of the capacity that is left."""
        return self.available(now) / self.capacity

    def restore(self, saved: float, now: float) -> None:
        """Continue with the share of another bucket."""
        self.tokens, self.at = saved * self.capacity, now


BudgetAccounting = RatioBudget | TokenBucket
"""Where retries are paid from."""

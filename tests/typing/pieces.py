"""Types of components, built-in and user-defined, for type checkers."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from retrytemplate import (
    Backoff,
    CompositeRetryPolicy,
    Deadline,
    ExponentialBackoff,
    FixedBackoff,
    Guard,
    MemoryRetryContextCache,
    RetryContext,
    RetryContextCache,
    RetryListener,
    RetryPolicy,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    StatefulRetryPolicy,
    SystemClock,
    TimeoutRetryPolicy,
)
from retrytemplate.backends import AsyncRedisRetryContextCache, SQLRetryContextCache
from retrytemplate.caches import AsyncRetryContextCache, Claim, Record
from retrytemplate.testing import ScriptedRandom, VirtualClock


class FewFailures(RetryPolicy):
    def allows(self, failures: int, failure: BaseException | None) -> bool:
        return failures < 3


class Counting(StatefulRetryPolicy):
    def start(self, now: float) -> int:
        return 0

    def record(self, state: int, failure: BaseException, now: float) -> int:
        return state + 1

    def decide(self, state: int, now: float) -> tuple[bool, int]:
        return state < 3, state


class Slower(Backoff):
    def start(self) -> float:
        return 1.0

    def next(self, state: float, failure: BaseException, random: Any) -> tuple[float | None, float]:
        return state, state + 1.0


class Audit(RetryListener):
    def on_error(self, context: RetryContext, exception: BaseException) -> None: ...

    async def close(self, context: RetryContext, exception: BaseException | None) -> None: ...


class Switch(Guard):
    def admit(self, context: RetryContext) -> None: ...


def pieces() -> None:
    cache: RetryContextCache = MemoryRetryContextCache(capacity=9, ttl=timedelta(hours=1))
    RetryTemplate(
        FewFailures() & Counting(),
        Slower(),
        listeners=[Audit()],
        guards=(Switch(),),
        cache=cache,
        recovery=lambda context: context.retry_count,
        attempt_timeout=timedelta(seconds=1),
        clock=VirtualClock(),
        random=ScriptedRandom([0.5]),
    )
    assert_type(SimpleRetryPolicy(3) & TimeoutRetryPolicy(30.0), CompositeRetryPolicy)
    SimpleRetryPolicy(lambda: 3, retry_on=OSError, not_on=(FileNotFoundError,))
    SimpleRetryPolicy(retry_on=lambda exception: True)
    FixedBackoff(timedelta(seconds=1))
    ExponentialBackoff(initial=0.2, maximum=timedelta(seconds=30), jitter="full")
    RetryState(("eu", 17), rollback_for=OSError, defer_backoff="wait", remember=60)
    RetryTemplate(clock=SystemClock())
    with Deadline(timedelta(seconds=2)) as deadline:
        assert_type(deadline, Deadline)
        assert_type(deadline.remaining(), float)


def durable_caches() -> None:
    cache = SQLRetryContextCache("sqlite:///retry.db", ttl=timedelta(days=1))
    shared: RetryContextCache = cache
    RetryTemplate(cache=shared)
    claim = cache.begin("key", worker="worker", lease=9.0)
    assert_type(claim, Claim)
    assert_type(cache.peek("key"), Record | None)
    assert_type(cache.keys(limit=9), list[str])
    cache.swap("key", Record(), "1")  # type: ignore[arg-type]


async def durable_caches_of_tasks(cache: AsyncRedisRetryContextCache) -> None:
    shared: AsyncRetryContextCache = cache
    RetryTemplate(cache=shared)
    assert_type(await cache.begin("key", worker="worker"), Claim)
    assert_type(await cache.purge(), int)


def mistakes_are_found() -> None:
    # Each line is wrong on purpose: a checker that no longer says so fails over the unused ignore.
    backoff = FixedBackoff(1.0)
    RetryTemplate(backoff)  # type: ignore[arg-type]
    name = "OSError"
    SimpleRetryPolicy(3, name)  # type: ignore[arg-type]
    exponential = ExponentialBackoff
    exponential(jitter="some")  # type: ignore[arg-type]
    RetryState("", defer_backoff=name)  # type: ignore[arg-type]

"""The kit for asynchronous context caches."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast

from retrytemplate.caches.base import METHODS, AsyncRetryContextCache, RetryContextCache
from retrytemplate.errors import RetryError
from retrytemplate.testing.conformance.cache import WORKERS, CacheConformance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retrytemplate.testing.conformance.cache import Course

__all__ = ["AsyncCacheConformance"]


class AsyncCacheConformance(CacheConformance):
    """Tests of ``CacheConformance`` for an ``AsyncRetryContextCache``, with tasks for threads.

    ``make`` is called where an event loop runs.

    .. code-block:: python

        from retrytemplate.testing import AsyncCacheConformance

        class TestMine(AsyncCacheConformance):
            def make(self):
                return MyCache()
    """

    @contextmanager
    def opened(self) -> Iterator[RetryContextCache]:
        async def make() -> AsyncRetryContextCache:
            return cast("AsyncRetryContextCache", self.make())

        with asyncio.Runner() as runner:
            yield cast("RetryContextCache", Waiting(runner.run(make()), runner))

    def at_once(self, cache: RetryContextCache, course: Callable[[int], Course]) -> list[Any]:
        waiting = cast("Waiting", cache)

        async def main() -> list[Any]:
            courses = (_follow_async(waiting.cache, course(place)) for place in range(WORKERS))
            return await asyncio.gather(*courses)

        return waiting.runner.run(main())

    def test_it_has_the_methods_of_a_cache(self) -> None:
        with self.opened() as cache:
            waiting = cast("Waiting", cache)
            for name in METHODS:
                method = getattr(waiting.cache, name, None)
                assert iscoroutinefunction(method), f"{name} is no coroutine method"


class Waiting:
    """An asynchronous cache used from synchronous code."""

    def __init__(self, cache: AsyncRetryContextCache, runner: asyncio.Runner) -> None:
        self.cache = cache
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        def method(*args: Any, **kwargs: Any) -> Any:
            async def call() -> Any:
                return await getattr(self.cache, name)(*args, **kwargs)

            return self.runner.run(call())

        return method

    def __contains__(self, key: str) -> bool:
        return self.peek(key) is not None


async def _follow_async(cache: AsyncRetryContextCache, course: Course) -> Any:
    reply: tuple[Any, RetryError | None] | None = None
    while True:
        try:
            name, args, kwargs = course.send(reply)  # type: ignore[arg-type]  # None begins it
        except StopIteration as end:
            return end.value
        try:
            reply = await getattr(cache, name)(*args, **kwargs), None
        except RetryError as error:
            reply = None, error
        await asyncio.sleep(0)

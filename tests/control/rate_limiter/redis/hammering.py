"""Processes that take permits of one limit as fast as they can."""

import asyncio
import os
import signal
import traceback

from attrs import frozen

from retrytemplate import RateLimitedError
from retrytemplate.control import RateLimiter, RedisRateLimitStore
from tests.support import valkey


@frozen
class Taker:
    """Takes permits until the key ``stop`` exists, and counts them on the server."""

    url: str
    prefix: str
    settings: dict
    is_async: bool = False

    def run(self):
        client = valkey.opened(self.url)
        store = RedisRateLimitStore(self.url, self.prefix, timeout=20.0)
        limiter = RateLimiter("billing", store=store, on_store_error="raise", **self.settings)

        def taken():
            client.incr(f"{self.prefix}:taken")

        def goes_on():
            return not client.exists(f"{self.prefix}:stop")

        if self.is_async:
            asyncio.run(self.take_async(limiter, taken, goes_on))
        else:
            while goes_on():
                try:
                    limiter.acquire()
                except RateLimitedError:
                    continue
                taken()
        store.close()
        client.close()

    async def take_async(self, limiter, taken, goes_on):
        while goes_on():
            try:
                await limiter.acquire_async()
            except RateLimitedError:
                continue
            taken()
        await limiter.store.close_async()


def in_child(function):
    """The exit code of a forked child that calls the function."""
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

"""A call cut while it holds a pooled connection returns the connection in a usable state."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from retrytemplate import Deadline, DeadlineExceededError, RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import Timeout
from retrytemplate.testing import VirtualClock, run, run_trio

pytestmark = pytest.mark.statement("S1-43")


class Pool:
    """One connection, for one task at a time; each statement has an answer that must be read."""

    def __init__(self, clock):
        self.clock = clock
        self.free = ["connection"]
        self.unread = False
        self.discarded = 0

    async def __aenter__(self):
        assert self.free, "it was not released"
        return self.free.pop()

    async def __aexit__(self, *failure):
        self.discarded += self.unread  # another one is made in its place
        self.unread = False
        self.free.append("connection")

    async def query(self, seconds):
        async with self:
            assert not self.unread
            self.unread = True
            await self.clock.sleep_async(seconds)
            self.unread = False
            return "row"


def in_asyncio(main, clock):
    return run(main(), clock=clock)


def in_trio(main, clock):
    return run_trio(main, clock=clock)


runs = pytest.mark.parametrize("runs", [in_asyncio, in_trio], ids=["asyncio", "trio"])


@runs
@pytest.mark.parametrize("limit", ["deadline", "timeout", "attempt"])
def test_pooled_connection_is_released_when_its_user_is_cancelled(runs, limit):
    clock = VirtualClock()
    pool = Pool(clock)
    template = RetryTemplate(
        SimpleRetryPolicy(2), attempt_timeout=2.0 if limit == "attempt" else None, clock=clock
    )

    async def slow():
        if limit == "deadline":
            async with Deadline(2.0, clock=clock):
                return await template.call_async(pool.query, 60)
        elif limit == "timeout":
            return await Timeout(2.0, clock=clock).call_async(template.call_async, pool.query, 60)
        return await template.call_async(pool.query, 60)

    async def main():
        with pytest.raises(TimeoutError):
            await slow()
        assert pool.free == ["connection"]
        return await template.call_async(pool.query, 1)

    assert runs(main, clock) == "row"
    assert pool.discarded == (2 if limit == "attempt" else 1)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/a.db"
    return make_url(request.getfixturevalue("postgres_url")).set(drivername="postgresql+psycopg")


def pooled(url):
    return create_async_engine(
        url, poolclass=AsyncAdaptedQueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01
    )


async def held(engine, waits):
    async with engine.begin() as connection:
        await connection.execute(text("SELECT 17"))
        await waits(connection)


async def sleeps_here(connection):
    await asyncio.Event().wait()


async def sleeps_there(connection):
    await connection.execute(text("SELECT pg_sleep(60)"))


@pytest.mark.parametrize("in_attempt", [False, True], ids=["deadline", "attempt"])
def test_real_pool_gets_its_connection_back(url, in_attempt):
    limit = 0.05
    template = RetryTemplate(SimpleRetryPolicy(2), attempt_timeout=limit if in_attempt else None)
    waits = sleeps_here if "sqlite" in str(url) else sleeps_there

    async def main():
        engine = pooled(url)
        with pytest.raises(TimeoutError) as raised:
            if in_attempt:
                await template.call_async(held, engine, waits)
            else:
                async with Deadline(limit):
                    await template.call_async(held, engine, waits)
        assert isinstance(raised.value, DeadlineExceededError) is not in_attempt
        assert engine.pool.checkedout() == 0
        async with engine.connect() as connection:
            assert await connection.scalar(text("SELECT 17")) == 17
            assert not connection.invalidated
        await engine.dispose()

    asyncio.run(main())

"""What a stateful success costs in a durable cache, beside one bare statement of equal payload.

python benchmarks/stores.py                                     # on SQLite
python benchmarks/stores.py --url postgresql://user@localhost/scratch --url redis://localhost
python benchmarks/stores.py --update docs/operations/performance.md
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pages import CHECKOUT, INTERPRETER, options, show

if TYPE_CHECKING:
    from collections.abc import Iterator

PAYLOAD = "x" * 200
KEYS = 1000
TABLE = "CREATE TABLE bare (k text PRIMARY KEY, n bigint, context text)"
UPSERT = """
    INSERT INTO bare AS r (k, n, context) VALUES (:k, 1, :context)
    ON CONFLICT (k) DO UPDATE SET n = r.n + 1, context = excluded.context RETURNING n, context
"""
SCRIPT = """
    local n = redis.call('HINCRBY', KEYS[1], 'n', 1)
    redis.call('HSET', KEYS[1], 'context', ARGV[1])
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return {n, redis.call('HGET', KEYS[1], 'context')}
"""

# Each runs one operation on the key of that number.
One = Callable[[int], object]


@contextmanager
def on_sql(url: str) -> Iterator[tuple[One, One]]:
    """A bare upsert on a connection that commits by itself, and a success with the cache."""
    from sqlalchemy import text

    from retrytemplate import SQLRetryContextCache

    with SQLRetryContextCache(url) as cache:
        engine = cache._store.engine
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS bare"))
            connection.execute(
                text("CREATE TABLE bare (k text PRIMARY KEY, n bigint, context text)")
            )
        upsert = text(UPSERT)
        bare = engine.execution_options(isolation_level="AUTOCOMMIT")

        def one(number: int) -> object:
            with bare.connect() as connection:
                return connection.execute(upsert, {"k": f"{number}", "context": PAYLOAD}).one()

        yield one, success(cache)


@contextmanager
def on_redis(url: str) -> Iterator[tuple[One, One]]:
    """A bare script, and a success with the cache."""
    from redis import Redis

    from retrytemplate import RedisRetryContextCache

    client: Any
    with RedisRetryContextCache(url) as cache, Redis.from_url(url) as client:
        sha = client.script_load(SCRIPT)

        def one(number: int) -> object:
            return client.execute_command("EVALSHA", sha, 1, f"bare:{number}", PAYLOAD, 86_400_000)

        yield one, success(cache)


def success(cache: Any) -> One:
    """A stateful execution that succeeds."""
    from retrytemplate import RetryState, RetryTemplate

    template = RetryTemplate(name="benchmark", cache=cache)
    return lambda number: template.execute(nothing, state=RetryState(number))


def nothing(context: Any) -> None:
    """Succeed."""


async def on_sql_awaited(url: str, measure: Callable[..., Awaitable[None]]) -> None:
    """The same with the asynchronous twin."""
    from sqlalchemy import text

    from retrytemplate import AsyncSQLRetryContextCache

    async with AsyncSQLRetryContextCache(url) as cache:
        bare = cache._store.engine.execution_options(isolation_level="AUTOCOMMIT")
        upsert = text(UPSERT)

        async def one(number: int) -> object:
            async with bare.connect() as connection:
                values = {"k": f"{number}", "context": PAYLOAD}
                return (await connection.execute(upsert, values)).one()

        await measure(one, success_awaited(cache))


async def on_redis_awaited(url: str, measure: Callable[..., Awaitable[None]]) -> None:
    """The same with the asynchronous twin."""
    from redis.asyncio import Redis

    from retrytemplate import AsyncRedisRetryContextCache

    client: Any
    async with AsyncRedisRetryContextCache(url) as cache, Redis.from_url(url) as client:
        sha = await client.script_load(SCRIPT)

        async def one(number: int) -> object:
            name = f"bare:{number}"
            return await client.execute_command("EVALSHA", sha, 1, name, PAYLOAD, 86_400_000)

        await measure(one, success_awaited(cache))


def success_awaited(cache: Any) -> Callable[[int], Awaitable[object]]:
    """A stateful execution that succeeds."""
    from retrytemplate import RetryState, RetryTemplate

    template = RetryTemplate(name="benchmark", cache=cache)
    return lambda number: template.execute_async(nothing, state=RetryState(number))


class Rates:
    """Operations a second, round by round."""

    def __init__(self, rounds: int, size: int) -> None:
        self.rounds = rounds
        self.size = size
        self.bare: list[float] = []
        self.ours: list[float] = []

    def measure(self, bare: One, ours: One) -> None:
        """Take turns, so that both meet the same machine."""
        for number in range(-1, self.rounds):
            for one, rates in ((bare, self.bare), (ours, self.ours)):
                began = perf_counter()
                for each in range(self.size):
                    one(each % KEYS)
                if number >= 0:  # the one before warms up
                    rates.append(self.size / (perf_counter() - began))

    async def measure_awaited(self, bare: Any, ours: Any) -> None:
        """The same in a task."""
        for number in range(-1, self.rounds):
            for one, rates in ((bare, self.bare), (ours, self.ours)):
                began = perf_counter()
                for each in range(self.size):
                    await one(each % KEYS)
                if number >= 0:
                    rates.append(self.size / (perf_counter() - began))

    def row(self, title: str) -> str:
        """One line of the table."""
        ratio = median(ours / bare for ours, bare in zip(self.ours, self.bare, strict=True))
        return f"| {title} | {median(self.bare):,.0f} | {median(self.ours):,.0f} | {ratio:.2f} |"


def rows(url: str, rounds: int, size: int) -> list[str]:
    """The lines of one store: with the blocking cache, and with its twin."""
    redis = url.startswith(("redis", "unix"))
    title = "Redis or Valkey" if redis else url.partition(":")[0]
    blocking, awaited = Rates(rounds, size), Rates(rounds, size)
    with (on_redis if redis else on_sql)(url) as (bare, ours):
        blocking.measure(bare, ours)
    asyncio.run((on_redis_awaited if redis else on_sql_awaited)(url, awaited.measure_awaited))
    return [blocking.row(title), awaited.row(f"{title}, asyncio")]


def table(urls: list[str], *, quick: bool) -> list[str]:
    """All lines, in Markdown."""
    lines = [
        "| store | bare statements/s | stateful successes/s | ratio of the rates |",
        "|---|---:|---:|---:|",
    ]
    rounds, size = (1, 10) if quick else (9, 500)
    with TemporaryDirectory() as folder:
        for url in [f"sqlite:///{folder}/retry.db", *urls]:
            lines += rows(url, rounds, size)
    return lines


def main() -> None:
    """Measure, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--url", action="append", default=[], help="another store to measure")
    wanted = parser.parse_args()
    text = "\n".join([*table(wanted.url, quick=wanted.quick), "", f"{INTERPRETER}."])
    show(wanted, "stores", text)


if __name__ == "__main__":
    # The checkout that this file is in is measured, whether it is installed or not.
    sys.path.insert(0, CHECKOUT)
    main()

"""Time to take a permit of a rate limiter, beside a lock and other limiters.

python benchmarks/rate_limiter.py
python benchmarks/rate_limiter.py --url redis://localhost --update docs/control/rate-limiter.md

The other limiters are measured if they are installed (requirements.txt).
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import tracemalloc
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pages import INTERPRETER, options, show

from retrytemplate.control import RateLimiter, RedisRateLimitStore
from retrytemplate.testing import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS, ROUNDS = 500, 300
KEYS = 1_000_000
HUGE = 10**9
RATIOS = {
    "acquire": "`acquire()` relative to the lock (at most 2.5)",
    "async": "`wrap` relative to `aiolimiter` (at most 0.8)",
    "shared": "rate of the shared `acquire()` relative to the empty script (at least 0.85)",
}


def lock() -> Callable[[], Any]:
    lock = threading.Lock()

    def call() -> None:
        with lock:
            pass

    return call


def limits_peer() -> Callable[[], Any]:
    from limits import (  # type: ignore[import-not-found]  # a peer, no dependency
        RateLimitItemPerSecond,
        storage,
        strategies,
    )

    window = strategies.FixedWindowRateLimiter(storage.MemoryStorage())
    item = RateLimitItemPerSecond(HUGE)
    return lambda: window.hit(item, "billing")


def pyrate_peer() -> Callable[[], Any]:
    from pyrate_limiter import (  # type: ignore[import-not-found]  # a peer, no dependency
        Duration,
        Limiter,
        Rate,
    )

    limiter = Limiter(Rate(HUGE, Duration.SECOND))
    return lambda: limiter.try_acquire("billing")


async def answer() -> int:
    return 1


def wrapped_task() -> Callable[[], Any]:
    return RateLimiter("billing", permits=HUGE).wrap(answer)


def aiolimiter_task() -> Callable[[], Any]:
    from aiolimiter import AsyncLimiter  # type: ignore[import-not-found]  # a peer

    limiter = AsyncLimiter(HUGE, 1)

    async def call() -> int:
        async with limiter:
            return await answer()

    return call


IN_THREAD = {
    "`with threading.Lock()`": lock,
    "`RateLimiter.acquire()`": lambda: RateLimiter("billing", permits=HUGE).acquire,
    "`limits`, fixed window": limits_peer,
    "`pyrate-limiter`": pyrate_peer,
}
IN_TASK = {
    "`RateLimiter.wrap`, asyncio": wrapped_task,
    "`aiolimiter`, asyncio": aiolimiter_task,
}


def available(cells: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """The calls of the cells whose library is installed."""
    found = {}
    for name, make in cells.items():
        try:
            found[name] = make()
        except ImportError as error:
            print(f"{name} is not measured: {error}", file=sys.stderr)
    return found


def in_thread(call: Callable[[], Any], calls: int = CALLS) -> float:
    """Nanoseconds of a call, by one round."""
    began = perf_counter_ns()
    for _ in range(calls):
        call()
    return (perf_counter_ns() - began) / calls


async def in_task(call: Callable[[], Any]) -> float:
    """The same in a task of asyncio."""
    began = perf_counter_ns()
    for _ in range(CALLS):
        await call()
    return (perf_counter_ns() - began) / CALLS


def local_cells(rounds: int) -> dict[str, float]:
    """The shortest time of each call, in nanoseconds."""
    threads = available(IN_THREAD)
    best: dict[str, float] = dict.fromkeys(threads, float("inf"))

    async def main() -> None:
        tasks = available(IN_TASK)
        best.update(dict.fromkeys(tasks, float("inf")))
        for _ in range(rounds):
            for name, call in threads.items():
                best[name] = min(best[name], in_thread(call))
            for name, call in tasks.items():
                best[name] = min(best[name], await in_task(call))

    asyncio.run(main())
    return best


def shared_cells(url: str, rounds: int) -> dict[str, float]:
    """A permit of a server, and an empty script."""
    import redis

    store = RedisRateLimitStore(url, "benchmark")
    limiter = RateLimiter("billing", permits=HUGE, per=1e6, store=store)
    client = redis.Redis.from_url(url)
    empty = client.script_load("return 0")
    cells: dict[str, Callable[[], Any]] = {
        "empty `EVALSHA`, redis-py": lambda: client.evalsha(empty, 1, "benchmark"),
        "shared `acquire()`": limiter.acquire,
    }
    best = dict.fromkeys(cells, float("inf"))
    for _ in range(rounds):
        for name, call in cells.items():
            best[name] = min(best[name], in_thread(call, 50))
    limiter.close()
    store.close()
    client.close()
    return best


def memory_of_keys(keys: int) -> tuple[float, float]:
    """Megabytes for keys that are used once, after a tenth of them and after all."""
    clock = VirtualClock()
    limiter = RateLimiter("clients", permits=10, per_key=True, max_keys=keys, clock=clock)
    seen = []
    tracemalloc.start()
    for number in range(1, keys + 1):
        limiter.acquire(key=number)
        clock.advance(0.001)
        if number in (keys // 10, keys):
            gc.collect()
            seen.append(tracemalloc.get_traced_memory()[0] / 1e6)
    tracemalloc.stop()
    return seen[0], seen[1]


def ratios(best: dict[str, float]) -> dict[str, float]:
    """The figures that have a bound."""
    found = {"acquire": best["`RateLimiter.acquire()`"] / best["`with threading.Lock()`"]}
    if "`aiolimiter`, asyncio" in best:
        found["async"] = best["`RateLimiter.wrap`, asyncio"] / best["`aiolimiter`, asyncio"]
    if "shared `acquire()`" in best:
        found["shared"] = best["empty `EVALSHA`, redis-py"] / best["shared `acquire()`"]
    return found


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__, figures="the nanoseconds")
    parser.add_argument("--url", metavar="URL", help="a server for the shared limit")
    wanted = parser.parse_args()
    rounds = 3 if wanted.quick else ROUNDS
    best = local_cells(rounds)
    if wanted.url:
        best |= shared_cells(wanted.url, rounds)
    rows = [f"| {name} | {nanoseconds / 1000:.2f} |" for name, nanoseconds in best.items()]
    table = "\n".join(["| call | µs |", "|---|---:|", *rows])
    few, many = memory_of_keys(KEYS // (1000 if wanted.quick else 1))
    lines = [f"- {RATIOS[name]}: {ratio:.2f}" for name, ratio in ratios(best).items()]
    lines.append(
        f"- memory of a limiter with `per_key=True`: {few:.1f} MB after 100,000 keys, each used "
        f"once, and {many:.1f} MB after a million"
    )
    text = f"{table}\n\n" + "\n".join(lines) + f"\n\n{INTERPRETER}."
    show(wanted, "rate-limiter", text, best)


if __name__ == "__main__":
    main()

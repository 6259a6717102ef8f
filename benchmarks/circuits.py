"""What a call costs under a circuit that processes share, beside one bare script on its server.

python benchmarks/circuits.py --url redis://localhost
python benchmarks/circuits.py --url redis://localhost --update docs/operations/performance.md
"""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from retrytemplate.control import CircuitBreaker
    from retrytemplate.control.breaker.redis.store import Mode

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pages import INTERPRETER, options, show

PREFIX = "benchmark"
BARE = "return redis.call('HGET', KEYS[1], 'state')"
CALLS = 100  # in a round


def answer() -> int:
    return 1


async def answer_later() -> int:
    return 1


def fails() -> None:
    raise ConnectionError


def breaker(url: str, mode: Mode, name: str) -> CircuitBreaker:
    """One whose thread does not come between."""
    from retrytemplate.control import Calls, CircuitBreaker, RedisCircuitStore

    store = RedisCircuitStore(url, mode=mode, stale_after=3600, prefix=PREFIX)
    return CircuitBreaker(name, window=Calls(50), store=store)


def rounds(url: str, client: Redis) -> dict[str, Callable[[], Any]]:
    """The measured rounds of calls, by name."""
    digest = client.script_load(BARE)
    strict, cached = breaker(url, "strict", "strict"), breaker(url, "cached", "cached")
    opened = breaker(url, "strict", "open"), breaker(url, "cached", "open")
    opened[0].force_open(by="the benchmark", reason="to measure a rejection")
    counting = breaker(url, "strict", "failing")
    counting.only_measure(by="the benchmark", reason="to see what a failure costs")
    wrapped, awaited = cached.wrap(answer), strict.wrap(answer_later)

    async def in_a_loop() -> None:
        for _ in range(CALLS):
            await awaited()

    return {
        "bare script": lambda: repeat(client.evalsha, digest, 1, f"{PREFIX}:circuit:{{strict}}"),
        "`strict`, closed, `call`": lambda: repeat(strict.call, answer),
        "`strict`, closed, `wrap` of a coroutine function": lambda: asyncio.run(in_a_loop()),
        "`strict`, metrics only, `outcome` of a failure": lambda: repeat(counting.outcome, fails),
        "`strict`, open, `outcome`": lambda: repeat(opened[0].outcome, answer),
        "`cached`, closed, `wrap`": lambda: repeat(wrapped),
        "`cached`, closed, `call`": lambda: repeat(cached.call, answer),
        "`cached`, open, `outcome`": lambda: repeat(opened[1].outcome, answer),
    }


def repeat(function: Callable[..., Any], *args: Any) -> None:
    for _ in range(CALLS):
        function(*args)


def script_calls(client: Redis) -> int:
    """Scripts that the server has run so far."""
    stats: dict[str, Any] = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def measured(url: str, number: int) -> dict[str, tuple[float, float]]:
    """Of each the microseconds of a call, by the fastest round, and its round trips."""
    from redis import Redis

    client = Redis.from_url(url)
    wanted = rounds(url, client)
    best = dict.fromkeys(wanted, float("inf"))
    trips = dict.fromkeys(wanted, 0.0)
    for each in wanted.values():  # the first call finds the circuit, and loads the scripts
        each()
    gc.freeze()
    for _ in range(number):
        for name, each in wanted.items():
            before = script_calls(client)
            began = perf_counter()
            each()
            best[name] = min(best[name], (perf_counter() - began) / CALLS * 1e6)
            trips[name] += (script_calls(client) - before) / CALLS / number
    for key in client.scan_iter(f"{PREFIX}:circuit:*"):
        client.delete(key)
    return {name: (best[name], trips[name]) for name in wanted}


def table(found: dict[str, tuple[float, float]]) -> list[str]:
    """The rows of the table, in Markdown."""
    bare, _ = found["bare script"]
    rows = (
        f"| {name} | {trips:.0f} | {each:.1f} | {each / bare:.2f} |"
        for name, (each, trips) in found.items()
    )
    head = "| mode, state, form | round trips | µs | ratio to the bare script |"
    return [head, "|---|---:|---:|---:|", *rows]


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__)
    parser.add_argument("--url", required=True, help="of a Redis or Valkey server")
    wanted = parser.parse_args()
    found = measured(wanted.url, 3 if wanted.quick else 50)
    text = "\n".join([*table(found), "", f"{INTERPRETER}."])
    show(wanted, "circuits", text)


if __name__ == "__main__":
    main()

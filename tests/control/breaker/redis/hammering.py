"""Workers that call through a shared breaker as fast as they can, and write on its server what
they do."""

import os
from itertools import count

from attrs import frozen

import redis
from retrytemplate import CircuitOpenError
from retrytemplate.control import CircuitBreaker, Consecutive, ControlListener, RedisCircuitStore

__all__ = ["PLACES", "Caller", "Entries", "Prober", "probing"]

PLACES = 3
LEASE = 3600.0

ENTER = """
redis.call('HSET', KEYS[1], ARGV[1], 1)
local inside = redis.call('HLEN', KEYS[1])
if inside > tonumber(redis.call('GET', KEYS[2]) or 0) then redis.call('SET', KEYS[2], inside) end
return redis.call('INCR', KEYS[3])
"""


class Entries:
    """The callers that hold a permit, counted on the server."""

    def __init__(self, url, prefix):
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.inside, self.most, self.all = (
            f"{prefix}:{name}" for name in ("inside", "most", "entries")
        )

    def enter(self, who):
        self.client.eval(ENTER, 3, self.inside, self.most, self.all, who)

    def leave(self, who):
        self.client.hdel(self.inside, who)

    def number(self):
        return int(self.client.get(self.all) or 0)

    def most_at_once(self):
        return int(self.client.get(self.most) or 0)


def probing(store, **settings):
    """A breaker that stays half-open after successes."""
    return CircuitBreaker(
        "probed",
        window=Consecutive(1),
        half_open_calls=PLACES,
        required_successes=10**9,
        permit_timeout=LEASE,
        reset_jitter=0.0,
        store=store,
        **settings,
    )


@frozen
class Prober:
    """Enters and leaves a half-open circuit until the *stop* key appears."""

    url: str
    prefix: str
    mode: str

    def run(self):
        entries = Entries(self.url, self.prefix)
        store = RedisCircuitStore(self.url, prefix=self.prefix, mode=self.mode, timeout=20.0)
        breaker = probing(store)
        for number in count():
            if entries.client.exists(f"{self.prefix}:stop"):
                break
            who = f"{os.getpid()}.{number}"
            try:
                with breaker.permit():
                    entries.enter(who)
                    entries.client.ping()
                    entries.leave(who)
            except CircuitOpenError:
                continue
        breaker.close()


class Opened(ControlListener):
    """Records the moment at which a breaker knows that its circuit is open."""

    def __init__(self, client, prefix):
        self.client = client
        self.prefix = prefix

    def on_event(self, event):
        if getattr(event, "after", None) == "open":
            self.client.set(f"{self.prefix}:opened:{event.name}", 1)


@frozen
class Caller:
    """Fails through several breakers in turn, each until it rejects."""

    url: str
    prefix: str
    rounds: int

    def run(self):
        client = redis.Redis.from_url(self.url, decode_responses=True)
        store = RedisCircuitStore(self.url, prefix=self.prefix, timeout=20.0)
        for number in range(self.rounds):
            breaker = CircuitBreaker(
                f"round {number}",
                window=Consecutive(20),
                store=store,
                listeners=[Opened(client, self.prefix)],
            )
            while not self.refused(client, breaker):
                pass
        client.incr(f"{self.prefix}:done")

    def refused(self, client, breaker):
        """Call once; record a call that is made although the circuit is known to be open."""
        was_open = client.exists(f"{self.prefix}:opened:{breaker.name}")

        def fails():
            client.incr(f"{self.prefix}:{'late' if was_open else 'made'}")
            raise ConnectionError

        outcome = breaker.outcome(fails)
        return isinstance(outcome.exception, CircuitOpenError)

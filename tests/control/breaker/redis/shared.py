"""Breakers that share a circuit on a Valkey server, and the time of that server."""

import os
from contextlib import contextmanager
from itertools import count

from sqlalchemy import make_url

from retrytemplate.control import CircuitBreaker, Consecutive, ControlListener, RedisCircuitStore
from retrytemplate.control.breaker.redis import lua
from retrytemplate.testing import VirtualClock
from tests.support import valkey
from tests.support.proxy import Proxy

__all__ = ["MICROSECONDS", "Down", "Recorded", "Sharing", "failing", "fine"]

numbers = count(1)
MICROSECONDS = 1_000_000


class Down(Exception):
    """The error of the failing service."""


def failing():
    raise Down


def fine():
    return "fine"


class Recorded(ControlListener):
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)

    def of(self, kind):
        return [each for each in self.events if type(each) is kind]


class Sharing:
    """Circuits on a server, under a prefix of their own.

    The server's clock cannot be set: to let time pass, every time that
    is stored is set back.  The clock of the breakers advances by as much.
    """

    def __init__(self, url):
        self.url = url
        self.prefix = f"c{os.getpid()}_{next(numbers)}"
        self.client = valkey.opened(url)
        self.clock = VirtualClock()
        self.made = []

    def store(self, **settings):
        usual = {"prefix": self.prefix, "timeout": 20.0}
        self.made.append(RedisCircuitStore(**{"url": self.url} | usual | settings))
        return self.made[-1]

    @contextmanager
    def counted(self, **settings):
        """A store behind a proxy that counts its requests."""
        for script in (lua.CALL, lua.MOVE):
            self.client.script_load(script.text)  # a server that does not know it gets its text
        place = make_url(self.url)
        with Proxy(place.port or 6379, place.host) as proxy:
            through = place.set(host="127.0.0.1", port=proxy.port)
            url = through.render_as_string(hide_password=False)
            yield proxy, self.store(url=url, **settings)
            for each in reversed(self.made):
                each.close()
            self.made.clear()

    def breaker(self, name="billing", store=None, **settings):
        """A breaker as another process would create it."""
        usual = {"window": Consecutive(3), "reset_jitter": 0.0, "clock": self.clock}
        self.made.append(CircuitBreaker(name, store=store or self.store(), **usual | settings))
        return self.made[-1]

    def name(self, circuit="billing", of=""):
        return f"{self.prefix}:circuit:{{{circuit}}}{of}"

    def fields(self, circuit="billing"):
        return self.client.hgetall(self.name(circuit))

    def permits(self, circuit="billing"):
        return self.client.zcard(self.name(circuit, ":permits"))

    def advance(self, seconds, circuit="billing"):
        """Let *seconds* pass."""
        earlier = round(seconds * MICROSECONDS)
        fields = self.fields(circuit)
        for field in ("since", "until", "touched"):
            if fields.get(field):
                self.client.hset(self.name(circuit), field, int(fields[field]) - earlier)
        permits = self.name(circuit, ":permits")
        for permit in self.client.zrange(permits, 0, -1):
            self.client.zincrby(permits, -earlier, permit)
        if fields.get("rules", "").startswith("seconds "):
            self.move_steps(self.name(circuit, ":window"), fields["rules"], earlier)
        self.clock.advance(seconds)  # last: what a thread has seen before is older then

    def move_steps(self, window, rules, earlier):
        length = int(rules.split()[1])
        assert earlier % length == 0, "steps move as a whole"
        counted = self.client.hgetall(window)
        self.client.delete(window)
        for field, number in counted.items():
            step = int(field[:-1]) - earlier // length
            self.client.hset(window, f"{step}{field[-1]}", number)

    def clear(self):
        for name in self.client.scan_iter(f"{self.prefix}:*", count=1000):
            self.client.delete(name)

    def close(self):
        for each in reversed(self.made):
            each.close()
        self.clear()
        self.client.close()

"""A Valkey server, and caches on the same keys of it."""

import os
from itertools import count

from retrytemplate._storage.column_keys import to_column_key
from tests.support import valkey
from tests.support.cache_kinds import awaited, blocking

__all__ = ["ValkeyStore"]

numbers = count(1)
MICROSECONDS = 1_000_000
# Fields of a row by their names in a table.
TIMES = {"lease_until": "lease", "expires": "expires"}


class ValkeyStore:
    """What a test may do to a store, here to Valkey."""

    kind = "valkey"

    def __init__(self, url):
        self.url = url
        self.prefix = f"t{os.getpid()}_{next(numbers)}"
        self.client = valkey.opened(url)
        self.caches = []

    def cache(self, **settings):
        self.caches.append(blocking(self.url, **{"prefix": self.prefix} | settings))
        return self.caches[-1]

    def async_cache(self, **settings):
        """One that the test closes, in the loop where it was used."""
        return awaited(self.url, **{"prefix": self.prefix} | settings)

    def name(self, key):
        return f"{self.prefix}:{{{to_column_key(key)}}}"

    def names(self):
        return list(self.client.scan_iter(f"{self.prefix}:*", count=1000))

    def row(self, key):
        """The record of a key, or None; a fence alone is no record."""
        fields = self.client.hgetall(self.name(key))
        if "phase" not in fields:
            return None
        row = dict.fromkeys(("record", "worker", "lost"), None) | fields
        for column, field in TIMES.items():
            row[column] = int(fields[field]) / MICROSECONDS if field in fields else None
        return row

    def keys(self):
        """Every key of which something is kept."""
        beginning = len(self.prefix) + 2
        keys = [name[beginning:-1] for name in self.names()]
        return sorted(key for key in keys if self.row(key) is not None)

    def change(self, key, **columns):
        """Write something under a key that is there."""
        self.client.hset(self.name(key), mapping=columns)

    def now(self):
        """The time by the clock of the store."""
        seconds, rest = self.client.time()
        return seconds + rest / MICROSECONDS

    def age(self, seconds):
        """Simulate *seconds*: move every time in a key, and its expiry, back."""
        for name in self.names():
            fields = self.client.hgetall(name)
            for field in TIMES.values():
                if field in fields:
                    earlier = int(fields[field]) - int(seconds * MICROSECONDS)
                    self.client.hset(name, field, earlier)
            rest = self.client.pttl(name)
            assert rest > 0, f"{name} has no end"
            self.client.pexpire(name, max(int(rest - seconds * 1000), 0))

    def spoil(self, key):
        """Let the store reject every operation on the key."""
        self.client.set(self.name(key), "no context", ex=60)

    def clear(self):
        """Delete everything."""
        for name in self.names():
            self.client.delete(name)

    def close(self):
        for cache in self.caches:
            cache.close()
        self.clear()
        self.client.close()

"""A stream in Valkey, and what a test does to its entries."""

import json
import os
from itertools import count

from retrytemplate.workers import RedisStreamSource
from tests.support import valkey

__all__ = ["RedisStream"]

numbers = count(1)


class RedisStream:
    """A stream of its own name, with the group "workers"."""

    group = "workers"

    def __init__(self, url, name=None):
        self.url = url
        self.name = name or f"stream{os.getpid()}_{next(numbers)}"
        self.client = valkey.opened(url)

    def source(self, **settings):
        """A source that the test closes in the loop of its use."""
        return RedisStreamSource(self.url, self.name, **{"group": self.group} | settings)

    def put(self, body="", **fields):
        return self.client.xadd(self.name, {"body": body} | fields)

    def pending(self):
        """Owner and count of each pending entry."""
        entries = self.client.xpending_range(self.name, self.group, "-", "+", 1000)
        return {each["message_id"]: (each["consumer"], each["times_delivered"]) for each in entries}

    def owner(self, entry):
        return self.pending()[entry][0]

    def age(self, seconds):
        """Simulate *seconds*: add them to the idle time of each pending entry."""
        for each in self.client.xpending_range(self.name, self.group, "-", "+", 1000):
            idle = each["time_since_delivered"] + int(seconds * 1000) + 1
            self.give(each["message_id"], each["consumer"], idle=idle)

    def give(self, entry, consumer, *, idle=0):
        """Make a consumer the owner of an entry."""
        self.client.xclaim(self.name, self.group, consumer, 0, [entry], idle=idle, justid=True)

    def consumers(self):
        return {each["name"]: each["pending"] for each in self.client.xinfo_consumers(*self.key)}

    @property
    def key(self):
        return self.name, self.group

    def letters(self, name):
        """The dead letters in a stream."""
        return [json.loads(fields["body"]) for _, fields in self.client.xrange(name)]

    def close(self):
        for name in self.client.scan_iter(f"{self.name}*", count=1000):
            self.client.delete(name)
        self.client.close()

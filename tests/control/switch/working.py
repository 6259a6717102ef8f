"""Processes that share a kill switch: some watch it and notify, some command."""

import os
import time
from contextlib import closing
from random import Random

from attrs import frozen

from retrytemplate.control import KillSwitch, RedisSwitchStore, SQLSwitchStore
from retrytemplate.errors import SwitchRefusedError

__all__ = ["FORKED", "REASON", "STALE_AFTER", "WORK", "Worker"]

STALE_AFTER = 0.2
WORK = "finance"
REASON = "an exercise of the switch"
FEATURES = 3
FORKED = 20


@frozen
class Worker:
    """The settings of a process; it works until the file *stop* appears."""

    url: str
    prefix: str
    event_log: object
    stop: str
    number: int

    def store(self):
        kind = RedisSwitchStore if self.url.startswith("redis:") else SQLSwitchStore
        return closing(kind(self.url, self.prefix, timeout=20.0))

    def goes_on(self):
        time.sleep(0.005)  # the pause between two pieces of work, so that processes take turns
        return not os.path.exists(self.stop)

    def watch(self):
        """Check the switch before each piece of work, and record its events."""
        with self.store() as store, KillSwitch(store, STALE_AFTER, notifiers=[self.tell]) as switch:
            while self.goes_on():
                at = time.monotonic()
                allowed = switch.check(segment=WORK).allowed
                self.event_log.add("works" if allowed else "rejects", WORK, at=at)

    def stare(self):
        """Check continuously; record the result of the first check after a pause."""
        with self.store() as store, KillSwitch(store, STALE_AFTER) as switch:
            last = time.monotonic()
            while not os.path.exists(self.stop):
                self.event_log.add("looks", WORK)
                for _ in range(100_000):
                    at = time.monotonic()
                    allowed = switch.check(segment=WORK).allowed
                    if at > last + STALE_AFTER:
                        self.event_log.add("wakes", WORK, at=at, allowed=allowed)
                    last = at

    def tell(self, record):
        self.event_log.add("notifies", record.id)
        time.sleep(0.002)  # a notifier that takes time: kills come during it

    def command(self):
        """Stop and resume scopes, without notifications."""
        random = Random(self.number)
        with self.store() as store, KillSwitch(store, STALE_AFTER) as switch:
            while self.goes_on():
                feature, by = f"job {random.randrange(FEATURES)}", f"worker {self.number}"
                try:
                    if random.random() < 0.5:
                        record = switch.stop(feature=feature, reason=REASON, by=by, permanent=True)
                    else:
                        record = switch.resume(feature=feature, by=by, justification=REASON)
                except SwitchRefusedError:
                    continue
                self.event_log.add("has changed", record.id)

    def fork(self):
        """Use a switch before a fork, then in parent and child concurrently."""
        with self.store() as store, KillSwitch(store, STALE_AFTER) as switch:
            switch.stop(feature="one", reason=REASON, by="both", permanent=True)
            child = os.fork()
            try:
                for number in range(FORKED):
                    feature = f"{os.getpid()}, {number}"
                    switch.stop(feature=feature, reason=REASON, by=feature, permanent=True)
                assert not switch.check(feature="one").allowed
            except BaseException:
                os._exit(1)
            if child == 0:
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

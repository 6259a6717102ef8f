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
    """What a process needs to know; it works until the file *stop* appears."""

    url: str
    prefix: str
    witness: object
    stop: str
    number: int

    def store(self):
        kind = RedisSwitchStore if self.url.startswith("redis:") else SQLSwitchStore
        return closing(kind(self.url, self.prefix, timeout=20.0))

    def goes_on(self):
        time.sleep(0.005)
        return not os.path.exists(self.stop)

    def watch(self):
        """Look at the switch before each bit of work, and record its events."""
        with self.store() as store, KillSwitch(store, STALE_AFTER, notifiers=[self.tell]) as switch:
            while self.goes_on():
                at = time.monotonic()
                allowed = switch.check(segment=WORK).allowed
                self.witness.add("works" if allowed else "rejects", WORK, at=at)

    def stare(self):
        """Look all the time; say what came of the first look after a while without any."""
        with self.store() as store, KillSwitch(store, STALE_AFTER) as switch:
            last = time.monotonic()
            while not os.path.exists(self.stop):
                self.witness.add("looks", WORK)
                for _ in range(100_000):
                    at = time.monotonic()
                    allowed = switch.check(segment=WORK).allowed
                    if at > last + STALE_AFTER:
                        self.witness.add("wakes", WORK, at=at, allowed=allowed)
                    last = at

    def tell(self, record):
        self.witness.add("notifies", record.id)
        time.sleep(0.002)

    def command(self):
        """Stop this and that, and let it run again, without notifications."""
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
                self.witness.add("has changed", record.id)

    def fork(self):
        """Use a switch, and again in parent and child at once after a fork."""
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

"""A worker that hammers a few keys, as one of many, and records all its events."""

import os
import signal
import subprocess
import threading
import time
from random import Random

from attrs import frozen

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    CacheUnavailableError,
    LeaseLostError,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from tests.support.cache_kinds import blocking

__all__ = ["ATTEMPTS", "KEYS", "LEASE", "PAST_LEASE", "WORKERS", "Hammer"]

ATTEMPTS = 4
KEYS = 50
LEASE = 5.0
PAST_LEASE = 1.2 * LEASE
WORKERS = 8
THREADS = 2
FIRST_STALL = 5

one_at_a_time = threading.Lock()


@frozen
class Hammer:
    """The settings of a worker; ``number`` is its index.

    It works until the file *stop* exists; without *stop* it works on its share of the keys until
    all are finished.  A worker that *stalls* pauses at random.
    """

    url: str
    prefix: str
    event_log: object
    seed: int
    number: int
    stop: str | None = None
    stalls: bool = False

    def run(self):
        with blocking(self.url, prefix=self.prefix, lease=LEASE, timeout=20.0) as cache:
            template = RetryTemplate(
                SimpleRetryPolicy(ATTEMPTS),
                cache=cache,
                name="h",
                listeners=[StoreErrorRecorder(self.event_log)],
            )
            hands = [Hand(self, template, number) for number in range(THREADS)]
            for each in hands:
                each.start()
            for each in hands:
                each.join()
        # Another worker may take the keys from now on: they are those of a process that has ended.
        self.event_log.add("ended", None)


class StoreErrorRecorder(RetryListener):
    """Records in the event log that the store is unavailable during an execution."""

    def __init__(self, event_log):
        self.event_log = event_log

    def on_store_error(self, context, exception):
        self.event_log.add("unavailable", context.key, worker=worker_of(context))


class Hand(threading.Thread):
    """One thread of a worker."""

    def __init__(self, hammer, template, number):
        super().__init__()
        self.hammer = hammer
        self.event_log = hammer.event_log
        self.template = template
        self.number = hammer.number * THREADS + number
        self.random = Random(f"{hammer.seed}/{self.number}")
        self.generations = [0] * KEYS
        self.calls = 0

    def run(self):
        if self.hammer.stop is None:
            for slot in range(self.number, KEYS, WORKERS * THREADS):
                while self.deliver(slot) not in ("accepted", "recovered"):
                    pass
                self.event_log.add("drained", slot)
            return
        while not os.path.exists(self.hammer.stop):
            self.deliver(self.random.randrange(KEYS))

    def deliver(self, slot):
        """Deliver the key of a slot once; return the result, None without one."""
        # Half of the keys stay in their slots; of the others each is remembered, and replaced.
        remembered = slot % 2
        key = f"{slot}.{self.generations[slot]}" if remembered else f"{slot}"
        state = RetryState(
            key,
            remember=3600 if remembered else None,
            rollback_for=no if slot % 4 < 2 else None,
        )
        call = Call(self, key)
        try:
            what, fence = self.template.execute(call.callback, recovery=call.recovery, state=state)
        except AttemptInProgressError:
            time.sleep(0.001)  # the holder is another process
            return None
        except AlreadyCompletedError:
            self.event_log.add("completed", key)
            self.generations[slot] += 1
            return "completed"
        except ConnectionError:
            return None
        except Exception as exc:
            self.event_log.add(trouble(exc), key, error=f"{exc!r:.200}")
            time.sleep(0.02)  # the server may be restarting
            return None
        self.event_log.add(what, key, fence=fence)
        return what


class Call:
    """The callback and the recovery of one delivery."""

    def __init__(self, hand, key):
        self.hand = hand
        self.key = key
        self.delivered = time.monotonic()

    def callback(self, context):
        self.enter(context, "callback")
        self.work()
        if self.hand.random.random() < 0.6:
            self.leave(context, "callback", "error")
            raise ConnectionError(context.fence)
        self.leave(context, "callback", "value")
        return "accepted", context.fence

    def recovery(self, context):
        self.enter(context, "recovery")
        self.work()
        self.leave(context, "recovery", "value")
        return "recovered", context.fence

    def enter(self, context, kind):
        self.hand.event_log.add(
            "enter",
            self.key,
            kind=kind,
            fence=context.fence,
            worker=worker_of(context),
            attempt=context.attempt,
            past=[named(each) for each in context.history],
            delivered=self.delivered,
        )

    def leave(self, context, kind, how):
        self.hand.event_log.add("leave", self.key, kind=kind, fence=context.fence, how=how)

    def work(self):
        """Work that is mostly short, sometimes longer than a lease or paused for longer."""
        self.hand.calls += 1
        draw = self.hand.random.random()
        if draw < 0.001:
            time.sleep(PAST_LEASE)  # leases end by the clock of the server
        elif self.hand.hammer.stalls and (self.hand.calls == FIRST_STALL or draw < 0.01):
            stand_still()
        else:
            time.sleep(0.05 * draw**8)  # mostly short work, for kills during it


def stand_still():
    """Stop this process with both threads for longer than a lease."""
    if not one_at_a_time.acquire(blocking=False):
        return
    pid = os.getpid()
    subprocess.Popen(["sh", "-c", f"sleep {PAST_LEASE}; kill -CONT {pid} 2>&-"])
    os.kill(pid, signal.SIGSTOP)
    one_at_a_time.release()


def worker_of(context):
    """Process and number without the host name, which is always the same."""
    return context._claim.worker.partition(":")[2]


def no(error):
    return False


def named(record):
    """A failure in the history, by its entries in the event log."""
    if record.type_name == "ConnectionError":
        return f"failed {record.message}"
    worker = record.message.removeprefix("the attempt of ").removesuffix(" was lost")
    return f"lost {worker.partition(':')[2]}"


def trouble(error):
    """The error kind of a delivery that neither the callback nor the store has completed."""
    while error is not None:
        if isinstance(error, LeaseLostError):
            return "late"
        if isinstance(error, CacheUnavailableError):
            return "unavailable"
        error = error.__cause__
    return "trouble"

"""Supervisor that starts the workers of the stress test and disturbs them."""

import os
import signal
import time
from random import Random

from tests.support.event_log import EventLog
from tests.support.event_log_checks import EventLogChecks
from tests.support.fork_server import processes
from tests.support.stress_worker import ATTEMPTS, KEYS, LEASE, PAST_LEASE, WORKERS, Hammer

__all__ = ["Supervisor"]

PATIENCE = 50.0


class Supervisor:
    """Starts the workers; all that is random comes of the seed.

    :param url: where the workers find the store.
    """

    def __init__(self, url, prefix, folder, seed):
        self.url = url
        self.prefix = prefix
        self.seed = seed
        self.random = Random(seed)
        self.stop = folder / "stop"
        self.event_log = EventLog(folder / "events")
        self.workers = []
        self.mortal = []

    def start(self, number, **settings):
        hammer = Hammer(self.url, self.prefix, self.event_log, self.seed, number, **settings)
        process = processes.Process(target=hammer.run, daemon=True)
        process.start()
        self.workers.append(process)
        return process

    def hammer(self, rows, trouble, *, stalling, mortal):
        """Let workers run until they have written the given rows; half of them pause at times.

        :param trouble: functions, each called once at a moment of its own.
        """
        for number in range(stalling):
            self.start(number, stop=str(self.stop), stalls=True)
        for _ in range(mortal):
            self.start_mortal()
        moments = sorted(self.random.randrange(rows) for _ in trouble)
        for moment, each in zip(moments, trouble, strict=True):
            self.wait_for(moment)
            each()
        self.wait_for(rows)
        self.stop.touch()
        self.join()

    def start_mortal(self):
        number = WORKERS + len(self.event_log)  # not known from another one
        self.mortal.append(self.start(number, stop=str(self.stop)))

    def wait_for(self, rows):
        while len(self.event_log) < rows:
            time.sleep(0.005)  # the rows are written by other processes
            assert all(each.exitcode is None for each in self.workers)

    def kill(self):
        """Kill one of the workers that may be killed, and start another."""
        worker = self.mortal.pop(self.random.randrange(len(self.mortal)))
        self.event_log.add("killed", None, killed=worker.pid)
        worker.kill()
        worker.join()
        self.workers.remove(worker)
        self.start_mortal()

    def drain(self):
        for number in range(WORKERS):
            self.start(number)
        self.join()

    def join(self):
        until = time.monotonic() + PATIENCE
        for each in self.workers:
            while each.exitcode is None and time.monotonic() < until:
                each.join(PAST_LEASE)
                self.go_on(each)
            each.join(0)  # closes its pipes, where exitcode was the first to see its end
        assert [each.exitcode for each in self.workers] == [0] * len(self.workers)
        self.workers.clear()

    def go_on(self, worker):
        """Wake a stopped worker shortly after its planned wake-up."""
        if worker.exitcode is None:
            os.kill(worker.pid, signal.SIGCONT)

    def check(self):
        """Complete every key, and raise on any violation."""
        self.drain()
        checks = EventLogChecks(self.event_log.rows(), LEASE, ATTEMPTS)
        self.event_log.close()
        faults = list(checks.faults())
        first = "\n".join(faults[:5])
        assert not faults, f"seed {self.seed}: {len(faults)} faults, the first of them:\n{first}"
        assert len(checks.of("drained")) == KEYS
        return checks

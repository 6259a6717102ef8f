"""Who starts the workers that hammer, and sees to it that they have trouble."""

import os
import signal
import time
from random import Random

from tests.support.fork_server import processes
from tests.support.stress_worker import ATTEMPTS, KEYS, LEASE, PAST_LEASE, WORKERS, Hammer
from tests.support.witness import Witness
from tests.support.witness_checks import Hearing

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
        self.witness = Witness(folder / "witness")
        self.workers = []
        self.mortal = []

    def start(self, number, **settings):
        hammer = Hammer(self.url, self.prefix, self.witness, self.seed, number, **settings)
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
        number = WORKERS + len(self.witness)  # not known from another one
        self.mortal.append(self.start(number, stop=str(self.stop)))

    def wait_for(self, rows):
        while len(self.witness) < rows:
            time.sleep(0.005)
            assert all(each.exitcode is None for each in self.workers)

    def kill(self):
        """Kill a worker that stands for it, and start another in its place."""
        victim = self.mortal.pop(self.random.randrange(len(self.mortal)))
        self.witness.add("killed", None, victim=victim.pid)
        victim.kill()
        victim.join()
        self.workers.remove(victim)
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
        """Wake a worker that has been stopped just after it should have been woken."""
        if worker.exitcode is None:
            os.kill(worker.pid, signal.SIGCONT)

    def check(self):
        """Bring every key to its end, and raise unless all was as it must be."""
        self.drain()
        hearing = Hearing(self.witness.rows(), LEASE, ATTEMPTS)
        self.witness.close()
        faults = list(hearing.faults())
        first = "\n".join(faults[:5])
        assert not faults, f"seed {self.seed}: {len(faults)} faults, the first of them:\n{first}"
        assert len(hearing.of("drained")) == KEYS
        return hearing

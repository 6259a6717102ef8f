"""Many workers hammer a few keys: they fail, are killed, and stand still past their leases.

Every attempt is counted, and counted once; no two calls of a key overlap but where a lease was
lost; no key has two results; each comes to its end.  ``hearing.py`` says it to the letter.

``RETRYTEMPLATE_HAMMER`` is the number of attempts, ``RETRYTEMPLATE_HAMMER_SEED`` repeats a seed.
"""

import multiprocessing
import os
import signal
import time
from random import Random, randrange

import pytest

from tests.stores.conftest import opened
from tests.stores.hammering import ATTEMPTS, KEYS, LEASE, PAST_LEASE, WORKERS, Hammer
from tests.stores.hearing import Hearing
from tests.stores.witness import Witness

SIZE = int(os.environ.get("RETRYTEMPLATE_HAMMER", "3000"))
SEED = os.environ.get("RETRYTEMPLATE_HAMMER_SEED")
KILLS = SIZE // 150
PATIENCE = 50.0

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["pytest", "tests.stores.hammering"])


class Supervisor:
    """Starts the workers, and kills them."""

    def __init__(self, store, folder, seed):
        self.store = store
        self.seed = seed
        self.random = Random(seed)
        self.stop = folder / "stop"
        self.witness = Witness(folder / "witness")
        self.workers = []

    def start(self, number, **settings):
        hammer = Hammer(
            self.store.url, self.store.prefix, self.witness, self.seed, number, **settings
        )
        process = processes.Process(target=hammer.run, daemon=True)
        process.start()
        self.workers.append(process)
        return process

    def hammer(self, rows):
        """Let the workers run until they have written so many rows.

        Half of them stand still at times, of the others one is killed at times and replaced.
        """
        stop = str(self.stop)
        for number in range(WORKERS // 2):
            self.start(number, stop=stop, stalls=True)
        mortal = [self.start(number, stop=stop) for number in range(WORKERS // 2, WORKERS)]
        moments = sorted(self.random.randrange(rows) for _ in range(KILLS))
        for number, moment in enumerate(moments, WORKERS):
            self.wait_for(moment)
            victim = mortal.pop(self.random.randrange(len(mortal)))
            self.kill(victim)
            mortal.append(self.start(number, stop=stop))
        self.wait_for(rows)
        self.stop.touch()
        self.join()

    def wait_for(self, rows):
        while len(self.witness) < rows:
            time.sleep(0.005)
            assert all(each.exitcode is None for each in self.workers)

    def kill(self, worker):
        self.witness.add("killed", None, victim=worker.pid)
        worker.kill()
        worker.join()
        self.workers.remove(worker)

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
        assert [each.exitcode for each in self.workers] == [0] * len(self.workers)
        self.workers.clear()

    def go_on(self, worker):
        """Wake a worker that has been stopped just after it should have been woken."""
        if worker.exitcode is None:
            os.kill(worker.pid, signal.SIGCONT)


@pytest.fixture(params=["postgresql", "valkey"])
def store(request):
    made = opened(request.param, request)
    yield made
    made.close()


@pytest.mark.timeout(60 + SIZE / 50)
def test_attempts_are_counted_once_and_no_two_overlap_while_workers_die_and_stand_still(
    store, tmp_path
):
    seed = int(SEED or randrange(2**32))
    supervisor = Supervisor(store, tmp_path, seed)
    supervisor.hammer(SIZE * 3)
    supervisor.drain()
    hearing = Hearing(supervisor.witness.rows(), LEASE, ATTEMPTS)
    supervisor.witness.close()
    faults = list(hearing.faults())
    first = "\n".join(faults[:5])
    assert not faults, f"seed {seed}: {len(faults)} faults, the first of them:\n{first}"
    assert len(hearing.of("drained")) == KEYS
    assert list(store.cache()) == []

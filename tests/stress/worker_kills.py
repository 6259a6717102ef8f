"""Workers on a queue that are killed: by poison messages, from outside, or stopped by SIGTERM.

    python -m tests.stress.worker_kills --seeds 5
    python -m tests.stress.worker_kills --seeds 5 --without-gate

A receiver in a process of its own survives all kills.  It keeps the idempotency keys of the effects
and counts the arrivals.  It also sends the signals, after random numbers of arrivals: a count draws
as many kills on a fast machine as on a slow one.

lost: messages without effect that were not dead-lettered.  doubled: messages with two keys.
repeated: arrivals of a key that the receiver knew.  further attempts: of harmless messages.
"""

import argparse
import asyncio
import signal
import time
from collections import Counter
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from attrs import Factory, define, frozen

from tests.support import postgres
from tests.support.fork_server import processes
from tests.support.queue_receiver import Receiver
from tests.support.queue_workers import SQLQueue, WorkerSettings, work

LIMIT = 60.0  # seconds without an arrival or a settlement


@frozen
class Scenario:
    """Messages, workers, and the signals that they get.

    :param stops: SIGTERMs; each ends the only worker, which is started again.
    :param kills: SIGKILLs from outside.
    :param stall: seconds between SIGSTOP and SIGCONT of one worker; None: it is not stopped.
    :param restarts_server: whether the server is killed and started under load.
    """

    name: str
    messages: int = 60
    poisons: int = 1
    workers: int = 1
    concurrency: int = 10
    prefetch: int | None = None
    max_crashes: int = 2
    kills: int = 0
    stops: int = 0
    stall: float | None = None
    restarts_server: bool = False
    lease: float = 9.0
    duration: float = 0.005

    def settings(self, gate):
        return WorkerSettings(
            concurrency=self.concurrency,
            prefetch=self.prefetch,
            max_crashes=self.max_crashes,
            lease=self.lease,
            duration=self.duration,
            gate=gate,
        )


SCENARIOS = [
    Scenario("prefetch 1", concurrency=1, prefetch=1),
    Scenario("prefetch 10", prefetch=10),
    Scenario("prefetch 50", prefetch=50),
    Scenario("crowd", messages=300, poisons=5, workers=3, concurrency=16, max_crashes=3, kills=5),
    Scenario("sigterm", messages=600, poisons=0, concurrency=16, stops=20, duration=0.02),
    Scenario("restart", messages=300, poisons=0, workers=2, restarts_server=True, duration=0.05),
    Scenario("stall", poisons=0, workers=2, lease=1.5, stall=5.0, duration=0.05),
]


@define
class Outcome:
    """The counts of a run.

    :param crashes: by poison message, as the receiver saw them.
    :param codes: exit codes of the workers.
    """

    lost: int = 0
    doubled: int = 0
    repeated: int = 0
    crashes: list = Factory(list)
    bystanders_dead_lettered: int = 0
    poisons_left: int = 0
    attributed: int = 0
    further_attempts: int = 0
    codes: Counter = Factory(Counter)
    elapsed: float = 0.0

    def add(self, other):
        for name in self.__slots__:
            if not name.startswith("__"):
                setattr(self, name, getattr(self, name) + getattr(other, name))

    def faults(self, scenario):
        """The counts that break a guarantee."""
        limit = 1 + scenario.max_crashes
        found = {
            "lost": self.lost,
            "doubled": self.doubled,
            "bystanders dead-lettered": self.bystanders_dead_lettered,
            "poisons not dead-lettered": self.poisons_left,
            "poisons with too many crashes": sum(each > limit for each in self.crashes),
            "exit codes": sum(code not in (0, -signal.SIGKILL) for code in self.codes.elements()),
        }
        if not scenario.kills:
            found["crashes attributed to bystanders"] = self.attributed
        if scenario.stops:
            found["further attempts"] = self.further_attempts
            found["repeated"] = self.repeated
        return {name: number for name, number in found.items() if number}

    def __str__(self):
        return (
            f"lost {self.lost}, doubled {self.doubled}, repeated {self.repeated}, "
            f"crashes per poison {dict(sorted(Counter(self.crashes).items()))}, "
            f"bystanders dead-lettered {self.bystanders_dead_lettered}, "
            f"poisons left {self.poisons_left}, attributed to bystanders {self.attributed}, "
            f"further attempts {self.further_attempts}, exit codes {dict(self.codes)}, "
            f"{self.elapsed:.1f} s"
        )


class Crew:
    """Worker processes; one that was killed is started again."""

    def __init__(self, queue, settings, port, size):
        self.arguments = queue, settings, port
        self.size = size
        self.running = []
        self.codes = Counter()

    def fill(self):
        while len(self.running) < self.size:
            self.running.append(processes.Process(target=work, args=self.arguments))
            self.running[-1].start()

    def reap(self, timeout):
        """Wait for the end of a process, for at most *timeout* seconds."""
        wait([each.sentinel for each in self.running], timeout)
        for each in [each for each in self.running if each.exitcode is not None]:
            each.join()
            self.codes[each.exitcode] += 1
            self.running.remove(each)

    def stop(self):
        """SIGTERM for all; a worker that starts ignores it, and gets another one."""
        until = time.monotonic() + LIMIT
        while self.running:
            for each in self.running:
                each.terminate()
            self.reap(0.5)
            assert time.monotonic() < until, "a worker does not stop"

    def kill(self):
        for each in self.running:
            each.kill()
            each.join()


def campaign(queue, scenario, seed, *, gate=True, server=None):
    """Run the workers until the queue is empty; return the ``Outcome``.

    :param server: restarted if the scenario says so.
    """
    random = Random(seed)
    bodies = [f"m-{number}" for number in range(scenario.messages)]
    poisons = [f"poison-{number}" for number in range(scenario.poisons)]
    mixed = [*bodies, *poisons]
    random.shuffle(mixed)
    asyncio.run(queue.fill(mixed))
    began = time.monotonic()
    with Receiver.started(signals(scenario, random), scenario.stall) as receiver:
        crew = Crew(queue, scenario.settings(gate), receiver.port, scenario.workers)
        try:
            drain(queue, crew, scenario, receiver, server, f"seed {seed}")
            crew.stop()
        finally:
            crew.kill()
        report = receiver.report()
    ends = asyncio.run(queue.ends())
    asyncio.run(queue.drop())
    return outcome_of(report, ends, bodies, poisons, crew.codes, time.monotonic() - began)


def signals(scenario, random):
    """The arrival numbers at which the receiver sends a signal to the worker or a random one."""
    if scenario.stall is not None:
        return {random.randint(10, scenario.messages // 2): signal.SIGSTOP}
    number = scenario.kills or scenario.stops
    kind = signal.SIGKILL if scenario.kills else signal.SIGTERM
    last = max(number + 1, int(scenario.messages * 0.9))
    return dict.fromkeys(random.sample(range(1, last), number), kind)


def drain(queue, crew, scenario, receiver, server, label):
    """Keep the workers running until every message is settled."""
    seen, until = None, 0.0
    while True:
        crew.fill()
        crew.reap(0.25)
        arrivals, left = receiver.report()["arrivals"], asyncio.run(queue.left())
        if left == 0:
            assert server is None, f"{label}: the server was not restarted"
            return
        if server is not None and arrivals > scenario.messages // 4:
            server.kill()
            server.start()
            server = None
        if seen != (arrivals, left):
            seen, until = (arrivals, left), time.monotonic() + LIMIT
        assert time.monotonic() < until, f"{label}: no progress"


def outcome_of(report, ends, bodies, poisons, codes, elapsed):
    """Compare the receiver's counts with the states of the messages."""
    keys, arrivals = report["keys"], report["by_body"]
    dead = {body for body, state in ends.items() if state == "dead_lettered"}
    return Outcome(
        lost=sum(body not in keys and body not in dead for body in bodies),
        doubled=sum(len(keys.get(body, ())) > 1 for body in bodies),
        repeated=sum(arrivals.get(body, 1) - 1 for body in bodies),
        crashes=[arrivals.get(body, 0) for body in poisons],
        bystanders_dead_lettered=len(dead & set(bodies)),
        poisons_left=len(set(poisons) - dead),
        attributed=sum(report["crashes"].get(body, 0) for body in bodies),
        further_attempts=sum(report["attempts"].get(body, 1) - 1 for body in bodies),
        codes=codes,
        elapsed=elapsed,
    )


@contextmanager
def queues(folder):
    """A queue of each kind; the server of one of them, by its name."""
    with postgres.started(postgres.binaries(), Path(folder, "server")) as server:
        yield (
            [
                SQLQueue(f"sqlite:///{folder}/jobs.db", "kills"),
                SQLQueue(server.url, "kills"),
            ],
            {"postgresql": server},
        )


def main():
    """Print a line for each scenario on each queue."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs of each scenario")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--only", help="the name of a scenario begins with this")
    parser.add_argument("--queue", help="the name of a queue")
    parser.add_argument("--without-gate", action="store_true", help="nothing runs exclusively")
    args = parser.parse_args()
    with TemporaryDirectory() as folder, queues(folder) as (found, servers):
        for queue in found:
            for scenario in SCENARIOS:
                server = servers.get(queue.name) if scenario.restarts_server else None
                if (
                    (args.queue and queue.name != args.queue)
                    or not scenario.name.startswith(args.only or "")
                    or (scenario.restarts_server and server is None)
                ):
                    continue
                total = Outcome()
                for seed in range(args.seed, args.seed + args.seeds):
                    total.add(
                        campaign(queue, scenario, seed, gate=not args.without_gate, server=server)
                    )
                faults = total.faults(scenario) or "exact"
                print(f"{queue.name}, {scenario.name}, {args.seeds} runs: {total}", flush=True)
                print(f"    {faults}", flush=True)


if __name__ == "__main__":
    main()

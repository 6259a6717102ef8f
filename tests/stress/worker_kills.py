"""Workers on a queue that are killed: by poison messages, from outside, or stopped by SIGTERM.

    python -m tests.stress.worker_kills --seeds 5
    python -m tests.stress.worker_kills --only poisons --prefetch 1 10 50 --gate on off --seeds 20
    python -m tests.stress.worker_kills --queue simulator --gate on off --seeds 200

It prints a row of a table for each scenario on each queue: SQLite, PostgreSQL, a stream in Valkey,
and a simulated cluster, which runs the scenarios without signals.

A receiver in a process of its own survives all kills.  It keeps the idempotency keys of the effects
and counts the arrivals.  It also sends the signals, after random numbers of arrivals: a count draws
as many kills on a fast machine as on a slow one.

lost: messages without effect that were not dead-lettered.  doubled: messages with two keys.
repeated: arrivals of a key that the receiver knew.  further attempts: of harmless messages.
bystanders: messages that crash no process.
"""

import argparse
import asyncio
import logging
import signal
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from itertools import product
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from attrs import Factory, define, evolve, frozen
from sqlalchemy import make_url

from retrytemplate.workers import RedeliveryPolicy
from retrytemplate.workers.testing import SimulatedCluster
from tests.support import postgres, valkey
from tests.support.fork_server import processes
from tests.support.proxy import Proxy
from tests.support.queue_receiver import Receiver
from tests.support.queue_workers import SQLQueue, StreamQueue, WorkerSettings, work
from tests.support.simulated_workers import NoGate, factory

LIMIT = 60.0  # seconds without an arrival or a settlement
SIMULATOR = "simulator"


@frozen
class Scenario:
    """Messages, workers, and the signals that they get.

    :param stops: SIGTERMs; each ends the only worker, which is started again.
    :param second_stop: seconds from each SIGTERM to a second one; None: there is one only.
    :param kills: SIGKILLs from outside.
    :param stall: seconds between SIGSTOP and SIGCONT of one worker; None: it is not stopped.
    :param restarts_server: whether the server is killed and started under load.
    :param cuts: connections that are cut at a settlement, half of them after the server applied it.
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
    second_stop: float | None = None
    stall: float | None = None
    restarts_server: bool = False
    cuts: int = 0
    lease: float = 9.0
    duration: float = 0.005

    @property
    def needs_server(self):
        return self.restarts_server or bool(self.cuts)

    @property
    def has_signals(self):
        return bool(self.kills or self.stops or self.stall is not None)

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
    Scenario("poisons", messages=300, poisons=5, workers=3, concurrency=16),
    Scenario("crowd", messages=300, poisons=5, workers=3, concurrency=16, max_crashes=3, kills=5),
    Scenario("sigterm", messages=600, poisons=0, concurrency=16, stops=20, duration=0.02),
    Scenario(
        "second sigterm",
        messages=200,
        poisons=0,
        concurrency=16,
        stops=5,
        second_stop=0.05,
        duration=0.3,
    ),
    Scenario("restart", messages=300, poisons=0, workers=2, restarts_server=True, duration=0.3),
    Scenario("cuts", messages=600, poisons=0, workers=2, cuts=10, duration=0.1),
    Scenario("stall", poisons=0, workers=2, lease=1.5, stall=5.0, duration=0.05),
]


@define
class Outcome:
    """The counts of a run.

    :param crashes: by poison message, as the receiver saw them.
    :param codes: exit codes of the workers.
    """

    runs: int = 1
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
        # SIGTERM: of a process that has not begun.  A second one cancels attempts: not clean.  A
        # stalled worker may get two, because SIGTERM is repeated until it ends.
        may_fail = scenario.second_stop or scenario.stall is not None
        codes = {0, -signal.SIGKILL, -signal.SIGTERM} | ({1} if may_fail else set())
        found = {
            "lost": self.lost,
            "doubled": self.doubled,
            "bystanders dead-lettered": self.bystanders_dead_lettered,
            "poisons not dead-lettered": self.poisons_left,
            "poisons with too many crashes": sum(each > limit for each in self.crashes),
            "exit codes": sum(code not in codes for code in self.codes.elements()),
        }
        if not scenario.kills:
            found["crashes attributed to bystanders"] = self.attributed
        if scenario.stops:
            found["further attempts"] = self.further_attempts
            if not scenario.second_stop:
                found["repeated"] = self.repeated
        return {name: number for name, number in found.items() if number}

    def row(self, queue, scenario, gate):
        """The counts as a row of a table, under ``COLUMNS``."""
        crashes = "none"
        if self.crashes:
            mean = sum(self.crashes) / len(self.crashes)
            crashes = f"{min(self.crashes)} to {max(self.crashes)}, mean {mean:.2f}"
        cells = [
            queue,
            scenario.name,
            scenario.prefetch or 2 * scenario.concurrency,
            "on" if gate else "off",
            self.runs,
            self.lost,
            self.doubled,
            self.repeated,
            crashes,
            self.bystanders_dead_lettered,
            self.attributed,
            self.further_attempts,
            ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items())),
            f"{self.elapsed / self.runs:.1f}",
            ", ".join(f"{name} {count}" for name, count in self.faults(scenario).items())
            or "exact",
        ]
        return f"| {' | '.join(map(str, cells))} |"


COLUMNS = [
    "queue",
    "scenario",
    "prefetch",
    "gate",
    "runs",
    "lost",
    "doubled",
    "repeated",
    "crashes per poison",
    "bystanders dead-lettered",
    "crashes attributed to bystanders",
    "further attempts of bystanders",
    "exit codes",
    "seconds per run",
    "result",
]


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
    sent, second = signals(scenario, random), scenario.second_stop
    with (
        Receiver.started(sent, scenario.stall, second) as receiver,
        disturbed(queue, scenario, random, server) as (reached, disturb),
    ):
        crew = Crew(reached, scenario.settings(gate), receiver.port, scenario.workers)
        try:
            drain(queue, crew, scenario, receiver, disturb, f"seed {seed}")
            crew.stop()
        finally:
            crew.kill()
        report = receiver.report()
    ends = asyncio.run(queue.ends())
    asyncio.run(queue.drop())
    return outcome_of(report, ends, bodies, poisons, crew.codes, time.monotonic() - began)


@contextmanager
def disturbed(queue, scenario, random, server):
    """The queue as the workers reach it, and a function that disturbs it once under load."""
    if not scenario.cuts:
        yield queue, partial(restart, server) if scenario.restarts_server else None
        return
    url = make_url(queue.url)
    with Proxy(url.port) as proxy:
        url = url.set(host="127.0.0.1", port=proxy.port)
        behind = evolve(queue, url=url.render_as_string(hide_password=False))
        yield behind, partial(cut_connections, proxy, queue, scenario, random)
        assert proxy.cuts == scenario.cuts, f"{proxy.cuts} connections were cut"


def restart(server):
    server.kill()
    server.start()


def cut_connections(proxy, queue, scenario, random):
    """Cut connections at settlements, some before and some after the server applies them."""
    for number in range(scenario.cuts):
        when = ("before", "after")[number % 2]
        proxy.cut(when, queue.settlement, skipped=random.randrange(10))


def simulated(scenario, seed, gate):
    """The ``Outcome`` of a scenario without signals in a simulated cluster."""
    began = time.monotonic()
    sent = scenario.messages + scenario.poisons
    poisons = {f"m-{number}" for number in Random(seed).sample(range(sent), scenario.poisons)}
    runtimes = factory(
        poisons,
        gate=None if gate else NoGate(),
        concurrency=scenario.concurrency,
        prefetch=scenario.prefetch,
        retry=RedeliveryPolicy(max_crashes=scenario.max_crashes),
    )
    cluster = SimulatedCluster(
        runtimes, workers=scenario.workers, seed=seed, max_crashes=scenario.max_crashes
    )
    report = cluster.run(sent)
    dead = {letter.message.id for letter in report.letters}
    violated = Counter(text.partition(":")[0] for text in report.violations)
    return Outcome(
        lost=violated["I1"] + report.remaining,
        doubled=violated["I2"],
        crashes=[report.crashes[key] for key in poisons],
        bystanders_dead_lettered=len(dead - poisons),
        poisons_left=len(poisons - dead),
        attributed=sum(count for key, count in report.attributed.items() if key not in poisons),
        elapsed=time.monotonic() - began,
    )


def signals(scenario, random):
    """The arrival numbers at which the receiver sends a signal to the worker or a random one."""
    if scenario.stall is not None:
        return {random.randint(10, scenario.messages // 2): signal.SIGSTOP}
    number = scenario.kills or scenario.stops
    kind = signal.SIGKILL if scenario.kills else signal.SIGTERM
    last = max(number + 1, int(scenario.messages * 0.9))
    return dict.fromkeys(random.sample(range(1, last), number), kind)


def drain(queue, crew, scenario, receiver, disturb, label):
    """Keep the workers running until every message is settled.

    :param disturb: called once under load; or None.
    """
    seen, until = None, 0.0
    while True:
        crew.fill()
        crew.reap(0.25)
        arrivals, left = receiver.report()["arrivals"], asyncio.run(queue.left())
        if left == 0:
            assert disturb is None, f"{label}: nothing was disturbed"
            return
        if disturb is not None and arrivals > scenario.messages // 4:
            disturb()
            disturb = None
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
    """A queue of each kind; the servers of some of them, by the name of the queue."""
    with (
        postgres.started(postgres.binaries(), Path(folder, "postgresql")) as database,
        valkey.started(valkey.binary(), Path(folder, "valkey")) as broker,
    ):
        yield (
            [
                SQLQueue(f"sqlite:///{folder}/jobs.db", "kills"),
                SQLQueue(database.url, "kills"),
                StreamQueue(broker.url, "kills"),
            ],
            {"postgresql": database, "valkey": broker},
        )


def total(runs):
    """The sum of some outcomes."""
    first, *others = runs
    for each in others:
        first.add(each)
    return first


def rows(args, scenarios):
    """A row for each scenario on each queue, when its runs have ended."""
    seeds = range(args.seed, args.seed + args.seeds)
    if args.queue != SIMULATOR:
        yield from server_rows(args, scenarios, seeds)
    logging.disable()
    for scenario, gate in product(scenarios, args.gate):
        if args.queue in (None, SIMULATOR) and not (scenario.has_signals or scenario.needs_server):
            runs = [simulated(scenario, seed, gate == "on") for seed in seeds]
            yield total(runs).row(SIMULATOR, scenario, gate == "on")


def server_rows(args, scenarios, seeds):
    with TemporaryDirectory() as folder, queues(folder) as (found, servers):
        for queue, scenario, gate in product(found, scenarios, args.gate):
            server = servers.get(queue.name)
            if args.queue not in (None, queue.name) or (scenario.needs_server and server is None):
                continue
            runs = [
                campaign(queue, scenario, seed, gate=gate == "on", server=server) for seed in seeds
            ]
            yield total(runs).row(queue.name, scenario, gate == "on")


def main():
    """Print a table with a row for each scenario on each queue."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs of each scenario")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--only", default="", help="the name of a scenario begins with this")
    parser.add_argument("--queue", help=f"sqlite, postgresql, valkey or {SIMULATOR}")
    parser.add_argument(
        "--gate", nargs="+", choices=("on", "off"), default=["on"], help="off: none is exclusive"
    )
    parser.add_argument("--prefetch", nargs="+", type=int, help="in place of the scenario's")
    args = parser.parse_args()
    scenarios = [each for each in SCENARIOS if each.name.startswith(args.only)]
    if args.prefetch:
        scenarios = [evolve(each, prefetch=n) for each in scenarios for n in args.prefetch]
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"|{'---|' * len(COLUMNS)}")
    for row in rows(args, scenarios):
        print(row, flush=True)


if __name__ == "__main__":
    main()

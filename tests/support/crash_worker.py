"""A process that runs a step and crashes, at an item or between two of its statements."""

import asyncio
import json
import os
import resource
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from random import Random

from attrs import evolve, field, frozen
from sqlalchemy import Column, Integer, MetaData, Table, event, select
from sqlalchemy.ext.asyncio import AsyncEngine

import tests.support.unflushed  # noqa: F401  # registers a hook
from retrytemplate import RetryError, SimpleRetryPolicy
from retrytemplate._storage import sql_engine as engines
from retrytemplate.batch import (
    ChunkStep,
    Cursor,
    ForwardReader,
    JobRepository,
    ReadError,
    SkipPolicy,
)
from retrytemplate.batch.engine.checkpoint import Checkpoint
from retrytemplate.batch.journal.repository import JOB_REPOSITORY
from tests.support import crashing_worker

__all__ = ["ALWAYS", "Bad", "Mill", "Plan", "go", "go_to", "go_together", "say"]


def interrupted():
    raise KeyboardInterrupt


ALWAYS = 1000
CRASHES = crashing_worker.CRASHES | {"is interrupted": interrupted}
TIMEOUT = 20.0


class Bad(Exception):
    """The error of an item at fault."""


@frozen
class Plan:
    """A step and its injected failures.

    :param process: how often the processing of these items fails; so *write*.
    :param deadly: how the process crashes, by item; *place*: the phase of the crash.
    :param elsewhere: whether the items go to another engine than the journal.
    :param forward: whether the reader cannot give an item again; *torn*: items that it cannot read.
    :param pure: False: the processor works in the transaction.
    :param stall: the item at whose *place* the first process to come there stands still.
    :param seed: of how long each item takes; None: no time.
    :param fuse: seconds from the begin of a crashing item to the crash.
    """

    items: int = 8
    chunk_size: int = 4
    attempts: int = 2
    process: dict = field(factory=dict)
    write: dict = field(factory=dict)
    filtered: frozenset = frozenset()
    deadly: dict = field(factory=dict)
    place: str = "process"
    stall: object = None
    max_crashes: int = 2
    concurrency: int = 1
    seed: int | None = None
    fuse: float = 0.0
    fault_search: str = "bisect"
    rollback: str = "transaction"
    elsewhere: bool = False
    forward: bool = False
    torn: frozenset = frozenset()
    pure: bool = True

    @property
    def dead_lettered(self):
        """The items that can never be written."""
        gone = {item for item, times in self.process.items() if times >= ALWAYS}
        unwritten = {item for item, times in self.write.items() if times >= ALWAYS}
        return sorted({*gone, *self.deadly, *self.torn} | unwritten - self.filtered)

    @property
    def left_out(self):
        """The items that the processor filters out."""
        return sorted(self.filtered - set(self.dead_lettered))

    @property
    def written(self):
        gone = {*self.dead_lettered, *self.filtered}
        return [item for item in range(1, self.items + 1) if item not in gone]


@frozen
class Items(Sequence):
    """The numbers of a plan's items; one may kill its reader."""

    plan: Plan

    def __len__(self):
        return self.plan.items

    def __getitem__(self, index):
        item = index + 1
        if self.plan.place == "read" and item in self.plan.deadly:
            CRASHES[self.plan.deadly[item]]()
        return item


class Torn(ForwardReader):
    """A stream of the numbers of a plan's items, in which some cannot be read."""

    def __init__(self, plan, numbers):
        super().__init__(numbers)
        self.plan = plan

    def open(self, position=None):
        return TornCursor(self.plan, super().open(position))


class TornCursor(Cursor):
    def __init__(self, plan, inner):
        self.plan, self.inner = plan, inner

    @property
    def position(self):
        return self.inner.position

    def read(self, limit):
        records = self.inner.read(limit)
        at = [index for index, item in enumerate(records.items) if item in self.plan.torn]
        items = ["?" if index in at else item for index, item in enumerate(records.items)]
        about = {"text": "?", "source": records.source}
        broken = {
            index: ReadError("is torn", number=records.number(index), **about) for index in at
        }
        return evolve(records, items=items, broken=broken)


@frozen
class Mill:
    """Where plans are run, one run each: a database and a folder that outlive a process.

    :param mode: "sync" or "async".
    """

    url: str
    prefix: str
    mode: str
    folder: str
    lease: float = 30.0

    @property
    def out(self):
        """The written items; an item may be there twice."""
        return Table(
            f"{self.prefix}_out", MetaData(), Column("turn", Integer), Column("item", Integer)
        )

    def repository(self, mode="sync"):
        made = engines.transaction_engine(
            engines.parse_url(self.url, JOB_REPOSITORY),
            TIMEOUT,
            JOB_REPOSITORY,
            asynchronous=mode == "async",
        )
        return JobRepository(made, self.lease, self.prefix)

    def run(self, plan, turn, kill=None):
        """The report of a run; *kill* is called at the engines' statements."""
        jobs = self.repository(self.mode)
        engines = [jobs._given]
        if plan.elsewhere:
            engines.append(self.repository(self.mode)._given)
        if kill is not None:
            for engine in engines:
                listen(engine, kill)
        database = engines[-1] if plan.elsewhere else None
        step = self.step(plan, turn, jobs, database)
        try:
            if self.mode == "sync":
                return step.run({"turn": turn})
            return asyncio.run(self.run_async(step, turn, engines))
        finally:
            if self.mode == "sync":
                for engine in engines:
                    engine.dispose()

    async def run_async(self, step, turn, engines):
        try:
            return await step.run_async({"turn": turn})
        finally:
            for engine in engines:
                await engine.dispose()

    def step(self, plan, turn, jobs, database=None):
        random = Random(plan.seed)
        durations = [random.random() / 500 for _ in range(plan.items + 1)]

        def fail(what, item, times):
            if item == plan.stall and plan.place == what:
                self.stall(turn)
            if item in plan.deadly and plan.place == what:
                time.sleep(plan.fuse)  # the other threads are in the middle of their items
                CRASHES[plan.deadly[item]]()
            if item in times and self.tries(turn, what, item) <= times[item]:
                raise Bad(f"{what} {item}")

        def processor(item):
            if item == plan.stall and plan.place == "commit":
                event.listen(blocking(jobs._given), "commit", lambda _: self.stall(turn))
            if plan.seed is not None:
                time.sleep(durations[item])  # work that takes time, so that kills come during it
            fail("process", item, plan.process)
            return None if item in plan.filtered else item

        async def awaited(item):
            await asyncio.sleep(durations[item])  # as above
            return processor(item)

        def in_transaction(item, _):
            return processor(item)

        def writer(items, transaction):
            for item in items:
                # The rows before the one that fails are in the transaction already.
                fail("write", item, plan.write)
                transaction.execute(self.out.insert().values(turn=turn, item=item))

        made = awaited if self.mode == "async" and plan.concurrency > 1 else processor
        return ChunkStep(
            "mill",
            reader=self.reader(plan, turn),
            processor=made if plan.pure else in_transaction,
            pure=plan.pure,
            writer=writer,
            chunk_size=plan.chunk_size,
            repository=jobs,
            database=database,
            retry=SimpleRetryPolicy(plan.attempts),
            skip=SkipPolicy(on=(Bad, ReadError)),
            max_crashes=plan.max_crashes,
            fault_search=plan.fault_search,
            rollback=plan.rollback,
            concurrency=plan.concurrency,
        )

    def stall(self, turn):
        """Stop this process at the first call."""
        if self.tries(turn, "stall", 0) == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    def reader(self, plan, turn):
        """All items; of a stream those that no process has journaled yet."""
        if not plan.forward:
            return Items(plan)
        row = self.row(turn)
        return Torn(plan, iter(range(1 + (row.read if row else 0), plan.items + 1)))

    def tries(self, turn, what, item):
        """The number of attempts in all processes so far."""
        place = os.path.join(self.folder, f"{turn} {what} {item}")
        file = os.open(place, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(file, b".")
        size = os.fstat(file).st_size
        os.close(file)
        return size

    # Results of a run.

    @property
    def looking(self):
        return looking(evolve(self, mode="sync"), os.getpid())  # one for both ways

    def row(self, turn):
        """The run's row in the journal, or None."""
        runs = self.looking.tables.runs
        with self.looking.transaction() as transaction:
            found = select(runs).where(runs.c.parameters == f'{{"turn": {turn}}}')
            return transaction.execute(found).first()

    def checkpoint(self, turn):
        """The journal entry of the chunk in flight."""
        return Checkpoint.from_json(json.loads(self.row(turn).checkpoint))

    def letters(self, turn):
        """The rows of the dead letters."""
        letters = self.looking.tables.letters
        found = select(letters).where(letters.c.run == self.row(turn).id).order_by(letters.c.number)
        with self.looking.transaction() as transaction:
            return transaction.execute(found).all()

    def result(self, turn):
        """The items that were written, and those that are dead letters."""
        out = self.out
        found = select(out.c.item).where(out.c.turn == turn).order_by(out.c.item)
        with self.looking.transaction() as transaction:
            items = list(transaction.execute(found).scalars())
        return [items, [letter.number for letter in self.letters(turn)]]

    def prepare(self):
        with self.looking.transaction() as transaction:
            self.out.create(transaction)

    def clear(self):
        with self.looking.transaction() as transaction:
            self.out.drop(transaction)
            self.looking.tables.metadata.drop_all(transaction)
        self.looking.engine.dispose()


@lru_cache
def looking(mill, _process):
    """The repository of a process that reads the results of others."""
    return mill.repository()


def blocking(engine):
    """The engine whose events are observed."""
    return engine.sync_engine if isinstance(engine, AsyncEngine) else engine


def listen(engine, reached):
    """Call a function at every boundary: before and after each statement and each commit."""
    engine = blocking(engine)

    def boundary(*_):
        reached()

    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(engine, name, boundary)
    event.listen(engine.pool, "checkin", boundary)  # after the commit


def kill_at(number):
    """A function that kills this process at its n-th call."""
    left = number

    def reached():
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def go(mill, plan, turn):
    """Run the plan to its end unless an item crashes it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    mill.run(plan, turn)


def go_together(mill, plans):
    """Run the plan of each turn in a thread of its own, unless an item crashes the process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with ThreadPoolExecutor(len(plans)) as pool:
        for future in [pool.submit(mill.run, plan, turn) for turn, plan in plans.items()]:
            assert future.result().status == "completed"


def go_to(mill, plan, turn, number):
    """Run the plan and kill this process at the n-th boundary, if there are as many."""
    mill.run(plan, turn, kill_at(number))


def say(mill, plan, turn, event_log):
    """Run the plan to its end and record the result."""
    try:
        how = mill.run(plan, turn).status
    except RetryError as error:
        how = type(error).__name__
    event_log.add("ended", turn, how=how)

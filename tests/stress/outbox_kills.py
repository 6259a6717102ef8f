"""A step with an outbox whose processes are killed after a random number of operations.

    python -m tests.stress.outbox_kills --runs 30

Operations are the SQL statements, the commits and the messages of a process.  A count of operations
draws as many kills on a fast machine as on a slow one; a time does not.  A receiver in this process
drops messages whose id it knows, as the page of chunk steps recommends.  It rejects some, and loses
the answer to others.  In the end each item has one message.
"""

import argparse
import json
import os
import signal
import socket
import socketserver
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from attrs import Factory, define, evolve, frozen
from sqlalchemy import event

import tests.support.unflushed  # noqa: F401  # registers a hook
from retrytemplate import SimpleRetryPolicy
from retrytemplate._storage import sql_engine as engines
from retrytemplate.batch import ChunkStep, JobRepository, Outbox
from retrytemplate.batch.journal.repository import JOB_REPOSITORY
from tests.support import postgres
from tests.support.process_pool import nursery

PARTS = 2
MOST = 4  # operations of a process before it is killed, at most, for each item of a part
NEVER = 10**6  # crashes of an item: random kills must not dead-letter it
_done = Counter()  # operations of this process by kind


@define
class Receiver:
    """Keeps the payload of each id, and counts the received messages."""

    random: Random
    known: dict = Factory(dict)
    counts: Counter = Factory(Counter)
    conflicts: list = Factory(list)
    _lock: object = Factory(threading.Lock)

    def receive(self, message):
        """The response: "ok", "no" for a rejected message, or None if it is lost."""
        with self._lock:
            drawn = self.random.random()
            if drawn < 0.1:
                self.counts["rejected"] += 1
                return "no"
            number, payload = message["id"], message["payload"]
            self.counts["duplicates" if number in self.known else "received"] += 1
            if self.known.setdefault(number, payload) != payload:
                self.conflicts.append(message)
            if drawn < 0.2:
                self.counts["unanswered"] += 1
                return None
            return "ok"

    @contextmanager
    def serving(self):
        """The port of a server that passes messages to the receiver."""

        class Handler(socketserver.StreamRequestHandler):
            def handle(handler):
                line = handler.rfile.readline()
                answer = self.receive(json.loads(line)) if line.endswith(b"\n") else None
                if answer is not None:
                    handler.wfile.write(answer.encode())

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield server.server_address[1]
            finally:
                server.shutdown()
                thread.join()


@frozen
class Job:
    """A step over numbers whose messages go to a receiver.

    :param kill_after: the process is killed after this number of operations of this kind:
        "message", "statement", "commit" or "any"; None: never.
    """

    url: str
    prefix: str
    port: int
    items: int
    kill_after: tuple[str, int] | None = None

    def repository(self):
        engine = engines.transaction_engine(
            engines.parse_url(self.url, JOB_REPOSITORY), 20.0, JOB_REPOSITORY
        )
        event.listen(engine, "after_cursor_execute", lambda *_: self.count("statement"))
        event.listen(engine, "commit", lambda *_: self.count("commit"))
        return JobRepository(engine, prefix=self.prefix)

    def step(self, repository, part=0):
        return ChunkStep(
            "numbers",
            reader=range(self.items),
            writer=lambda items, transaction: None,
            chunk_size=4,
            repository=repository,
            retry=SimpleRetryPolicy(2),
            max_crashes=NEVER,
            outbox=Outbox(self.send, lambda item: [part, item]),
        )

    def send(self, message):
        text = json.dumps({"id": message.id, "payload": message.payload}) + "\n"
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
            connection.settimeout(10)
            connection.sendall(text.encode())
            if connection.recv(10) != b"ok":
                raise ConnectionError("the message was not taken")
        self.count("message")

    def count(self, kind):
        """Kill this process after its last permitted operation."""
        _done.update((kind, "any"))
        if self.kill_after is not None:
            counted, last = self.kill_after
            if _done[counted] >= last:
                os.kill(os.getpid(), signal.SIGKILL)

    def run(self, part):
        """Run a part of the step in a separate process."""
        _done.clear()  # a forked process inherits the counts of its parent
        repository = self.repository()
        self.step(repository, part).run({"part": part}).raise_for_status()
        repository._given.dispose()

    def send_rest(self):
        """Send pending messages until there are none."""
        repository = self.repository()
        step = self.step(repository)
        while step.send_outbox().unsent:
            pass
        with repository.transaction() as transaction:
            repository.tables.metadata.drop_all(transaction)
        repository._given.dispose()


def campaign(forked, url, prefix, seed, *, items=40, kill_after=None):
    """Run all parts to their end; return the counts.

    :param kill_after: kill only the first process, after this number of operations of this kind;
        None: kill each process after a random number of operations, unless it ends before.
    """
    random = Random(seed)
    receiver = Receiver(Random(seed))
    counts = receiver.counts
    with receiver.serving() as port:
        job = Job(url, prefix, port, items)
        forked.warm(evolve(job, items=0).run, -1)  # so that imports are not interrupted
        left = list(range(PARTS))
        while left:
            part = random.choice(left)
            drawn = kill_after or ("any", random.randint(1, MOST * items))
            last = None if kill_after and counts["kills"] else drawn
            code = forked.run(evolve(job, kill_after=last).run, part)
            counts["kills"] += code == -signal.SIGKILL
            assert counts["kills"] < 1000, f"seed {seed}: no progress"
            if code == 0:
                left.remove(part)
            elif code != -signal.SIGKILL:
                raise AssertionError(f"seed {seed}: a process ended with {code}")
        assert forked.run(job.send_rest) == 0
    check(receiver, items, seed)
    return counts


def check(receiver, items, seed):
    """Raise unless each item has one message, and each id one content."""
    wanted = sorted([part, item] for part in range(PARTS) for item in range(items))
    assert not receiver.conflicts, f"seed {seed}: ids with two contents: {receiver.conflicts}"
    assert sorted(receiver.known.values()) == wanted, f"seed {seed}: messages are missing"


def main():
    """Print a line for each database."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=30, help="runs on each database")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--items", type=int, default=40, help="items of each part")
    args = parser.parse_args()
    with (
        TemporaryDirectory() as folder,
        nursery() as forked,
        postgres.started(postgres.binaries(), Path(folder, "server")) as server,
    ):
        for url in (f"sqlite:///{folder}/jobs.db", server.url):
            total = Counter()
            for seed in range(args.seed, args.seed + args.runs):
                total += campaign(forked, url, f"outbox{seed}", seed, items=args.items)
            print(url.partition(":")[0], args.runs, "runs:", dict(total), flush=True)


if __name__ == "__main__":
    main()

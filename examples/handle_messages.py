"""Handle messages in PostgreSQL transactions with workers that are killed at the worst moments.

A broker delivers each message until a worker acknowledges it.  A worker writes an order for each,
in a transaction that also ends the attempt.  One message is handled by a worker that is killed
before its commit, one by a worker that is killed between commit and acknowledgement, and one kills
every worker that touches it.  Run it with the extra ``postgresql`` and a database to try it in::

    python examples/handle_messages.py postgresql://user@localhost/scratch

An SQLite file will do as well: ``sqlite:///messages.db``.
"""

import json
import os
import signal
import subprocess
import sys
from collections import deque

from sqlalchemy import Connection, Engine, create_engine, text

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    RetryContext,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    SQLRetryContextCache,
)

MESSAGES = ["plain", "killed-before-commit", "killed-after-commit", "poison"]
TABLES = ("orders (id text)", "dead_letters (id text, history text)", "deliveries (id text)")
LEASE = 30.0  # seconds that a redelivery waits after a crash of another host; none on this one


def template_on(engine: Engine) -> RetryTemplate:
    """The same name in every worker: the scope of the keys that they share."""
    cache = SQLRetryContextCache(engine, lease=LEASE)
    return RetryTemplate(SimpleRetryPolicy(3), name="orders", cache=cache)


# -- a worker: one message, then it ends ----------------------------------------------------------


def work(message: str) -> None:
    engine = engine_of(sys.argv[1])
    template = template_on(engine)
    deaths = deliveries_before(message, engine)

    # 1. The attempt is recorded before this is called: if the process crashes in here, the
    #    next worker finds a lost attempt.
    def handle(context: RetryContext) -> str:
        with engine.begin() as transaction:
            transaction.execute(text("INSERT INTO orders VALUES (:id)"), {"id": message})
            # 2. The attempt ends with the work: both are committed, or neither.
            context.complete_in(transaction)
            if message == "poison" or (message == "killed-before-commit" and not deaths):
                os.kill(os.getpid(), signal.SIGKILL)
        return "handled"

    # 3. When attempts are exhausted: the history has the attempts that crashed their workers, too.
    def dead_letter(context: RetryContext) -> str:
        history = [(each.number, each.type_name, each.message) for each in context.history]
        with engine.begin() as transaction:
            row = {"id": message, "history": json.dumps(history)}
            transaction.execute(text("INSERT INTO dead_letters VALUES (:id, :history)"), row)
        return "dead-lettered"

    # 4. The success is remembered for as long as a redelivery may come.
    state = RetryState(message, remember=3600)
    with template.cache:
        try:
            end = template.execute(handle, recovery=dead_letter, state=state)
        except AlreadyCompletedError:
            end = "handled before"  # acknowledge it, once more
        except AttemptInProgressError:
            sys.exit("another worker has the message")  # do not acknowledge it
        if message == "killed-after-commit" and not deaths:
            os.kill(os.getpid(), signal.SIGKILL)
    print(end)


# -- the broker: at least once --------------------------------------------------------------------


def deliver_all(url: str) -> None:
    engine = engine_of(url)
    with engine.begin() as transaction:
        for table in TABLES:
            transaction.execute(text(f"DROP TABLE IF EXISTS {table.split()[0]}"))
            transaction.execute(text(f"CREATE TABLE {table}"))
    queue = deque(MESSAGES)
    while queue:
        message = queue.popleft()
        command = [sys.executable, __file__, url, message]
        worker = subprocess.run(command, capture_output=True, text=True, check=False)
        if worker.returncode == 0:
            print(f"{message}: {worker.stdout.strip()}")
            continue
        queue.append(message)  # not acknowledged: it is redelivered
        if worker.returncode < 0:
            print(f"{message}: its worker was killed")
    report(engine)


def report(engine: Engine) -> None:
    with engine.begin() as transaction:
        orders = rows(transaction, "SELECT id, count(*) FROM orders GROUP BY id ORDER BY id")
        print("orders:", ", ".join(f"{message} x{number}" for message, number in orders))
        for message, history in rows(transaction, "SELECT id, history FROM dead_letters"):
            print(f"dead letter: {message}")
            for attempt, error, message in json.loads(history):
                print(f"  attempt {attempt}: {error}: {message}")


def engine_of(url: str) -> Engine:
    return create_engine(url.replace("postgresql:", "postgresql+psycopg:", 1))


def rows(connection: Connection, statement: str) -> list[tuple[str, ...]]:
    return [tuple(row) for row in connection.execute(text(statement))]


def deliveries_before(message: str, engine: Engine) -> int:
    """How often this message was delivered before: the killing here is for show."""
    with engine.begin() as transaction:
        before = {"id": message}
        count = text("SELECT count(*) FROM deliveries WHERE id = :id")
        (number,) = transaction.execute(count, before).one()
        transaction.execute(text("INSERT INTO deliveries VALUES (:id)"), before)
    return int(number)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        work(sys.argv[2])
    elif len(sys.argv) == 2:
        deliver_all(sys.argv[1])
    else:
        sys.exit(f"usage: {sys.argv[0]} URL")

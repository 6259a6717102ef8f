"""A worker that is stopped in its callback, and continues after it lost its key."""

import os
import signal
import sqlite3

from sqlalchemy import create_engine, make_url, text

from retrytemplate import RetryState, RetryTemplate, SimpleRetryPolicy
from tests.support.cache_kinds import blocking

__all__ = ["CHECKS", "LEASE", "STATE", "engine", "stall"]

LEASE = 0.5
STATE = RetryState("m1", remember=3600)


def in_its_transaction(url, context, who):
    """Write the worker's name in the transaction that ends the attempt."""
    made = engine(url)
    with made.begin() as connection:
        connection.execute(text("INSERT INTO written VALUES (:who, 0)"), {"who": who})
        context.complete_in(connection)
    made.dispose()


def comparing_the_fence(path, context, who):
    """Write the worker's name, unless a higher fence was written."""
    connection = sqlite3.connect(path, isolation_level=None)
    statement = "UPDATE written SET who = ?, fence = ? WHERE fence < ?"
    connection.execute(statement, (who, context.fence, context.fence))
    connection.close()


def asking(path, context, who):
    """Write the worker's name, if the key is still held."""
    if context.still_mine():
        comparing_the_fence(path, context, who)


CHECKS = {each.__name__: each for each in (in_its_transaction, comparing_the_fence, asking)}


def engine(url):
    made = make_url(url)
    if made.get_backend_name() == "postgresql":
        made = made.set(drivername="postgresql+psycopg")
    return create_engine(made)


def stall(store, event_log, check, target):
    """Stop this process in the callback; write the result when it continues."""

    def handle(context):
        event_log.add("in the callback", "m1")
        os.kill(os.getpid(), signal.SIGSTOP)
        CHECKS[check](target, context, "the late one")
        return "late"

    url, prefix = store
    with blocking(url, prefix=prefix, lease=LEASE, timeout=20.0) as cache:
        template = RetryTemplate(SimpleRetryPolicy(3), cache=cache, name="w")
        try:
            result = template.execute(handle, state=STATE)
        except Exception as exc:
            result = type(exc).__name__
        event_log.add("out", "m1", result=result)

"""A worker that crashes once between the work and the acknowledgement of a message."""

import os
import signal
import time

from sqlalchemy import text

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    RetryState,
    RetryTemplate,
)
from tests.support.cache_kinds import blocking
from tests.support.stalling_worker import engine

__all__ = ["deliver"]


def deliver(store, witness, place, remember, transactional):
    """Deliver one message until it is acknowledged; crash at *place* the first time."""
    url, prefix = store

    def crash_at(here):
        if here == place and not witness.rows("crashes"):
            witness.add("crashes", "m1")
            os.kill(os.getpid(), signal.SIGKILL)

    def handle(context):
        witness.add("callback", "m1", lost=context.retry_count)
        if transactional:
            with engine(url).begin() as connection:
                connection.execute(text(f"INSERT INTO {prefix}_work VALUES (1)"))
                context.complete_in(connection)
                crash_at("before the commit")
        crash_at("after the commit")
        return "handled"

    with blocking(url, prefix=prefix, lease=0.2, timeout=20.0) as cache:
        template = RetryTemplate(cache=cache, name="w")
        said = None
        while said is None:
            try:
                said = template.execute(handle, state=RetryState("m1", remember=remember))
            except AttemptInProgressError:
                time.sleep(0.01)
            except AlreadyCompletedError:
                said = "completed before"
        crash_at("before the acknowledgement")
    witness.add("acknowledged", "m1", said=said)

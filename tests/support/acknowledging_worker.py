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


def deliver(store, event_log, place, remember, transactional):
    """Deliver one message until it is acknowledged; crash at *place* the first time."""
    url, prefix = store

    def crash_at(here):
        if here == place and not event_log.rows("crashes"):
            event_log.add("crashes", "m1")
            os.kill(os.getpid(), signal.SIGKILL)

    def handle(context):
        event_log.add("callback", "m1", lost=context.retry_count)
        if transactional:
            with engine(url).begin() as connection:
                connection.execute(text(f"INSERT INTO {prefix}_work VALUES (1)"))
                context.complete_in(connection)
                crash_at("before the commit")
        crash_at("after the commit")
        return "handled"

    with blocking(url, prefix=prefix, lease=0.2, timeout=20.0) as cache:
        template = RetryTemplate(cache=cache, name="w")
        result = None
        while result is None:
            try:
                result = template.execute(handle, state=RetryState("m1", remember=remember))
            except AttemptInProgressError:
                time.sleep(0.01)  # until the real lease ends in the store
            except AlreadyCompletedError:
                result = "completed before"
        crash_at("before the acknowledgement")
    event_log.add("acknowledged", "m1", result=result)

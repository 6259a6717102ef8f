"""A worker that takes messages until they are all acknowledged, and crashes at one of them."""

import ctypes
import os
import resource
import signal
import threading

from retrytemplate import AttemptInProgressError, RetryState, RetryTemplate
from tests.support.cache_kinds import blocking

__all__ = ["CRASHES", "POISON", "consume"]

POISON = "poison"
CRASHES = {
    "exits": lambda: os._exit(9),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfaults": lambda: ctypes.string_at(0),
}


def consume(store, settings, event_log, keys, crash, place):
    """Handle every message that is not acknowledged yet, one after the other.

    :param place: where the poison crashes: "callback" or "recovery".
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def handle(context):
        event_log.add("callback", context.key, worker=context._claim.worker)
        if context.key.endswith(POISON):
            if place == "callback":
                CRASHES[crash]()
            raise ConnectionError
        return "handled"

    def dead_letter(context):
        event_log.add("recovery", context.key)
        if place == "recovery" and len(event_log.rows("recovery")) < 3:
            CRASHES[crash]()
        for each in context.history:
            event_log.add("history", context.key, kind=each.type_name, message=each.message)
        return "recovered"

    url, prefix = store
    with blocking(url, prefix=prefix, lease=0.2, timeout=20.0) as cache:
        template = RetryTemplate(cache=cache, name="w", **settings)
        done = {row["key"] for row in event_log.rows("handled", "recovered")}
        pending = [key for key in keys if key not in done]
        while pending:
            key = pending.pop(0)
            try:
                result = template.execute(handle, recovery=dead_letter, state=RetryState(key))
            except AttemptInProgressError:  # by a worker that crashed: its lease has not expired
                pending.append(key)
                if pending == [key]:
                    threading.Event().wait(0.02)
            except ConnectionError:
                pending.append(key)
            else:
                event_log.add(result, key)

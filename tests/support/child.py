"""Program of a worker process: python -m tests.support.child WHAT URL PREFIX."""

import os
import sys

from retrytemplate import MaxAttemptsRetryPolicy, RetryState, RetryTemplate, SimpleRetryPolicy
from tests.support.cache_kinds import blocking

STATE = RetryState("poison")


def dies(context):
    print("attempt", context.attempt, flush=True)
    os._exit(9)


def dead_letter(context):
    print("recovery after", *(each.type_name for each in context.history), flush=True)
    return "dead letter"


def die_in_the_callback(cache):
    """Crash in the callback of a message, as a worker does that is restarted each time."""
    template = RetryTemplate(SimpleRetryPolicy(3, retry_on=ConnectionError), cache=cache, name="w")
    print(template.execute(dies, recovery=dead_letter, state=STATE))


def die_as_process_one(cache):
    """The same in a restarted container: its processes reuse their numbers."""
    os.getpid = lambda: 1
    die_in_the_callback(cache)


def die_in_the_recovery(cache):
    template = RetryTemplate(SimpleRetryPolicy(1), cache=cache, name="w")

    def recovery(context):
        print("recovery", flush=True)
        os._exit(9)

    template.execute(dies, recovery=recovery, state=STATE)


def hold(cache):
    """Make an attempt that does not end before the process is killed."""
    template = RetryTemplate(SimpleRetryPolicy(3), cache=cache, name="w")

    def callback(context):
        print(context._claim.worker, flush=True)
        sys.stdin.readline()

    template.execute(callback, state=STATE)


def fail(cache):
    template = RetryTemplate(MaxAttemptsRetryPolicy(9), cache=cache, name="w")

    def fails(context):
        print("attempt", context.attempt, *(each.message for each in context.history), flush=True)
        raise ConnectionError(os.getpid())

    template.execute(fails, state=STATE)


def fork(cache):
    """A cache that was used before the fork, used again in parent and child."""
    held = cache.begin("held by the parent", worker="parent")
    pid = os.fork()
    if pid == 0:
        claim = cache.begin("a key of the child", worker="child")
        same = cache._renewer._leases.has(held)
        cache.succeed(claim, remember=60)
        cache.close()
        os._exit(1 if same else 0)
    _, status = os.waitpid(pid, 0)
    cache.succeed(held, remember=60)
    print("child", os.waitstatus_to_exitcode(status))


def fork_in_the_callback(cache):
    """Fork in the callback; the child also returns from execute, with a value or a failure."""
    template = RetryTemplate(MaxAttemptsRetryPolicy(9), cache=cache, name="w")
    parent = os.getpid()

    def forks(context):
        for child in ("returns", "raises"):
            pid = os.fork()
            if pid == 0:
                return int("0" if child == "returns" else child)
            os.waitpid(pid, 0)
            print("still mine:", context.still_mine(), flush=True)
        return "the parent's"

    try:
        print(template.execute(forks, state=STATE))
    except Exception as exc:
        notes = [note.partition(":")[0] for note in getattr(exc, "__notes__", ())]
        print("in a child:", os.getpid() != parent, type(exc).__name__, *notes, flush=True)
        os._exit(0)


def begin_together(cache):
    """Use a cache for the first time concurrently with others: starts when it reads a line."""
    print("ready", flush=True)
    sys.stdin.readline()
    cache.succeed(cache.begin(f"key of {os.getpid()}", worker="one"), remember=60)


def command(what, store):
    """The command that starts a process with this task on the tables of a store."""
    # The test forks beside the renewing thread on purpose; Python 3.12 and later warn of it.
    ignored = "ignore:This process:DeprecationWarning"
    return [
        sys.executable,
        "-W",
        ignored,
        "-m",
        "tests.support.child",
        what,
        store.url,
        store.prefix,
    ]


if __name__ == "__main__":
    what, url, prefix = sys.argv[1:]
    with blocking(url, prefix=prefix, timeout=20.0) as cache:
        globals()[what](cache)

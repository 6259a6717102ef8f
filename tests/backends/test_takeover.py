"""A key whose holder's process has ended is taken over before the lease ends."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from retrytemplate import AttemptInProgressError, RetryState, RetryTemplate, SimpleRetryPolicy
from retrytemplate._storage.process_liveness import process_fingerprint
from tests.backends.conftest import failing
from tests.support import forked_python
from tests.support.child import command

ROOT = Path(__file__).resolve().parents[2]
KEY = "w/s:poison"
STATE = RetryState("poison")


@pytest.fixture
def holder(store):
    """A process whose attempt does not end, and the name of its worker."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with forked_python.Popen(command("hold", store), cwd=ROOT, **pipes) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


def look(context):
    return context.attempt, context.last_exception.worker


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_key_of_a_killed_process_is_taken_over_at_once(store, holder, kind):
    process, worker = holder

    async def deliver():
        async with store.async_cache() as cache:
            template = RetryTemplate(SimpleRetryPolicy(3), cache=cache, name="w")
            return await template.execute_async(look, state=STATE)

    def again():
        if kind == "awaited":
            return asyncio.run(deliver())
        template = RetryTemplate(SimpleRetryPolicy(3), cache=store.cache(), name="w")
        return template.execute(look, state=STATE)

    with pytest.raises(AttemptInProgressError) as caught:
        again()
    assert caught.value.worker == worker
    process.kill()
    process.wait()
    assert again() == (2, worker)


def ended_process():
    """The fingerprint of a process of this host that has ended."""
    where, _, start = process_fingerprint().rsplit(" ", 2)
    number = os.fork()
    if number == 0:
        os._exit(0)
    os.waitpid(number, 0)
    return f"{where} {number} {start}"


@pytest.fixture
def held(store):
    """Let a process hold the key, given by its fingerprint."""

    def begin(process):
        store.cache().begin(KEY, worker="one")
        if process is not None:
            store.change(KEY, process=process)

    return begin


@pytest.mark.parametrize("fresh", [False, True])
def test_takeover_from_an_ended_process_keeps_the_options_of_begin(store, held, fresh):
    held(ended_process())
    claim = store.cache().begin(KEY, worker="two", lease=700, fresh=fresh)
    assert claim.lost == (None if fresh else "one")
    assert 600 < claim.lease_until - store.now() <= 700


@pytest.mark.parametrize(
    "process",
    [None, "", "damaged", "no number here", f"pid:[1] {'0' * 36} 1 1"],
    ids=["this process", "unknown", "damaged", "no number", "another host"],
)
def test_key_of_a_process_that_may_run_is_held_until_its_lease_ends(store, held, process):
    held(process)
    with pytest.raises(AttemptInProgressError):
        store.cache().begin(KEY, worker="two")
    store.age(31)
    assert store.cache().begin(KEY, worker="two").lost == "one"


def test_takeover_ignores_the_lease_of_the_named_worker_only(made, held):
    held(None)
    cache = made()
    with pytest.raises(AttemptInProgressError):
        cache.begin(KEY, worker="two", takeover="three")
    claim = cache.begin(KEY, worker="two", takeover="one")
    assert claim.lost == "one"
    cache.fail(claim, failing(claim))


def test_late_write_of_a_holder_that_was_taken_over_is_rejected(store):
    """A process that seems to have ended may still have sent its last write."""
    cache = store.cache()
    late = cache.begin(KEY, worker="one")
    claim = cache.begin(KEY, worker="two", takeover="one")
    cache.release(late)
    assert cache.holds(claim)
    assert not cache.holds(late)

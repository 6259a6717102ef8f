"""Connections that are cut at a settlement: before the server applies it, or before its answer."""

import asyncio
import logging

import pytest
from attrs import evolve
from sqlalchemy import event, make_url

from retrytemplate import FixedBackoff
from retrytemplate.control import idempotency_key
from retrytemplate.workers import (
    MessageSettled,
    QueueAckFailed,
    Reject,
    Release,
    WorkerRuntime,
    WorkerStopped,
)
from retrytemplate.workers.sources import redis_scripts as scripts
from tests.support import valkey
from tests.support.proxy import Proxy
from tests.support.queue_workers import queue_at

# A settlement that is one request, and those that are statements of a transaction.
REQUESTS = {"release": b"deliveries - 1", "acknowledge": b"WITH ended"}
STATEMENTS = {
    "dead_letter": "state = 'dead_lettered', finished_at",
    "requeue": "last_failure =",
}
SCRIPTS = {
    "acknowledge": scripts.ACKNOWLEDGE,
    "dead_letter": scripts.DEAD_LETTER,
    "release": scripts.RELEASE,
}


class Cutting:
    """A queue behind a proxy that cuts connections at a settlement."""

    def __init__(self, queue, proxy):
        url = make_url(queue.url).set(host="127.0.0.1", port=proxy.port)
        self.queue = queue
        self.proxy = proxy
        self.behind = evolve(queue, url=url.render_as_string(hide_password=False))
        if queue.name == "valkey":
            with valkey.opened(queue.url) as client:
                for script in SCRIPTS.values():  # else the first request has its text
                    client.script_load(script.text)

    def source(self, when, settlement, *, lease=30.0, times=1):
        """A source whose connection is cut.

        :param times: None: at each settlement of this kind until ``heal``.
        """
        source = self.behind.source(lease)
        if self.queue.name == "valkey":
            self.proxy.cut(when, SCRIPTS[settlement].sha.encode(), times=times)
        elif settlement in REQUESTS:
            self.proxy.cut(when, REQUESTS[settlement], times=times)
        else:
            self._cut_commits(source, when, STATEMENTS[settlement], times)
        return source

    def _cut_commits(self, source, when, settlement, times):
        """Cut at the commit of a transaction with this settlement."""
        self.commits = times

        def look(connection, cursor, statement, *_):
            if settlement in statement and self.commits != 0:
                self.proxy.cut(when, b"COMMIT")
                self.commits = None if self.commits is None else self.commits - 1

        engine = source.queue.database.engine.sync_engine
        event.listen(engine, "before_cursor_execute", look)

    def heal(self):
        self.commits = 0
        self.proxy.heal()


@pytest.fixture(params=["postgresql", "valkey"])
def cutting(request):
    url = request.getfixturevalue({"postgresql": "postgres_url"}.get(request.param, "valkey_url"))
    queue = queue_at(url)
    with Proxy(make_url(url).port) as proxy:
        yield Cutting(queue, proxy)
    asyncio.run(queue.drop())


class Watching:
    """Keeps the events, and stops the runtime at one of them."""

    def __init__(self, is_last):
        self.events = []
        self.is_last = is_last

    def on_event(self, happened):
        self.events.append(happened)
        if self.is_last(happened):
            self.runtime.stop()

    def settled(self):
        return [(each.action, each.outcome) for each in self.events if type(each) is MessageSettled]

    def of(self, kind):
        return [each for each in self.events if type(each) is kind]


async def run(source, handle, queue, is_last, **settings):
    """Run until an event; return the events."""
    watching = Watching(is_last)
    watching.runtime = WorkerRuntime(
        source,
        handle,
        name=queue.prefix,
        backoff=FixedBackoff(2.0),  # longer than the pause before a transaction is repeated
        receive_wait=0.2,
        listeners=[watching],
        **settings,
    )
    await watching.runtime.run()
    assert watching.of(WorkerStopped)[0].report["clean"]
    return watching


def done(event):
    return type(event) is MessageSettled and event.outcome in ("completed", "rejected")


OUTCOMES = {
    "acknowledge": [("acknowledge", "completed")],
    "dead_letter": [("dead_letter", "rejected")],
    "requeue": [("requeue", "failed"), ("acknowledge", "completed")],
    "release": [("release", "released"), ("acknowledge", "completed")],
}


@pytest.mark.statement("S1-72")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("settlement", OUTCOMES)
async def test_settlement_whose_connection_is_cut_is_done_once(cutting, settlement, when):
    queue = cutting.queue
    await queue.fill(["m-1"])
    calls = []

    async def handle(message, context):
        calls.append((context.attempt, idempotency_key()))
        if len(calls) > 1 or settlement == "acknowledge":
            return None
        if settlement == "dead_letter":
            raise Reject("no such order")
        if settlement == "requeue":
            raise ConnectionError("unreachable")
        return Release("later")

    is_kept = settlement == "requeue" and queue.name == "valkey"  # a stream cannot delay
    source = cutting.source(when, "acknowledge" if is_kept else settlement)
    watching = await run(source, handle, queue, done)
    assert cutting.proxy.cuts == 1
    # A released message may be delivered again, and end, before its release is confirmed.
    assert sorted(watching.settled()) == sorted(OUTCOMES[settlement])
    assert watching.of(QueueAckFailed) == []
    attempts = {"requeue": [1, 2], "release": [1, 1]}.get(settlement, [1])
    assert calls == [(attempt, calls[0][1]) for attempt in attempts]
    assert await queue.left() == 0
    letters = [state for state in (await queue.ends()).values() if state == "dead_lettered"]
    assert len(letters) == (settlement == "dead_letter")


# By queue.
FAILURES = {"postgresql": ["JobQueueError"], "valkey": ["SourceUnavailableError"]}


@pytest.mark.statement("S1-72")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_settlement_cut_beyond_its_limit_is_counted_and_logged(cutting, when, caplog):
    queue = cutting.queue
    await queue.fill(["m-1"])
    caplog.set_level(logging.WARNING)
    keys = []

    async def handle(message, context):
        keys.append(idempotency_key())

    def is_last(happened):
        if type(happened) is QueueAckFailed:
            cutting.heal()
            return when == "after"  # the server has applied it: nothing is delivered again
        return type(happened) is MessageSettled and happened.action == "acknowledge"

    reasons = FAILURES[queue.name]
    lease = 1.5 if when == "before" else 30.0  # until the next delivery
    source = cutting.source(when, "acknowledge", lease=lease, times=None)
    watching = await run(source, handle, queue, is_last, settle_timeout=1.0)
    assert [each.reason for each in watching.of(QueueAckFailed)] == reasons
    assert all(f"cannot settle 1 message: {each}" in caplog.text for each in reasons)
    assert await queue.left() == 0
    # A success that was recorded is acknowledged without a run; else the key is the same.
    assert len(set(keys)) == 1
    assert len(keys) == (2 if (queue.name, when) == ("postgresql", "before") else 1)

"""Requests to a server: their number, and the result of a step whose connection is cut."""

import asyncio
import signal
from functools import partial
from urllib.parse import urlsplit

import pytest

from retrytemplate import (
    AttemptInProgressError,
    CacheUnavailableError,
    LeaseLostError,
    MaxAttemptsRetryPolicy,
    RetryState,
    RetryTemplate,
)
from retrytemplate.caches import Record
from tests.backends.conftest import Awaited, failing, opened
from tests.support import postgres
from tests.support import valkey as servers
from tests.support.cache_kinds import awaited, blocking
from tests.support.proxy import Proxy

KEY = "charge/s:order-17"
# Contained in each request about the key, and in one that writes a record.
ABOUT_IT, A_RECORD = KEY.encode(), b'"format"'


@pytest.fixture(params=["postgresql", "valkey"])
def store(request):
    made = opened(request.param, request)
    yield made
    made.close()


@pytest.fixture
def proxy(store):
    with Proxy(urlsplit(store.url).port) as made:
        yield made


@pytest.fixture(params=["blocking", "awaited"])
def made_on(request):
    """A factory of caches for a URL, synchronous or asynchronous."""
    caches = []

    def make(url, **settings):
        make = blocking if request.param == "blocking" else awaited
        cache = make(url, **settings)
        caches.append(cache if request.param == "blocking" else Awaited(cache))
        return caches[-1]

    yield make
    for cache in caches:
        cache.close()


@pytest.fixture
def cache(store, proxy, made_on):
    """A cache behind the proxy that has connected and run every step once."""
    server = urlsplit(store.url)
    user, at, _ = server.netloc.rpartition("@")
    url = server._replace(netloc=f"{user}{at}127.0.0.1:{proxy.port}").geturl()
    cache = made_on(url, prefix=store.prefix)
    every_step(cache)
    return cache


def every_step(cache):
    claim = cache.begin("other", worker="one")
    cache.renew(claim)
    cache.fail(claim, failing(claim))
    cache.release(cache.begin("other", worker="one"))
    cache.succeed(cache.begin("other", worker="one"), remember=60)
    cache.succeed(claim := cache.begin("other", worker="one", fresh=True))
    cache.holds(claim)
    cache.swap("other", Record(), 0)
    cache.keys()
    cache.forget("other")


# -- how often -------------------------------------------------------------------------------------


def executed(cache, callback, state):
    """The outcome of an execution on this cache, synchronous or asynchronous."""
    of = cache.cache if isinstance(cache, Awaited) else cache
    template = RetryTemplate(MaxAttemptsRetryPolicy(3), cache=of, name="w")
    bound = template.bind(state=state, recovery=lambda context: "recovered")
    if isinstance(cache, Awaited):
        return cache.run(bound.outcome_async(callback))
    return bound.outcome(callback)


@pytest.mark.parametrize("remember", [None, 60])
def test_success_takes_two_round_trips(cache, proxy, remember):
    before = proxy.requests
    assert executed(cache, lambda: 1, RetryState("m1", remember=remember)).value == 1
    assert proxy.requests - before == 2


def test_failure_takes_three_round_trips(cache, proxy):
    before = proxy.requests
    assert not executed(cache, lambda: 1 / 0, RetryState("m1")).ok
    assert proxy.requests - before == 3


@pytest.mark.parametrize("step", ["peek", "forget", "keys"])
def test_single_step_takes_one_round_trip(cache, proxy, step):
    before = proxy.requests
    getattr(cache, step)(*() if step == "keys" else (KEY,))
    assert proxy.requests - before == 1


def test_script_lost_by_the_server_is_sent_again_once(valkey):
    with Proxy(urlsplit(valkey.url).port) as proxy:
        cache = blocking(f"redis://127.0.0.1:{proxy.port}", prefix=valkey.prefix)
        every_step(cache)
        valkey.client.script_flush()
        before = proxy.requests
        for _ in range(2):
            cache.release(cache.begin(KEY, worker="one"))
        assert proxy.requests - before == 6
        cache.close()


# -- cut between request and answer ----------------------------------------------------------------

CUTS = pytest.mark.parametrize("when", ["before", "after"])


@CUTS
def test_claim_is_taken_once_when_the_connection_is_cut(cache, proxy, store, when):
    failed = cache.begin(KEY, worker="one")
    cache.fail(failed, failing(failed))
    proxy.cut(when, ABOUT_IT)
    claim = cache.begin(KEY, worker="two")
    assert proxy.cuts == 1
    assert claim.record.failures == 1
    assert (claim.lost, claim.fence) == (None, int(store.row(KEY)["fence"]))
    cache.fail(claim, failing(claim, 2))
    assert cache.peek(KEY).failures == 2


STEPS = {
    "renew": lambda cache, claim: cache.renew(claim),
    "fail": lambda cache, claim: cache.fail(claim, failing(claim)),
    "keep": lambda cache, claim: cache.fail(claim, failing(claim, held=True)),
    "release": lambda cache, claim: cache.release(claim),
    "succeed": lambda cache, claim: cache.succeed(claim),
    "remember": lambda cache, claim: cache.succeed(claim, remember=60),
}
ENDS = ["succeed", "remember"]
AGAIN = {"postgresql": set(STEPS) - set(ENDS), "valkey": set(STEPS)}


def steps(*names):
    return pytest.mark.parametrize("step", names)


@CUTS
@steps(*STEPS)
def test_step_ends_the_same_when_the_connection_is_cut(cache, proxy, store, step, when):
    """Except the end of an attempt on SQL, which is not repeated."""
    STEPS[step](cache, cache.begin(KEY, worker="one"))
    expected = what_is_kept(store)
    cache.forget(KEY)
    claim = cache.begin(KEY, worker="one")
    before = what_is_kept(store)
    proxy.cut(when, ABOUT_IT)
    if step in AGAIN[store.kind]:
        STEPS[step](cache, claim)
    else:
        with pytest.raises(CacheUnavailableError, match=f"succeed of '{KEY}' failed in the store"):
            STEPS[step](cache, claim)
        expected = expected if when == "after" else before
    assert proxy.cuts == 1
    assert what_is_kept(store) == expected


def what_is_kept(store):
    """The stored state without times and other varying numbers."""
    row = store.row(KEY)
    return row and {name: row[name] for name in ("phase", "worker", "lost")} | {
        "failures": row["record"] and '"failures":1' in row["record"],
        "version": int(row.get("version") or 0),
    }


@steps("renew", "fail")
def test_late_holder_gets_lease_lost_error_after_a_cut(cache, proxy, store, step):
    claim = cache.begin(KEY, worker="one")
    store.age(31)
    store.cache().begin(KEY, worker="two")
    proxy.cut("after", ABOUT_IT)
    with pytest.raises(LeaseLostError):
        STEPS[step](cache, claim)
    assert store.row(KEY)["worker"] == "two"


@CUTS
def test_read_only_step_is_repeated_after_a_cut(cache, proxy, when):
    claim = cache.begin(KEY, worker="one")
    proxy.cut(when, ABOUT_IT)
    assert cache.holds(claim)
    cache.fail(claim, failing(claim))
    proxy.cut(when, ABOUT_IT)
    assert cache.peek(KEY).failures == 1
    proxy.cut(when)
    assert cache.keys() == [KEY]
    assert proxy.cuts == 3


@CUTS
def test_forget_is_not_repeated_after_a_cut(cache, proxy, store, when):
    claim = cache.begin(KEY, worker="one")
    cache.fail(claim, failing(claim))
    proxy.cut(when, ABOUT_IT)
    with pytest.raises(CacheUnavailableError, match=f"forget of '{KEY}' failed in the store"):
        cache.forget(KEY)
    assert (store.row(KEY) is None) == (when == "after")


@CUTS
def test_swap_is_not_repeated_after_a_cut(cache, proxy, when):
    cache.swap(KEY, Record(version=1), 0)
    proxy.cut(when, ABOUT_IT)
    with pytest.raises(CacheUnavailableError, match=f"swap of '{KEY}' failed in the store"):
        cache.swap(KEY, Record(version=2), 1)
    assert cache.peek(KEY).version == (2 if when == "after" else 1)


@CUTS
@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("words", [(), (A_RECORD,)], ids=["begin", "fail"])
def test_execution_counts_each_attempt_once_at_any_cut(cache, proxy, store, words, turn, when):
    state = RetryState("m1")
    calls = []

    def work():
        calls.append(None)
        raise ZeroDivisionError

    for attempt in range(3):
        if attempt == turn:
            proxy.cut(when, b"w/s:m1", *words)
        assert isinstance(executed(cache, work, state).exception, ZeroDivisionError)
        assert store.cache().peek("w/s:m1").failures == len(calls) == attempt + 1
    assert proxy.cuts == 1
    assert executed(cache, work, state).value == "recovered"
    assert len(calls) == 3
    assert store.row("w/s:m1") is None


def test_two_consecutive_cuts_raise_an_error(cache, proxy):
    for _ in range(2):
        proxy.cut("before", ABOUT_IT)
    with pytest.raises(CacheUnavailableError, match=f"begin of '{KEY}' failed in the store"):
        cache.begin(KEY, worker="one")
    assert proxy.cuts == 2
    assert cache.begin(KEY, worker="two").lost is None


@pytest.mark.parametrize("step", ["forget", "peek"])
def test_idle_connections_that_are_cut_are_replaced(valkey, step):
    """A command sent once uses a tested connection; one that may be repeated needs no third."""
    cache = valkey.cache()
    taken = [cache._store.pool.get_connection() for _ in range(3)]
    cache._store._idle.extend(taken)
    assert valkey.client.client_kill_filter(_type="normal", skipme=True) >= 3
    for _ in range(3):
        getattr(cache, step)(KEY)


def with_one_connection(url):
    return f"{url}{'&' if '?' in url else '?'}max_connections=1"


def test_connections_are_limited_by_the_url(valkey):
    url = with_one_connection(valkey.url)
    with blocking(url, prefix=valkey.prefix, timeout=0.3) as cache:
        turn = cache._store._permits.get()
        with pytest.raises(CacheUnavailableError) as caught:
            cache.peek(KEY)
        cache._store._permits.put(turn)
        assert str(caught.value).endswith("no connection is free")
        assert cache.peek(KEY) is None


async def test_connections_of_tasks_are_limited_by_the_url(valkey):
    url = with_one_connection(valkey.url)
    async with awaited(url, prefix=valkey.prefix, timeout=0.3) as cache:
        async with cache._store._permits:
            with pytest.raises(CacheUnavailableError, match="no answer in time"):
                await cache.peek(KEY)
        assert await cache.peek(KEY) is None


def test_tasks_share_one_connection_in_successive_event_loops(valkey):
    cache = awaited(with_one_connection(valkey.url), prefix=valkey.prefix)

    async def peek():
        async with cache:
            return await asyncio.gather(*(cache.peek(KEY) for _ in range(3)))

    for _ in range(2):
        assert asyncio.run(peek()) == [None] * 3


def test_repeated_command_is_recognised_by_the_server(valkey):
    """A repeated command is recognised."""
    cache = valkey.cache()
    every_step(cache)
    order = next(cache._steps.begin(KEY, "one", None, False, None))
    answers = {cache._store.ask(order, "begin") for _ in range(2)}
    assert len(answers) == 1


def test_calls_of_a_forked_child_have_other_tokens(valkey):
    cache = valkey.cache()
    tokens = {cache._steps._token()}
    cache._forked()
    assert cache._steps._token() not in tokens


# -- a server that crashes, and one that does not answer -------------------------------------------


@pytest.fixture
def server(valkey_binary, tmp_path):
    with servers.started(valkey_binary, tmp_path / "server") as server:
        yield server


@pytest.fixture
def on(server, made_on):
    """A factory of caches on a server that the test may kill."""
    return partial(made_on, server.url)


def test_answers_of_a_killed_server_are_durable_after_restart(on, server):
    cache = on()
    claim = cache.begin(KEY, worker="one")
    server.kill()
    server.start()
    with pytest.raises(AttemptInProgressError, match="by one"):
        cache.begin(KEY, worker="two")
    cache.fail(claim, failing(claim))
    server.kill()
    server.start()
    assert cache.begin(KEY, worker="two").record.failures == 1


def test_server_restart_during_an_attempt_loses_no_attempt(on, server):
    cache = on()
    calls = []

    def work():
        calls.append(None)
        server.kill()
        server.start()
        raise ZeroDivisionError

    for attempt in (1, 2, 3):
        outcome = executed(cache, work, RetryState("m1"))
        assert isinstance(outcome.exception, ZeroDivisionError)
        assert cache.peek("w/s:m1").failures == attempt == len(calls)
    assert executed(cache, work, RetryState("m1")).value == "recovered"


def test_stopped_server_is_an_error_until_it_is_started(on, server):
    cache = on()
    cache.peek(KEY)
    server.kill()
    for _ in range(2):
        with pytest.raises(CacheUnavailableError, match=r"begin of .* failed in the store"):
            cache.begin(KEY, worker="one")
    server.start()
    assert cache.begin(KEY, worker="one").record is None


def test_server_that_hangs_is_an_error_without_a_second_try(on, server):
    """The server runs the command when it continues: the key is held by a cancelled task."""
    cache = on(timeout=0.3)
    cache.begin("other", worker="one")
    server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(
        CacheUnavailableError, match=r"begin .* failed .* (Timeout reading|in time)"
    ):
        cache.begin(KEY, worker="one")
    server.process.send_signal(signal.SIGCONT)
    with servers.opened(server.url) as client:
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 2
    with pytest.raises(AttemptInProgressError, match="by one"):
        on().begin(KEY, worker="two")


async def test_cancelled_step_leaves_no_response_for_the_next_step(server):
    async with awaited(server.url) as cache:
        await cache.begin("other", worker="one")
        server.process.send_signal(signal.SIGSTOP)
        step = asyncio.create_task(cache.peek("other"))
        while not asking(cache):
            await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        server.process.send_signal(signal.SIGCONT)
        claim = await cache.begin(KEY, worker="one")
        assert (claim.key, claim.record) == (KEY, None)


def asking(cache):
    return not cache._store._idle


# -- a server that becomes a replica ---------------------------------------------------------------


def test_claim_after_failover_is_taken_on_new_primary(server, valkey, made_on):
    with Proxy(server.port) as proxy:
        cache = made_on(f"redis://127.0.0.1:{proxy.port}", prefix=valkey.prefix)
        fill_pool(cache, 3)
        cache.peek(KEY)
        with servers.opened(server.url) as client:
            client.replicaof("127.0.0.1", postgres.free_port())
        proxy.redirect(urlsplit(valkey.url).port)
        claim = cache.begin(KEY, worker="one")
        assert valkey.row(KEY)["worker"] == "one"
        cache.succeed(claim)


def test_replica_without_new_primary_is_a_store_error(server, on):
    cache = on()
    cache.peek(KEY)
    with servers.opened(server.url) as client:
        client.replicaof("127.0.0.1", postgres.free_port())
        for _ in range(2):
            with pytest.raises(CacheUnavailableError, match=r"begin of .* read only replica"):
                cache.begin(KEY, worker="one")
        client.replicaof("NO", "ONE")
    assert cache.begin(KEY, worker="one").record is None


def fill_pool(cache, number):
    """Open this many connections and return them to the pool."""
    if isinstance(cache, Awaited):

        async def take():
            return [await cache.cache._store.pool.get_connection() for _ in range(number)]

        cache.cache._store._idle.extend(cache.run(take()))
    else:
        cache._store._idle.extend(cache._store.pool.get_connection() for _ in range(number))

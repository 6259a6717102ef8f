"""Contexts in a cache of get, put, remove and contains; and what such a cache cannot promise."""

import gc
import json
import pickle
import threading

import pytest

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    CacheUnavailableError,
    CircuitBreakerRetryPolicy,
    ExhaustedRetryError,
    ExponentialBackoff,
    LeaseLostError,
    MisuseError,
    RecordedFailure,
    RetryContextCache,
    RetryLater,
    RetryState,
    RetryTemplate,
    SimpleCacheAdapter,
    SimpleRetryPolicy,
    TerminatedRetryError,
    TimeoutRetryPolicy,
    Veto,
)
from retrytemplate.caches import Record
from retrytemplate.caches.record import from_json, to_json
from retrytemplate.testing import CacheConformance, Recorder, VirtualClock
from retrytemplate.testing.conformance.cache import METHODS, WORKERS
from tests.meeting import Meeting
from tests.ways import Script, both_kinds, every_way

KEY = "orders/s:order-17"
STATE = RetryState("order-17")


class Store:
    """A cache as somebody has it: four methods over a dictionary, and a list of its calls."""

    def __init__(self):
        self.kept = {}
        self.calls = []

    def get(self, key):
        self.calls.append("get")
        return self.kept.get(key)

    def put(self, key, value):
        self.calls.append("put")
        self.kept[key] = value

    def remove(self, key):
        self.calls.append("remove")
        self.kept.pop(key, None)

    def contains(self, key):
        self.calls.append("contains")
        return key in self.kept


class Strict(dict):
    """Unknown keys are errors, and `in` is the only way to ask."""

    def get(self, key):
        return self[key]

    put = dict.__setitem__
    remove = dict.__delitem__


def recovered(context):
    return "recovered"


def made(store=None, attempts=3, clock=None, **settings):
    """A template over a store; as another process that shares it would make one."""
    clock = clock or VirtualClock()
    cache = SimpleCacheAdapter(Store() if store is None else store, blocking=False, clock=clock)
    settings = {
        "policy": SimpleRetryPolicy(attempts),
        "name": "orders",
        "cache": cache,
        "clock": clock,
    } | settings
    return RetryTemplate(**settings)


# -- the kit -------------------------------------------------------------------------------------


class TestWithFourMethods(CacheConformance):
    def make(self):
        return SimpleCacheAdapter(Store())


class TestWithErrorsForUnknownKeys(CacheConformance):
    def make(self):
        return SimpleCacheAdapter(Strict())


class LookedAtByAll(Store):
    """The first looks of all threads happen at once: none sees what another is about to write."""

    def __init__(self):
        super().__init__()
        self.looks = Meeting(WORKERS, steps=2)

    def get(self, key):
        found = super().get(key)
        self.looks.come()
        return found


class OneForEachThread:
    """An adapter for each thread over one store: what several processes have."""

    def __init__(self, store):
        self.store = store
        self.own = threading.local()

    @staticmethod
    def method(name):
        def method(self, *args, **kwargs):
            if not hasattr(self.own, "adapter"):
                self.own.adapter = SimpleCacheAdapter(self.store)
            return getattr(self.own.adapter, name)(*args, **kwargs)

        return method


for method_name in (*METHODS, "__contains__"):
    setattr(OneForEachThread, method_name, OneForEachThread.method(method_name))


class BetweenProcesses(CacheConformance):
    def make(self):
        return OneForEachThread(LookedAtByAll())


def test_between_processes_it_fails_the_kits_tests_of_concurrency_and_nothing_else():
    failed = BetweenProcesses().run_all()
    assert sorted(failed) == [
        "test_concurrency_no_change_of_a_shared_record_is_lost",
        "test_concurrency_no_failure_is_lost",
        "test_concurrency_one_of_several_gets_a_key",
    ]
    assert "8 of 8 hold the key at once" in str(
        failed["test_concurrency_one_of_several_gets_a_key"]
    )


# -- what it does not guarantee ------------------------------------------------------------------


def test_two_adapters_over_one_store_give_one_key_to_both():
    store = Store()
    one, other = SimpleCacheAdapter(store), SimpleCacheAdapter(store)
    claims = one.begin(KEY, worker="one"), other.begin(KEY, worker="two")

    assert [one.holds(claims[0]), other.holds(claims[1])] == [True, True]
    with pytest.raises(AttemptInProgressError):
        one.begin(KEY, worker="three")


def test_of_two_failures_at_once_in_two_processes_one_is_not_counted():
    store = Store()
    one, other = made(store), made(store)

    def callback(context):
        with pytest.raises(ValueError, match="inner"):
            other.execute(Script(ValueError("inner")), state=STATE)
        raise ValueError("outer")

    with pytest.raises(ValueError, match="outer"):
        one.execute(callback, state=STATE)
    assert one.cache.peek(KEY).failures == 1


def test_an_attempt_whose_process_died_is_not_seen():
    store = Store()
    SimpleCacheAdapter(store).begin(KEY, worker="died")
    claim = SimpleCacheAdapter(store).begin(KEY, worker="next")

    assert (claim.record, claim.lost) == (None, None)
    assert store.kept == {}


def test_a_fence_does_not_outlive_the_record():
    store = Store()
    fences = []
    for _ in range(2):
        adapter = SimpleCacheAdapter(store)
        claim = adapter.begin(KEY, worker="one")
        fences.append(claim.fence)
        adapter.succeed(claim)
    assert fences == [1, 1]


def test_while_a_record_is_kept_the_fence_grows_from_process_to_process():
    store = Store()
    fences = []
    for _ in range(4):
        adapter = SimpleCacheAdapter(store)
        adapter.release(adapter.begin("another", worker="one"))
        adapter.release(adapter.begin(KEY, worker="one"))
        claim = adapter.begin(KEY, worker="one")
        fences.append(claim.fence)
        adapter.fail(claim, Record(version=claim.version + 1, fence=claim.fence))
    assert fences == sorted(set(fences))


def test_it_completes_no_attempt_in_a_database():
    template = made()
    with pytest.raises(MisuseError, match="SimpleCacheAdapter has no database"):
        template.execute(lambda context: context.complete_in(object()), state=STATE)


# -- what is kept --------------------------------------------------------------------------------


def test_a_failure_is_kept_as_json_text_under_the_encoded_key(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("nothing is pickled")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    store = Store()
    template = made(store)
    for _ in range(2):
        with pytest.raises(ValueError):
            template.execute(Script(ValueError("zu spät ⏰")), state=STATE)

    assert list(store.kept) == [KEY]
    assert type(store.kept[KEY]) is str

    def no_constant(name):
        raise AssertionError(f"{name} is no JSON")

    data = json.loads(store.kept[KEY], parse_constant=no_constant)
    assert (data["format"], data["phase"], data["failures"]) == (1, "idle", 2)
    assert data["last"] == {"type": "ValueError", "message": "zu spät ⏰", "cause": None}
    assert to_json(from_json(data)) == to_json(template.cache.peek(KEY))


def test_what_is_no_json_number_is_not_written():
    template = made(policy=TimeoutRetryPolicy(60.0))
    claim = template.cache.begin(KEY, worker="one")
    with pytest.raises(ValueError, match="JSON"):
        template.cache.fail(claim, Record(policy_state=float("inf")))
    assert template.cache.peek(KEY) is None


def test_a_cache_that_gives_bytes_is_understood():
    class Bytes(Store):
        def get(self, key):
            text = super().get(key)
            return None if text is None else text.encode()

    template = made(Bytes(), 2)
    for _ in range(2):
        with pytest.raises(ValueError):
            template.execute(Script(ValueError()), state=STATE)
    assert template.execute(Script("no call"), recovery=recovered, state=STATE) == "recovered"


def test_messages_and_tracebacks_are_redacted():
    store = Store()
    cache = SimpleCacheAdapter(store, redact=lambda text: text.replace("4711", "(pin)"))
    template = RetryTemplate(name="orders", cache=cache)
    with pytest.raises(ValueError, match="4711"):
        template.execute(Script(ValueError("pin 4711")), state=STATE)

    assert "4711" not in store.kept[KEY]
    assert "pin (pin)" in store.kept[KEY]


def test_a_success_at_once_costs_one_look():
    store = Store()
    made(store).execute(Script("done"), state=STATE)
    assert store.calls == ["get"]


def test_asking_whether_a_key_is_kept_reads_only_what_is_there():
    store = Store()
    cache = SimpleCacheAdapter(store)
    assert KEY not in cache
    assert store.calls == ["contains"]
    assert 5 not in cache


# -- remembered successes ------------------------------------------------------------------------


def test_a_success_is_remembered_in_the_store_for_its_time():
    store, clock = Store(), VirtualClock()
    state = RetryState("order-17", remember=60)
    made(store, clock=clock).execute(Script("done"), state=state)

    [text] = store.kept.values()
    mark = json.loads(text)
    assert (mark["phase"], mark["not_before"]) == ("done", clock.time() + 60)
    assert (mark["version"], mark["fence"]) == (1, 1)
    clock.advance(59)
    callback = Script("again")
    with pytest.raises(AlreadyCompletedError, match="order-17"):
        made(store, clock=clock).execute(callback, state=state)
    assert callback.calls == 0
    clock.advance(1)
    assert made(store, clock=clock).execute(callback, state=state) == "again"


def test_a_remembered_success_is_no_context():
    template = made()
    template.execute(Script("done"), state=RetryState("order-17", remember=60))

    assert KEY in template.cache.cache.kept
    assert KEY not in template.cache
    assert template.cache.peek(KEY) is None


def test_a_mark_whose_time_is_over_is_replaced_by_the_next_failure():
    clock = VirtualClock()
    template = made(clock=clock)
    template.execute(Script("done"), state=RetryState("order-17", remember=60))
    clock.advance(60)
    with pytest.raises(ValueError):
        template.execute(Script(ValueError()), state=STATE)

    assert template.cache.peek(KEY).failures == 1
    template.execute(Script("done"), state=STATE)
    assert template.cache.cache.kept == {}


def test_remembering_for_no_time_remembers_nothing():
    template = made()
    for _ in range(2):
        state = RetryState("order-17", remember=0)
        assert template.execute(Script("done"), state=state) == "done"


# -- flows, each delivery in another process -----------------------------------------------------


@every_way
def test_redeliveries_go_on_from_process_to_process_until_the_recovery(way):
    store, seen = Store(), []

    def fails(context):
        seen.append((context.attempt, context.retry_count, str(context.last_exception)))
        raise ValueError(f"failure {context.attempt}")

    for _ in range(3):
        with pytest.raises(ValueError, match="failure"):
            way(made(store), fails, state=STATE)
    assert seen == [
        (1, 0, "None"),
        (2, 1, "ValueError: failure 1"),
        (3, 2, "ValueError: failure 2"),
    ]

    def recover(context):
        assert type(context.last_exception) is RecordedFailure
        return [attempt.message for attempt in context.history]

    messages = way(made(store), fails, recovery=recover, state=STATE)
    assert messages == ["failure 1", "failure 2", "failure 3"]
    assert len(seen) == 3
    assert store.kept == {}


@both_kinds
def test_a_redelivery_that_succeeds_leaves_nothing(way):
    store = Store()
    with pytest.raises(ValueError):
        way(made(store), Script(ValueError()), state=STATE)
    assert way(made(store), Script("done"), state=STATE) == "done"
    assert store.kept == {}


@both_kinds
def test_without_a_recovery_the_exhausted_key_is_forgotten(way):
    store = Store()
    for _ in range(2):
        with pytest.raises(ValueError):
            way(made(store, 2), Script(ValueError()), state=STATE)
    with pytest.raises(ExhaustedRetryError, match="2 failed attempts"):
        way(made(store, 2), Script("no call"), state=STATE)
    assert store.kept == {}


def test_collector_of_abandoned_loop_calls_no_cache():
    store = Store()
    template = made(store)
    attempts = template.attempts(state=RetryState("order-17", rollback_for=()))
    with next(attempts):
        raise ValueError
    next(attempts)
    store.calls.clear()
    del attempts
    gc.collect()
    assert store.calls == []
    assert template.cache.begin(KEY, worker="next").record.failures == 1


@both_kinds
def test_recovery_of_remembering_state_leaves_no_mark(way):
    store, state = Store(), RetryState("order-17", remember=60, rollback_for=())
    way(made(store, 1), Script(ValueError()), recovery=lambda context: "dead", state=state)
    assert store.kept == {}


@both_kinds
def test_a_recovery_that_raises_has_its_turn_again(way):
    store, turns = Store(), []

    def recover(context):
        turns.append(context.retry_count)
        if len(turns) == 1:
            raise OSError("dead letters are down")
        return "recovered"

    with pytest.raises(ValueError):
        way(made(store, 1), Script(ValueError()), recovery=recover, state=STATE)
    callback = Script("no call")
    with pytest.raises(OSError):
        way(made(store, 1), callback, recovery=recover, state=STATE)
    assert json.loads(store.kept[KEY])["phase"] == "recovering"
    assert way(made(store, 1), callback, recovery=recover, state=STATE) == "recovered"
    assert (turns, callback.calls, store.kept) == ([1, 1], 0, {})


@both_kinds
def test_attempts_in_place_and_rethrown_ones_add_up(way):
    store = Store()
    state = RetryState("order-17", rollback_for=OSError)
    callback = Script(ValueError(), ValueError(), OSError())
    with pytest.raises(OSError):
        way(made(store, 4), callback, state=state)
    assert callback.seen == [1, 2, 3]
    assert way(made(store, 4), after := Script("done"), state=state) == "done"
    assert after.seen == [4]


@both_kinds
def test_attributes_and_backoff_go_on_where_they_were(way):
    store, seen = Store(), []

    def fails(context):
        seen.append(dict(context.attributes))
        context.attributes["deliveries"] = len(seen)
        raise ValueError

    slept = []
    for _ in range(3):
        template = made(store, 9, backoff=ExponentialBackoff(initial=1.0, multiplier=2.0))
        with pytest.raises(ValueError):
            way(template, fails, state=STATE)
        slept += template.clock.sleeps
    assert seen == [{}, {"deliveries": 1}, {"deliveries": 2}]
    assert slept == [1.0, 2.0, 4.0]


@both_kinds
def test_a_deferred_backoff_is_due_in_the_next_process_too(way):
    store, clock = Store(), VirtualClock()
    state = RetryState("order-17", defer_backoff="raise")
    settings = {"clock": clock, "backoff": ExponentialBackoff(initial=5.0)}
    with pytest.raises(ValueError):
        way(made(store, **settings), Script(ValueError()), state=state)
    clock.advance(2)
    with pytest.raises(RetryLater) as caught:
        way(made(store, **settings), Script("too early"), state=state)
    assert caught.value.retry_after == pytest.approx(3.0)
    clock.advance(3)
    assert way(made(store, **settings), Script("done"), state=state) == "done"


@both_kinds
def test_a_vetoed_delivery_gives_its_attempt_back(way):
    class Vetoes(Recorder):
        def open(self, context):
            raise Veto("not now")

    store = Store()
    with pytest.raises(ValueError):
        way(made(store), Script(ValueError()), state=STATE)
    before = dict(store.kept)
    with pytest.raises(TerminatedRetryError, match="not now"):
        way(made(store, listeners=[Vetoes()]), Script("no call"), state=STATE)
    assert store.kept == before


def test_a_fresh_start_counts_from_the_beginning():
    store = Store()
    for _ in range(2):
        with pytest.raises(ValueError):
            made(store, 9).execute(Script(ValueError()), state=STATE)
    fresh = RetryState("order-17", force_refresh=True)
    with pytest.raises(ValueError):
        made(store, 9).execute(callback := Script(ValueError()), state=fresh)
    assert callback.seen == [1]
    assert made(store).cache.peek(KEY).failures == 1


def test_a_circuit_breaker_is_open_for_the_next_process_too():
    store, clock = Store(), VirtualClock()

    def deliver(callback):
        policy = CircuitBreakerRetryPolicy(
            SimpleRetryPolicy(1), open_timeout=5.0, reset_timeout=20.0
        )
        state = RetryState("payments", rollback_for=lambda failure: False)
        template = made(store, clock=clock, policy=policy)
        return template.execute(callback, recovery=lambda context: "fallback", state=state)

    assert deliver(Script(ValueError())) == "fallback"
    assert deliver(callback := Script("up again")) == "fallback"
    assert callback.calls == 0
    clock.advance(30)
    assert deliver(callback) == "up again"


def test_a_nested_execution_of_the_same_key_is_refused():
    template = made()
    with pytest.raises(AttemptInProgressError, match="order-17"):
        template.execute(
            lambda context: template.execute(Script("nested"), state=STATE), state=STATE
        )


# -- trouble with the cache ----------------------------------------------------------------------


class Broken(Store):
    """The methods that are named raise, as long as they are."""

    def __init__(self, *names, error=None):
        super().__init__()
        error = error or ConnectionError("gone")
        self.broken = set(names)
        for name in ("get", "put", "remove", "contains"):
            setattr(self, name, self.method(name, getattr(self, name), error))

    def method(self, name, working, error):
        def method(*arguments):
            if name in self.broken:
                raise error
            return working(*arguments)

        method.__qualname__ = f"Broken.{name}"
        return method


def test_a_cache_that_cannot_be_reached_is_said_to_be_so_and_nothing_is_called():
    template = made(store := Broken("get"))
    callback = Script("done")
    with pytest.raises(CacheUnavailableError, match=r"Broken.get raised ConnectionError") as caught:
        template.execute(callback, state=STATE)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert callback.calls == 0
    store.broken.clear()
    assert template.execute(callback, state=STATE) == "done"


@pytest.mark.parametrize("error", [ConnectionError("gone"), KeyError("gone")], ids=repr)
def test_a_failure_that_cannot_be_written_does_not_hide_the_callbacks_own(error):
    template = made(store := Broken("put", error=error))
    failure = ValueError("mine")
    with pytest.raises(ValueError) as caught:
        template.execute(Script(failure), state=STATE)
    assert caught.value is failure
    assert "the failure could not be recorded: CacheUnavailable" in "".join(failure.__notes__)
    store.broken.clear()
    assert template.execute(Script("done"), state=STATE) == "done"


def test_a_key_is_free_again_although_its_last_write_failed():
    store = Broken()
    cache = SimpleCacheAdapter(store)
    claim = cache.begin(KEY, worker="one")
    cache.fail(claim, Record(version=1, worker="one"))
    store.broken = {"put", "remove"}
    with pytest.raises(CacheUnavailableError):
        cache.fail(claim, Record(version=2))
    assert not cache.holds(claim)
    claim = cache.begin(KEY, worker="two")
    with pytest.raises(CacheUnavailableError):
        cache.succeed(claim)
    assert not cache.holds(claim)


def test_a_key_that_could_not_be_read_is_not_held():
    store = Broken("get")
    cache = SimpleCacheAdapter(store)
    with pytest.raises(CacheUnavailableError):
        cache.begin(KEY, worker="one")
    store.broken.clear()
    assert cache.begin(KEY, worker="two").record is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "5",
        "[]",
        "{}",
        b"\x80\x04K\x05.",
        b"\xff\xfe\xfd",
        5,
        {"format": 1},
        '{"format":2}',
        '{"format":1,"last":null,"history":[{"num',
        '{"format":1,"last":null,"history":[],"failures":"three"}',
        "[" * 100_000,
        "9" * 5_000,
    ],
)
def test_what_is_no_record_is_said_to_be_none_and_can_be_forgotten(text):
    store = Store()
    store.kept[KEY] = text
    template = made(store)
    callback = Script("done")
    with pytest.raises(CacheUnavailableError):
        template.execute(callback, state=STATE)
    assert callback.calls == 0
    template.cache.forget(KEY)
    assert template.execute(callback, state=STATE) == "done"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"format":1', "no JSON text"),
        ('{"format":1,"last":null,"history":[],"failures":-1}', "failures must be an int >= 0"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_key(text, says):
    store = Store()
    store.kept[KEY] = text
    with pytest.raises(CacheUnavailableError, match=f"under {KEY!r} .*{says}"):
        SimpleCacheAdapter(store).peek(KEY)


def test_keys_that_are_not_there_may_be_forgotten():
    for store in (Store(), Strict()):
        SimpleCacheAdapter(store).forget(KEY)


def test_a_store_may_come_back_to_its_adapter():
    class Curious(Store):
        def get(self, key):
            if key != "another":
                assert cache.peek("another") is None
            return super().get(key)

    cache = SimpleCacheAdapter(Curious())
    assert cache.begin(KEY, worker="one").record is None


def test_an_interrupt_in_the_cache_is_passed_on_and_leaves_the_key_free():
    store = Broken("get", error=KeyboardInterrupt())
    template = made(store)
    with pytest.raises(KeyboardInterrupt):
        template.execute(Script("done"), state=STATE)
    store.broken.clear()
    assert template.execute(Script("done"), state=STATE) == "done"


# -- asynchronous use ----------------------------------------------------------------------------


@every_way
def test_a_cache_that_may_wait_is_refused_in_tasks(way):
    template = made(cache=SimpleCacheAdapter(Store()))
    if way.__name__ in ("in_thread", "in_block"):
        assert way(template, Script("done"), state=STATE) == "done"
    else:
        with pytest.raises(MisuseError, match="SimpleCacheAdapter blocks"):
            way(template, Script("done"), state=STATE)


class Later:
    """What an asynchronous client returns, without being a coroutine."""

    def __await__(self):
        raise AssertionError("nobody awaits this")
        yield


async def coroutine_function(*_):
    raise AssertionError("nobody awaits this")


@pytest.mark.parametrize("step", ["get", "put", "remove", "contains"])
@pytest.mark.parametrize("later", [coroutine_function, lambda *_: Later()])
def test_an_asynchronous_cache_is_named(step, later):
    store = Store()
    cache = SimpleCacheAdapter(store)
    cache.fail(cache.begin(KEY, worker="one"), Record())
    later.__qualname__ = f"AsyncStore.{step}"
    setattr(store, step, later)
    cache = SimpleCacheAdapter(store)

    def use():
        assert KEY in cache
        claim = cache.begin(KEY, worker="one")
        cache.fail(claim, Record(version=claim.version + 1))
        cache.forget(KEY)

    with pytest.raises(MisuseError, match=f"AsyncStore.{step} returned an awaitable"):
        use()


# -- settings ------------------------------------------------------------------------------------


def test_it_is_a_cache_whose_keys_need_a_scope():
    cache = SimpleCacheAdapter(Store())
    assert isinstance(cache, RetryContextCache)
    assert (cache.durable, cache.blocking) == (True, True)
    with pytest.raises(ValueError, match="name is required with a durable cache"):
        RetryTemplate(cache=cache)


@pytest.mark.parametrize("name", ["get", "put", "remove", "contains"])
@pytest.mark.parametrize("value", [None, "text"])
def test_a_cache_without_one_of_the_methods_is_refused(name, value):
    store = Store()
    setattr(store, name, value)
    with pytest.raises(TypeError, match=r"cache must be an object with the methods get, put, rem"):
        SimpleCacheAdapter(store)


@pytest.mark.parametrize(
    "value", [None, 5, {}, "cache", Store, pytest.param(object(), id="object")], ids=repr
)
def test_what_is_no_cache_is_refused(value):
    with pytest.raises(TypeError, match="cache must be an object with the methods") as caught:
        SimpleCacheAdapter(value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("blocking", None), ("blocking", 1), ("clock", 5), ("clock", VirtualClock), ("redact", 5)],
)
def test_senseless_settings_are_refused_by_name(name, value):
    with pytest.raises(TypeError, match=f"{name} must be"):
        SimpleCacheAdapter(Store(), **{name: value})


def test_a_claim_that_was_forgotten_writes_nothing_to_the_store():
    store = Store()
    cache = SimpleCacheAdapter(store)
    claim = cache.begin(KEY, worker="one")
    cache.forget(KEY)
    with pytest.raises(LeaseLostError):
        cache.fail(claim, Record())
    assert store.kept == {}

"""Reload: components that stay, change or are replaced, and files that are not valid."""

import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from retrytemplate import CircuitOpenError
from retrytemplate.config import ConfigError, ConfigRejected, ConfigReloaded, load
from retrytemplate.control import ControlListener
from retrytemplate.testing import VirtualClock
from tests.support.configs import ENVIRON, EXAMPLE, load_text
from tests.support.polling import wait_until

TEXT = """
retry: {endpoints: {billing: {max_attempts: 2, initial: 0, jitter: null, budget: true}}}
breaker: {endpoints: {billing: {window: {consecutive: 1}, reset_timeout: 30s}}}
rate_limiter: {endpoints: {search: {permits: 10, per: 1m}}}
bulkhead: {endpoints: {search: {limit: 1, queue: 1, max_wait: 1m}}}
"""


class Events(ControlListener):
    def __init__(self):
        self.seen = []

    def on_event(self, event):
        self.seen.append(event)


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def config(tmp_path, clock):
    return load_text(tmp_path, TEXT, clock=clock)


def change(tmp_path, *pairs, text=TEXT):
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "resilience.yaml").write_text(text)


def layer(config, endpoint, kind):
    (found,) = (
        each for each in config.endpoint(endpoint).pipeline.layers if type(each).__name__ == kind
    )
    return found


def test_unchanged_settings_keep_the_same_objects(config):
    pipelines = [config.endpoint(each).pipeline for each in config.names]
    done = config.reload()
    assert (done.changed, done.rebuilt, done.removed) == ((), (), ())
    assert [config.endpoint(each).pipeline for each in config.names] == pipelines


def test_wrapped_function_uses_the_new_settings(config, tmp_path):
    calls = []

    @config.endpoint("billing").wrap
    def charge():
        calls.append(1)
        raise ConnectionError

    change(tmp_path, ("max_attempts: 2", "max_attempts: 3"), ("consecutive: 1", "consecutive: 9"))
    done = config.reload()
    assert done.changed == ("billing",)
    assert set(done.rebuilt) == {"billing.retry", "billing.breaker"}
    with pytest.raises(ConnectionError):
        charge()
    assert len(calls) == 3


def test_open_circuit_stays_open_with_other_settings(config, tmp_path, clock):
    endpoint = config.endpoint("billing")
    assert not endpoint.outcome(int, "x").ok
    old = layer(config, "billing", "CircuitBreaker")
    old.force_open(by="kim", reason="outage", seconds=60)
    change(tmp_path, ("30s", "5s"))
    config.reload()
    assert layer(config, "billing", "CircuitBreaker") is not old
    with pytest.raises(CircuitOpenError):
        endpoint.call(int, "17")
    clock.advance(61.0)
    assert endpoint.call(int, "17") == 17


def test_circuit_opened_by_failures_stays_open_after_a_reload(config, tmp_path, clock):
    endpoint = config.endpoint("billing")
    assert not endpoint.outcome(int, "x").ok
    change(tmp_path, ("consecutive: 1", "consecutive: 3"))
    assert "billing.breaker" in config.reload().rebuilt
    assert layer(config, "billing", "CircuitBreaker").state == "open"
    with pytest.raises(CircuitOpenError):
        endpoint.call(int, "17")
    clock.advance(40.0)
    assert endpoint.call(int, "17") == 17


def test_circuit_that_opens_during_the_reload_is_open(config, tmp_path):
    old = layer(config, "billing", "CircuitBreaker")
    change(tmp_path, ("30s", "5s"))
    live = config._reloader.live
    built, handover = config._source.parse(config._source.read(), live.built)

    def assign():
        old.force_open(by="kim", reason="outage")
        live.built = built

    handover.put_in_force(assign)
    assert layer(config, "billing", "CircuitBreaker").state == "forced_open"


def test_limits_are_resized_with_calls_inside(config, tmp_path):
    bulkhead = layer(config, "search", "Bulkhead")
    change(tmp_path, ("limit: 1, queue: 1", "limit: 2, queue: 0"), ("permits: 10", "permits: 20"))
    with ThreadPoolExecutor(1) as pool, bulkhead.slot():
        waiting = pool.submit(config.endpoint("search").call, int, "17")
        wait_until(lambda: bulkhead.snapshot().waiting)
        done = config.reload()
        assert waiting.result(60) == 17
    assert (done.changed, done.rebuilt) == (("search",), ())
    assert layer(config, "search", "Bulkhead") is bulkhead
    assert (bulkhead.limit, bulkhead.queue) == (2, 0)
    limits = layer(config, "search", "RateLimiter").snapshot()
    assert (limits.permits, limits.available) == (20, 9)  # free permits stay free


def test_call_in_progress_ends_under_the_old_settings(config, tmp_path):
    old = layer(config, "billing", "CircuitBreaker")

    def charge():
        change(tmp_path, ("30s", "5s"))
        config.reload()
        raise ValueError

    with pytest.raises(ValueError):
        config.endpoint("billing").call(charge)
    assert (old.state, layer(config, "billing", "CircuitBreaker").state) == ("open", "closed")


def test_budget_keeps_the_share_in_use(config, tmp_path):
    (old,) = (
        each
        for each in layer(config, "billing", "RetryTemplate").guards
        if type(each).__name__ == "RetryBudget"
    )
    for _ in range(100):
        old.withdraw()
    change(tmp_path, text=TEXT + "budget: {endpoints: {billing: {min_per_second: 50}}}\n")
    assert set(config.reload().rebuilt) == {"billing.budget", "billing.retry"}
    new = layer(config, "billing", "RetryTemplate").guards[-1]
    assert (new is old, new.snapshot().available) == (False, 0.0)


def test_new_endpoint_is_available_and_a_removed_one_stays(config, tmp_path):
    change(tmp_path, text="timeout: {endpoints: {ledger: {seconds: 2s}, search: {seconds: 1s}}}")
    done = config.reload()
    assert (done.changed, done.removed) == (("ledger", "search"), ("billing",))
    assert [config.endpoint(each).call(int, "17") for each in config.names] == [17] * 3
    assert config.reload().removed == ()


def test_stores_and_switches_stay_until_a_restart(tmp_path):
    text = """
stores: {shared: {kind: redis, url: redis://one}, db: {kind: sql, url: "sqlite:///a.db"}}
switch: {store: db, stale_after: 1s, endpoints: {x: {feature: a}}}
breaker: {endpoints: {x: {store: shared}}}
rate_limiter: {endpoints: {x: {store: shared}}}
"""
    config = load_text(tmp_path, text)
    layers = config.endpoint("x").pipeline.layers
    pairs = [("one", "two"), ("a.db", "b.db"), ("1s", "2s")]
    pairs += [("breaker: {endpoints: {x: {", "breaker: {endpoints: {x: {minimum_calls: 5, ")]
    pairs += [("rate_limiter: {endpoints: {x: {store: shared", "rate_limiter: {endpoints: {x: {")]
    change(tmp_path, *pairs, text=text)
    done = config.reload()
    assert set(done.restart_required) == {
        "stores.shared",
        "stores.db",
        "switch",
        "breaker.endpoints.x",
        "rate_limiter.endpoints.x",
    }
    assert config.endpoint("x").pipeline.layers == layers
    assert config.effective("x")["breaker.minimum_calls"].value == 10


def test_invalid_file_changes_nothing_and_is_reported_once(config, tmp_path, caplog):
    caplog.set_level(logging.INFO, "retrytemplate.config")
    events = Events()
    config.register_listener(events)
    bulkhead = layer(config, "search", "Bulkhead")
    change(tmp_path, ("limit: 1", "limit: 7"), ("max_attempts: 2", "max_attempts: 0"))
    for _ in range(2):
        with pytest.raises(ConfigError, match="max_attempts"):
            config.reload()
    assert (bulkhead.limit, config.endpoint("billing").pipeline.name) == (1, "billing")
    change(tmp_path)
    config.reload()
    assert [type(each) for each in events.seen] == [ConfigRejected, ConfigReloaded]
    assert [each.levelname for each in caplog.records] == ["ERROR", "INFO"]


def test_missing_file_is_rejected_and_its_return_accepted(config, tmp_path):
    file = tmp_path / "resilience.yaml"
    file.rename(tmp_path / "other.yaml")
    watcher = config.watch()
    with pytest.raises(ConfigError, match="cannot be read"):
        watcher.reload()
    assert watcher.last_error is not None
    (tmp_path / "other.yaml").rename(file)
    assert watcher.reload().changed == ()
    assert watcher.last_error is None


def test_store_of_a_rejected_file_is_not_kept(tmp_path):
    config = load_text(tmp_path, TEXT)
    store = "stores: {shared: {kind: redis, url: redis://%s}}\n"
    change(tmp_path, text=TEXT + store % "one" + "nothing: {}\n")
    with pytest.raises(ConfigError, match="unknown section"):
        config.reload()
    change(tmp_path, text=TEXT + store % "two")
    assert config.reload().restart_required == ()


def test_swapped_symlink_is_followed(tmp_path):
    for name, limit in (("one", 3), ("two", 5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bulkhead.yaml").write_text(f"endpoints: {{x: {{limit: {limit}}}}}")
    folder = tmp_path / "mounted"
    folder.mkdir()
    (folder / "..data").symlink_to(tmp_path / "one")
    (folder / "bulkhead.yaml").symlink_to("..data/bulkhead.yaml")
    config = load(folder)
    (folder / "..tmp").symlink_to(tmp_path / "two")
    (folder / "..tmp").rename(folder / "..data")
    config.reload()
    assert layer(config, "x", "Bulkhead").limit == 5


def test_watcher_applies_changes_and_ends_in_the_last_one(config, tmp_path):
    with config.watch(every=0.005) as watcher:
        change(tmp_path, ("limit: 1", "limit: 0"))
        wait_until(lambda: watcher.last_error)
        for limit in (6, 7):
            change(tmp_path, ("limit: 1", f"limit: {limit}"))
        wait_until(lambda: layer(config, "search", "Bulkhead").limit == 7)
        assert "retrytemplate-config" in {each.name for each in threading.enumerate()}
    assert "retrytemplate-config" not in {each.name for each in threading.enumerate()}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_watcher_continues_in_a_child_process(config, tmp_path):
    bulkhead = layer(config, "search", "Bulkhead")
    with config.watch(every=0.005):
        child = os.fork()
        if not child:
            change(tmp_path, ("limit: 1", "limit: 7"))
            until = time.monotonic() + 30
            while bulkhead.limit != 7 and time.monotonic() < until:
                time.sleep(0.001)  # the interval of the polls
            os._exit(bulkhead.limit)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_sighup_causes_a_read(config, tmp_path):
    before = signal.getsignal(signal.SIGHUP)
    with config.watch(every=3600, sighup=True):
        change(tmp_path, ("limit: 1", "limit: 7"))
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: layer(config, "search", "Bulkhead").limit == 7)
    assert signal.getsignal(signal.SIGHUP) is before


def serve_while_the_file_changes(tmp_path, changes):
    """Call in 8 threads while the example changes; return the results of the calls."""
    good = EXAMPLE.read_text()
    # A hedge of a synchronous function has no threads; servers do not run here.
    hedge = (
        "    ledger: {delay: 1s, max_hedges: 2, idempotent: true, on: {builtins.OSError: true}}\n"
    )
    for word in (hedge, ", store: shared", "      store: shared\n"):
        assert word in good
        good = good.replace(word, "")
    good = good.replace("permits: 50", "permits: 1000000").replace("burst: 10\n", "burst: null\n")
    environ = {**ENVIRON, "SWITCH_FILE": str(tmp_path / "switch.db")}
    config = load_text(tmp_path, good, environ=environ)
    layer(config, "ledger", "CircuitBreaker").force_open(by="kim", reason="outage")
    charge = config.endpoint("billing").wrap(lambda: "charged")
    read = config.endpoint("ledger").wrap(lambda: "read")
    ends, results = threading.Event(), []

    def serve():
        while not ends.is_set():
            results.append(charge())
            try:
                results.append(read())
            except CircuitOpenError:
                results.append("rejected")

    with ThreadPoolExecutor(8) as pool:
        served = [pool.submit(serve) for _ in range(8)]
        try:
            for number in range(changes):
                text = good.replace("permits: 1000000", f"permits: {10**6 + number}")
                text = text.replace("limit: 20", f"limit: {20 + number % 5}")
                text = text.replace("minimum_calls: 20", f"minimum_calls: {20 + number % 3}")
                text = text.replace("window: {seconds: 1m}", f"window: {{seconds: {number + 9}}}")
                text = text.replace("max_attempts: 4", f"max_attempts: {4 + number % 2}")
                if number % 4 == 3:
                    text = text.replace("max_wait: 1s", "max_wait: never")
                (tmp_path / "resilience.yaml").write_text(text)
                count = len(results)
                try:
                    config.reload()
                except ConfigError:
                    assert number % 4 == 3
                wait_until(lambda count=count: len(results) > count + 16)
        finally:
            ends.set()
        for each in served:
            each.result(60)
    built = config._reloader.live.built
    built.switch.object.close()
    for each in built.stores.values():
        each.object.close()
    return results


@pytest.mark.parametrize(
    "changes", [8, pytest.param(100, marks=pytest.mark.stress)], ids=["few", "many"]
)
def test_no_call_fails_because_of_a_reload(tmp_path, changes):
    results = serve_while_the_file_changes(tmp_path, changes)
    assert set(results) == {"charged", "rejected"}

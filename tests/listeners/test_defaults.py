"""Process-wide listeners, and the built-in log."""

import gc
import logging
import subprocess
import sys
import threading
import weakref

import pytest

from retrytemplate import (
    FixedBackoff,
    LoggingListener,
    MemoryRetryContextCache,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.listeners import (
    DEFAULT_LOG,
    add_default,
    default_listeners,
    remove_default,
)
from retrytemplate.listeners.defaults import with_defaults
from retrytemplate.testing import VirtualClock
from tests.support.runners import Script, every_driver, made


class Counter(RetryListener):
    """Counts failed attempts, and notes the order among others."""

    def __init__(self, name="default", order=None):
        self.name = name
        self.order = [] if order is None else order

    def open(self, context):
        self.order.append(self.name)


@pytest.fixture
def default():
    """Adds listeners and removes them at the end."""
    added = []

    def add(listener):
        add_default(listener)
        added.append(listener)
        return listener

    yield add
    for listener in added:
        if any(each is listener for each in default_listeners()):
            remove_default(listener)


@every_driver
def test_default_listener_reaches_templates_created_before_and_after(driver, default):
    before = made()
    listener = default(Counter())
    after = made()
    for template in (before, after, before.with_(policy=SimpleRetryPolicy(2))):
        driver(template, Script("value"))
    assert len(listener.order) == 3


def test_default_listener_reaches_wrapped_functions_and_bound_templates(default):
    template = made()
    wrapped, bound = template.wrap(len), template.bind(label="bound")
    listener = default(Counter())
    wrapped("abc")
    bound.call(len, "abc")
    assert len(listener.order) == 2


def test_default_listeners_come_before_the_own_ones(default):
    order = []
    template = made(listeners=[Counter("own", order)])
    default(Counter("first", order))
    default(Counter("second", order))
    template.call(int, "17")
    assert order == ["first", "second", "own"]


def test_removed_default_listener_is_not_notified(default):
    template = made()
    listener = default(Counter())
    remove_default(listener)
    template.call(int, "17")
    assert listener.order == []
    assert template._inline_plan is template._plan


def test_listener_that_is_default_and_own_is_notified_once(default):
    listener = Counter()
    template = made(listeners=[listener])
    default(listener)
    default(listener)
    template.call(int, "17")
    assert len(listener.order) == 1


def test_running_execution_keeps_its_listeners(default):
    listener = Counter()

    class Ends(RetryListener):
        def on_end(self, context, exception):
            listener.order.append("ended")

    def fails():
        default(Ends())
        raise OSError

    made(1).outcome(fails)
    assert listener.order == []


def test_templates_are_not_kept_alive():
    template = made()
    seen = weakref.ref(template)
    del template
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("value", [None, 17, Counter, object()])
def test_other_object_as_a_default_listener_is_rejected(value):
    with pytest.raises(TypeError, match="listener must be a RetryListener, ControlListener or"):
        add_default(value)


def test_unknown_default_listener_cannot_be_removed():
    with pytest.raises(ValueError, match="must be a default listener"):
        remove_default(Counter())


def test_listeners_added_in_threads_are_all_in_every_plan(default):
    listeners = [Counter() for _ in range(20)]
    templates = []

    def work(listener):
        default(listener)
        templates.append(made())

    threads = [threading.Thread(target=work, args=[each]) for each in listeners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for template in templates:
        template.call(int, "17")
    assert [len(each.order) for each in listeners] == [20] * 20


def test_listener_added_while_others_are_collected_raises_nothing(default):
    class Adds(type):
        def __instancecheck__(cls, instance):
            default(Counter())
            return True

    class Kind(metaclass=Adds):
        pass

    default(Counter())
    before = default_listeners()
    assert with_defaults([], Kind) == list(before)


# -- the built-in log ------------------------------------------------------------------------------


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "retrytemplate")
    return caplog


def fails():
    raise OSError("reset")


def lines(log):
    return [f"{record.levelname} {record.getMessage()}" for record in log.records]


NAME = "charge (tests.listeners.test_defaults.fails)"


@pytest.mark.parametrize("settings", [{}, {"backoff": FixedBackoff(0.5)}], ids=["short", "wait"])
def test_each_retry_and_giving_up_is_logged_without_any_set_up(log, settings):
    delay = "0.5" if settings else "0"
    with pytest.raises(OSError):
        made(2, name="charge", **settings).call(fails)
    assert lines(log) == [
        f"INFO {NAME}: attempt 1 of 2 failed: OSError: reset; next attempt in {delay} s",
        f"INFO {NAME}: gave up after attempt 2 of 2: OSError: reset; reason: attempts exhausted",
    ]


@every_driver
def test_success_after_a_retry_has_a_line(log, driver):
    driver(made(2, name="charge"), Script(OSError("reset"), "value"))
    (line,) = lines(log)
    assert line.endswith("attempt 1 of 2 failed: OSError: reset; next attempt in 0 s")


def test_recovery_has_a_line(log):
    made(1, name="charge").bind(recovery=lambda context: "later").call(fails)
    reason = "OSError: reset; reason: attempts exhausted"
    assert lines(log) == [f"INFO {NAME}: recovered after attempt 1 of 1: {reason}"]


def test_stateful_failure_has_a_line(log):
    template = made(2, name="charge", cache=MemoryRetryContextCache())
    with pytest.raises(OSError):
        template.execute(lambda context: fails(), state=RetryState("m-9"))
    (line,) = lines(log)
    assert line.endswith("OSError: reset; next attempt at the next delivery")


def test_success_and_cancellation_have_no_line(log):
    template = made()
    template.call(int, "17")
    with pytest.raises(KeyboardInterrupt):
        template.execute(Script(KeyboardInterrupt()))
    assert lines(log) == []


def test_logging_listener_replaces_the_built_in_log(log):
    template = made(2, listeners=[LoggingListener()])
    template.outcome(fails)
    assert [record.levelname for record in log.records] == ["WARNING", "INFO"]


def test_default_logging_listener_replaces_the_built_in_log(log, default):
    default(LoggingListener(level="WARNING"))
    made(2).outcome(fails)
    assert [record.levelname for record in log.records] == ["WARNING", "INFO"]


def test_removed_built_in_log_writes_nothing(log):
    remove_default(DEFAULT_LOG)
    try:
        made(2).outcome(fails)
    finally:
        add_default(DEFAULT_LOG)
    assert lines(log) == []
    assert default_listeners() == (DEFAULT_LOG,)


def test_built_in_log_leaves_the_short_path_where_info_is_disabled():
    template = made()
    assert template._inline_plan is template._plan
    assert template._plan.policy_only
    assert not template._plan.measured


def test_built_in_log_does_not_import_logging():
    code = (
        "import sys, retrytemplate\n"
        "assert not retrytemplate.RetryTemplate().outcome(int, 'x').ok\n"
        "try: retrytemplate.RetryTemplate().call(int, 'x')\n"
        "except ValueError: pass\n"
        "assert 'logging' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_zero_wait_of_the_built_in_log_is_not_reserved_under_a_deadline(log):
    clock = VirtualClock()
    template = RetryTemplate(SimpleRetryPolicy(2), clock=clock)
    assert not template._plan.observes_backoff
    assert template._plan.random is None

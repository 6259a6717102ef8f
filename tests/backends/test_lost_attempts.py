"""What the history says of an attempt that was lost."""

import os
import platform

import pytest

from retrytemplate import RetryState, RetryTemplate, SimpleRetryPolicy


def history_after(store, worker):
    """The history of a key whose first attempt this worker lost, and whose second failed."""
    cache = store.cache()
    cache.begin("charge/s:order-17", worker=worker)
    cache.close()
    store.age(31)
    template = RetryTemplate(SimpleRetryPolicy(3), name="charge", cache=cache)
    template.bind(state=RetryState("order-17")).outcome(lambda: 1 / 0)
    return cache.peek("charge/s:order-17").history


def test_lost_attempt_has_the_host_of_its_worker(store):
    lost, failed = history_after(store, "host-3:4711:17")

    assert (lost.number, lost.started, lost.duration) == (1, None, None)
    assert (lost.host, lost.process) == ("host-3", 4711)
    assert lost.message == "the attempt of host-3:4711:17 was lost"
    assert (failed.host, failed.process) == (platform.node(), os.getpid())


@pytest.mark.parametrize("worker", ["me", "me:17", "host:x:17", "host:" + "9" * 5000 + ":1"])
def test_where_a_worker_of_another_name_ran_is_not_known(sqlite, worker):
    lost, _ = history_after(sqlite, worker)
    assert (lost.host, lost.process) == ("", None)

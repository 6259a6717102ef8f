"""The history entry of a lost attempt."""

import os
import platform

import pytest

from retrytemplate import (
    ExclusiveRequiredError,
    LeaseLostError,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)


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
def test_worker_with_another_name_has_no_host_or_process(sqlite, worker):
    lost, _ = history_after(sqlite, worker)
    assert (lost.host, lost.process) == ("", None)


def test_suspect_runs_only_in_exclusive_attempts_and_their_crash_is_its_own(store):
    cache, seen = store.cache(), []
    template = RetryTemplate(SimpleRetryPolicy(5), name="charge", cache=cache)
    shared, alone = (RetryState("order-17", exclusive=each) for each in (False, True))

    def crash(context):
        cache.forget(context._claim.key)  # by the operator, and begun again
        seen.append(cache.begin(context._claim.key, worker=context._claim.worker).worker)

    def look(context):
        return context.attempt, context.last_exception.exclusive

    for state, exclusive in ((shared, False), (alone, True)):
        with pytest.raises(LeaseLostError):
            template.execute(crash, state=state)
        store.age(31)
        for _ in range(2):
            with pytest.raises(ExclusiveRequiredError):
                template.execute(look, state=shared)
        assert template.execute(look, state=alone) == (2, exclusive)
    assert [worker.endswith("!") for worker in seen] == [False, True]

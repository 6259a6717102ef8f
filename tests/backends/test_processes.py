"""Templates in several processes share one store and one count."""

import os
from pathlib import Path

import pytest

from retrytemplate import (
    AttemptLostError,
    CircuitBreakerRetryPolicy,
    ExhaustedRetryError,
    MaxAttemptsRetryPolicy,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from tests.support import forked_python
from tests.support.child import command

ROOT = Path(__file__).resolve().parents[2]
KEY = "w/s:poison"


@pytest.fixture
def worker(store):
    """Start a worker process; return its exit code, output and error output."""

    def run(what):
        done = forked_python.run(command(what, store), cwd=ROOT)
        store.age(31)  # past the lease of a crashed worker
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


def test_count_and_history_continue_in_another_process(worker, store):
    (template,) = templates(store, 1)
    with pytest.raises(ZeroDivisionError):
        template.execute(lambda context: 1 / 0, state=RetryState("poison"))
    code, output, _ = worker("fail")
    assert (code, output) == (1, ["attempt 2 division by zero"])
    first, second = template.cache.peek(KEY).history
    assert (first.process, second.process) == (os.getpid(), int(second.message))


@pytest.mark.parametrize("crash", ["die_in_the_callback", "die_as_process_one"])
def test_message_that_kills_its_worker_is_limited_by_the_policy(worker, crash):
    """The policy retries connection errors only and never receives an exception."""
    for attempt in (1, 2, 3):
        assert worker(crash)[:2] == (9, [f"attempt {attempt}"])
    lost = "retrytemplate.errors.AttemptLostError"
    output = [f"recovery after {lost} {lost} {lost}", "dead letter"]
    assert worker(crash) == (0, output, "")


def test_crashed_recovery_is_repeated_without_the_callback(worker, store):
    template = RetryTemplate(SimpleRetryPolicy(1), cache=store.cache(), name="w")
    with pytest.raises(ZeroDivisionError):
        template.execute(lambda context: 1 / 0, state=RetryState("poison"))
    assert worker("die_in_the_recovery")[:2] == (9, ["recovery"])
    recovered = template.execute(
        pytest.fail, recovery=lambda context: context.retry_count, state=RetryState("poison")
    )
    assert recovered == 1
    assert store.row(KEY) is None


def test_cache_used_before_a_fork_serves_both_processes(worker, store):
    assert worker("fork") == (0, ["child 0"], "")
    assert store.keys() == ["a key of the child", "held by the parent"]


def test_child_that_returns_from_the_callback_keeps_parents_attempt(worker):
    output = [
        "in a child: True LeaseLostError",
        "still mine: True",
        "in a child: True LeaseLostError the key could not be left as it should be",
        "still mine: True",
        "the parent's",
    ]
    assert worker("fork_in_the_callback") == (0, output, "")


# -- in this process -------------------------------------------------------------------------------


def templates(store, number=2, policy=None):
    """Templates of one name, each with a cache of its own."""
    policy = policy or MaxAttemptsRetryPolicy(9)
    return [RetryTemplate(policy, cache=store.cache(), name="w") for _ in range(number)]


def lost(store, template):
    """An attempt that another worker started and never ended."""
    template.cache.begin(template.scoped_key("poison"), worker="host:4711:1")
    store.age(31)


def test_lost_attempt_is_counted_before_the_next_one(store):
    (template,) = templates(store, 1)
    lost(store, template)
    seen = template.execute(
        lambda context: (context.attempt, context.retry_count, type(context.last_exception)),
        state=RetryState("poison"),
    )
    assert seen == (2, 1, AttemptLostError)


def test_recovery_sees_a_lost_last_attempt(store):
    (template,) = templates(store, 1, MaxAttemptsRetryPolicy(1))
    lost(store, template)
    with pytest.raises(ExhaustedRetryError) as caught:
        template.execute(pytest.fail, state=RetryState("poison"))
    assert isinstance(caught.value.__cause__, AttemptLostError)
    assert caught.value.__cause__.worker == "host:4711:1"


def test_veto_after_a_takeover_leaves_the_lost_attempt_to_be_counted(store):
    class Veto:
        def open(self, context):
            return False

    template, _ = templates(store)
    lost(store, template)
    with pytest.raises(Exception, match="vetoed"):
        template.with_(listeners=[Veto()]).execute(pytest.fail, state=RetryState("poison"))
    assert template.execute(lambda context: context.attempt, state=RetryState("poison")) == 2


def test_failure_leaves_the_key_free_for_the_next_worker(store):
    for attempt, template in enumerate(templates(store, 3), 1):
        with pytest.raises(ZeroDivisionError):
            template.execute(lambda context: 1 / 0, state=RetryState("poison"))
        row = store.row(KEY)
        assert (row["worker"], row["phase"]) == (None, "idle")
        assert template.cache.peek(KEY).failures == attempt


def test_success_in_one_process_is_remembered_in_another(store):
    one, two = templates(store)
    state = RetryState("poison", remember=60)
    one.execute(lambda context: 1, state=state)
    with pytest.raises(Exception, match="was completed before"):
        two.execute(pytest.fail, state=state)


def test_retries_in_place_hold_the_key_from_the_first_to_the_last(store):
    (template,) = templates(store, 1, SimpleRetryPolicy(3))
    fences = []

    def fails(context):
        fences.append(context.fence)
        assert context.still_mine()
        raise ConnectionError

    state = RetryState("poison", rollback_for=ValueError)
    with pytest.raises(ExhaustedRetryError):
        template.execute(fails, state=state)
    assert len(fences) == 3
    assert fences == sorted(set(fences))
    assert store.row(KEY) is None


def test_stored_texts_are_redacted(store):
    cache = store.cache(redact=lambda text: text.replace("4242 4242", "****"))
    template = RetryTemplate(MaxAttemptsRetryPolicy(9), cache=cache, name="w")

    def fails(context):
        raise ValueError("card 4242 4242")

    with pytest.raises(ValueError, match="4242 4242"):
        template.execute(fails, state=RetryState("poison"))
    kept = store.row(KEY)["record"]
    assert "card ****" in kept
    assert "4242 4242" not in kept


async def test_asynchronous_template_continues_the_count(store):
    state = RetryState("poison")

    async def fails(context):
        raise ConnectionError

    for attempt in (1, 2):
        async with store.async_cache() as cache:
            template = RetryTemplate(MaxAttemptsRetryPolicy(9), cache=cache, name="w")
            with pytest.raises(ConnectionError):
                await template.execute_async(fails, state=state)
            record = await cache.peek(KEY)
            assert record.failures == attempt


def test_circuit_breaker_is_shared_by_caches(store):
    breaker = CircuitBreakerRetryPolicy(SimpleRetryPolicy(2), open_timeout=60, reset_timeout=60)
    called = []

    def fails(context):
        called.append(context.attempt)
        raise ConnectionError

    state = RetryState("billing", rollback_for=lambda error: False)
    for template in templates(store, 4, breaker):
        template.execute(fails, recovery=lambda context: "cached", state=state)
    assert len(called) == 2

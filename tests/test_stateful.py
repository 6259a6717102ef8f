"""Executions with a state: the context kept under a key, its duration and its claim."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event

import pytest

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    AttemptLostError,
    BackoffInterruptedError,
    CircuitBreakerRetryPolicy,
    Deadline,
    DeadlineExceededError,
    ExceptionClassifier,
    ExceptionClassifierRetryPolicy,
    ExclusiveRequiredError,
    ExhaustedRetryError,
    ExponentialBackoff,
    Guard,
    InconsistentKeyError,
    MaxAttemptsRetryPolicy,
    MemoryRetryContextCache,
    MisuseError,
    NeverRetryPolicy,
    PredicateRetryPolicy,
    RecordedFailure,
    Rejected,
    ResultRetryPolicy,
    RetryContextCache,
    RetryLater,
    RetryListener,
    RetryPolicy,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    TerminatedRetryError,
    TimeoutRetryPolicy,
    Veto,
)
from retrytemplate.testing import Recorder, VirtualClock
from tests.support.failing_cache import Down
from tests.support.runners import Script, both_kinds, every_driver, made

KEY = RetryState("order-17")


def stateful(attempts=3, **settings):
    return made(attempts, **{"name": "orders"} | settings)


def kept(template, key="order-17"):
    return template.cache.peek(template.scoped_key(key))


def fails(driver, template, state=KEY, failure=None, **how):
    """One delivery whose callback fails and is rethrown at once; returns the callback."""
    callback = Script(failure or ValueError("failed"))
    with pytest.raises(type(callback.steps[0])):
        driver(template, callback, state=state, **how)
    assert callback.calls == 1
    return callback


# -- from delivery to delivery ------------------------------------------------------------------


@pytest.mark.statement("S2-10")
@every_driver
def test_failure_is_reraised_at_once_and_kept_under_the_key(driver):
    template = stateful()
    failure = ValueError("rolled back")

    with pytest.raises(ValueError) as caught:
        driver(template, Script(failure), state=KEY)
    assert caught.value is failure
    record = kept(template)
    assert (record.failures, record.last.type_name, record.last.message, record.worker) == (
        1,
        "ValueError",
        "rolled back",
        None,
    )


@pytest.mark.statement("S2-11", "S2-16")
@every_driver
def test_redelivery_continues_with_count_failure_and_attributes(driver):
    template = stateful()
    seen = []

    def callback(context):
        seen.append(
            (
                context.attempt,
                context.retry_count,
                str(context.last_exception),
                dict(context.attributes),
            )
        )
        context.attributes[f"delivery {len(seen)}"] = [len(seen)]
        if len(seen) < 3:
            raise ValueError(f"failure {len(seen)}")
        return "done"

    for _ in range(2):
        with pytest.raises(ValueError):
            driver(template, callback, state=RetryState("order-17"))
    assert driver(template, callback, state=RetryState("order-17")) == "done"
    assert seen == [
        (1, 0, "None", {}),
        (2, 1, "ValueError: failure 1", {"delivery 1": [1]}),
        (3, 2, "ValueError: failure 2", {"delivery 1": [1], "delivery 2": [2]}),
    ]


@pytest.mark.statement("S2-16")
@both_kinds
def test_redelivery_is_recognised_inside_a_transaction_of_its_own(driver):
    template = stateful()
    transactions = []

    def deliver(callback):
        transactions.append("open")
        try:
            driver(template, callback, state=KEY)
        except ValueError:
            transactions[-1] = "rollback"
        else:
            transactions[-1] = "commit"

    attempts = []
    callback = Script(ValueError(), ValueError(), "done")
    for _ in range(3):
        deliver(lambda context: attempts.append(context.attempt) or callback(context))
    assert attempts == [1, 2, 3]
    assert transactions == ["rollback", "rollback", "commit"]


@pytest.mark.statement("S2-12")
@every_driver
def test_exhausted_key_is_recovered_without_a_call(driver):
    template = stateful(2)
    for _ in range(2):
        fails(driver, template)
    callback, seen = Script("not called"), []

    def recover(context):
        seen.append((context.retry_count, context.last_exception))
        return "recovered"

    assert driver(template, callback, state=KEY, recovery=recover) == "recovered"
    assert callback.calls == 0
    [(count, last)] = seen
    assert count == 2
    assert isinstance(last, RecordedFailure)


@pytest.mark.statement("S2-12", "S2-21")
@every_driver
def test_exhaustion_without_recovery_names_the_last_failure(driver):
    template = stateful(1)
    fails(driver, template, failure=KeyError("the reason"))

    with pytest.raises(ExhaustedRetryError, match=r"exhausted after 1 .*KeyError") as caught:
        driver(template, Script("not called"), state=KEY)
    assert caught.value.__cause__.type_name == "KeyError"
    assert caught.value.attempts == 1
    assert [record.type_name for record in caught.value.history] == ["KeyError"]
    assert kept(template) is None


@every_driver
def test_raise_last_raises_the_last_failure_as_it_was_recorded(driver):
    template = stateful(1, raise_last=True)
    fails(driver, template, failure=KeyError("the reason"))

    with pytest.raises(RecordedFailure, match="KeyError: 'the reason'"):
        driver(template, Script("not called"), state=KEY)


@every_driver
def test_failure_not_retryable_is_reraised_then_exhausted_at_redelivery(driver):
    template = stateful(policy=SimpleRetryPolicy(9, OSError))
    fails(driver, template)

    assert driver(template, Script("not called"), state=KEY, recovery=lambda c: "dead") == "dead"


@pytest.mark.statement("S2-15")
@every_driver
def test_context_is_deleted_after_success_and_after_recovery(driver):
    template = stateful(2)
    fails(driver, template)
    driver(template, Script("value"), state=KEY)
    assert kept(template) is None

    for _ in range(2):
        fails(driver, template)
    driver(template, Script("not called"), state=KEY, recovery=lambda context: None)
    assert kept(template) is None
    assert fails(driver, template).seen == [1], "it starts afresh"


@every_driver
def test_recovery_that_raises_is_repeated_without_the_callback(driver):
    template = stateful(1)
    fails(driver, template)
    recovery = Script(LookupError("dead letters are down"), "recovered")
    callback = Script("not called")

    with pytest.raises(LookupError):
        driver(template, callback, state=KEY, recovery=recovery)
    assert kept(template).phase == "recovering"
    assert driver(template, callback, state=KEY, recovery=recovery) == "recovered"
    assert (callback.calls, recovery.calls) == (0, 2)
    assert kept(template) is None


@every_driver
def test_started_recovery_stays_due_if_the_policy_allows_more_attempts(driver):
    template = stateful(1)
    fails(driver, template)
    recovery = Script(LookupError("dead letters are down"), "recovered")
    callback = Script("not called")

    with pytest.raises(LookupError):
        driver(template, callback, state=KEY, recovery=recovery)
    patient = template.with_(policy=SimpleRetryPolicy(9))
    assert driver(patient, callback, state=KEY, recovery=recovery) == "recovered"
    assert callback.calls == 0


@every_driver
@pytest.mark.parametrize(("before", "now", "calls"), [(1, 3, 1), (3, 1, 0)])
def test_stored_context_is_judged_by_the_present_policy(driver, before, now, calls):
    template = stateful(before)
    fails(driver, template)
    changed, callback = template.with_(policy=SimpleRetryPolicy(now)), Script("value")

    expected = "value" if calls else "recovered"
    assert driver(changed, callback, state=KEY, recovery=lambda context: "recovered") == expected
    assert callback.calls == calls


@every_driver
def test_force_refresh_discards_the_stored_context(driver):
    template = stateful()
    fails(driver, template)

    afresh = fails(driver, template, RetryState("order-17", force_refresh=True))
    assert afresh.seen == [1]
    assert kept(template).failures == 1


@every_driver
def test_untracked_state_stores_nothing_and_reraises(driver):
    template = stateful(1)
    for _ in range(3):
        assert fails(driver, template, RetryState.untracked()).seen == [1]
    assert len(template.cache) == 0


@every_driver
def test_give_up_in_a_failing_callback_leaves_recovery_to_redelivery(driver):
    template = stateful(9)

    def callback(context):
        context.give_up()
        raise ValueError

    with pytest.raises(ValueError):
        driver(template, callback, state=KEY)
    assert driver(template, Script("not called"), state=KEY, recovery=lambda c: "dead") == "dead"


# -- in place or rethrown -----------------------------------------------------------------------


@every_driver
@pytest.mark.parametrize(
    "rollback_for",
    [
        OSError,
        (OSError, KeyError),
        ExceptionClassifier({OSError: True}),
        lambda exception: isinstance(exception, OSError),
    ],
    ids=["class", "tuple", "classifier", "function"],
)
def test_failure_without_rollback_is_retried_in_place(driver, rollback_for):
    template = stateful(3, delay=1.0)
    state = RetryState("order-17", rollback_for=rollback_for)
    callback = Script(ValueError("in place"), "value")

    assert driver(template, callback, state=state) == "value"
    assert callback.seen == [1, 2]
    fails(driver, template, state, OSError("rolled back"))
    assert template.clock.sleeps == [1.0, 1.0]


@every_driver
def test_attempts_in_place_are_exhausted_in_the_same_execution(driver):
    template = stateful(3)
    state = RetryState("order-17", rollback_for=OSError)
    callback = Script(ValueError("in place"))

    with pytest.raises(ExhaustedRetryError) as caught:
        driver(template, callback, state=state)
    assert callback.seen == [1, 2, 3]
    assert caught.value.__cause__ is callback.steps[0]
    assert kept(template) is None


@both_kinds
def test_each_attempt_in_place_is_counted_before_it_runs(driver):
    cache = Plugged()
    template = stateful(3, cache=cache)
    fences = []

    def callback(context):
        fences.append((context.fence, list(cache.steps)))
        raise ValueError

    with pytest.raises(ExhaustedRetryError):
        driver(template, callback, state=RetryState("order-17", rollback_for=()))
    assert [steps.count("begin") for _, steps in fences] == [1, 2, 3]
    numbers = [fence for fence, _ in fences]
    assert numbers == sorted(set(numbers))


@every_driver
@pytest.mark.parametrize("state", [None, RetryState("order-17", rollback_for=())], ids=repr)
def test_failure_that_is_not_recoverable_reaches_the_caller(driver, state):
    template = stateful(policy=SimpleRetryPolicy(2, not_recoverable=KeyError))
    failure = KeyError("no recovery may take it")
    recoveries = []

    with pytest.raises(KeyError) as caught:
        driver(template, Script(OSError(), failure), state=state, recovery=recoveries.append)
    assert caught.value is failure
    assert recoveries == []


# -- when the wait is ---------------------------------------------------------------------------


@every_driver
def test_default_wait_precedes_the_reraised_failure(driver):
    template = stateful(delay=5.0)

    fails(driver, template)
    assert template.clock.sleeps == [5.0]


@every_driver
def test_early_redelivery_waits_for_the_deferred_delay(driver):
    template = stateful(delay=5.0)
    state = RetryState("order-17", defer_backoff="wait")

    fails(driver, template, state)
    assert template.clock.sleeps == []
    template.clock.advance(2.0)
    driver(template, Script("value"), state=state)
    assert template.clock.sleeps == [3.0]


@every_driver
def test_early_redelivery_with_raise_gets_retry_later(driver):
    template = stateful(delay=5.0)
    state = RetryState("order-17", defer_backoff="raise")
    callback = Script("value")

    fails(driver, template, state)
    template.clock.advance(2.0)
    with pytest.raises(RetryLater) as caught:
        driver(template, callback, state=state)
    assert caught.value.retry_after == pytest.approx(3.0)
    assert callback.calls == 0
    template.clock.advance(3.0)
    assert driver(template, callback, state=state) == "value"
    assert callback.seen == [2], "the early one was not counted"


@every_driver
def test_interrupted_deferred_wait_leaves_the_key_unchanged(driver):
    template = stateful(delay=5.0, clock=VirtualClock(interrupt_at=1))
    state = RetryState("order-17", defer_backoff="wait")
    callback = Script("value")

    fails(driver, template, state)
    before = kept(template)
    with pytest.raises(BackoffInterruptedError):
        driver(template, callback, state=state)
    assert callback.calls == 0
    assert kept(template) == before
    assert driver(template, callback, state=state) == "value"


@every_driver
@pytest.mark.parametrize("rest", [0.5, 0.0])
def test_deferred_wait_includes_the_last_moment(driver, rest):
    template = stateful(delay=5.0)
    state = RetryState("order-17", defer_backoff="wait")

    fails(driver, template, state)
    template.clock.advance(5.0 - rest)
    assert driver(template, Script("value"), state=state) == "value"
    assert template.clock.sleeps == ([rest] if rest else [])


@every_driver
@pytest.mark.parametrize("defer", ["wait", "raise"])
def test_raising_in_on_backoff_replaces_the_failure_of_a_deferred_wait(driver, defer):
    class Raising(RetryListener):
        def on_backoff(self, context, delay):
            raise LookupError("the listener's own")

    template = stateful(delay=5.0, listeners=[Raising()])
    with pytest.raises(LookupError, match="the listener's own"):
        driver(template, Script(ValueError()), state=RetryState("order-17", defer_backoff=defer))
    assert kept(template).failures == 1


@every_driver
@pytest.mark.parametrize(("seconds", "fits"), [(5.5, True), (5.0, False), (2.0, False)])
def test_deferred_wait_that_fits_before_the_deadline_is_started(driver, seconds, fits):
    template = stateful(delay=5.0)
    state = RetryState("order-17", defer_backoff="wait")
    callback = Script("value")

    fails(driver, template, state)
    with Deadline(seconds, clock=template.clock):
        if fits:
            assert driver(template, callback, state=state) == "value"
        else:
            with pytest.raises(DeadlineExceededError, match="the next attempt is due in 5 seconds"):
                driver(template, callback, state=state)
    assert callback.calls == fits
    assert template.clock.sleeps == [5.0] * fits
    assert driver(template, Script("later"), state=state) == "later"


@every_driver
def test_delays_of_a_key_grow_from_delivery_to_delivery(driver):
    template = stateful(9, backoff=ExponentialBackoff(initial=1.0))

    for _ in range(3):
        fails(driver, template)
    assert template.clock.sleeps == [1.0, 2.0, 4.0]


@every_driver
def test_timeout_policy_runs_from_delivery_to_delivery(driver):
    template = stateful(policy=TimeoutRetryPolicy(10.0))

    fails(driver, template)
    template.clock.advance(10.5)
    assert driver(template, Script("not called"), state=KEY, recovery=lambda c: "late") == "late"


class Frugal(Guard):
    def reserve(self, context, delay):
        raise Rejected("no retry is granted")


@every_driver
@pytest.mark.parametrize("rejects", ["a guard", "the deadline"])
def test_rejected_retry_in_place_is_left_to_the_redelivery(driver, rejects):
    template = stateful(delay=5.0, guards=[Frugal()] if rejects == "a guard" else [])
    state, failure = RetryState("order-17", rollback_for=()), ValueError("failed")
    callback, again = Script(failure), Script("value")

    with (
        Deadline(1.0 if rejects == "the deadline" else 99.0, clock=template.clock),
        pytest.raises((Rejected, DeadlineExceededError)) as caught,
    ):
        driver(template, callback, state=state, recovery=lambda context: "recovered")
    assert caught.value.__cause__ is failure
    assert (callback.calls, kept(template).failures) == (1, 1)
    assert driver(template, again, state=state) == "value"
    assert again.seen == [2]


# -- remembered successes -----------------------------------------------------------------------


@every_driver
def test_remembered_success_is_not_repeated(driver):
    template = stateful()
    state = RetryState("order-17", remember=60.0)
    again = Script("again")

    driver(template, Script("once"), state=state)
    with pytest.raises(AlreadyCompletedError, match="order-17"):
        driver(template, again, state=state)
    assert again.calls == 0
    template.clock.advance(61.0)
    assert driver(template, again, state=state) == "again"


@every_driver
def test_only_a_success_is_remembered(driver):
    template = stateful(1)
    state = RetryState("order-17", remember=60.0, rollback_for=())

    with pytest.raises(ExhaustedRetryError):
        driver(template, Script(ValueError()), state=state)
    assert driver(template, Script("value"), state=state) == "value"


@every_driver
def test_recovery_of_remembering_state_is_not_remembered(driver):
    template = stateful(1)
    state = RetryState("order-17", remember=60.0, rollback_for=())

    failing = Script(ValueError("no price"))
    dead = driver(template, failing, state=state, recovery=lambda context: "dead-lettered")
    assert dead == "dead-lettered"
    assert driver(template, Script("handled"), state=state) == "handled"
    with pytest.raises(AlreadyCompletedError):
        driver(template, Script("again"), state=state)


@every_driver
def test_unacceptable_result_that_is_returned_is_not_remembered(driver):
    policy = ResultRetryPolicy(lambda value: value == "pending", SimpleRetryPolicy(2), "return")
    template = made(policy=policy)
    state = RetryState("order-17", remember=60.0, rollback_for=())

    assert driver(template, Script("pending"), state=state) == "pending"
    assert driver(template, Script("done"), state=state) == "done"


# -- keys ---------------------------------------------------------------------------------------


class Mutable(list):
    """Hashable, and not a valid key."""

    def __hash__(self):
        return hash(tuple(self))


@pytest.mark.statement("S2-14")
@pytest.mark.parametrize(
    "key",
    [
        None,
        1.5,
        float("nan"),
        ["list"],
        {"a": 1},
        pytest.param(object(), id="object"),
        ("a", None),
        Mutable("a"),
        (1, [2]),
    ],
    ids=repr,
)
def test_key_without_a_stable_encoding_is_rejected_and_named(key):
    with pytest.raises(InconsistentKeyError) as caught:
        RetryState(key)
    assert "must be a str, int, bytes, or a tuple of those" in str(caught.value)


@pytest.mark.statement("S2-14")
@both_kinds
def test_key_whose_hash_changes_keeps_its_count(driver):
    class Shifting(str):
        def __hash__(self):
            shifts.append(1)
            return len(shifts)

        __eq__ = object.__eq__

    shifts = []
    template = stateful(2)
    for _ in range(2):
        fails(driver, template, RetryState(Shifting("order-17")))
    assert kept(template).failures == 2


@pytest.mark.statement("S2-14")
def test_equal_keys_are_one_and_keys_of_different_types_are_not():
    template = stateful()
    keys = [1, "1", True, b"1", (1,), ("1",), ("1", ""), ("1,s:",), (("1",),), "i:1"]

    assert len({template.scoped_key(key) for key in keys}) == len(keys)
    assert template.scoped_key(("eu", 17)) == template.scoped_key(("e" + "u", 10 + 7))


@both_kinds
def test_two_templates_that_share_a_cache_do_not_share_counts(driver):
    cache = MemoryRetryContextCache()
    one, other = (stateful(3, name=name, cache=cache) for name in ("one", "other"))

    fails(driver, one)
    assert fails(driver, other).seen == [1]
    assert fails(driver, one).seen == [2]
    assert len(cache) == 2


def test_no_template_name_can_imitate_the_key_of_another():
    names = ["a", "a/s:b", "a%2Fs:b", "", None]
    keys = {RetryTemplate(name=n).scoped_key("b/s:b") for n in names if n != ""}
    keys |= {RetryTemplate(name=n).scoped_key("s:b") for n in names if n != ""}
    assert len(keys) == 8


# -- claims -------------------------------------------------------------------------------------


@every_driver
def test_nested_execution_of_the_same_key_raises_in_progress(driver):
    template = stateful()

    def callback(context):
        return template.execute(Script("nested"), state=KEY)

    with pytest.raises(AttemptInProgressError, match="order-17"):
        driver(template, callback, state=KEY)


def test_concurrent_delivery_raises_in_progress_and_is_not_counted():
    template = stateful()
    began, ended = Event(), Event()

    def slow(context):
        began.set()
        ended.wait(10)
        raise ValueError

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(template.execute, slow, state=KEY)
        began.wait(10)
        with pytest.raises(AttemptInProgressError):
            template.execute(Script("second"), state=KEY)
        ended.set()
        assert isinstance(first.exception(), ValueError)
    assert kept(template).failures == 1
    assert fails(lambda t, c, **how: t.execute(c, **how), template).seen == [2]


@every_driver
def test_execution_without_its_key_calls_only_on_end(driver):
    recorder = Recorder()
    template = stateful(listeners=[recorder])
    claim = template.cache.begin(template.scoped_key("order-17"), worker="another")

    with pytest.raises(AttemptInProgressError):
        driver(template, Script("second"), state=KEY, recovery=lambda context: "recovered")
    assert recorder.hooks == ["on_end"]
    assert template.cache.holds(claim)


async def test_concurrent_delivery_in_another_task_raises_in_progress():
    template = stateful()
    gate = asyncio.Event()

    async def slow(context):
        await gate.wait()
        return "first"

    first = asyncio.create_task(template.execute_async(slow, state=KEY))
    await asyncio.sleep(0)
    with pytest.raises(AttemptInProgressError):
        await template.execute_async(Script("second"), state=KEY)
    gate.set()
    assert await first == "first"


@every_driver
def test_fence_of_a_key_only_grows(driver):
    template, fences = stateful(9), []

    def callback(context):
        fences.append(context.fence)
        assert context.still_mine()
        raise ValueError

    for _ in range(4):
        with pytest.raises(ValueError):
            driver(template, callback, state=KEY)
    assert fences == sorted(set(fences))


def test_still_mine_and_complete_in_need_a_state():
    with pytest.raises(MisuseError, match="needs a stateful execution"):
        made().execute(lambda context: context.still_mine())
    with pytest.raises(MisuseError, match="needs a stateful execution"):
        made().execute(lambda context: context.complete_in(None))


def test_holder_of_a_forgotten_key_gets_lease_lost():
    template = stateful()

    def callback(context):
        template.cache.forget(template.scoped_key("order-17"))
        return context.still_mine()

    with pytest.raises(Exception, match="no longer held"):
        template.execute(callback, state=KEY)


@every_driver
@pytest.mark.parametrize("how", ["returns False", "raises Veto", "raises"])
def test_execution_ended_by_open_leaves_the_key_unchanged(driver, how):
    class Stops(RetryListener):
        on = False

        def open(self, context):
            if not self.on:
                return None
            if how == "returns False":
                return False
            raise Veto("not today") if how == "raises Veto" else LookupError("broken")

    listener = Stops()
    template = stateful(listeners=[listener])
    fails(driver, template)
    before = kept(template)
    listener.on = True
    with pytest.raises(LookupError if how == "raises" else TerminatedRetryError):
        driver(template, Script("not called"), state=KEY)
    assert kept(template) == before
    listener.on = False
    assert fails(driver, template).seen == [2]


# -- attempts of crashed processes --------------------------------------------------------------


def lossy():
    """A cache that reports a lost holder, as a durable cache does."""
    return Down(lambda step, record: False)


@every_driver
def test_attempt_of_a_crashed_process_counts_and_is_recorded(driver):
    cache, recorder = lossy(), Recorder()
    template = stateful(3, cache=cache, listeners=[recorder])
    cache.lost = "elsewhere:1"
    seen = []

    def callback(context):
        seen.append((context.attempt, context.retry_count, type(context.last_exception)))
        return "value"

    assert driver(template, callback, state=KEY) == "value"
    assert seen == [(2, 1, AttemptLostError)]


@every_driver
def test_listener_gets_the_lost_attempt_before_the_next_one(driver):
    cache, recorder = lossy(), Recorder()
    cache.lost = "elsewhere:1"
    driver(stateful(3, cache=cache, listeners=[recorder]), Script("value"), state=KEY)
    expected = ["open", "on_attempt_lost", "before_attempt", "on_success", "on_end", "close"]
    assert recorder.hooks == expected
    assert [error.worker for error in recorder.values("on_attempt_lost")] == ["elsewhere:1"]


@every_driver
def test_exception_of_on_attempt_lost_ends_the_execution(driver):
    class Raises(RetryListener):
        def on_attempt_lost(self, context, error):
            raise LookupError(context.retry_count)

    cache, callback = lossy(), Script("value")
    cache.lost = "elsewhere:1"
    template = stateful(3, cache=cache, listeners=[Raises()])
    with pytest.raises(LookupError, match="1"):
        driver(template, callback, state=KEY)
    assert (callback.calls, kept(template).failures) == (0, 1)
    assert driver(template, callback, state=KEY) == "value"


@every_driver
@pytest.mark.parametrize(("worker", "exclusive"), [("h:1:a-1", False), ("h:1:a-1!", True)])
def test_lost_attempt_says_whether_it_was_exclusive(driver, worker, exclusive):
    cache = lossy()
    template = stateful(3, cache=cache)
    cache.lost = worker
    seen = []

    driver(template, lambda context: seen.append(context.last_exception), state=KEY)
    assert [(error.worker, error.exclusive) for error in seen] == [(worker, exclusive)]


@every_driver
@pytest.mark.parametrize("exclusive", [None, False, True])
def test_claim_of_an_exclusive_attempt_is_marked(driver, exclusive):
    workers = []
    # A cache of another class than the one in memory: its claims are begun by the engine.
    template = stateful(3, cache=Down(lambda step, record: False))

    def callback(context):
        workers.append(context._claim.worker)

    driver(template, callback, state=RetryState("order-17", exclusive=exclusive))
    assert [worker.endswith("!") for worker in workers] == [exclusive is True]


@every_driver
def test_shared_execution_of_a_key_with_a_lost_attempt_is_rejected_uncounted(driver):
    cache, recorder = lossy(), Recorder()
    template = stateful(3, cache=cache, listeners=[recorder])
    fails(driver, template)
    before, events = kept(template), len(recorder.events)
    cache.lost = "elsewhere:1"
    callback = Script("not called")

    with pytest.raises(ExclusiveRequiredError, match=r"orders/s:order-17.*exclusive=True"):
        driver(template, callback, state=RetryState("order-17", exclusive=False))
    assert (callback.calls, kept(template)) == (0, before)
    assert recorder.hooks[events:] == ["on_end"]
    assert fails(driver, template).seen == [2]  # the key is free


@every_driver
@pytest.mark.parametrize("later_failures", [0, 1])
def test_key_stays_a_suspect_after_its_lost_attempt_was_recorded(driver, later_failures):
    cache = lossy()
    template = stateful(9, cache=cache)
    cache.lost = "elsewhere:1"
    for _ in range(1 + later_failures):
        fails(driver, template)

    with pytest.raises(ExclusiveRequiredError):
        driver(template, Script("not called"), state=RetryState("order-17", exclusive=False))
    alone = RetryState("order-17", exclusive=True)
    assert driver(template, Script("done"), state=alone) == "done"
    shared = RetryState("order-17", exclusive=False)  # a new life of the key
    assert driver(template, Script("again"), state=shared) == "again"


@every_driver
def test_shared_execution_with_failures_but_no_lost_attempt_runs(driver):
    template = stateful(3)
    fails(driver, template)
    state = RetryState("order-17", exclusive=False)

    assert driver(template, Script("second"), state=state) == "second"


@every_driver
@pytest.mark.parametrize(
    "policy",
    [
        SimpleRetryPolicy(2, OSError),
        SimpleRetryPolicy(2, lambda exception: 1 / 0),
        PredicateRetryPolicy(lambda exception: 1 / 0) & MaxAttemptsRetryPolicy(2),
        ExceptionClassifierRetryPolicy({OSError: NeverRetryPolicy()}, MaxAttemptsRetryPolicy(2)),
    ],
    ids=["types", "predicate", "tree", "chooser"],
)
def test_lost_attempt_counts_without_a_call_of_a_classifier(driver, policy):
    cache = lossy()
    template = stateful(cache=cache, policy=policy)

    cache.lost = "elsewhere:1"
    assert driver(template, Script("second"), state=KEY) == "second"
    cache.lost = "elsewhere:2"
    with pytest.raises(KeyboardInterrupt):
        driver(template, Script(KeyboardInterrupt()), state=KEY)
    cache.lost = "elsewhere:3"
    callback = Script("not called")
    assert driver(template, callback, state=KEY, recovery=lambda c: c.retry_count) == 2
    assert callback.calls == 0


@every_driver
def test_recovery_gets_the_lost_attempt_if_it_was_the_last(driver):
    cache = lossy()
    template = stateful(1, cache=cache)
    cache.lost = "elsewhere:1"
    found = []

    driver(
        template,
        Script("not called"),
        state=KEY,
        recovery=lambda context: found.append(context.last_exception),
    )
    assert [type(e) for e in found] == [AttemptLostError]
    assert found[0].worker == "elsewhere:1"


@every_driver
def test_rule_that_names_the_lost_attempt_decides_about_it(driver):
    cache = lossy()
    template = stateful(cache=cache, policy=SimpleRetryPolicy(3, not_on=AttemptLostError))
    cache.lost = "elsewhere:1"

    assert driver(template, Script("not called"), state=KEY, recovery=lambda c: "dead") == "dead"


@every_driver
def test_recovery_of_a_crashed_process_is_repeated_without_callback(driver):
    template = stateful(1)
    fails(driver, template)
    at_death = []
    driver(
        template,
        Script("not called"),
        state=KEY,
        recovery=lambda c: at_death.append(kept(template)),
    )
    [record] = at_death
    assert record.phase == "recovering"
    assert record.worker is not None

    cache = lossy()
    template = template.with_(cache=cache)
    cache.swap(template.scoped_key("order-17"), record, 0)
    cache.lost = record.worker
    callback = Script("not called")
    assert driver(template, callback, state=KEY, recovery=lambda c: c.retry_count) == 1
    assert callback.calls == 0
    assert kept(template) is None


# -- the cache ----------------------------------------------------------------------------------


def recovery_begins(step, record):
    return step == "fail" and record.phase == "recovering"


@every_driver
def test_circuit_takes_no_claim(driver):
    template = stateful(policy=CircuitBreakerRetryPolicy())

    driver(template, Script("value"), state=KEY)
    assert kept(template).worker is None


@every_driver
def test_signal_during_the_last_write_passes_before_the_recovery(driver):
    template = stateful(1, cache=Down(recovery_begins, KeyboardInterrupt))
    fails(driver, template)
    recovery = Script("not called")

    with pytest.raises(KeyboardInterrupt):
        driver(template, Script("not called"), state=KEY, recovery=recovery)
    assert recovery.calls == 0
    assert kept(template).worker is None


def passed_on(name):
    def step(self, *args, **kwargs):
        self.steps.append(name)
        return getattr(self.inner, name)(*args, **kwargs)

    return step


class Plugged:
    """A cache of another implementation: it has the methods of the protocol only."""

    def __init__(self):
        self.inner = MemoryRetryContextCache()
        self.steps = []

    begin, renew, fail, succeed = map(passed_on, ("begin", "renew", "fail", "succeed"))
    release, forget, peek, swap = map(passed_on, ("release", "forget", "peek", "swap"))
    holds, __contains__ = map(passed_on, ("holds", "__contains__"))


@pytest.mark.statement("S2-13")
@every_driver
def test_default_cache_is_in_memory(driver):
    plugged = Plugged()
    template = stateful(2, cache=plugged)

    assert isinstance(stateful().cache, MemoryRetryContextCache)
    assert isinstance(plugged, RetryContextCache)
    fails(driver, template)
    assert driver(template, Script("value"), state=KEY) == "value"
    assert plugged.steps == ["begin", "fail", "fail", "begin", "succeed"]


def test_templates_do_not_share_the_memory_cache():
    assert stateful().cache is not stateful().cache


@pytest.mark.parametrize(
    "value", [pytest.param(object(), id="object"), {1, 2}, float("inf"), b"bytes", {1: 2}], ids=repr
)
@every_driver
def test_attribute_that_is_not_json_is_named_when_the_failure_is_stored(driver, value):
    failure = ValueError("the callback's own")

    def callback(context):
        context.attributes["handle"] = value
        raise failure

    with pytest.raises(TerminatedRetryError) as caught:
        driver(stateful(), callback, state=KEY)
    assert "'handle'" in str(caught.value.__cause__)
    assert caught.value.__context__ is failure


@both_kinds
def test_other_policy_tree_keeps_counts_and_restarts_its_state(driver):
    cache, clock = MemoryRetryContextCache(), VirtualClock()
    before = stateful(policy=TimeoutRetryPolicy(5.0), cache=cache, clock=clock)
    after = stateful(policy=TimeoutRetryPolicy(6.0), cache=cache, clock=clock)

    fails(driver, before)
    clock.advance(100.0)
    assert fails(driver, after).seen == [2]


# -- circuit breakers ---------------------------------------------------------------------------


def breaker(**settings):
    policy = CircuitBreakerRetryPolicy(SimpleRetryPolicy(2), open_timeout=5.0, reset_timeout=20.0)
    return stateful(policy=policy, **settings)


CIRCUIT = RetryState("circuit", rollback_for=())


@both_kinds
def test_open_circuit_makes_no_call_until_it_resets(driver):
    template = breaker()
    callback = Script(ValueError())
    answers = [
        driver(template, callback, state=CIRCUIT, recovery=lambda context: "elsewhere")
        for _ in range(4)
    ]
    assert answers == ["elsewhere"] * 4
    assert callback.calls == 2
    template.clock.advance(20.5)
    assert driver(template, Script("back"), state=CIRCUIT) == "back"


@both_kinds
def test_attributes_that_a_success_wrote_stay_in_a_circuit(driver):
    template = breaker()
    driver(template, lambda context: context.attributes.update(seen="here"), state=CIRCUIT)
    found = driver(template, lambda context: context.attributes.get("seen"), state=CIRCUIT)
    assert found == "here"


@both_kinds
def test_executions_of_one_circuit_may_overlap(driver):
    template = breaker()

    def callback(context):
        return template.execute(Script("nested"), state=CIRCUIT)

    assert driver(template, callback, state=CIRCUIT) == "nested"


# -- edges ----------------------------------------------------------------------------------------


@every_driver
@pytest.mark.parametrize("defer", ["wait", "raise"])
def test_failure_retried_in_place_waits_despite_a_deferred_backoff(driver, defer):
    template = made(delay=10.0)
    state = RetryState("key", rollback_for=KeyError, defer_backoff=defer)
    callback = Script(ValueError(), ValueError(), "value")
    assert driver(template, callback, state=state) == "value"
    assert template.clock.sleeps == [10.0, 10.0]


@pytest.mark.parametrize(("defer", "waited"), [("raise", []), ("wait", [10.0])])
def test_wait_of_a_circuit_is_deferred_like_any_other(defer, waited):
    template = made(policy=CircuitBreakerRetryPolicy(SimpleRetryPolicy(5)), delay=10.0)
    state = RetryState("key", defer_backoff=defer)
    with pytest.raises(ValueError):
        template.execute(Script(ValueError()), state=state)
    second = Script(ValueError("second"))
    with pytest.raises(RetryLater if defer == "raise" else ValueError):
        template.execute(second, state=state)
    assert second.calls == len(waited)
    assert template.clock.sleeps == waited


@every_driver
@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError])
def test_interrupt_of_the_last_write_replaces_the_failure(driver, kind):
    class Stopped(MemoryRetryContextCache):
        def fail(self, claim, record):
            super().fail(claim, record)
            if record.worker is None:
                raise kind

    template, failure = made(cache=Stopped()), ValueError("work")
    with pytest.raises(kind):
        driver(template, Script(failure), state=RetryState("key"))
    assert driver(template, Script("next"), state=RetryState("key")) == "next"


@every_driver
def test_interrupt_while_the_record_is_made_frees_the_key(driver):
    redacted = []

    def redact(text):
        redacted.append(text)
        if len(redacted) == 4:  # the message, the traceback and their like, of the second writing
            raise KeyboardInterrupt
        return text

    listener = Recorder()
    template = made(cache=MemoryRetryContextCache(redact=redact), listeners=[listener])
    with pytest.raises(KeyboardInterrupt):
        driver(template, Script(ValueError()), state=RetryState("key"))
    assert listener.hooks[-1] == "close"
    assert driver(template, Script("next"), state=RetryState("key")) == "next"


@every_driver
def test_failure_before_a_raising_recovery_is_in_its_context(driver):
    def recovery(context):
        raise RuntimeError("the table is gone")

    with pytest.raises(RuntimeError) as caught:
        driver(made(2), Script(KeyError("first"), OSError("last")), recovery=recovery)
    (note,) = caught.value.__notes__
    assert "1. KeyError: 'first'" in note
    assert "2. OSError: last" in note


@every_driver
def test_custom_policy_decides_before_the_first_attempt(driver):
    class Closed(RetryPolicy):
        def allows(self, failures, failure):
            queries.append((failures, failure))
            return False

    queries, callback = [], Script("value")
    with pytest.raises(ExhaustedRetryError, match="the policy allows none"):
        driver(made(policy=Closed()), callback)
    assert queries[0] == (0, None)
    assert callback.calls == 0


@every_driver
def test_policy_that_raises_before_the_first_attempt_prevents_it(driver):
    class Broken(RetryPolicy):
        def allows(self, failures, failure):
            return 1 / 0

    callback = Script("value")
    with pytest.raises(TerminatedRetryError, match="the policy could not be queried") as caught:
        driver(made(policy=Broken()), callback)
    assert type(caught.value.__cause__) is ZeroDivisionError
    assert callback.calls == 0


@every_driver
@pytest.mark.parametrize("limit", ["timeout", "deadline"])
def test_late_attempt_that_returned_completes_its_key(driver, limit):
    clock, calls = VirtualClock(), []
    template = stateful(clock=clock, attempt_timeout=1.0 if limit == "timeout" else None)

    def slow(context):
        calls.append(context.attempt)
        clock.advance(2)
        return "late"

    with Deadline(1.0 if limit == "deadline" else 60, clock=clock):
        assert driver(template, slow, state=KEY) == "late"
    assert calls == [1]
    assert kept(template) is None


@pytest.mark.parametrize("ending", [None, KeyboardInterrupt])
@pytest.mark.parametrize("listeners", [[], [Recorder()]], ids=["no listener", "listener"])
def test_elapsed_time_stops_when_the_key_ends(ending, listeners):
    clock, seen = VirtualClock(), []

    def work(context):
        seen.append(context)
        clock.advance(1.0)
        if ending is not None:
            raise ending

    template = RetryTemplate(clock=clock, listeners=listeners)
    with pytest.raises(ending) if ending else nullcontext():
        template.execute(work, state=RetryState("order-17"))
    clock.advance(100.0)
    assert seen[0].elapsed == 1.0

"""The store of the contexts fails: the caller's result, the notified hooks, the record."""

from asyncio import CancelledError

import pytest

from retrytemplate import (
    AttemptInProgressError,
    CacheUnavailableError,
    CircuitBreakerRetryPolicy,
    LeaseLostError,
    MemoryRetryContextCache,
    RetryListener,
    RetryState,
    TerminatedRetryError,
)
from retrytemplate.caches import Record
from retrytemplate.testing import Recorder
from tests.support.failing_cache import Down
from tests.support.runners import Script, every_driver, made

KEY = RetryState("order-17")
IN_PLACE = RetryState("order-17", rollback_for=())


def steps(*names):
    return lambda step, record: step in names


def after_the_first(*names):
    """The store is unavailable after each of these steps has run once."""
    made = []

    def down(step, record):
        made.append(step)
        return step in names and made.count(step) > 1

    return down


def the_first(name):
    """The store is unavailable for the first of these steps only."""
    later = after_the_first(name)
    return lambda step, record: step == name and not later(step, record)


def at_the_end(step, record):
    return step == "fail" and record.worker is None


def reported(listener):
    return [str(event.value) for event in listener.events if event.hook == "on_store_error"]


def on(down, attempts=3, **settings):
    how = {name: settings.pop(name) for name in ("error", "on_store_error") if name in settings}
    listener = Recorder()
    template = made(
        attempts,
        **{"name": "orders", "cache": Down(down, **how), "listeners": [listener]} | settings,
    )
    return template, listener


def kept(template):
    template.cache.down = steps()
    return template.cache.peek(template.scoped_key("order-17"))


class GivesUp(RetryListener):
    def open(self, context):
        context.give_up()


class Raises(RetryListener):
    def on_store_error(self, context, exception):
        raise LookupError("from the hook")


# -- away when the attempt begins ---------------------------------------------------------------


@every_driver
def test_callback_is_not_called_when_its_key_cannot_be_claimed(driver):
    template, listener = on(steps("begin"))
    callback = Script("not called")

    with pytest.raises(CacheUnavailableError):
        driver(template, callback, state=KEY)
    assert (callback.calls, listener.hooks) == (0, ["on_end"])


@every_driver
def test_unguarded_callback_runs_and_listeners_are_notified(driver):
    template, listener = on(steps("begin"), on_store_error="run_unguarded")

    assert driver(template, Script("value"), state=KEY) == "value"
    assert listener.hooks[:2] == ["open", "on_store_error"]
    assert listener.hooks[2:] == ["before_attempt", "on_success", "on_first_success", "close"]


@every_driver
def test_unguarded_a_failure_is_rethrown_and_nothing_is_counted(driver):
    template, _ = on(steps("begin"), on_store_error="run_unguarded")

    for _ in range(5):
        with pytest.raises(ValueError):
            driver(template, Script(ValueError()), state=KEY)
    assert kept(template) is None


@every_driver
def test_unguarded_retries_in_place_and_recovery_follow_the_policy(driver):
    template, _ = on(steps("begin"), on_store_error="run_unguarded")
    callback = Script(ValueError())

    assert driver(template, callback, state=IN_PLACE, recovery=lambda context: "done") == "done"
    assert callback.seen == [1, 2, 3]


@every_driver
@pytest.mark.parametrize("ask", ["still_mine", "complete_in"])
def test_unguarded_execution_rejects_questions_about_its_key(driver, ask):
    template, _ = on(steps("begin"), on_store_error="run_unguarded")

    def callback(context):
        assert context.fence is None
        return context.still_mine() if ask == "still_mine" else context.complete_in(None)

    with pytest.raises(CacheUnavailableError, match=f"{ask}.*without a hold on its key"):
        driver(template, callback, state=KEY)


@every_driver
def test_error_of_the_hook_before_an_unguarded_run_prevents_the_callback(driver):
    template, _ = on(steps("begin"), on_store_error="run_unguarded", listeners=[Raises()])
    callback = Script("not called")

    with pytest.raises(LookupError) as caught:
        driver(template, callback, state=KEY)
    assert callback.calls == 0
    assert isinstance(caught.value.__context__, CacheUnavailableError)


@every_driver
def test_other_cache_error_does_not_run_the_callback_unguarded(driver):
    template, _ = on(steps("begin"), error=RuntimeError, on_store_error="run_unguarded")
    callback = Script("not called")

    with pytest.raises(RuntimeError):
        driver(template, callback, state=KEY)
    assert callback.calls == 0


@every_driver
def test_lost_attempt_that_cannot_be_recorded_is_left_to_the_redelivery(driver):
    template, _ = on(steps("fail"))
    callback = Script("not called")
    template.cache.lost = "elsewhere:1"

    with pytest.raises(CacheUnavailableError):
        driver(template, callback, state=KEY)
    assert callback.calls == 0


@every_driver
def test_key_held_by_another_is_requested_once(driver):
    queries = []
    template, _ = on(lambda step, record: queries.append(step))
    template.cache.begin(template.scoped_key("order-17"), worker="another")
    queries.clear()

    with pytest.raises(AttemptInProgressError):
        driver(template, Script("not called"), state=KEY)
    assert queries.count("begin") == 1


# -- away at the end ----------------------------------------------------------------------------


@every_driver
def test_success_that_cannot_be_saved_keeps_its_value(driver):
    template, listener = on(steps("succeed"))

    assert driver(template, Script("value"), state=KEY) == "value"
    assert reported(listener) == ["down"]
    assert listener.hooks[-3:] == ["on_store_error", "on_first_success", "close"]


@every_driver
def test_success_that_cannot_be_saved_needs_no_listener(driver):
    template, _ = on(steps("succeed"), listeners=())

    assert driver(template, Script("value"), state=KEY) == "value"


@every_driver
def test_success_whose_key_was_taken_over_raises_lease_lost(driver):
    template, listener = on(steps("succeed"), error=LeaseLostError)

    with pytest.raises(LeaseLostError):
        driver(template, Script("value"), state=KEY)
    assert reported(listener) == []  # it is for errors after which the execution continues


@every_driver
def test_error_of_the_hook_replaces_the_value(driver):
    template, _ = on(steps("succeed"), listeners=[Raises()])

    with pytest.raises(LookupError) as caught:
        driver(template, Script("value"), state=KEY)
    assert isinstance(caught.value.__context__, CacheUnavailableError)


@every_driver
def test_failure_that_cannot_be_saved_is_raised_unchanged(driver):
    template, listener = on(steps("fail"))
    failure = ValueError("the callback's own")

    with pytest.raises(ValueError) as caught:
        driver(template, Script(failure), state=KEY)
    assert caught.value is failure
    assert "the failure could not be recorded: CacheUnavailable" in "".join(failure.__notes__)
    assert reported(listener) == ["down"]


@every_driver
def test_failure_is_saved_when_the_store_recovers_before_the_end(driver):
    template, _ = on(the_first("fail"))

    with pytest.raises(ValueError):
        driver(template, Script(ValueError()), state=KEY)
    assert (kept(template).failures, kept(template).worker) == (1, None)


@every_driver
def test_failure_whose_key_cannot_be_released_leaves_with_a_note(driver):
    template, listener = on(at_the_end)
    failure = ValueError("the callback's own")

    with pytest.raises(ValueError) as caught:
        driver(template, Script(failure), state=KEY)
    assert caught.value is failure
    assert "the key could not be left as it should be: Cache" in "".join(failure.__notes__)
    assert reported(listener) == ["down"]


@every_driver
def test_listener_error_about_the_last_write_has_the_failure_as_context(driver):
    template, _ = on(at_the_end, listeners=[Raises()])
    failure = ValueError("the callback's own")

    with pytest.raises(LookupError, match="from the hook") as caught:
        driver(template, Script(failure), state=KEY)
    assert caught.value.__context__ is failure


@every_driver
def test_failure_precedes_an_error_of_the_last_write(driver):
    template, _ = on(at_the_end, error=RuntimeError)
    failure = ValueError("the callback's own")

    with pytest.raises(ValueError) as caught:
        driver(template, Script(failure), state=KEY)
    assert caught.value is failure
    assert "the key could not be left as it should be: RuntimeError" in "".join(failure.__notes__)


@every_driver
def test_error_of_the_hook_replaces_the_failure(driver):
    template, _ = on(steps("fail"), listeners=[Raises()])
    failure = ValueError("the callback's own")

    with pytest.raises(LookupError) as caught:
        driver(template, Script(failure), state=KEY)
    assert caught.value.__context__ is failure


@every_driver
def test_failure_is_the_cause_of_a_lost_lease(driver):
    template, _ = on(steps("fail"), error=LeaseLostError)
    failure = ValueError("the callback's own")

    with pytest.raises(LeaseLostError) as caught:
        driver(template, Script(failure), state=KEY)
    assert caught.value.__cause__ is failure


@every_driver
@pytest.mark.parametrize("kind", [KeyboardInterrupt, CancelledError, GeneratorExit])
def test_signal_while_the_failure_is_recorded_is_raised(driver, kind):
    template, _ = on(the_first("fail"), error=kind)
    failure = ValueError("the callback's own")

    with pytest.raises(kind) as caught:
        driver(template, Script(failure), state=KEY)
    assert caught.value.__cause__ is failure
    assert driver(template, Script("next"), state=KEY) == "next"


@every_driver
def test_error_that_prevents_the_record_has_the_failure_as_context(driver):
    template, _ = on(steps("fail"), error=RuntimeError)
    failure = ValueError("the callback's own")

    with pytest.raises(TerminatedRetryError) as caught:
        driver(template, Script(failure), state=KEY)
    assert caught.value.__context__ is failure


@every_driver
def test_signal_while_the_key_is_taken_writes_no_record(driver):
    queries = []

    def down(step, record):
        queries.append(step)
        return step == "begin"

    template, _ = on(down, error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        driver(template, Script("value"), state=KEY)
    assert set(queries) == {"begin"}


# -- away between two attempts in place ---------------------------------------------------------


@every_driver
def test_attempt_in_place_that_cannot_be_counted_is_not_made(driver):
    template, listener = on(after_the_first("begin"))
    callback = Script(ValueError("first"), "not called")

    with pytest.raises(ValueError, match="first") as caught:
        driver(template, callback, state=IN_PLACE)
    assert callback.calls == 1
    assert "no further attempt could be counted" in "".join(caught.value.__notes__)
    assert reported(listener) == ["down"]
    assert kept(template).failures == 1


@every_driver
@pytest.mark.parametrize("step", ["begin", "fail"])
def test_unguarded_attempts_in_place_continue(driver, step):
    down = after_the_first("begin") if step == "begin" else steps("fail")
    template, listener = on(down, on_store_error="run_unguarded")
    callback = Script(ValueError("first"), ValueError("second"), "value")

    assert driver(template, callback, state=IN_PLACE) == "value"
    assert callback.seen == [1, 2, 3]
    assert reported(listener) == ["down"]


@every_driver
def test_attempt_in_place_of_a_key_taken_over_is_not_made(driver):
    template, _ = on(after_the_first("begin"), error=LeaseLostError)
    callback = Script(ValueError("first"), "not called")

    with pytest.raises(LeaseLostError) as caught:
        driver(template, callback, state=IN_PLACE)
    assert callback.calls == 1
    assert str(caught.value.__cause__) == "first"


# -- away before the recovery -------------------------------------------------------------------


def recovery_begins(step, record):
    return step == "fail" and record.phase == "recovering"


@every_driver
def test_recovery_whose_phase_cannot_be_recorded_runs(driver):
    template, listener = on(recovery_begins, attempts=1)
    with pytest.raises(ValueError):
        driver(template, Script(ValueError()), state=KEY)

    recovered = driver(
        template, Script("not called"), state=KEY, recovery=lambda context: "recovered"
    )
    assert recovered == "recovered"
    assert reported(listener) == ["down"]


@every_driver
def test_recovery_in_place_whose_phase_cannot_be_recorded_runs(driver):
    template, _ = on(recovery_begins, attempts=1)

    assert (
        driver(template, Script(ValueError()), state=IN_PLACE, recovery=lambda c: "done") == "done"
    )


@every_driver
def test_full_cache_does_not_prevent_the_recovery(driver):
    cache = MemoryRetryContextCache(capacity=1)
    template = made(cache=cache, listeners=[GivesUp()])
    cache.swap(template.scoped_key("another"), Record(), 0)

    assert (
        driver(template, Script("not called"), state=KEY, recovery=lambda context: "done") == "done"
    )


@every_driver
def test_another_cache_error_prevents_the_recovery(driver):
    template, _ = on(recovery_begins, attempts=1, error=RuntimeError)
    recovery = Script("not called")

    with pytest.raises(RuntimeError):
        driver(template, Script(ValueError()), state=IN_PLACE, recovery=recovery)
    assert recovery.calls == 0


@every_driver
def test_recovery_of_a_key_taken_over_is_not_run(driver):
    template, _ = on(recovery_begins, attempts=1, error=LeaseLostError)
    recovery, failure = Script("not called"), ValueError("first")

    with pytest.raises(LeaseLostError) as caught:
        driver(template, Script(failure), state=IN_PLACE, recovery=recovery)
    assert recovery.calls == 0
    assert caught.value.__context__ is failure


# -- away under a policy that keeps its context -------------------------------------------------


@every_driver
@pytest.mark.parametrize("step", ["peek", "swap"])
def test_callback_is_not_called_when_its_circuit_cannot_be_saved(driver, step):
    template, listener = on(steps(step), policy=CircuitBreakerRetryPolicy())
    callback = Script("not called")

    with pytest.raises(CacheUnavailableError):
        driver(template, callback, state=KEY)
    assert (callback.calls, listener.hooks) == (0, ["on_end"])


@every_driver
@pytest.mark.parametrize("step", ["peek", "swap"])
def test_unguarded_it_begins_as_a_new_one(driver, step):
    policy = CircuitBreakerRetryPolicy()
    template, listener = on(steps(step), policy=policy, on_store_error="run_unguarded")

    assert driver(template, Script("value"), state=KEY) == "value"
    assert reported(listener) == ["down"]


@every_driver
@pytest.mark.parametrize("step", ["peek", "swap"])
def test_failure_that_a_circuit_cannot_save_is_raised_unchanged(driver, step):
    template, listener = on(after_the_first(step), policy=CircuitBreakerRetryPolicy())
    failure = ValueError("the callback's own")

    with pytest.raises(ValueError) as caught:
        driver(template, Script(failure), state=KEY)
    assert caught.value is failure
    assert reported(listener) == ["down"]


@every_driver
@pytest.mark.parametrize("step", ["peek", "swap"])
def test_other_error_of_a_circuit_store_terminates_the_retry(driver, step):
    policy, callback = CircuitBreakerRetryPolicy(), Script("not called")
    template, listener = on(after_the_first(step), policy=policy, error=RuntimeError)

    with pytest.raises(TerminatedRetryError) as caught:
        driver(template, callback, state=KEY)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert (callback.calls, reported(listener)) == (0, [])


@every_driver
def test_circuit_success_without_changes_is_not_saved(driver):
    written = []
    template, _ = on(
        lambda step, record: step == "swap" and written.append(record),
        policy=CircuitBreakerRetryPolicy(),
    )
    driver(template, Script("value"), state=KEY)
    assert len(written) == 2  # the beginning, and the decision before the attempt

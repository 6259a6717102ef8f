"""Errors raised by components: each hook, the policy, the backoff, a guard."""

import asyncio

import pytest

from retrytemplate import (
    AlwaysRetryPolicy,
    Guard,
    MaxAttemptsRetryPolicy,
    NestedRetryError,
    PredicateRetryPolicy,
    Rejected,
    ResultRetryPolicy,
    RetryListener,
    RetryState,
    SimpleRetryPolicy,
    StatefulRetryPolicy,
    TerminatedRetryError,
    TimeoutRetryPolicy,
    current_context,
)
from retrytemplate.backoff import Backoff
from retrytemplate.policies import RetryPolicy
from retrytemplate.testing import Recorder, VirtualClock
from tests.support.runners import Script, every_driver, made

# -- listeners that raise -----------------------------------------------------------------------


class Raises(Recorder):
    """Records each hook, and raises in one hook, at most `times` times."""

    def __init__(self, hook, error, times=99):
        super().__init__()
        self.hook, self.error, self.times = hook, error, times

    def _note(self, hook, context, value=None):
        super()._note(hook, context, value)
        if hook == self.hook and self.hooks.count(hook) <= self.times:
            raise self.error


def between(hook, error=None, times=99):
    """Three listeners, of which the one in the middle raises."""
    return Recorder(), Raises(hook, error or LookupError(f"from {hook}"), times), Recorder()


def closes(listeners):
    return [listener.hooks.count("close") for listener in listeners]


def hooked(listeners, hook):
    return [hook in listener.hooks for listener in listeners]


@pytest.mark.statement("S2-43")
@every_driver
def test_error_in_open_skips_later_opens_and_calls_every_close(driver):
    listeners = between("open")
    callback = Script("value")

    with pytest.raises(LookupError, match="from open"):
        driver(made(listeners=listeners), callback, recovery=lambda context: "recovered")
    assert callback.calls == 0
    assert hooked(listeners, "open") == [True, True, False]
    assert closes(listeners) == [1, 1, 1]


@pytest.mark.statement("S2-41")
@every_driver
def test_open_that_returns_false_rejects_the_execution(driver):
    class No(Recorder):
        def open(self, context):
            super().open(context)
            return False

    listeners = Recorder(), No(), Recorder()
    callback = Script("value")
    with pytest.raises(TerminatedRetryError, match="veto"):
        driver(made(listeners=listeners), callback, recovery=lambda context: "recovered")
    assert callback.calls == 0
    assert hooked(listeners, "open") == [True, True, False]
    assert [listener.values("close") for listener in listeners] == [[None]] * 3


@pytest.mark.statement("S2-43")
@every_driver
def test_raising_in_before_attempt_is_a_failed_attempt_without_a_call(driver):
    error = LookupError("not this time")
    listeners = between("before_attempt", error, times=1)
    callback = Script("value")

    assert driver(made(listeners=listeners), callback) == "value"
    assert callback.seen == [2]
    assert [listener.errors for listener in listeners] == [[error]] * 3


@pytest.mark.statement("S2-43")
@every_driver
def test_raising_in_on_success_makes_it_a_failed_attempt(driver):
    error = LookupError("not good enough")
    listeners = between("on_success", error, times=1)
    callback = Script("first", "second")

    assert driver(made(listeners=listeners), callback) == "second"
    assert [listener.errors for listener in listeners] == [[error]] * 3
    assert [listener.results for listener in listeners] == [
        ["second"],
        ["first", "second"],
        ["first", "second"],
    ]


@pytest.mark.statement("S2-43")
@pytest.mark.parametrize("hook", ["on_error", "on_backoff"])
@every_driver
def test_raising_in_on_error_or_on_backoff_ends_it_with_that_error(driver, hook):
    listeners = between(hook)
    template = made(delay=1.0, listeners=listeners)
    failure = ValueError("the callback's own")
    callback = Script(failure)

    with pytest.raises(LookupError, match=f"from {hook}") as caught:
        driver(template, callback, recovery=lambda context: "recovered")
    assert caught.value.__context__ is failure
    assert callback.calls == 1
    assert template.clock.sleeps == []
    assert hooked(listeners, hook) == [False, True, True]
    assert closes(listeners) == [1, 1, 1]


@pytest.mark.statement("S2-43")
@every_driver
def test_error_in_on_recovery_replaces_the_result_of_the_recovery(driver):
    listeners = between("on_recovery")
    contexts = []

    def recover(context):
        contexts.append(context)
        return "recovered"

    with pytest.raises(LookupError, match="from on_recovery"):
        driver(made(1, listeners=listeners), Script(ValueError()), recovery=recover)
    assert contexts[0].recovered
    assert hooked(listeners, "on_recovery") == [False, True, True]
    assert closes(listeners) == [1, 1, 1]


@pytest.mark.statement("S2-43")
@every_driver
@pytest.mark.parametrize("step", ["value", ValueError("the callback's own")], ids=["ok", "failed"])
def test_raising_in_close_replaces_the_end_and_every_close_is_called(driver, step):
    listeners = between("close")

    with pytest.raises(LookupError, match="from close") as caught:
        driver(made(1, listeners=listeners), Script(step))
    assert closes(listeners) == [1, 1, 1]
    if step != "value":
        assert step in (caught.value.__context__, caught.value.__cause__)
    assert current_context() is None


@pytest.mark.statement("S2-43")
@every_driver
def test_first_of_several_errors_in_close_is_raised(driver):
    listeners = [Raises("close", LookupError(n)) for n in range(3)]

    with pytest.raises(LookupError, match="2"):
        driver(made(listeners=listeners), Script("value"))
    assert closes(listeners) == [1, 1, 1]


# -- policies and backoffs that raise -----------------------------------------------------------

BUG = ZeroDivisionError("a bug of the policy")


class RaisesInAllows(RetryPolicy):
    def allows(self, failures, failure):
        if failure is not None:
            raise BUG
        return True


class RaisesIn(StatefulRetryPolicy):
    def __init__(self, where):
        object.__setattr__(self, "where", where)

    def start(self, now):
        if self.where == "start":
            raise BUG
        return 0

    def record(self, state, failure, now):
        if self.where == "record":
            raise BUG
        return state + 1

    def decide(self, state, now):
        if self.where == "decide" and state:
            raise BUG
        return state < 3, state


@every_driver
@pytest.mark.parametrize(
    "policy",
    [
        RaisesInAllows(),
        RaisesIn("record"),
        PredicateRetryPolicy(lambda exception: 1 / 0),
        SimpleRetryPolicy(3, lambda exception: 1 / 0),
        AlwaysRetryPolicy() & PredicateRetryPolicy(lambda exception: 1 / 0),
    ],
    ids=["allows", "record", "predicate", "simple", "tree"],
)
def test_policy_that_raises_about_a_failure_terminates_after_on_error(driver, policy):
    recorder = Recorder()
    failure = ValueError("the callback's own")

    with pytest.raises(TerminatedRetryError) as caught:
        driver(
            made(policy=policy, listeners=[recorder]),
            Script(failure),
            recovery=lambda context: "recovered",
        )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert recorder.errors == [failure]
    assert recorder.hooks[-1] == "close"
    error, chain = caught.value, []
    while error is not None:
        chain.append(error)
        error = error.__context__
    assert failure in chain


@every_driver
def test_policy_that_raises_without_listeners_terminates(driver):
    failure = ValueError("the callback's own")

    with pytest.raises(TerminatedRetryError) as caught:
        driver(made(policy=RaisesInAllows()), Script(failure), recovery=lambda context: "recovered")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.__context__ is failure


@every_driver
def test_failure_that_the_policy_cannot_judge_is_not_kept(driver):
    template, state = made(policy=RaisesInAllows(), name="kept"), RetryState("key")

    with pytest.raises(TerminatedRetryError):
        driver(template, Script(ValueError()), state=state)
    assert template.cache.peek(template.scoped_key("key")) is None
    assert driver(template, Script("value"), state=state) == "value"


@every_driver
@pytest.mark.parametrize("where", ["start", "decide"])
def test_policy_error_outside_a_decision_is_not_wrapped(driver, where):
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError) as caught:
        driver(made(policy=RaisesIn(where), listeners=[recorder]), Script(ValueError()))
    assert caught.value is BUG
    assert recorder.hooks[-1] == "close"
    assert current_context() is None


@every_driver
def test_backoff_error_is_not_wrapped(driver):
    class Broken(Backoff):
        def start(self):
            return None

        def next(self, state, failure, random):
            raise BUG

    recorder = Recorder()
    callback = Script(ValueError())
    with pytest.raises(ZeroDivisionError):
        driver(
            made(backoff=Broken(), listeners=[recorder]), callback, recovery=lambda c: "recovered"
        )
    assert callback.calls == 1
    assert recorder.hooks == ["open", "before_attempt", "on_error", "on_end", "close"]


@every_driver
def test_rollback_classifier_that_raises_keeps_the_counted_failure(driver):
    recorder = Recorder()
    template = made(name="rollback", listeners=[recorder])
    state = RetryState("key", rollback_for=lambda exception: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        driver(template, Script(ValueError()), state=state)
    assert recorder.hooks[-1] == "close"
    record = template.cache.peek(template.scoped_key("key"))
    assert (record.failures, record.worker) == (1, None)


@every_driver
def test_result_predicate_that_raises_fails_the_attempt(driver):
    answers = iter([True, False])
    policy = ResultRetryPolicy(lambda result: 1 / 0 if next(answers) else False)
    callback = Script("first", "second")

    assert driver(made(policy=policy), callback) == "second"


@every_driver
def test_invalid_number_at_run_time_is_rejected(driver):
    template = made(policy=SimpleRetryPolicy(lambda: 0))
    callback = Script(LookupError())

    with pytest.raises(ValueError, match=r"max_attempts must be an int >= 1, got 0"):
        driver(template, callback)
    assert callback.calls <= 1, "an attempt that is made inline needs no number"
    assert current_context() is None


def test_outcome_of_an_invalid_number_at_run_time_has_the_error():
    outcome = made(policy=SimpleRetryPolicy(lambda: 0)).outcome(int, "17")
    assert isinstance(outcome.exception, ValueError)
    assert outcome.attempts == 0


@every_driver
def test_exception_without_text_is_retried(driver):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    with pytest.raises(Mute) as caught:
        driver(made(2), Script(Mute(), Mute()))
    assert "Mute: <no text" in caught.value.__notes__[0]


# -- guards that reject or raise ----------------------------------------------------------------


class Gate(Guard):
    """Records every step; rejects or raises at one of them."""

    def __init__(self, step=None, at=1, error=None):
        self.step, self.at, self.error = step, at, error
        self.steps = []

    def _note(self, step):
        self.steps.append(step)
        if step == self.step and self.steps.count(step) == self.at:
            raise self.error or Rejected("rejected", name="gate", retry_after=7.0)

    def admit(self, context):
        self._note("admit")

    def reserve(self, context, delay):
        self._note("reserve")

    def release(self, context):
        self._note("release")


@every_driver
def test_guard_runs_before_every_attempt_and_every_wait(driver):
    gate = Gate()
    driver(made(delay=1.0, guards=[gate]), Script(ValueError(), ValueError(), "value"))
    assert gate.steps == ["admit", "reserve", "admit", "reserve", "admit"]


@every_driver
def test_guard_that_rejects_the_first_attempt_raises_to_the_caller(driver):
    callback, recoveries = Script("value"), []

    with pytest.raises(Rejected) as caught:
        driver(made(guards=[Gate("admit")]), callback, recovery=recoveries.append)
    assert caught.value.retry_after == 7.0
    assert (callback.calls, recoveries) == (0, [])


@every_driver
def test_guard_that_rejects_a_later_attempt_has_the_last_failure_as_cause(driver):
    failure = ValueError("the callback's own")

    with pytest.raises(Rejected) as caught:
        driver(made(guards=[Gate("admit", at=2)]), Script(failure), recovery=lambda c: "recovered")
    assert caught.value.__cause__ is failure


@every_driver
@pytest.mark.parametrize("also", [MaxAttemptsRetryPolicy(9), TimeoutRetryPolicy(60.0)])
def test_guard_that_grants_no_retry_leads_to_recovery_without_a_wait(driver, also):
    policy = SimpleRetryPolicy(9, not_recoverable=ValueError) & also
    template = made(policy=policy, delay=1.0, guards=[Gate("reserve")])
    callback = Script(ValueError())

    assert driver(template, callback, recovery=lambda context: "recovered") == "recovered"
    assert callback.calls == 1
    assert template.clock.sleeps == []


@every_driver
def test_rejection_of_a_nested_retry_raises_the_failure_itself(driver):
    gate = Gate("reserve", error=NestedRetryError("one layer only"))
    template, failure = made(delay=1.0, guards=[gate]), ValueError()
    with pytest.raises(ValueError) as caught:
        driver(template, Script(failure))
    assert (caught.value, caught.value.__cause__, template.clock.sleeps) == (failure, None, [])
    in_place = RetryState("key", rollback_for=())
    with pytest.raises(ValueError) as caught:
        driver(
            template.with_(guards=[Gate("reserve", error=gate.error)]),
            Script(failure),
            state=in_place,
        )
    assert caught.value is failure


@every_driver
def test_reservation_is_released_when_a_later_guard_rejects(driver):
    first, second, third = gates = Gate(), Gate("reserve"), Gate()
    with pytest.raises(Rejected):
        driver(made(delay=1.0, guards=gates), Script(ValueError()))
    assert first.steps == ["admit", "reserve", "release"]
    assert second.steps == ["admit", "reserve"]
    assert third.steps == ["admit"]


@every_driver
def test_reservation_is_released_when_the_wait_is_interrupted(driver):
    gates = Gate(), Gate()
    template = made(delay=1.0, guards=gates, clock=VirtualClock(interrupt_at=1))
    with pytest.raises(Exception, match="interrupted"):
        driver(template, Script(ValueError()))
    assert [gate.steps for gate in gates] == [["admit", "reserve", "release"]] * 2


@every_driver
def test_reservation_is_released_when_the_attempt_is_rejected_after_wait(driver):
    gates = Gate(), Gate("admit", at=2)
    with pytest.raises(Rejected):
        driver(made(delay=1.0, guards=gates), Script(ValueError()))
    assert [gate.steps for gate in gates] == [["admit", "reserve", "admit", "release"]] * 2


@every_driver
def test_reservation_is_released_when_the_policy_stops_after_the_wait(driver):
    gate = Gate()
    policy = TimeoutRetryPolicy(5.0)
    template = made(policy=policy, delay=10.0, guards=[gate])
    steps = []

    def recovery(context):
        steps.extend(gate.steps)
        return "recovered"

    assert driver(template, Script(ValueError()), recovery=recovery) == "recovered"
    assert template.clock.sleeps == [10.0]
    assert gate.steps == steps == ["admit", "reserve", "release"]


@every_driver
def test_reservation_for_a_redelivery_is_kept(driver):
    gate = Gate()
    template = made(delay=1.0, guards=[gate])
    with pytest.raises(ValueError):
        driver(template, Script(ValueError()), state=RetryState("key"))
    assert gate.steps == ["admit", "reserve"]


@every_driver
@pytest.mark.parametrize("kind", [ZeroDivisionError, asyncio.CancelledError, KeyboardInterrupt])
@pytest.mark.parametrize("rejects", [True, False], ids=["after a rejection", "after a wait"])
def test_error_in_release_leaves_and_the_other_guards_are_released(driver, kind, rejects):
    error = kind()
    gates = [Gate("release", error=error), Gate()]
    settings = {"clock": VirtualClock(interrupt_at=1)}
    if rejects:
        gates.append(Gate("reserve"))
        settings = {}
    failure = ValueError("the callback's own")
    with pytest.raises(BaseException) as caught:
        driver(
            made(delay=1.0, guards=gates, **settings), Script(failure), recovery=lambda c: "none"
        )
    assert caught.value is error
    instead = "Rejected" if rejects else "BackoffInterruptedError"
    if not driver.__name__.endswith("block"):  # there, Python names the block's own exception
        behind = caught.value.__context__
        assert type(behind).__name__ == instead
        assert behind.__context__ is failure
    assert [gate.steps[-1] for gate in gates[:2]] == ["release", "release"]


@every_driver
@pytest.mark.parametrize("step", ["admit", "reserve"])
def test_guard_that_raises_another_error_does_not_reject(driver, step):
    template = made(delay=1.0, guards=[Gate(step, error=BUG)], listeners=[Recorder()])

    with pytest.raises(ZeroDivisionError):
        driver(template, Script(ValueError()), recovery=lambda context: "recovered")
    assert template.listeners[0].hooks[-1] == "close"


def test_asynchronous_guards_are_awaited():
    class Budget(Gate):
        async def admit(self, context):
            await asyncio.sleep(0)
            super().admit(context)

    gate = Budget("admit", at=2)
    with pytest.raises(Rejected):
        asyncio.run(made(guards=[gate]).execute_async(Script(ValueError())))
    assert gate.steps.count("admit") == 2


class Closing(RetryListener):
    def __init__(self, error):
        self.error = error

    def close(self, context, exception):
        raise self.error


@every_driver
@pytest.mark.parametrize("failures", [0, 1], ids=["success", "failure"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError])
def test_signal_in_close_precedes_the_first_error_of_a_close(driver, failures, kind):
    first, stop = OSError("the metrics are down"), kind()
    template = made(1, listeners=[Closing(ValueError()), Closing(stop), Closing(first)])
    with pytest.raises(kind) as caught:  # the last listener is notified first
        driver(template, Script(LookupError() if failures else "value"))
    assert caught.value is stop
    if not driver.__name__.endswith("block"):  # there, Python may name the block's own exception
        assert caught.value.__context__ is first

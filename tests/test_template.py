"""The entry points of a template, and their guarantees."""

import asyncio
import copy
import inspect
import pickle

import pytest
from attrs.exceptions import FrozenInstanceError

from retrytemplate import (
    ExponentialBackoff,
    MaxAttemptsRetryPolicy,
    MisuseError,
    NeverRetryPolicy,
    Outcome,
    RecordedFailure,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
)
from retrytemplate.testing import Recorder, ScriptedRandom, VirtualClock
from tests.support.runners import Script, both_kinds, every_driver, made

# -- call and outcome ------------------------------------------------------------------------------


def adding(failures=0):
    """A function of its arguments alone that fails a number of times first."""
    left = [ValueError(f"failure {n}") for n in range(failures)]

    def add(one, /, two, *, three=0):
        if left:
            raise left.pop(0)
        return one + two + three

    return add


@pytest.mark.parametrize("failures", [0, 2])
def test_call_passes_the_arguments_at_every_attempt(failures):
    assert made().call(adding(failures), 1, two=2, three=3) == 6


@pytest.mark.parametrize("failures", [0, 2])
async def test_call_async_accepts_functions_of_both_kinds(failures):
    plain, left = adding(failures), adding(failures)

    async def awaited(*args, **kwargs):
        await asyncio.sleep(0)
        return left(*args, **kwargs)

    template = made()
    assert await template.call_async(plain, 1, two=2, three=3) == 6
    assert await template.call_async(awaited, 1, two=2, three=3) == 6


def test_outcome_of_a_success_has_value_attempts_and_time():
    template = made(delay=1.5)
    outcome = template.outcome(adding(2), 1, two=2)

    assert (outcome.ok, outcome.value, outcome.exception) == (True, 3, None)
    assert (outcome.attempts, outcome.elapsed) == (3, 3.0)
    assert [record.message for record in outcome.history] == ["failure 0", "failure 1"]
    assert outcome.unwrap() == 3


@pytest.mark.parametrize("delay", [None, 1.5])
def test_outcome_has_the_start_of_every_failed_attempt(delay):
    template = made(delay=delay, clock=VirtualClock())

    def fails():
        template.clock.advance(10.0)
        raise ValueError

    history = template.outcome(fails).history
    first = history[0].started
    every = 10.0 + (delay or 0.0)
    assert [each.started - first for each in history] == pytest.approx([0, every, 2 * every])


def test_outcome_has_the_exception_instead_of_raising_it():
    outcome = made().outcome(adding(3), 1, two=2)

    assert not outcome.ok
    assert str(outcome.exception) == "failure 2"
    assert (outcome.attempts, len(outcome.history)) == (3, 3)
    with pytest.raises(ValueError, match="failure 2"):
        outcome.unwrap()


async def test_outcome_of_an_asynchronous_function_is_the_same():
    async def failing():
        raise ValueError("never")

    outcome = await made().outcome_async(failing)
    assert isinstance(outcome, Outcome)
    assert (outcome.ok, str(outcome.exception), outcome.attempts) == (False, "never", 3)


def test_outcome_raises_base_exceptions():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made().outcome(interrupted)


@both_kinds
def test_context_after_the_end_has_recorded_failures_only(driver):
    held = []

    def callback(context):
        held.append(context)
        raise ValueError("text") from LookupError("its cause")

    with pytest.raises(ValueError):
        driver(made(), callback)
    last = held[0].last_exception
    assert type(last) is RecordedFailure
    assert (last.type_name, last.message) == ("ValueError", "text")
    assert (last.cause.type_name, last.cause.message) == ("LookupError", "its cause")
    assert [(r.number, r.type_name, r.message) for r in held[0].history] == [
        (n, "ValueError", "text") for n in (1, 2, 3)
    ]
    assert held[0].closed


# -- bind and with_ --------------------------------------------------------------------------------


def test_bound_template_recovers_in_each_entry_point():
    bound = made(2).bind(recovery=lambda context: f"after {context.retry_count}")

    @bound.wrap
    def wrapped():
        raise ValueError

    attempts = bound.attempts()
    for attempt in attempts:
        with attempt:
            raise ValueError
    assert bound.call(adding(9), 1, two=2) == "after 2"
    assert bound.outcome(adding(9), 1, two=2).value == "after 2"
    assert bound.execute(Script(ValueError())) == "after 2"
    assert wrapped() == "after 2"
    assert attempts.result == "after 2"


async def test_bound_template_recovers_in_each_asynchronous_entry_point():
    async def recover(context):
        return f"after {context.retry_count}"

    bound = made(2).bind(recovery=recover)

    async def failing(*_):
        raise ValueError

    attempts = bound.attempts()
    async for attempt in attempts:
        async with attempt:
            raise ValueError
    assert await bound.call_async(failing) == "after 2"
    assert (await bound.outcome_async(failing)).value == "after 2"
    assert await bound.execute_async(failing) == "after 2"
    assert await bound.wrap(failing)() == "after 2"
    assert attempts.result == "after 2"


def test_bound_state_makes_every_entry_point_stateful():
    template = made(9, name="bound")
    bound = template.bind(state=RetryState("key"))

    @bound.wrap
    def wrapped():
        raise ValueError(current_context().retry_count)

    with pytest.raises(ValueError, match="0"):
        bound.call(wrapped.__wrapped__)
    with pytest.raises(ValueError, match="1"):
        wrapped()
    assert bound.outcome(wrapped.__wrapped__).exception.args == (2,)
    with pytest.raises(ValueError, match="3"):
        for attempt in bound.attempts():
            with attempt:
                wrapped.__wrapped__()
    assert template.cache.peek(template.scoped_key("key")).failures == 4


def test_bound_label_is_the_name_that_listeners_see():
    names = []

    class Names(RetryListener):
        def open(self, context):
            names.append(context.name)

    template = made(name="template", listeners=[Names()])
    template.call(int)
    template.bind(label="label").call(int)
    assert names == ["template", "label"]


def test_bound_template_has_listeners_that_are_registered_later():
    recorder = Recorder()
    template = made()
    bound = template.bind()
    template.register_listener(recorder)
    bound.call(int)
    assert recorder.hooks == ["open", "before_attempt", "on_success", "on_first_success", "close"]


def test_with_returns_a_changed_copy_and_keeps_the_original():
    template = made(3, name="original")
    changed = template.with_(policy=MaxAttemptsRetryPolicy(5), name="changed")

    assert template.outcome(adding(9), 1, two=2).attempts == 3
    assert changed.outcome(adding(9), 1, two=2).attempts == 5
    assert (template.name, changed.name) == ("original", "changed")
    assert changed.clock is template.clock


def test_copy_has_the_listeners_registered_before_it_only():
    early, late = Recorder(), Recorder()
    template = made()
    template.register_listener(early)
    copy = template.with_(name="copy")
    template.register_listener(late)
    copy.call(int)
    assert early.hooks
    assert not late.hooks


@pytest.mark.statement("S0-03")
def test_functions_that_share_a_template_follow_its_replacement():
    def functions(shared):
        """A module of two guarded functions with one shared configuration."""

        @shared.wrap
        def first():
            calls.append("first")
            raise OSError

        @shared.wrap
        async def second():
            calls.append("second")
            raise OSError

        return first, second

    for policy, attempts in ((SimpleRetryPolicy(2), 2), (SimpleRetryPolicy(5), 5)):
        calls = []
        first, second = functions(made(policy=policy))
        with pytest.raises(OSError):
            first()
        with pytest.raises(OSError):
            asyncio.run(second())
        assert calls == ["first"] * attempts + ["second"] * attempts


@pytest.mark.statement("S0-03")
def test_run_time_number_changes_functions_wrapped_before():
    settings = {"attempts": 2}
    template = made(policy=SimpleRetryPolicy(lambda: settings["attempts"]))
    calls = []

    @template.wrap
    def failing():
        calls.append("call")
        raise OSError

    for attempts in (2, 5):
        settings["attempts"] = attempts
        calls.clear()
        with pytest.raises(OSError):
            failing()
        assert len(calls) == attempts


# -- register_listener -----------------------------------------------------------------------------
class Opens(RetryListener):
    def __init__(self, name, opened):
        self.name, self.opened = name, opened

    def open(self, context):
        self.opened.append(self.name)


def test_register_listener_appends_or_inserts():
    opened = []
    template = made(listeners=[Opens("a", opened)])
    template.register_listener(Opens("c", opened))
    template.register_listener(Opens("b", opened), 1)
    template.register_listener(Opens("d", opened), 99)

    template.call(int)
    assert opened == ["a", "b", "c", "d"]


def test_listener_without_a_base_class_needs_only_its_hooks():
    class OnErrors:
        def __init__(self):
            self.errors = []

        def on_error(self, context, exception):
            self.errors.append(str(exception))

    listener = OnErrors()
    made(2, listeners=[listener]).outcome(int, "x")
    assert len(listener.errors) == 2


class Joins:
    """A callback that adds a listener to the template in its first attempt and fails once."""

    def __init__(self, template, listener):
        self.template, self.listener, self.calls = template, listener, 0

    def __call__(self, *_):
        self.calls += 1
        if self.calls == 1:
            self.template.register_listener(self.listener)
            raise ValueError("after the listener has joined")
        return "value"


def called(template, callback):
    return template.call(callback)


def wrapped(template, callback):
    return template.wrap(callback)()


def awaited(template, callback):
    async def body():
        return callback()

    return asyncio.run(template.wrap(body)())


def executed(template, callback):
    return template.execute(callback)


def in_a_block(template, callback):
    for attempt in template.attempts():
        with attempt:
            value = callback()
    return value


@pytest.mark.parametrize("entrance", [executed, called, wrapped, awaited, in_a_block])
@pytest.mark.parametrize("delay", [None, 1.0], ids=["at once", "after a wait"])
@pytest.mark.parametrize("watched", [False, True], ids=["inline", "watched"])
def test_execution_keeps_the_listeners_that_it_began_with(entrance, delay, watched):
    late = Recorder()
    template = made(delay=delay, listeners=[Recorder()] if watched else [])

    assert entrance(template, Joins(template, late)) == "value"
    assert late.hooks == []
    template.call(int)
    assert late.hooks == ["open", "before_attempt", "on_success", "on_first_success", "close"]


# -- as a decorator --------------------------------------------------------------------------------


@pytest.mark.statement("S0-01")
async def test_async_function_is_guarded_without_changes_in_its_callers():
    clock = VirtualClock()
    resilient = RetryTemplate(
        SimpleRetryPolicy(3, (TimeoutError, OSError)),
        ExponentialBackoff(initial=0.2, multiplier=2.0, maximum=2.0),
        attempt_timeout=2.0,
        clock=clock,
    )
    left = [TimeoutError(), OSError()]

    @resilient.wrap
    async def fetch(url):
        await asyncio.sleep(0)
        if left:
            raise left.pop(0)
        return f"<{url}>"

    assert await fetch("page") == "<page>"
    assert clock.sleeps == [0.2, 0.4]
    with pytest.raises(FrozenInstanceError):
        resilient.policy = NeverRetryPolicy()
    assert inspect.iscoroutinefunction(fetch)


@pytest.mark.statement("S0-64")
def test_tests_replace_only_clock_and_random_source():
    """Jitter is drawn and listeners are called in virtual time as in real time."""
    recorder = Recorder()
    production = RetryTemplate(
        SimpleRetryPolicy(3), ExponentialBackoff(initial=1.0, jitter="equal"), listeners=[recorder]
    )
    tested = production.with_(clock=VirtualClock(), random=ScriptedRandom([0.0, 0.5]))
    tested.outcome(int, "x")

    assert tested.clock.sleeps == recorder.delays == [0.5, 1.5]


@pytest.mark.statement("S0-65")
@every_driver
def test_two_value_errors_then_ok_take_three_calls_and_no_time(driver):
    template = made(3, delay=0.0)
    callback = Script(ValueError(), ValueError(), "ok")

    assert driver(template, callback) == "ok"
    assert callback.calls == 3
    assert template.clock.monotonic() == 0.0


# -- copies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made_of", [lambda t: t, lambda t: t.bind(label="b")], ids=["own", "bound"]
)
@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_template_cannot_be_pickled_or_copied_deeply(made_of, copied):
    with pytest.raises(MisuseError, match="make one in each process, or use with_"):
        copied(made_of(RetryTemplate(name="orders")))


def test_shallow_copy_shares_the_cache_and_the_listeners():
    template = RetryTemplate(name="orders", listeners=[Recorder()])
    same = copy.copy(template)
    assert same is not template
    assert (same.cache, same.listeners, same.name) == (template.cache, template.listeners, "orders")
    assert same.call(int, "17") == 17

"""The rules of one execution: what happens in which order, and when it ends."""

import asyncio
import threading
from pathlib import Path

import pytest
from attrs.exceptions import FrozenInstanceError

import retrytemplate
from retrytemplate import (
    CircuitBreakerRetryPolicy,
    Deadline,
    ExhaustedRetryError,
    ExponentialBackoff,
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    NoBackoff,
    PredicateRetryPolicy,
    ResultRetryPolicy,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    StatefulRetryPolicy,
    TimeoutRetryPolicy,
    UnacceptableResultError,
    UnboundedRetryWarning,
    current_context,
)
from retrytemplate.backoff import Backoff
from retrytemplate.control import Bulkhead
from retrytemplate.policies import AlwaysRetryPolicy
from retrytemplate.testing import Recorder, ScriptedRandom, VirtualClock
from tests.support.hooks import EveryHook
from tests.support.runners import Script, both_kinds, every_driver, made

# -- attempts and their end ------------------------------------------------------------------------


@pytest.mark.statement("S2-03")
@every_driver
def test_failed_callback_is_called_again_until_it_returns(driver):
    callback = Script(ValueError("one"), ValueError("two"), "value")

    assert driver(made(), callback) == "value"
    assert callback.calls == 3


@pytest.mark.statement("S2-01")
@both_kinds
def test_execute_accepts_callback_recovery_and_state(driver):
    def failing():
        return Script(ValueError("never"))

    template = made(2, name="shapes")

    assert driver(template, Script("value")) == "value"
    assert driver(template, failing(), recovery=lambda context: "recovered") == "recovered"
    assert driver(template, Script("value"), state=RetryState("alone")) == "value"
    for _ in range(2):
        with pytest.raises(ValueError, match="never"):
            driver(template, failing(), state=RetryState("both"), recovery=lambda context: "late")
    both = driver(template, failing(), state=RetryState("both"), recovery=lambda context: "late")
    assert both == "late"


@pytest.mark.statement("S2-02")
@every_driver
def test_callback_gets_the_context_of_its_own_execution(driver):
    seen = []

    def callback(context):
        assert current_context() is context
        seen.append((context.attempt, context.retry_count))
        if len(seen) == 1:
            raise ValueError

    driver(made(), callback)
    assert seen == [(1, 0), (2, 1)]


@pytest.mark.statement("S2-02")
def test_callback_may_ignore_the_context():
    assert made().execute(lambda _context: "value") == "value"


@pytest.mark.statement("S3-04")
@every_driver
def test_callback_reads_the_number_of_its_attempt(driver):
    callback = Script(ValueError(), ValueError(), "value")

    driver(made(), callback)
    assert callback.seen == [1, 2, 3]


@pytest.mark.statement("S2-05")
@every_driver
def test_attributes_are_kept_across_the_attempts_of_one_execution(driver):
    def callback(context):
        count = context.attributes.get("count", 0)
        context.attributes["count"] = count + 1
        if count < 2:
            raise ValueError
        return count

    template = made()
    assert driver(template, callback) == 2
    assert driver(template, callback) == 2, "and not beyond it"


@pytest.mark.statement("S2-06")
@every_driver
def test_nested_execution_has_the_outer_context_as_parent(driver):
    inner = made()

    def callback(context):
        def inside(nested):
            assert nested.parent is context
            nested.parent.attributes["from inside"] = nested.attempt
            if nested.attempt == 1:
                raise ValueError

        inner.execute(inside)
        assert current_context() is context
        return context.attributes["from inside"]

    assert driver(made(), callback) == 2
    assert current_context() is None


@pytest.mark.statement("S2-06")
async def test_task_started_in_a_callback_has_the_outer_context_as_parent():
    async def inside(nested):
        return nested.parent

    async def callback(context):
        parent = await asyncio.create_task(made().execute_async(inside))
        return parent is context

    assert await made().execute_async(callback)


@pytest.mark.statement("S2-07")
@every_driver
def test_recovery_after_the_last_attempt_gets_the_context(driver):
    failure = ValueError("last")
    seen = []

    def recover(context):
        seen.append((context.retry_count, context.last_exception, context.exhausted))
        return "recovered"

    callback = Script(ValueError("first"), failure)
    assert driver(made(2), callback, recovery=recover) == "recovered"
    assert seen == [(2, failure, True)]


@every_driver
@pytest.mark.parametrize("listening", [False, True])
def test_failure_that_is_not_recoverable_skips_recovery(driver, listening):
    policy = SimpleRetryPolicy(2, not_recoverable=KeyError)
    template = made(policy=policy, listeners=[Recorder()] if listening else [])
    recovery = Script("recovered")

    with pytest.raises(KeyError):
        driver(template, Script(ValueError(), KeyError()), recovery=recovery)
    assert recovery.calls == 0
    assert driver(template, Script(KeyError(), ValueError()), recovery=recovery) == "recovered"


@every_driver
@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize("state", [None, RetryState("key", rollback_for=())])
def test_recovery_of_the_call_replaces_that_of_the_template(driver, listening, state):
    listeners = [Recorder()] if listening else []
    template = made(1, recovery=lambda context: "the template's", listeners=listeners)

    assert driver(template, Script(ValueError()), state=state) == "the template's"
    own = driver(template, Script(ValueError()), recovery=lambda context: "its own", state=state)
    assert own == "its own"


@every_driver
def test_error_of_the_recovery_is_raised(driver):
    def recover(context):
        raise LookupError("nor this")

    with pytest.raises(LookupError, match="nor this"):
        driver(made(1), Script(ValueError()), recovery=recover)


@pytest.mark.statement("S2-08")
@every_driver
def test_last_exception_is_raised_without_recovery(driver):
    last = ValueError("last")

    with pytest.raises(ValueError, match="last") as caught:
        driver(made(2), Script(ValueError("first"), last))
    assert caught.value is last


@pytest.mark.statement("S2-09")
@both_kinds
def test_attempts_run_in_the_thread_of_the_caller(driver):
    threads = []

    def callback(context):
        threads.append(threading.current_thread())
        raise ValueError

    template = made(name="stateless")
    with pytest.raises(ValueError):
        driver(template, callback)
    assert threads == [threading.current_thread()] * 3
    assert len(template.cache) == 0
    assert current_context() is None


@pytest.mark.statement("S2-09")
async def test_attempts_run_in_the_task_of_the_caller():
    tasks = []

    async def callback(context):
        tasks.append(asyncio.current_task())
        raise ValueError

    with pytest.raises(ValueError):
        await made(delay=1.0).execute_async(callback)
    assert tasks == [asyncio.current_task()] * 3


@pytest.mark.statement("S0-08", "S2-22")
@every_driver
def test_failure_that_is_not_retryable_reaches_the_caller_at_once(driver):
    recorder = Recorder()
    template = made(policy=SimpleRetryPolicy(5, OSError), delay=1.0, listeners=[recorder])
    failure = KeyError("not here")
    callback = Script(failure)

    with pytest.raises(KeyError) as caught:
        driver(template, callback)
    assert caught.value is failure
    assert callback.calls == 1
    assert "on_backoff" not in recorder.hooks
    assert template.clock.sleeps == []
    assert not hasattr(failure, "__notes__")


@pytest.mark.statement("S0-30", "S2-22")
@every_driver
def test_only_listed_exceptions_are_retried(driver):
    template = made(policy=SimpleRetryPolicy(3, (ConnectionError, TimeoutError)))
    cured, listed, unlisted = Script(TimeoutError(), 1), Script(TimeoutError()), Script(OSError())

    assert driver(template, cured) == 1
    with pytest.raises(TimeoutError):
        driver(template, listed)
    with pytest.raises(OSError):
        driver(template, unlisted)
    assert (cured.calls, listed.calls, unlisted.calls) == (2, 3, 1)


@pytest.mark.statement("S0-31")
@pytest.mark.parametrize(
    ("failure", "calls"),
    [(OSError(1, "transient"), 3), (OSError(2, "permanent"), 1), (ValueError("transient"), 1)],
    ids=["both", "type only", "predicate only"],
)
def test_retry_needs_the_type_and_the_predicate(failure, calls):
    policy = SimpleRetryPolicy(3, OSError) & PredicateRetryPolicy(lambda e: "transient" in str(e))
    callback = Script(failure)

    with pytest.raises(type(failure)):
        made(policy=policy).execute(callback)
    assert callback.calls == calls


@pytest.mark.statement("S0-05")
@pytest.mark.parametrize(
    ("piece", "name"),
    [
        (SimpleRetryPolicy(3), "retry_on"),
        (MaxAttemptsRetryPolicy(3), "max_attempts"),
        (TimeoutRetryPolicy(1.0), "timeout"),
        (CircuitBreakerRetryPolicy(), "open_timeout"),
        (NeverRetryPolicy(), "anything"),
        (FixedBackoff(1.0), "delay"),
        (ExponentialBackoff(), "maximum"),
        (RetryTemplate(), "policy"),
        (RetryTemplate().bind(), "label"),
        (RetryState("key"), "key"),
    ],
    ids=lambda piece: type(piece).__name__ if not isinstance(piece, str) else piece,
)
def test_setting_a_field_of_a_setting_raises(piece, name):
    with pytest.raises((FrozenInstanceError, AttributeError)):
        setattr(piece, name, 17)


def test_default_template_makes_three_attempts_without_backoff():
    template = RetryTemplate()
    callback = Script(Exception("anything"))

    with pytest.raises(Exception, match="anything"):
        template.execute(callback)
    assert callback.calls == 3
    assert template.backoff == NoBackoff()


@every_driver
def test_give_up_in_a_callback_makes_its_attempt_the_last(driver):
    def callback(context):
        assert not context.gave_up
        context.give_up()
        assert context.is_last_attempt
        raise ValueError("given up")

    with pytest.raises(ValueError, match="given up") as caught:
        driver(made(5), callback)
    assert not hasattr(caught.value, "__notes__")


@every_driver
def test_last_attempt_of_a_bounded_policy_is_known(driver):
    known, unknown = [], []

    def note(where):
        def callback(context):
            where.append((context.is_last_attempt, context.max_attempts))
            if context.attempt < 3:
                raise ValueError

        return callback

    driver(made(3), note(known))
    driver(made(policy=TimeoutRetryPolicy(60.0)), note(unknown))
    assert known == [(False, 3), (False, 3), (True, 3)]
    assert unknown == [(None, None)] * 3


@pytest.mark.parametrize("kind", [int, lambda **_: None, lambda a, b: None], ids=["ok", "kw", "2"])
def test_type_error_names_the_context_only_where_it_does_not_fit(kind):
    with pytest.raises(TypeError) as caught:
        made(1).execute(kind)
    assert ("use call()" in str(caught.value)) == (kind is not int)


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.statement("S2-04")
@every_driver
def test_timeout_policy_decides_between_attempts_only(driver):
    template = made(policy=TimeoutRetryPolicy(30.0))
    durations = iter([10.0, 19.0, 500.0])
    callback = Script(ValueError())

    def slow(context):
        template.clock.advance(next(durations))
        callback(context)

    with pytest.raises(ValueError):
        driver(template, slow)
    assert callback.calls == 3


@pytest.mark.statement("S2-04")
@every_driver
def test_timeout_policy_retries_until_success(driver):
    template = made(policy=TimeoutRetryPolicy(30.0), delay=1.0)
    callback = Script(*[ValueError()] * 20, "value")

    assert driver(template, callback) == "value"
    assert template.clock.sleeps == [1.0] * 20


class Counting(StatefulRetryPolicy):
    """Allows two failures and records each decision."""

    def __init__(self, queries):
        object.__setattr__(self, "queries", queries)

    def start(self, now):
        self.queries.append("start")
        return 0

    def record(self, state, failure, now):
        self.queries.append(("record", state, str(failure)))
        return state + 1

    def decide(self, state, now):
        self.queries.append(("decide", state))
        return state < 2, state


@pytest.mark.statement("S2-20")
@every_driver
def test_policy_records_each_failure_and_decides_before_each_attempt(driver):
    queries = []
    callback = Script(ValueError("one"), ValueError("two"))

    with pytest.raises(ValueError, match="two"):
        driver(made(policy=Counting(queries)), callback)
    assert callback.calls == 2
    assert queries[0] == "start"
    assert [entry for entry in queries if entry[0] == "record"] == [
        ("record", 0, "one"),
        ("record", 1, "two"),
    ]
    # Before every attempt, and once more after every failure.
    assert [entry for entry in queries if entry[0] == "decide"] == [
        ("decide", 0),
        ("decide", 1),
        ("decide", 1),
        ("decide", 2),
        ("decide", 2),
    ]


@pytest.mark.statement("S2-21")
@both_kinds
def test_transaction_at_the_limit_rolls_back_and_after_recovery_commits(driver):
    class Transaction:
        ended = "open"

        def __enter__(self):
            return self

        def __exit__(self, kind, *_):
            self.ended = "commit" if kind is None else "rollback"

    with pytest.raises(ValueError), Transaction() as exhausted:
        driver(made(2), Script(ValueError()))
    with Transaction() as recovered:
        driver(made(2), Script(ValueError()), recovery=lambda context: None)
    assert (exhausted.ended, recovered.ended) == ("rollback", "commit")


@every_driver
def test_call_in_an_attempt_inherits_the_limit_of_the_attempt(driver):
    template = made(attempt_timeout=2.0)

    def callback(context):
        template.clock.advance(0.5)
        return Deadline.current().remaining()

    assert driver(template, callback) == 1.5
    assert Deadline.current() is None


@every_driver
def test_run_time_number_is_read_once_per_execution(driver):
    limits = iter([2, 4])
    template = made(policy=SimpleRetryPolicy(lambda: next(limits)))
    first, second = Script(ValueError()), Script(ValueError())

    for callback in (first, second):
        with pytest.raises(ValueError):
            driver(template, callback)
    assert (first.calls, second.calls) == (2, 4)


@every_driver
def test_number_that_cannot_be_read_at_run_time_prevents_the_attempt(driver):
    def unreadable():
        raise LookupError("no such setting")

    recorder, state = Recorder(), RetryState("key")
    template = made(policy=SimpleRetryPolicy(unreadable), name="late", listeners=[recorder])
    callback = Script("value")

    with pytest.raises(LookupError, match="no such setting"):
        driver(template, callback, state=state, recovery=lambda context: "recovered")
    assert (callback.calls, recorder.hooks) == (0, ["on_end"])
    assert driver(template.with_(policy=SimpleRetryPolicy(3)), callback, state=state) == "value"


@every_driver
@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize("state", [None, RetryState("key", rollback_for=())])
def test_policy_without_limit_and_waits_warns_once(driver, listening, state):
    template = made(policy=AlwaysRetryPolicy(), listeners=[Recorder()] if listening else [])

    with pytest.warns(UnboundedRetryWarning, match="AlwaysRetryPolicy never ends") as warned:
        driver(template, Script(ValueError(), 1), state=state)
    assert not warned[0].filename.startswith(str(Path(retrytemplate.__file__).parent))
    again = driver(template, Script(ValueError(), 2), state=state)
    assert again == 2, "a second warning is an error here"


def test_warning_without_end_inside_a_strategy_names_the_callers_file():
    template = made(policy=AlwaysRetryPolicy())
    with pytest.warns(UnboundedRetryWarning) as warned:
        Bulkhead("files").call(template.execute, Script(ValueError(), 1))
    assert warned[0].filename == __file__


@every_driver
@pytest.mark.parametrize("delay", [None, 1.0])
def test_inside_a_deadline_or_with_waits_no_policy_is_without_end(driver, delay):
    template = made(policy=AlwaysRetryPolicy(), delay=delay)

    with Deadline(60.0 if delay is None else 1e9, clock=template.clock):
        assert driver(template, Script(ValueError(), "value")) == "value"
    if delay is not None:
        assert driver(template, Script(ValueError(), "value")) == "value"


# -- results ---------------------------------------------------------------------------------------


@every_driver
def test_rejected_result_counts_as_a_failure(driver):
    template = made(policy=ResultRetryPolicy(lambda result: result == 202))
    callback = Script(202, 202, 200)

    assert driver(template, callback) == 200
    assert callback.calls == 3


@every_driver
def test_result_rejected_in_every_attempt_raises_with_the_last_one(driver):
    template = made(policy=ResultRetryPolicy(lambda result: result == 202, SimpleRetryPolicy(2)))

    with pytest.raises(UnacceptableResultError) as caught:
        driver(template, Script(202))
    assert caught.value.result == 202


@every_driver
def test_result_policy_is_not_called_for_a_failure(driver):
    queries = []
    policy = ResultRetryPolicy(lambda result: queries.append(result) or result is None)

    with pytest.raises(OSError, match="its own"):
        driver(made(policy=policy), Script(OSError("its own")))
    assert queries == []


@every_driver
def test_result_rejected_in_every_attempt_is_returned_if_configured(driver):
    policy = ResultRetryPolicy(lambda result: result < 9, when_exhausted="return")

    assert driver(made(policy=policy), Script(1, 2, 3)) == 3


@every_driver
def test_earlier_result_is_not_returned_when_the_last_attempt_raises(driver):
    policy = ResultRetryPolicy(lambda result: result < 9, when_exhausted="return")

    with pytest.raises(OSError, match="at last"):
        driver(made(policy=policy), Script(1, 2, OSError("at last")))


@every_driver
def test_no_result_is_returned_when_no_attempt_was_made(driver):
    class GivesUp(RetryListener):
        def open(self, context):
            context.give_up()

    policy = ResultRetryPolicy(bool, when_exhausted="return")
    with pytest.raises(ExhaustedRetryError):
        driver(made(policy=policy, listeners=[GivesUp()]), Script(1))


# -- waiting ---------------------------------------------------------------------------------------


@pytest.mark.statement("S0-06")
@every_driver
def test_on_backoff_receives_the_attempt_its_exception_and_the_delay(driver):
    called = []

    class Waits(RetryListener):
        def on_backoff(self, context, delay):
            called.append((context.attempt, context.last_exception, delay, list(clock.sleeps)))

    one, two = ValueError("one"), ValueError("two")
    clock = VirtualClock()
    template = made(
        listeners=[Waits()],
        clock=clock,
        backoff=ExponentialBackoff(initial=1.0, jitter="full"),
        random=ScriptedRandom([0.25, 0.75]),
    )
    driver(template, Script(one, two, "value"))
    assert called == [(1, one, 0.25, []), (2, two, 1.5, [0.25])]
    assert clock.sleeps == [0.25, 1.5]


@pytest.mark.statement("S0-07")
@every_driver
def test_last_attempt_is_followed_by_no_on_backoff_and_no_wait(driver):
    recorder = Recorder()
    template = made(3, delay=1.0, listeners=[recorder])

    with pytest.raises(ValueError):
        driver(template, Script(ValueError()))
    assert [event.attempt for event in recorder.events if event.hook == "on_backoff"] == [1, 2]
    assert template.clock.sleeps == [1.0, 1.0]


class RecordingBackoff(Backoff):
    def __init__(self, queries):
        object.__setattr__(self, "queries", queries)

    def start(self):
        self.queries.append("start")
        return 0

    def next(self, state, failure, random):
        self.queries.append((state, str(failure)))
        return 1.0, state + 1


@pytest.mark.statement("S2-30")
@every_driver
def test_backoff_starts_once_and_runs_only_between_attempts(driver):
    queries = []
    template = made(3, backoff=RecordingBackoff(queries))

    driver(template, Script("at once"))
    assert queries == []
    with pytest.raises(ValueError):
        driver(template, Script(*map(ValueError, "abc")))
    assert queries == ["start", (0, "a"), (1, "b")]


@every_driver
def test_user_backoff_is_resolved_once_per_execution(driver):
    class Slower(Backoff):
        seconds = iter([1.0, 2.0])

        def start(self):
            return None

        def next(self, state, failure, random):
            raise AssertionError("it was not read")

        def resolved(self):
            return FixedBackoff(next(self.seconds))

    template = made(3, backoff=Slower())
    for _ in range(2):
        with pytest.raises(ValueError):
            driver(template, Script(ValueError()))
    assert template.clock.sleeps == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.statement("S2-30")
@both_kinds
def test_backoff_of_a_stateful_retry_starts_once_per_key(driver):
    queries = []
    template = made(3, backoff=RecordingBackoff(queries), name="stateful")
    for failure in map(ValueError, "abc"):
        with pytest.raises(ValueError):
            driver(template, Script(failure), state=RetryState("key"))
    assert queries == ["start", (0, "a"), (1, "b")]


@every_driver
@pytest.mark.parametrize("policy", [SimpleRetryPolicy(3), TimeoutRetryPolicy(60.0)])
def test_backoff_that_returns_none_ends_the_attempts(driver, policy):
    class Enough(Backoff):
        def start(self):
            return None

        def next(self, state, failure, random):
            return None, state

    callback = Script(ValueError("enough"))
    with pytest.raises(ValueError, match="enough"):
        driver(made(policy=policy, backoff=Enough()), callback)
    assert callback.calls == 1


# -- listeners -------------------------------------------------------------------------------------


@pytest.mark.statement("S2-40")
@every_driver
def test_listeners_see_the_whole_of_an_execution_in_its_order(driver):
    recorder = Recorder()
    one = ValueError("one")
    template = made(delay=2.0, listeners=[recorder])

    driver(template, Script(one, "value"))
    assert recorder.events == [
        ("open", 0, None),
        ("before_attempt", 1, None),
        ("on_error", 1, one),
        ("on_backoff", 1, 2.0),
        ("before_attempt", 2, None),
        ("on_success", 2, "value"),
        ("on_end", 2, None),
        ("close", 2, None),
    ]


@pytest.mark.statement("S2-40")
@every_driver
def test_close_after_a_recovery_receives_the_last_failure(driver):
    recorder = Recorder()
    last = ValueError("last")
    template = made(1, listeners=[recorder])

    driver(template, Script(last), recovery=lambda context: "recovered")
    assert recorder.events[-3:] == [
        ("on_recovery", 1, "recovered"),
        ("on_end", 1, None),
        ("close", 1, last),
    ]


class Named(EveryHook):
    """Appends its name and each hook to a list; raises or returns as configured."""

    def __init__(self, name, called, **raising):
        self.name, self.called, self.raising = name, called, raising

    def hook(self, name):
        self.called.append(f"{name} {self.name}")
        answer = self.raising.get(name)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@every_driver
def test_giving_up_before_the_first_attempt_leaves_none_and_opens_once(driver):
    class GivesUp(Recorder):
        def open(self, context):
            super().open(context)
            context.give_up()

    recorder, callback = GivesUp(), Script("value")
    with pytest.raises(ExhaustedRetryError, match="no attempt was made"):
        driver(made(listeners=[recorder]), callback)
    assert (callback.calls, recorder.hooks) == (0, ["open", "on_end", "close"])
    assert (
        driver(made(listeners=[recorder]), callback, recovery=lambda context: "instead")
        == "instead"
    )


@pytest.mark.statement("S2-42")
@every_driver
def test_open_and_before_attempt_run_forward_all_other_hooks_in_reverse(driver):
    called = []
    template = made(2, delay=1.0, listeners=[Named("a", called), Named("b", called)])

    driver(template, Script(ValueError()), recovery=lambda context: None)
    driver(template, Script("value"))
    assert called == (
        "open a|open b|before_attempt a|before_attempt b|on_error b|on_error a"
        "|on_backoff b|on_backoff a|before_attempt a|before_attempt b|on_error b|on_error a"
        "|on_recovery b|on_recovery a|on_end b|on_end a|close b|close a"
        "|open a|open b|before_attempt a|before_attempt b|on_success b|on_success a"
        "|close b|close a"
    ).split("|")


def test_note_of_long_messages_is_cut():
    failures = [ValueError("x" * 100_000), ValueError("y" * 100_000), ValueError("end")]
    with pytest.raises(ValueError) as caught:
        RetryTemplate(SimpleRetryPolicy(3)).execute(Script(*failures))
    (note,) = caught.value.__notes__
    assert len(note) < 9_000
    assert note.endswith("characters cut]")


def test_exception_group_deeper_than_the_stack_is_classified():
    group = ExceptionGroup("x", [KeyError()])
    for _ in range(5_000):
        group = ExceptionGroup("x", [group])
    template = RetryTemplate(SimpleRetryPolicy(2, retry_on=KeyError))
    callback = Script(group)
    with pytest.raises(ExceptionGroup):
        template.execute(callback)
    assert callback.calls == 2

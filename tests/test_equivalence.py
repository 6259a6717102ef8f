"""All entry points have the same result: inline, by the engine, in threads or tasks."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrytemplate import (
    CompositeRetryPolicy,
    ExceptionClassifierRetryPolicy,
    ExponentialBackoff,
    FixedBackoff,
    Guard,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    NoBackoff,
    PredicateRetryPolicy,
    Rejected,
    ResultRetryPolicy,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    current_context,
)
from retrytemplate._engine.drivers import SYNC
from retrytemplate._engine.entry import prepare, run_from_start
from retrytemplate.listeners.base import HOOKS
from retrytemplate.testing import Recorder, ScriptedRandom, VirtualClock
from tests.support.runners import DRIVERS, every_driver, in_block, in_thread, made

# -- scenarios ----------------------------------------------------------------------------------


class Interrupting(BaseException):
    """A base exception: never retried or suppressed."""


KINDS = (ValueError, OSError, ConnectionError, KeyError, Interrupting)
KINDS_OF_FAILURE = KINDS[:-1]

# What one attempt does: return a number, raise, or give up and raise.
step = st.one_of(
    st.integers(0, 3),
    st.sampled_from(KINDS_OF_FAILURE),
    st.sampled_from(KINDS),
    st.tuples(st.just("give up"), st.sampled_from(KINDS_OF_FAILURE)),
)
attempts_of = st.integers(1, 5)
some_kinds = st.lists(st.sampled_from(KINDS_OF_FAILURE), max_size=2, unique=True).map(tuple)

bounded = st.one_of(
    attempts_of.map(MaxAttemptsRetryPolicy),
    st.just(NeverRetryPolicy()),
    st.builds(
        SimpleRetryPolicy,
        attempts_of,
        retry_on=st.one_of(st.just((Exception,)), some_kinds),
        not_on=some_kinds,
        not_recoverable=some_kinds,
    ),
    attempts_of.map(lambda number: SimpleRetryPolicy(lambda: number)),
)
unbounded = st.one_of(
    st.sampled_from([1.5, 4.0]).map(TimeoutRetryPolicy),
    st.just(PredicateRetryPolicy(lambda exception: isinstance(exception, OSError))),
)


def trees(members):
    return st.one_of(
        st.builds(CompositeRetryPolicy, st.lists(members, min_size=1, max_size=3), st.booleans()),
        st.builds(
            ExceptionClassifierRetryPolicy,
            st.dictionaries(st.sampled_from(KINDS_OF_FAILURE), members, max_size=2),
            members,
        ),
        members.map(lambda member: ResultRetryPolicy(lambda result: result == 3, member)),
        members.map(lambda member: ResultRetryPolicy(lambda r: r == 3, member, "return")),
    )


# Whatever the tree says, eight attempts are enough.
policies = st.recursive(bounded | unbounded, trees, max_leaves=4).map(
    lambda policy: policy & MaxAttemptsRetryPolicy(8)
)
plain_policies = bounded | policies
backoffs = st.sampled_from(
    [NoBackoff(), FixedBackoff(0.0), FixedBackoff(1.0), ExponentialBackoff(1.0, jitter="full")]
)
scripts = st.lists(step, min_size=1, max_size=6)
recoveries = st.sampled_from([None, "value", LookupError])


class Silent(RetryListener):
    """Implements every hook and does nothing."""

    def open(self, context):
        pass

    def on_error(self, context, exception):
        pass

    def on_backoff(self, context, delay):
        pass

    def close(self, context, exception):
        pass


class Noisy(RetryListener):
    """Records every hook, and deviates in one given hook."""

    def __init__(self, odd=None):
        self.events = []
        self.odd = odd

    def record(self, hook, context, *value):
        self.events.append((hook, context.attempt, context.retry_count, context.closed, *value))
        if self.odd is None or self.odd[:2] != (hook, sum(e[0] == hook for e in self.events)):
            return None
        does = self.odd[2]
        if does == "give up":
            return context.give_up()
        if does is False:
            return False
        raise does(f"out of {hook}")


def recording(hook):
    return lambda self, context, *value: self.record(hook, context, *value)


for hook in HOOKS:
    setattr(Noisy, hook, recording(hook))


def trace(driver, policy, backoff, script, recovery, listeners=(), guards=(), timed=False):
    """The observable results of one execution."""
    clock = VirtualClock()
    template = RetryTemplate(
        policy,
        backoff,
        clock=clock,
        listeners=listeners,
        guards=guards,
        random=ScriptedRandom([0.25, 0.5, 0.75], cycle=True),
    )
    raised, seen, contexts = [], [], []

    def attempt(*_):
        context = current_context()
        contexts.append(context)
        last = context.last_exception
        place = next((n for n, failure in enumerate(raised) if failure is last), None)
        seen.append((context.attempt, context.retry_count, place, context.is_last_attempt))
        seen.append((context.max_attempts, [record.number for record in context.history]))
        does = script[min(len(raised), len(script) - 1)]
        if isinstance(does, int):
            return does
        if isinstance(does, tuple):
            context.give_up()
            does = does[1]
        clock.advance(1)
        raised.append(does(f"failure {len(raised) + 1}"))
        raise raised[-1]

    def recover(context):
        seen.append(("recovery", context.retry_count, context.last_exception is raised[-1]))
        if recovery is LookupError:
            raise LookupError("from recovery")
        return recovery

    try:
        end = "value", driver(template, attempt, None if recovery is None else recover)
    except BaseException as exc:
        place = next((n for n, failure in enumerate(raised) if failure is exc), None)
        end = "raised", type(exc), str(exc), place, getattr(exc, "__notes__", [])
    clock.advance(5)  # an ended execution has a fixed duration
    context = contexts[0] if contexts else None
    if context is None:
        return {"end": end, "sleeps": clock.sleeps, "current": current_context()}
    assert all(each is context for each in contexts)
    return {
        "end": end,
        "seen": seen,
        "sleeps": clock.sleeps,
        "attempt": context.attempt,
        "retry_count": context.retry_count,
        "last": str(context.last_exception),
        "history": [(r.number, r.type_name, r.message) for r in context.history],
        "flags": {
            name: getattr(context, name)
            for name in ("closed", "exhausted", "recovered", "gave_up", "no_recovery")
        },
        "elapsed": context.elapsed if timed else None,
        "times": [(r.started, r.ended) for r in context.history] if timed else None,
        "current": current_context(),
    }


# -- entry points --------------------------------------------------------------------------------


def called(template, attempt, recovery):
    return template.bind(recovery=recovery).call(attempt)


def wrapped(template, attempt, recovery):
    return template.bind(recovery=recovery).wrap(attempt)()


def outcome_of(template, attempt, recovery):
    outcome = template.bind(recovery=recovery).outcome(attempt)
    if outcome.ok:
        return outcome.value
    raise outcome.exception


def with_recovery(driver):
    def enter(template, attempt, recovery):
        return driver(template, attempt, recovery=recovery)

    return enter


def driven(coroutine):
    """Run a coroutine whose awaits all complete immediately."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value


class InstantTurn:
    """Replaces the event loop for coroutines without a loop."""

    def __await__(self):
        yield


def awaited_wrap(template, attempt, recovery):
    async def turn():
        await InstantTurn()
        return attempt()

    class Instant(VirtualClock):
        async def sleep_async(self, delay):
            template.clock.sleep(delay)

        def monotonic(self):
            return template.clock.monotonic()

    alike = template.with_(clock=Instant())
    return driven(alike.bind(recovery=recovery).wrap(turn)())


def by_engine(template, attempt, recovery):
    """From the first attempt on the engine."""
    return run_from_start(prepare(template, attempt, None, recovery, None, SYNC))


SHORT = [called, wrapped, outcome_of, awaited_wrap, with_recovery(in_block)]


@given(plain_policies, backoffs, scripts, recoveries)
@example(SimpleRetryPolicy(3), NoBackoff(), [0], None)
@example(SimpleRetryPolicy(3), NoBackoff(), [Interrupting], None)
@example(SimpleRetryPolicy(lambda: 2), NoBackoff(), [0], None)
@example(SimpleRetryPolicy(3), NoBackoff(), [ValueError, Interrupting], "value")
@example(SimpleRetryPolicy(3), NoBackoff(), [("give up", OSError)], "value")
@example(SimpleRetryPolicy(3, not_recoverable=OSError), FixedBackoff(1.0), [OSError], "value")
@settings(max_examples=300)
def test_every_entry_point_has_the_result_of_the_full_engine(policy, backoff, script, recovery):
    scenario = policy, backoff, script, recovery
    engine = trace(by_engine, *scenario)
    for driver in [with_recovery(in_thread), *SHORT]:
        assert trace(driver, *scenario) == engine, driver
        assert trace(driver, *scenario, listeners=[Silent()]) == engine, driver


oddities = st.none() | st.tuples(
    st.sampled_from(HOOKS),
    st.integers(1, 2),
    st.sampled_from([False, "give up", ValueError, Interrupting]),
)


@given(plain_policies, backoffs, scripts, recoveries, oddities)
@example(SimpleRetryPolicy(3), NoBackoff(), [0], "value", ("open", 1, "give up"))
@example(SimpleRetryPolicy(3), NoBackoff(), [0], None, ("open", 1, False))
@example(SimpleRetryPolicy(3), NoBackoff(), [0], None, ("close", 1, ValueError))
@example(SimpleRetryPolicy(3), NoBackoff(), [0], None, ("on_success", 1, Interrupting))
@settings(max_examples=300)
def test_listeners_of_an_inline_attempt_get_the_events_of_the_engine(
    policy, backoff, script, recovery, odd
):
    def events_of(driver):
        listeners = [Noisy(), Noisy(odd), Noisy()]
        traced = trace(driver, policy, backoff, script, recovery, listeners, timed=True)
        records = [[[str(part) for part in event] for event in each.events] for each in listeners]
        return traced, records

    engine = events_of(by_engine)
    for driver in [with_recovery(in_thread), called, wrapped, outcome_of]:
        assert events_of(driver) == engine, driver


class Watchman(Guard):
    """Records every call of a guard, and deviates in one given call."""

    def __init__(self, records, odd=None):
        self.records = records
        self.odd = odd

    def record(self, what, context, *value):
        self.records.append((what, context.attempt, context.retry_count, context.closed, *value))
        if self.odd is None or self.odd[:2] != (what, sum(e[0] == what for e in self.records)):
            return None
        does = self.odd[2]
        if does == "give up":
            return context.give_up()
        if does == "to be awaited":
            return refused_later()
        raise does(f"out of {what}")


async def refused_later():
    raise Rejected


QUESTIONS = ("admit", "reserve", "release", "on_success")
for question in QUESTIONS:
    setattr(
        Watchman,
        question,
        lambda self, context, *value, question=question: self.record(question, context, *value),
    )

odd_answers = st.none() | st.tuples(
    st.sampled_from(QUESTIONS),
    st.integers(1, 4),
    st.sampled_from(["give up", "to be awaited", ValueError, Rejected, Interrupting]),
)


@given(plain_policies, backoffs, scripts, recoveries, odd_answers, st.booleans(), st.booleans())
@example(SimpleRetryPolicy(3), NoBackoff(), [0], "value", ("admit", 1, Rejected), False, True)
@example(SimpleRetryPolicy(3), NoBackoff(), [0], "value", ("admit", 2, "give up"), True, False)
@example(SimpleRetryPolicy(3), NoBackoff(), [0], None, ("admit", 1, "to be awaited"), False, True)
@example(SimpleRetryPolicy(3), NoBackoff(), [0], None, ("on_success", 1, OSError), True, True)
@settings(max_examples=300)
def test_guards_of_an_inline_attempt_are_called_as_by_the_engine(
    policy, backoff, script, recovery, odd, inherited, listening
):
    def seen(driver):
        records = []
        guards = [Watchman(records), Watchman(records, odd), Watchman(records)]
        guards[0].inherited = inherited
        listeners = [listener := Noisy()] if listening else []
        traced = trace(driver, policy, backoff, script, recovery, listeners, guards, timed=True)
        noise = [[str(part) for part in event] for event in listener.events] if listening else None
        return traced, [[str(part) for part in event] for event in records], noise

    engine = seen(by_engine)
    for driver in [with_recovery(in_thread), called, wrapped]:
        assert seen(driver) == engine, driver


@given(plain_policies, backoffs, scripts, recoveries)
@settings(max_examples=100)
def test_threads_and_tasks_have_the_same_results(policy, backoff, script, recovery):
    scenario = policy, backoff, script, recovery
    first, *others = [trace(with_recovery(driver), *scenario) for driver in DRIVERS]
    for other in others:
        assert other == first


def events(recorder):
    """The events of a listener, exceptions as text; a block has no function with a name."""
    return [
        (e.hook, e.attempt, "" if e.value is None or e.hook == "on_first_success" else str(e.value))
        for e in recorder.events
    ]


@given(policies, backoffs, scripts, recoveries)
@settings(max_examples=100)
def test_listeners_get_the_same_events_in_threads_and_tasks(policy, backoff, script, recovery):
    recorded = []
    for driver in DRIVERS:
        recorder = Recorder()
        trace(with_recovery(driver), policy, backoff, script, recovery, listeners=[recorder])
        recorded.append(events(recorder))
    assert all(each == recorded[0] for each in recorded)


deliveries = st.lists(st.lists(step, min_size=1, max_size=3), min_size=1, max_size=4)


@given(policies, backoffs, deliveries, st.sampled_from([None, "value"]), some_kinds)
@settings(max_examples=100)
def test_deliveries_of_one_key_agree_in_threads_and_tasks(
    policy, backoff, scripts, recovery, in_place
):
    def rolls_back(exception):
        return not isinstance(exception, in_place)

    def deliver(driver):
        chance = ScriptedRandom([0.25, 0.5, 0.75], cycle=True)
        template = RetryTemplate(policy, backoff, clock=VirtualClock(), random=chance, name="equal")
        state = RetryState("key", rollback_for=rolls_back)
        ends = []
        for script in scripts:
            left = list(script)

            def attempt(context, left=left):
                ends.append((context.attempt, context.retry_count, str(context.last_exception)))
                does = left.pop(0) if left else 0
                if isinstance(does, tuple):
                    context.give_up()
                    does = does[1]
                if isinstance(does, int):
                    return does
                raise does("failed")

            try:
                how = {"state": state}
                if recovery is not None:
                    how["recovery"] = lambda context: context.retry_count
                ends.append(driver(template, attempt, **how))
            except BaseException as exc:
                ends.append((type(exc), str(exc), getattr(exc, "__notes__", [])))
            record = template.cache.peek(template.scoped_key("key"))
            ends.append(
                record and (record.failures, record.phase, record.retry_allowed, record.worker)
            )
        return ends, template.clock.sleeps

    first, *others = [deliver(driver) for driver in DRIVERS]
    for other in others:
        assert other == first


# -- the note on the exception that leaves ------------------------------------------------------


def notes_of(exception):
    return getattr(exception, "__notes__", [])


def left_by(driver, template, *failures, **how):
    """The final exception of attempts that fail so, the last failure repeated."""
    turn = iter(range(1000))

    def attempt(context):
        raise failures[min(next(turn), len(failures) - 1)]

    with pytest.raises(BaseException) as caught:
        driver(template, attempt, **how)
    return caught.value


@every_driver
def test_raised_exception_has_a_note_about_earlier_attempts(driver):
    left = left_by(driver, made(3), OSError("one"), KeyError("two"), ValueError("three"))

    assert str(left) == "three"
    [note] = notes_of(left)
    assert note.splitlines() == [
        "retry: 3 attempts failed; reason: attempts exhausted; before this one:",
        "  1. OSError: one",
        "  2. KeyError: 'two'",
    ]


@every_driver
def test_single_attempt_leaves_no_note(driver):
    assert notes_of(left_by(driver, made(1), ValueError())) == []


@every_driver
def test_note_is_replaced_and_other_notes_are_kept(driver):
    failure = ValueError("the same again")
    failure.add_note("mine")

    left_by(driver, made(2), OSError("first"), failure)
    left_by(driver, made(3), KeyError("later"), OSError("first"), failure)
    assert notes_of(failure)[0] == "mine"
    [note] = notes_of(failure)[1:]
    assert note.startswith("retry: 3 attempts failed")


@every_driver
def test_outer_execution_replaces_the_note_of_the_inner_one(driver):
    inner = made(2)

    def attempt(context):
        return inner.execute(fails)

    def fails(context):
        raise ValueError(context.attempt)

    with pytest.raises(ValueError) as caught:
        driver(made(3), attempt)
    [note] = notes_of(caught.value)
    assert note.startswith("retry: 3 attempts failed")


@every_driver
def test_same_object_raised_each_time_is_not_in_its_own_history(driver):
    failure = ValueError("always me")
    [note] = notes_of(left_by(driver, made(4), failure))

    assert note == "retry: 4 attempts failed; reason: attempts exhausted"


@every_driver
def test_same_object_after_others_is_not_in_its_own_history(driver):
    failure = ValueError("me")
    [note] = notes_of(left_by(driver, made(4), OSError("another"), failure))

    assert note.splitlines() == [
        "retry: 4 attempts failed; reason: attempts exhausted; before this one:",
        "  1. OSError: another",
    ]


@every_driver
def test_stateful_retry_in_place_excludes_last_failure_from_history(driver):
    template = made(3, name="note", raise_last=True)
    state = RetryState("key", rollback_for=())
    left = left_by(driver, template, *map(ValueError, "abc"), state=state)

    assert str(left) == "c"
    [note] = notes_of(left)
    assert note.splitlines() == [
        "retry: 3 attempts failed; reason: attempts exhausted; before this one:",
        "  1. ValueError: a",
        "  2. ValueError: b",
    ]


@every_driver
def test_forty_failures_are_noted_as_first_three_and_last_thirteen(driver):
    contexts = []

    def attempt(context):
        contexts.append(context)
        raise ValueError(f"failure {context.attempt}")

    with pytest.raises(ValueError) as caught:
        driver(made(40), attempt)
    kept = [1, 2, 3, *range(28, 41)]
    assert [record.number for record in contexts[0].history] == kept
    assert [record.message for record in contexts[0].history] == [f"failure {n}" for n in kept]
    [note] = notes_of(caught.value)
    first, *lines = note.splitlines()
    assert first == "retry: 40 attempts failed; reason: attempts exhausted; before this one:"
    assert "  1. ValueError: failure 1" in lines
    assert "  39. ValueError: failure 39" in lines
    assert not any("failure 40" in line or "failure 4:" in line for line in lines)
    assert len(lines) <= 17


@every_driver
def test_note_has_the_number_of_omitted_attempts(driver):
    left = left_by(driver, made(40), ValueError("early"), *[OSError(n) for n in range(39)])

    [note] = notes_of(left)
    assert "24" in note, "4 to 27 are omitted"


@every_driver
def test_library_error_carries_the_history_as_records(driver):
    policy = ResultRetryPolicy(lambda result: True, SimpleRetryPolicy(20))
    with pytest.raises(Exception) as caught:
        driver(made(policy=policy), lambda context: context.attempt)
    assert caught.value.attempts == 20
    assert [record.number for record in caught.value.history] == [1, 2, 3, *range(8, 21)]


def test_record_of_an_attempt_has_start_and_end():
    template = made(3, delay=10.0, listeners=[Recorder()])

    def attempt():
        template.clock.advance(2.5)
        raise ValueError

    start = template.clock.time()
    records = template.outcome(attempt).history
    assert [record.started - start for record in records] == [0.0, 12.5, 25.0]
    assert [record.duration for record in records] == [2.5, 2.5, 2.5]


# -- strange exceptions -------------------------------------------------------------------------


def frozen_exception():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    return Frozen


class Falsy(Exception):
    def __bool__(self):
        return False


class Equal(Exception):
    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = Exception.__hash__


class OddNotes(Exception):
    __notes__ = "no list"


ODD = [
    pytest.param(driver, kind, id=f"{kind.__name__}-{driver.__name__}")
    for kind in (frozen_exception(), Falsy, Equal, OddNotes)
    for driver in DRIVERS
    # trio itself cannot carry an exception that takes no attributes
    if not (kind.__name__ == "Frozen" and "trio" in driver.__name__)
]


@pytest.mark.parametrize(("driver", "kind"), ODD)
def test_exception_without_notes_still_reaches_the_caller(driver, kind):
    failures = [kind(number) for number in range(3)]
    left = left_by(driver, made(3), *failures)
    assert left is failures[-1]


@every_driver
def test_false_exception_out_of_close_is_raised(driver):
    class Closing(RetryListener):
        def close(self, context, exception):
            raise Falsy("from close")

    with pytest.raises(Falsy):
        driver(made(listeners=[Closing()]), lambda context: "value")

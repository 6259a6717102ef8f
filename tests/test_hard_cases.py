"""Unusual objects in ordinary places, and signals at unfavourable moments."""

import asyncio
import contextlib
import sys
import threading
import time
import traceback
import warnings
import weakref

import pytest

from retrytemplate import (
    AlwaysRetryPolicy,
    AttemptTimeout,
    Deadline,
    DeadlineExceededError,
    FixedBackoff,
    Guard,
    InconsistentKeyError,
    MisuseError,
    ResultRetryPolicy,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    StatisticsListener,
    TerminatedRetryError,
    UnacceptableResultError,
    UnboundedRetryWarning,
    current_context,
)
from retrytemplate.testing import VirtualClock, run
from tests.support.gc_probe import no_collector

STATE = RetryState("key")


def bad(*_):
    raise ValueError("x")


class Closing(RetryListener):
    def __init__(self):
        self.closed = 0

    def close(self, context, exception):
        self.closed += 1


class Marking(Closing):
    def before_attempt(self, context):
        context.attributes["span"] = object()


class MarkingLate(Closing):
    """Its failure is recorded by then."""

    def on_error(self, context, exception):
        context.attributes["span"] = object()


@pytest.mark.parametrize("marking", [Marking, MarkingLate])
def test_attribute_that_is_not_json_ends_the_execution_and_frees_the_key(marking):
    listener = marking()
    template = RetryTemplate(listeners=[listener])
    for _ in range(2):
        with pytest.raises(TerminatedRetryError) as caught:
            template.execute(bad, state=STATE)
        assert isinstance(caught.value.__cause__, TypeError)
        assert "span" in str(caught.value.__cause__)
        assert isinstance(caught.value.__context__, ValueError)
    assert listener.closed == 2


class DeadLetters(list):
    """Empty and therefore false, and a valid recovery."""

    def __call__(self, context):
        return "kept"


IN_PLACE = RetryState("a", rollback_for=())


@pytest.mark.parametrize("of_template", [None, lambda context: "of the template"])
@pytest.mark.parametrize("settings", [{}, {"listeners": [Closing()]}, {"guards": [Guard()]}])
@pytest.mark.parametrize(
    "call",
    [
        lambda template, kept: template.execute(bad, recovery=kept),
        lambda template, kept: template.bind(recovery=kept).call(bad),
        lambda template, kept: template.bind(recovery=kept).wrap(bad)(),
        lambda template, kept: template.execute(bad, recovery=kept, state=IN_PLACE),
        lambda template, kept: run(template.execute_async(bad, recovery=kept)),
    ],
)
def test_recovery_object_that_is_false_is_called(call, settings, of_template):
    assert call(RetryTemplate(recovery=of_template, **settings), DeadLetters()) == "kept"


def test_backoff_number_is_read_once_per_execution():
    read = []
    backoff = FixedBackoff(lambda: read.append(1) or 0.5)
    clock = VirtualClock()
    RetryTemplate(SimpleRetryPolicy(5), backoff, clock=clock).outcome(bad)
    assert (len(read), clock.sleeps) == (1, [0.5] * 4)


def test_misuse_is_not_remembered_as_a_success():
    async def work(context):
        return "done"

    template, state = RetryTemplate(), RetryState("key", remember=60)
    with pytest.raises(MisuseError):
        template.execute(work, state=state)
    assert asyncio.run(template.execute_async(work, state=state)) == "done"


def test_warning_raised_as_error_leaves_no_key_held():
    template = RetryTemplate(AlwaysRetryPolicy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnboundedRetryWarning):
            template.execute(bad, state=STATE)
    assert template.execute(lambda context: "done", state=STATE) == "done"


def test_early_redelivery_does_not_wait_past_the_deadline():
    clock = VirtualClock()
    template = RetryTemplate(SimpleRetryPolicy(3), FixedBackoff(600.0), clock=clock)
    state = RetryState("key", defer_backoff="wait")
    with pytest.raises(ValueError, match="x"):
        template.execute(bad, state=state)
    with Deadline(2.0, clock=clock), pytest.raises(DeadlineExceededError, match="600"):
        template.execute(lambda context: "too early", state=state)
    assert clock.sleeps == []


def test_listener_leaves_no_reference_cycle_of_exceptions():
    made = []

    class Trouble(Exception):
        def __init__(self):
            made.append(weakref.ref(self))

    def fails(context):
        raise Trouble

    template = RetryTemplate(listeners=[StatisticsListener()])
    with no_collector():
        with contextlib.suppress(Trouble):  # pytest.raises would keep the last one itself
            template.execute(fails)
        assert [ref() for ref in made] == [None, None, None]


class Falsy(Exception):
    def __len__(self):
        return 0


def test_false_exception_out_of_the_first_close_is_raised():
    class Raising(RetryListener):
        def close(self, context, exception):
            raise Falsy

    with pytest.raises(Falsy):
        RetryTemplate(listeners=[Closing(), Raising()]).execute(lambda context: "value")


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no")


def test_result_whose_repr_raises_is_retried():
    results = [Unshowable(), Unshowable(), 1]
    policy = ResultRetryPolicy(lambda result: not isinstance(result, int), SimpleRetryPolicy(3))
    assert RetryTemplate(policy).call(results.pop, 0) == 1
    with pytest.raises(UnacceptableResultError, match="a Unshowable"):
        RetryTemplate(policy).call(Unshowable)


def test_limit_beyond_the_maximum_of_threads_is_no_limit():
    caller = threading.get_ident()

    def returns_when_the_caller_waits(context):
        for _ in range(3000):
            frames = traceback.extract_stack(sys._current_frames()[caller])
            if [frame.name for frame in frames[-2:]] == ["_in_thread", "wait"]:
                return "done"
            time.sleep(0.01)  # another thread's stack is polled: it gives no event

    template = RetryTemplate(attempt_timeout=AttemptTimeout(float("inf"), in_thread=True))
    assert template.execute(returns_when_the_caller_waits) == "done"


def test_int_too_large_for_text_is_no_key():
    with pytest.raises(InconsistentKeyError):
        RetryState(10**5000)


class Signal(BaseException):
    """Raised while the driver is between two effects, like a KeyboardInterrupt."""


class Interrupting:
    """A result whose ``__class__`` raises when the driver reads it."""

    class Kind(type):
        def __hash__(cls):
            raise Signal

    value = Kind("Value", (), {})()


def test_signal_between_effects_closes_frees_key_and_restores_context():
    listener = Closing()
    template = RetryTemplate(listeners=[listener])
    with pytest.raises(Signal):
        template.execute(lambda context: Interrupting.value, state=STATE)
    assert (listener.closed, current_context()) == (1, None)
    assert template.execute(lambda context: "done", state=STATE) == "done"


def test_signal_before_the_end_of_an_inline_attempt_frees_the_key():
    template = RetryTemplate()
    with pytest.raises(Signal):
        template.execute(lambda context: Interrupting.value, state=STATE)
    assert current_context() is None
    assert template.execute(lambda context: "done", state=STATE) == "done"

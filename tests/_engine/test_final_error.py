"""The final error of an execution: its note, its cause and its context."""

import traceback

import pytest

from retrytemplate import (
    BackoffInterruptedError,
    ExhaustedRetryError,
    Guard,
    PredicateRetryPolicy,
    Rejected,
    RetryListener,
    RetryPolicy,
    RetryState,
    SimpleRetryPolicy,
    TerminatedRetryError,
    Veto,
)
from retrytemplate.history import STOP_REASON_TEXTS
from retrytemplate.testing import VirtualClock
from tests.support.runners import Script, every_driver, made

KEY = RetryState("key")


# -- the note ------------------------------------------------------------------------------------


@every_driver
def test_note_of_many_failures_counts_the_omitted_ones(driver):
    with pytest.raises(ValueError) as caught:
        driver(made(20), Script(*map(ValueError, range(1, 21))))
    [note] = caught.value.__notes__
    assert note.splitlines() == [
        "retry: 20 attempts failed; reason: attempts exhausted; before this one:",
        *(f"  {number}. ValueError: {number}" for number in (1, 2, 3)),
        "  ... 4 more",
        *(f"  {number}. ValueError: {number}" for number in range(8, 20)),
    ]


@every_driver
def test_failure_to_be_redelivered_has_no_note_and_the_last_names_all(driver):
    template, failures = made(3, name="redelivered"), [ValueError(number) for number in (1, 2, 3)]
    for failure in failures:
        with pytest.raises(ValueError):
            driver(template, Script(failure), state=KEY)
        assert not hasattr(failure, "__notes__")
    with pytest.raises(ExhaustedRetryError) as caught:
        driver(template, Script("not called"), state=KEY)
    assert caught.value.__cause__.message == "3"
    [note] = caught.value.__notes__
    assert note.splitlines() == [
        "retry: 3 attempts failed; reason: attempts exhausted; before this one:",
        "  1. ValueError: 1",
        "  2. ValueError: 2",
    ]


class Admitting(Guard):
    """Rejects the attempt after two that failed."""

    def admit(self, context):
        if context.retry_count == 2:
            raise Rejected("used up")


class Listening(RetryListener):
    """Raises its error, if it has one, at the second failure."""

    def __init__(self, error=None):
        self.error = error

    def on_error(self, context, exception):
        if self.error is not None and context.retry_count == 2:
            raise self.error


RAISES = PredicateRetryPolicy(lambda error: 1 / (str(error) != "two"))
LEAVES = {
    "a guard's rejection": (Rejected, lambda: {"guards": [Admitting()]}),
    "a policy that raises": (TerminatedRetryError, lambda: {"policy": RAISES}),
    "a policy that raises, with a listener": (
        TerminatedRetryError,
        lambda: {"policy": RAISES, "listeners": [Listening()]},
    ),
    "a listener's error": (OSError, lambda: {"listeners": [Listening(OSError("metrics"))]}),
    "an interrupted wait": (
        BackoffInterruptedError,
        lambda: {"delay": 1.0, "clock": VirtualClock(interrupt_at=2)},
    ),
}


@every_driver
@pytest.mark.parametrize(("kind", "settings"), LEAVES.values(), ids=LEAVES)
def test_error_that_replaces_a_failure_has_the_note(driver, kind, settings):
    with pytest.raises(kind) as caught:
        driver(made(5, **settings()), Script(ValueError("one"), ValueError("two")))
    [note] = caught.value.__notes__
    reason = "guard" if kind is Rejected else STOP_REASON_TEXTS["terminated"]
    assert note.splitlines()[:2] == [
        f"retry: 2 attempts failed; reason: {reason}; before this one:",
        "  1. ValueError: one",
    ]


@every_driver
def test_note_with_messages_of_several_lines_has_one_line_per_failure(driver):
    failures = [OSError("first\nforged"), ValueError("\x1b[2J"), KeyError()]
    with pytest.raises(KeyError) as caught:
        driver(made(3), Script(*failures))
    [note] = caught.value.__notes__
    assert note.splitlines()[1:] == ["  1. OSError: first", "  2. ValueError: \\x1b[2J"]


def test_note_with_a_hostile_class_name_is_escaped():
    hostile = type("Evil\x1b[31m\nName", (Exception,), {})
    with pytest.raises(KeyError) as caught:
        made(2).execute(Script(hostile("a"), KeyError()))
    assert caught.value.__notes__[0].splitlines()[1:] == ["  1. Evil\\x1b[31m\\nName: a"]


def test_veto_with_control_characters_is_escaped():
    class Vetoes(RetryListener):
        def open(self, context):
            raise Veto("red \x1b[31m\nforged")

    with pytest.raises(TerminatedRetryError) as caught:
        made(2, listeners=[Vetoes()]).call(int)
    assert str(caught.value) == "a listener vetoed the execution: red \\x1b[31m"


def stops(error):
    raise StopIteration


class Silent(RetryListener):
    """Vetoes without an error."""

    def open(self, context):
        raise Veto


@every_driver
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"policy": PredicateRetryPolicy(stops)},
            "the failure could not be recorded: StopIteration",
        ),
        ({"listeners": [Silent()]}, "a listener vetoed the execution"),
    ],
    ids=["a predicate that stops", "a veto without words"],
)
def test_terminated_execution_without_message_names_the_type(driver, settings, message):
    with pytest.raises(TerminatedRetryError) as caught:
        driver(made(3, **settings), Script(ValueError("one")))
    assert str(caught.value) == message


class Unsure(RetryPolicy):
    """Raises at every decision."""

    def allows(self, failures, failure):
        raise StopIteration


def test_policy_that_raises_without_message_is_named_by_type():
    with pytest.raises(
        TerminatedRetryError, match=r"^the policy could not be queried: StopIteration$"
    ):
        made(policy=Unsure()).call(int)


@every_driver
@pytest.mark.parametrize("listeners", [[], [Listening()]], ids=["no listener", "listener"])
def test_signal_that_stops_the_program_has_no_note(driver, listeners):
    stop = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        driver(made(5, listeners=listeners), Script(ValueError(), ValueError(), stop))
    assert not hasattr(stop, "__notes__")


# -- what stands behind --------------------------------------------------------------------------


class Rejecting(Guard):
    """Grants no retry, with this rejection, or with the failure of the attempt."""

    def __init__(self, rejection=None):
        self.rejection = rejection

    def reserve(self, context, delay):
        raise self.rejection or context.last_exception


@every_driver
def test_rejection_keeps_its_own_cause(driver):
    rejection = Rejected("used up")
    rejection.__cause__ = cause = OSError("the budget's store")

    with pytest.raises(Rejected) as caught:
        driver(made(delay=1.0, guards=[Rejecting(rejection)]), Script(ValueError()))
    assert caught.value.__cause__ is cause


@every_driver
def test_no_exception_is_its_own_cause(driver):
    failure, policy = Rejected("used up"), SimpleRetryPolicy(3, retry_on=Rejected)

    with pytest.raises(Rejected) as caught:
        driver(made(policy=policy, delay=1.0, guards=[Rejecting()]), Script(failure))
    assert caught.value is failure
    assert failure.__cause__ is None


@every_driver
def test_no_exception_is_its_own_context(driver):
    class Raising(RetryListener):
        def on_error(self, context, exception):
            raise exception

    failure = ValueError("the callback's own")
    with pytest.raises(ValueError) as caught:
        driver(made(listeners=[Raising()]), Script(failure))
    assert caught.value is failure
    assert failure.__context__ is None


@every_driver
def test_traceback_of_a_policy_that_raises_has_its_error_and_the_failure(driver):
    class Broken(RetryPolicy):
        def allows(self, failures, failure):
            return failure is None or 1 / 0

    with pytest.raises(TerminatedRetryError) as caught:
        driver(made(policy=Broken()), Script(ValueError("the callback's own")))
    printed = "".join(traceback.format_exception(caught.value))
    assert "ZeroDivisionError" in printed
    assert "\nValueError: the callback's own" in printed

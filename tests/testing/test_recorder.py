"""Listeners that record the calls of their hooks."""

import asyncio

import pytest
import trio

from retrytemplate import FixedBackoff, RetryTemplate, TerminatedRetryError, Veto
from retrytemplate.listeners.base import HOOKS
from retrytemplate.testing import AsyncRecorder, Event, Recorder, VirtualClock

ERRORS = [OSError("one"), OSError("two"), OSError("three")]


def template_with(*recorders):
    return RetryTemplate(backoff=FixedBackoff(0.5), listeners=recorders, clock=VirtualClock())


def failing(times):
    def work(context):
        if context.attempt <= times:
            raise ERRORS[context.attempt - 1]
        return "worked"

    return work


ONE_RETRY = [
    ("open", 0, None),
    ("before_attempt", 1, None),
    ("on_error", 1, ERRORS[0]),
    ("on_backoff", 1, 0.5),
    ("before_attempt", 2, None),
    ("on_success", 2, "worked"),
    ("on_end", 2, None),
    ("close", 2, None),
]


def test_every_hook_is_recorded_with_its_attempt_and_value():
    recorder = Recorder()
    template_with(recorder).execute(failing(1))
    assert recorder.events == ONE_RETRY


@pytest.mark.parametrize("run", [lambda function, *args: asyncio.run(function(*args)), trio.run])
def test_asynchronous_recorder_records_the_same_events(run):
    recorder = AsyncRecorder()
    run(template_with(recorder).execute_async, failing(1))
    assert recorder.events == ONE_RETRY


@pytest.mark.parametrize("kind", [Recorder, AsyncRecorder])
def test_recovery_is_recorded(kind):
    recorder = kind()
    template = template_with(recorder)
    asyncio.run(template.execute_async(failing(3), recovery=lambda context: "recovered"))
    assert recorder.events[-3:] == [
        ("on_recovery", 3, "recovered"),
        ("on_end", 3, None),
        ("close", 3, ERRORS[2]),
    ]


def test_properties_return_values_by_hook():
    recorder = Recorder()
    template_with(recorder).execute(failing(2))
    assert recorder.delays == [0.5, 0.5]
    assert recorder.errors == ERRORS[:2]
    assert recorder.results == ["worked"]
    assert recorder.values("close") == [None]
    assert recorder.hooks == [event.hook for event in recorder.events]


def test_recorder_implements_every_hook():
    for kind in (Recorder, AsyncRecorder):
        assert set(HOOKS) <= set(vars(kind))


def test_events_can_be_cleared():
    recorder = Recorder()
    template_with(recorder).execute(failing(0))
    recorder.clear()
    assert recorder.events == recorder.hooks == []


def test_event_has_a_readable_repr():
    assert repr(Event("on_backoff", 1, 0.5)) == "Event(hook='on_backoff', attempt=1, value=0.5)"


def test_several_recorders_are_independent():
    class Vetoes(Recorder):
        def open(self, context):
            super().open(context)
            raise Veto("not now")

    first, second = Vetoes(), Recorder()
    with pytest.raises(TerminatedRetryError):
        template_with(first, second).execute(failing(0))
    assert (first.hooks, second.hooks) == (["open", "on_end", "close"], ["on_end", "close"])

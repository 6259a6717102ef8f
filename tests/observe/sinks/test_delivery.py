"""Exceptions of sinks: logged once per minute, counted."""

import logging

import pytest

from retrytemplate.observe import CallbackSink
from retrytemplate.observe.sinks.delivery import Delivery
from retrytemplate.testing import VirtualClock
from tests.observe.events import event


def fail(event):
    raise ConnectionError("reset")


def test_exception_of_a_sink_is_logged_once_per_minute_and_counted(caplog):
    caplog.set_level(logging.ERROR, "retrytemplate.observe")
    clock = VirtualClock()
    delivery = Delivery(CallbackSink(fail), clock.monotonic)
    for _ in range(13):
        assert not delivery.emit(event())
        clock.advance(10)
    assert delivery.errors == 13
    assert [each.args[1] for each in caplog.records] == [1, 7, 13]


def test_interrupt_of_a_sink_is_raised():
    def interrupt(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Delivery(CallbackSink(interrupt)).emit(event())


def test_events_without_emit_many_are_given_one_by_one():
    seen = []

    def odd(event):
        seen.append(event.subject)
        if event.subject == "b":
            raise ValueError

    delivery = Delivery(CallbackSink(odd))
    assert delivery.emit_many([event(subject=each) for each in "abc"]) == 1
    assert seen == ["a", "b", "c"]


def test_failed_emit_many_loses_all_its_events():
    class Batches:
        def emit_many(self, events):
            raise ValueError

    assert Delivery(Batches()).emit_many([event(), event()]) == 2

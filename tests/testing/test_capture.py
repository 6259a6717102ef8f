"""The block that keeps the events of everything in the process."""

import pytest

from retrytemplate import RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import CircuitBreaker
from retrytemplate.listeners import default_listeners
from retrytemplate.observe import MemorySink, install, installed, uninstall
from retrytemplate.testing import VirtualClock, capture_events


def failing():
    raise OSError("down")


def test_objects_made_before_and_inside_the_block_are_captured():
    before = RetryTemplate(SimpleRetryPolicy(1), name="before")
    with capture_events() as captured:
        before.outcome(failing)
        CircuitBreaker("inside").force_open(by="ada", reason="incident 17")
    assert [event.subject for event in captured.events] == ["before", "inside"]


def test_nothing_is_captured_after_the_block():
    template = RetryTemplate(SimpleRetryPolicy(1))
    listeners = default_listeners()
    with pytest.raises(ZeroDivisionError), capture_events() as captured:
        raise ZeroDivisionError
    template.outcome(failing)
    assert captured.events == ()
    assert default_listeners() == listeners


def test_installed_observer_stays_and_gets_the_same_events():
    audit = MemorySink()
    observer = install(logs=None, sinks=[audit])
    try:
        with capture_events() as captured:
            RetryTemplate(SimpleRetryPolicy(2), clock=VirtualClock()).outcome(failing)
        assert installed() is observer
    finally:
        uninstall()
    types = [event.type for event in captured.events]
    assert types == ["retry.scheduled", "call.failed"]
    assert [event.type for event in audit.events] == types
    assert captured.events[0].execution_id == audit.events[0].execution_id


def test_nested_blocks_capture_their_own_events():
    template = RetryTemplate(SimpleRetryPolicy(1))
    with capture_events() as outer:
        with capture_events() as inner:
            template.outcome(failing)
        template.outcome(failing)
    assert (len(outer.events), len(inner.events)) == (2, 1)

"""A selection of events, and patterns of types."""

import pytest

from retrytemplate.observe import CallbackSink, FilteredSink, MemorySink
from tests.observe.events import Events, event


def test_default_passes_alerts_only():
    kept = Events()
    sink = FilteredSink(kept)
    for kind in ("alert.raised", "call.failed", "alerts"):
        sink.emit(event(kind, kind))
    assert kept.subjects == ["alert.raised"]


def test_event_below_the_minimum_severity_is_not_passed():
    kept = Events()
    sink = FilteredSink(kept, types=("*",), min_severity="WARNING")
    for severity in (20, 30, 40):
        sink.emit(event(subject=str(severity), severity=severity))
    assert kept.subjects == ["30", "40"]


def test_filter_blocks_and_closes_as_its_sink_does():
    class Closing(CallbackSink):
        def close(self, timeout):
            seen.append(timeout)
            return False

    seen = []
    assert FilteredSink(Closing(print)).blocking
    assert not FilteredSink(Closing(print)).close(2.0)
    assert seen == [2.0]
    assert not FilteredSink(MemorySink()).blocking
    assert FilteredSink(MemorySink()).close()


@pytest.mark.parametrize("types", ["alert.*", (), 17, [""], [17]])
def test_types_of_wrong_type_are_rejected(types):
    with pytest.raises(TypeError, match="types must be a list or tuple of event types"):
        FilteredSink(MemorySink(), types)


@pytest.mark.parametrize("sink", [None, MemorySink, print])
def test_object_without_emit_is_rejected(sink):
    with pytest.raises(TypeError, match="sink must be an object with the methods emit"):
        FilteredSink(sink)


def test_asynchronous_sink_is_rejected():
    class Later:
        async def emit(self, event):
            pass

    with pytest.raises(TypeError, match="sink: emit must be synchronous"):
        FilteredSink(Later())


def test_unknown_level_is_rejected():
    with pytest.raises(ValueError, match="min_severity must be a number, None or one of"):
        FilteredSink(MemorySink(), min_severity="LOUD")

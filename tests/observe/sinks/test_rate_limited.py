"""At most N events per interval, the others as one with their number."""

import logging
import os
import threading

import pytest

from retrytemplate.observe import CallbackSink, LogSink, RateLimitedSink, SpanSink
from retrytemplate.observe.sinks import rate_limited
from retrytemplate.testing import VirtualClock
from tests.observe.events import Events, event

INTERVAL = 10.0


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def limited(clock):
    """Makes sinks that are closed at the end."""
    made = []

    def make(sink, limit=1, interval=INTERVAL, **settings):
        made.append(RateLimitedSink(sink, limit, interval, clock=clock, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def rejected(subject="charge", **values):
    return event("call.rejected", subject, **values)


def counts(events):
    return [each.data.get("count") for each in events]


def test_flood_gives_one_event_per_interval_and_exact_counts(limited, clock):
    kept = Events()
    sink = limited(kept)
    started, one = clock.time(), rejected()
    for _ in range(100):
        for _ in range(1000):
            sink.emit(one)
        clock.advance(1)
    sink.close()
    assert counts(kept) == [None, 9999, *[10_000] * 9]
    ended = [each.time - started for each in kept[1:]]
    assert ended == [INTERVAL * number for number in range(1, 11)]


def test_limit_events_pass_and_the_next_interval_begins_with_the_others(limited, clock):
    kept = Events()
    sink = limited(kept, limit=3)
    for second in (0, 10):
        clock.advance(second)
        for _ in range(5):
            sink.emit(rejected())
    assert counts(kept) == [None, None, None, 2, None, None]
    sink.close()
    assert counts(kept)[6:] == [3]


def test_folded_event_has_ids_interval_and_the_last_data(limited, clock):
    kept = Events()
    sink = limited(kept)
    for number in range(4):
        sink.emit(rejected(execution_id=f"e{number}", data={"retry_after": number}))
    clock.advance(INTERVAL)
    sink.close()
    assert kept[1].data == {
        "retry_after": 3,
        "count": 3,
        "interval": INTERVAL,
        "first_execution_id": "e1",
        "last_execution_id": "e3",
    }
    assert (kept[1].execution_id, kept[1].time) == ("e3", clock.time())
    assert len({each.id for each in kept}) == 2


def test_each_type_and_subject_has_its_own_limit(limited):
    kept = Events()
    sink = limited(kept)
    for each in ("a", "b", "a", "b"):
        sink.emit(rejected(each))
        sink.emit(event("bulkhead.rejected", each))
    assert len(kept) == 4


def test_rejections_inside_and_outside_of_executions_are_counted_apart(limited):
    kept = Events()
    sink = limited(kept)
    for execution in ("e", None, "e", None, None):
        sink.emit(event("circuit_breaker.rejected", "billing", execution_id=execution))
    sink.close()
    assert [(each.execution_id, each.data.get("count")) for each in kept[2:]] == [
        ("e", 1),
        (None, 2),
    ]


def test_other_types_are_passed(limited):
    kept = Events()
    sink = limited(kept)
    for kind in ("call.failed", "call.failed", "task.cancelled", "task.cancelled"):
        sink.emit(event(kind))
    assert [each.type for each in kept] == ["call.failed", "call.failed", "task.cancelled"]


def test_first_event_after_a_quiet_interval_is_passed(limited, clock):
    kept = Events()
    sink = limited(kept)
    for _ in range(3):
        sink.emit(rejected())
        clock.advance(INTERVAL)
    assert counts(kept) == [None, None, None]


def test_interval_after_a_pause_begins_with_the_folded_event(limited, clock):
    kept = Events()
    sink = limited(kept)
    sink.emit(rejected())
    sink.emit(rejected())
    clock.advance(95)
    sink.emit(rejected())
    clock.advance(9)
    sink.emit(rejected())
    assert counts(kept) == [None, 1]
    clock.advance(1)
    sink.emit(rejected())
    assert counts(kept) == [None, 1, 2]


def test_end_of_an_interval_needs_no_further_event(clock):
    folded = threading.Event()

    def keep(event):
        if "count" in event.data:
            folded.set()

    # The thread looks at the clock after an interval of real time.
    sink = RateLimitedSink(CallbackSink(keep), limit=1, interval=0.05, clock=clock)
    sink.emit(rejected())
    sink.emit(rejected())
    clock.advance(0.05)
    assert folded.wait(30)
    sink.close()


def test_counts_are_exact_under_threads(limited):
    kept = Events()
    sink = limited(kept, limit=20)
    one = rejected()
    threads = [
        threading.Thread(target=lambda: [sink.emit(one) for _ in range(2000)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert counts(kept) == [None] * 20 + [16_000 - 20]


def test_event_of_a_finalizer_inside_a_step_is_counted(limited):
    kept = Events()
    sink = limited(kept)
    sink._lock.run(sink.emit, rejected())
    sink.close()
    assert counts(kept) == [1]


def test_exception_of_the_sink_is_raised_and_loses_no_count(limited):
    def fail(event):
        raise ConnectionError

    sink = limited(CallbackSink(fail))
    with pytest.raises(ConnectionError):
        sink.emit(rejected())
    sink.emit(rejected())
    assert not sink.close()
    assert sink.errors == 1


def test_child_process_starts_without_counts(limited):
    receiver, sender = os.pipe()
    sink = limited(
        CallbackSink(lambda event: os.write(sender, f"{event.data.get('count')} ".encode()))
    )
    for _ in range(3):
        sink.emit(rejected())
    child = os.fork()
    if not child:
        sink.emit(rejected())
        sink.emit(rejected())
        sink.close()
        os._exit(0)
    os.waitpid(child, 0)
    sink.close()
    os.close(sender)
    assert os.read(receiver, 100) == b"None None 1 2 "
    os.close(receiver)


def test_log_line_of_folded_rejections_has_their_number(limited, caplog):
    caplog.set_level(logging.INFO)
    sink = limited(LogSink())
    data = {"operation": "pay", "component": "circuit breaker", "name": "billing"}
    for _ in range(4813):
        sink.emit(rejected(data=data | {"error_message": "open", "retry_after": 28.0}))
    sink.close()
    assert [each.getMessage() for each in caplog.records] == [
        "charge (pay): rejected by circuit breaker billing; retry after 28 s",
        "charge (pay): rejected by circuit breaker billing 4812 times in 10 s",
    ]


def test_limited_sink_blocks_as_its_sink_does(limited):
    assert limited(CallbackSink(print)).blocking
    assert not limited(Events()).blocking


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"limit": 0}, "limit"), ({"interval": 0}, "interval"), ({"types": "x"}, "types")],
)
def test_setting_out_of_range_is_rejected(settings, text):
    with pytest.raises((TypeError, ValueError), match=f"{text} must be"):
        RateLimitedSink(Events(), **settings)


def test_event_among_many_subjects_looks_at_few_intervals(limited, clock, monkeypatch):
    looks = []

    class Counted(rate_limited.Window):
        @property
        def end(self):
            looks.append(self)
            return self.ends

        @end.setter
        def end(self, value):
            self.ends = value

    monkeypatch.setattr(rate_limited, "Window", Counted)
    sink = limited(Events())
    for number in range(400):
        sink.emit(rejected(f"subject {number % 200}"))
        clock.advance(2 * INTERVAL / 400)
    assert len(looks) < 5 * 400


def test_sink_that_reads_the_context_of_the_call_is_rejected():
    with pytest.raises(ValueError, match="sink must be one that does without the context"):
        RateLimitedSink(SpanSink())

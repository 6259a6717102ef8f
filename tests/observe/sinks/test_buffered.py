"""A buffer that a background thread empties."""

import gc
import os
import threading

import pytest

from retrytemplate._internal.locks import Monitor
from retrytemplate.observe import BufferedSink, CallbackSink, MemorySink, SpanSink
from tests.observe.events import Events, event


class Gated(Events):
    """A sink that blocks until it is opened."""

    def __init__(self):
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def emit(self, event):
        self.entered.set()
        assert self.gate.wait(30)
        self.append(event)


@pytest.fixture
def gated():
    made = Gated()
    yield made
    made.gate.set()


def test_events_are_written_in_order_by_another_thread():
    threads, kept = set(), Events()

    def keep(event):
        threads.add(threading.current_thread())
        kept.append(event)

    sink = BufferedSink(CallbackSink(keep))
    for number in range(2000):
        sink.emit(event(subject=str(number)))
    assert sink.close()
    assert kept.subjects == [str(number) for number in range(2000)]
    assert threading.current_thread() not in threads


def test_sink_gets_the_waiting_events_at_once():
    class Batches(Gated):
        def __init__(self):
            super().__init__()
            self.sizes = []

        def emit_many(self, events):
            self.sizes.append(len(events))
            self.emit(None)

    batches = Batches()
    sink = BufferedSink(batches)
    sink.emit(event())
    batches.entered.wait(30)
    for _ in range(1200):
        sink.emit(event())
    batches.gate.set()
    assert sink.close()
    assert batches.sizes == [1, 500, 500, 200]


def test_full_buffer_drops_and_counts_new_events(gated):
    sink = BufferedSink(gated, capacity=3)
    for number in range(5):
        sink.emit(event(subject=str(number)))
    assert sink.dropped == 2
    gated.gate.set()
    assert sink.close()
    assert gated.subjects == ["0", "1", "2"]


def test_space_is_free_again_when_events_are_written(gated):
    sink = BufferedSink(gated, capacity=1, when_full="wait")
    gated.gate.set()
    for number in range(20):
        sink.emit(event(subject=str(number)))
    assert sink.close()
    assert (len(gated), sink.dropped) == (20, 0)


def test_caller_waits_for_space_in_a_full_buffer(gated):
    sink = BufferedSink(gated, capacity=1, when_full="wait")
    sink.emit(event(subject="first"))
    begun = threading.Event()

    def work():
        begun.set()
        sink.emit(event(subject="second"))

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(30)
    assert (gated.subjects, thread.is_alive()) == ([], True)
    gated.gate.set()
    thread.join()
    assert sink.close()
    assert (gated.subjects, sink.dropped) == (["first", "second"], 0)


def test_close_ends_the_wait_of_a_caller(gated):
    sink = BufferedSink(gated, capacity=1, when_full="wait")
    sink.emit(event())
    thread = threading.Thread(target=sink.emit, args=[event()])
    thread.start()
    assert not sink.close(0.01)
    thread.join()
    gated.gate.set()
    assert sink.close()
    assert len(gated) + sink.dropped == 2


def test_finalizer_inside_a_step_never_waits(gated):
    sink = BufferedSink(gated, capacity=1, when_full="wait")
    sink.emit(event())
    Monitor().run(sink.emit, event())
    assert sink.dropped == 1
    gated.gate.set()
    sink.close()


def test_sink_that_causes_events_does_not_wait_for_itself():
    kept = Events()

    def echo(each):
        kept.append(each)
        if each.subject == "first":
            sink.emit(event(subject="caused"))

    sink = BufferedSink(CallbackSink(echo), capacity=1, when_full="wait")
    sink.emit(event(subject="first"))
    sink.close()
    assert (kept.subjects, sink.dropped) == (["first"], 1)


def test_no_event_is_lost_uncounted_under_threads():
    kept = Events()
    sink = BufferedSink(kept, capacity=100)
    threads = [
        threading.Thread(target=lambda: [sink.emit(event()) for _ in range(1000)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert len(kept) + sink.dropped == 8000


def test_sink_that_raises_loses_its_events_only(caplog):
    kept = Events()

    def odd(event):
        if event.subject == "b":
            raise ConnectionError
        kept.append(event)

    sink = BufferedSink(CallbackSink(odd))
    for each in "abc":
        sink.emit(event(subject=each))
    assert not sink.close()
    assert (kept.subjects, sink.dropped, sink.errors) == (["a", "c"], 1, 1)
    assert [each.name for each in caplog.records] == ["retrytemplate.observe"]


def test_close_with_a_blocked_sink_ends_in_time(gated):
    sink = BufferedSink(gated)
    sink.emit(event())
    assert not sink.close(0.01)
    gated.gate.set()
    assert sink.close()
    assert len(gated) == 1


def test_close_closes_the_sink():
    closed = []

    class Closing(MemorySink):
        def close(self, timeout):
            closed.append(0 < timeout <= 5)
            return False

    assert not BufferedSink(Closing()).close()
    assert closed == [True]


def test_event_after_close_is_dropped():
    sink = BufferedSink(MemorySink())
    sink.close()
    sink.emit(event())
    assert (sink.dropped, sink.sink.events) == (1, ())


def test_child_process_has_an_empty_buffer_and_its_own_thread(gated):
    receiver, sender = os.pipe()
    parent = os.getpid()

    def write(event):
        if os.getpid() == parent:
            gated.emit(event)
        os.write(sender, f"{event.subject} ".encode())

    sink = BufferedSink(CallbackSink(write), capacity=2)
    for subject in ("a", "b", "c"):
        sink.emit(event(subject=subject))
    child = os.fork()
    if not child:
        sink.emit(event(subject="child"))
        os._exit(0 if sink.close() and not sink.dropped else 1)
    _, status = os.waitpid(child, 0)
    gated.gate.set()
    sink.close()
    os.close(sender)
    assert (status, os.read(receiver, 100)) == (0, b"child a b ")
    os.close(receiver)


def test_thread_ends_when_its_sink_is_collected():
    sink = BufferedSink(MemorySink())
    sink.emit(event())
    thread = sink._poller._thread
    del sink
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("settings", "text"), [({"capacity": 0}, "capacity"), ({"when_full": "block"}, "when_full")]
)
def test_setting_out_of_range_is_rejected(settings, text):
    with pytest.raises(ValueError, match=f"{text} must be"):
        BufferedSink(MemorySink(), **settings)


def test_sink_that_reads_the_context_of_the_call_is_rejected():
    with pytest.raises(ValueError, match="sink must be one that does without the context"):
        BufferedSink(SpanSink())

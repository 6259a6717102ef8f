"""The newest events in memory."""

import threading

import pytest

from retrytemplate.observe import MemorySink
from tests.observe.events import NOW, event


@pytest.fixture
def sink():
    made = MemorySink(5)
    for number in range(7):
        kind = "call.failed" if number % 2 else "call.rejected"
        made.emit(event(kind, f"s{number}", time=NOW + number, execution_id=f"e{number // 2}"))
    return made


def subjects(page):
    return [each.subject for each in page]


def test_oldest_events_are_forgotten(sink):
    assert subjects(sink.events) == ["s2", "s3", "s4", "s5", "s6"]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["s6", "s5", "s4", "s3", "s2"]),
        ({"limit": 2}, ["s6", "s5"]),
        ({"type": "call.failed"}, ["s5", "s3"]),
        ({"type": "*.rejected"}, ["s6", "s4", "s2"]),
        ({"type": "call.fail"}, []),
        ({"subject": "s4"}, ["s4"]),
        ({"execution_id": "e2"}, ["s5", "s4"]),
        ({"since": NOW + 5}, ["s6", "s5"]),
        ({"type": "call.*", "execution_id": "e2", "since": NOW + 5}, ["s5"]),
    ],
)
def test_page_has_the_matching_events_newest_first(sink, filters, found):
    assert subjects(sink.page(**filters)) == found


def test_pages_before_an_event_continue(sink):
    pages, before = [], None
    while page := sink.page(before=before, limit=2):
        pages.append(subjects(page))
        before = page[-1].id
    assert pages == [["s6", "s5"], ["s4", "s3"], ["s2"]]


def test_page_before_a_forgotten_event_is_empty(sink):
    assert sink.page(before=event().id) == []


def test_events_can_be_read_while_threads_write():
    sink, end = MemorySink(100), threading.Event()

    def write():
        while not end.is_set():
            sink.emit(event())

    thread = threading.Thread(target=write)
    thread.start()
    sizes = [len(sink.events) for _ in range(300)]
    end.set()
    thread.join()
    assert max(sizes) <= 100


@pytest.mark.parametrize("bad", [0, -1, True])
def test_size_below_one_is_rejected(bad):
    with pytest.raises((TypeError, ValueError), match="size must be an int >= 1"):
        MemorySink(bad)

"""Events as rows of a table in SQLite and PostgreSQL."""

import os
import threading
import time

import pytest
from sqlalchemy import create_engine

from retrytemplate.observe import BufferedSink, EventStoreError, SQLEventSink
from retrytemplate.observe.sinks import sql
from tests.observe.events import event
from tests.support.event_stores import EventStore


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/events.db"
    else:
        url = request.getfixturevalue("postgres_url")
    made = EventStore(request.param, url)
    yield made
    made.close()


LATER = time.time() + 3600


def recent(type="call.failed", subject="charge", **values):
    return event(type, subject, **{"time": LATER} | values)


def subjects(page):
    return [each.subject for each in page]


def test_event_is_read_as_it_was_written(store):
    sink = store.sink()
    written = recent(
        data={"attempts": 3, "nested": [1, None, {"a": "b"}], "text": "n\0l \ud800 'q'"},
        execution_id="e",
        root_id="r",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        correlation={"user": "ada"},
    )
    odd = recent("shop.refund", "n\0l \\ \ud800 'q'")
    sink.emit(written)
    sink.emit(odd)
    assert sink.page() == [odd, written]
    assert sink.page(subject=odd.subject) == [odd]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["s4", "s3", "s2", "s1", "s0"]),
        ({"limit": 2}, ["s4", "s3"]),
        ({"type": "call.failed"}, ["s3", "s1"]),
        ({"type": "*.rejected"}, ["s4", "s2", "s0"]),
        ({"type": "call%"}, []),
        ({"type": "call_*"}, []),
        ({"subject": "s2"}, ["s2"]),
        ({"execution_id": "e1"}, ["s3", "s2"]),
        ({"since": LATER + 3}, ["s4", "s3"]),
        ({"type": "call.*", "execution_id": "e1", "since": LATER + 3}, ["s3"]),
    ],
)
def test_page_has_the_matching_events_newest_first(store, filters, found):
    sink = store.sink()
    kinds = ("call.rejected", "call.failed") * 3
    sink.emit_many(
        [
            recent(kinds[number], f"s{number}", time=LATER + number, execution_id=f"e{number // 2}")
            for number in range(5)
        ]
    )
    assert subjects(sink.page(**filters)) == found


def test_pages_before_an_event_continue(store):
    sink = store.sink()
    sink.emit_many([recent(subject=f"s{number}") for number in range(5)])
    pages, before = [], None
    while page := sink.page(before=before, limit=2):
        pages.append(subjects(page))
        before = page[-1].id
    assert pages == [["s4", "s3"], ["s2", "s1"], ["s0"]]


def test_event_written_twice_has_one_row(store):
    sink, one = store.sink(), recent()
    sink.emit(one)
    sink.emit_many([one, recent()])
    assert len(store.rows()) == 2


def test_sinks_of_two_processes_write_to_one_table(store):
    sink = store.sink()
    sink.emit(recent(subject="parent"))
    child = os.fork()
    if not child:
        for _ in range(20):
            sink.emit(recent(subject="child"))
        os._exit(0)
    for _ in range(20):
        sink.emit(recent(subject="parent"))
    assert os.waitpid(child, 0)[1] == 0
    found = subjects(sink.page(limit=100))
    assert (found.count("parent"), found.count("child")) == (21, 20)


def test_old_rows_are_deleted_in_small_batches(store, monkeypatch):
    monkeypatch.setattr(sql, "DELETED_AT_ONCE", 10)
    sink = store.sink(keep=1000)
    now = store.now()
    # A write that finds old rows deletes one batch.
    sink.emit_many([recent(time=now - 2000) for _ in range(25)])
    left = [len(store.rows())]
    for _ in range(3):
        sink.emit(recent(time=now - 500))
        left.append(len(store.rows()))
    assert left == [15, 6, 2, 3]
    assert all(row["time"] > now - 1000 for row in store.rows()[-3:])


def test_rows_are_looked_for_again_after_an_interval(store, monkeypatch):
    sink = store.sink(keep=1000)
    sink.emit(recent())
    sink.emit(recent(time=store.now() - 2000))
    assert len(store.rows()) == 2
    monkeypatch.setattr(sink, "_next_deletion", 0.0)
    sink.emit(recent())
    assert len(store.rows()) == 2


def test_threads_write_to_one_sink(store):
    sink = store.sink()
    threads = [
        threading.Thread(target=lambda: [sink.emit(recent()) for _ in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.rows()) == 40


def test_buffered_events_are_written_at_close(store):
    buffered = BufferedSink(store.sink())
    for number in range(1200):
        buffered.emit(recent(subject=str(number)))
    assert buffered.close(60)
    assert [row["subject"] for row in store.rows()] == [str(number) for number in range(1200)]


def test_closed_sink_is_opened_by_its_next_use(store):
    sink = store.sink()
    sink.emit(recent())
    sink.close()
    assert len(sink.page()) == 1


def test_connections_of_a_given_engine_stay_open(store):
    engine = create_engine(store.engine.url)
    sink = SQLEventSink(engine, store.prefix)
    sink.emit(recent())
    sink.close()
    assert engine.pool.checkedin() == 1
    engine.dispose()


def test_unreachable_database_raises_an_event_store_error(tmp_path):
    sink = SQLEventSink(f"sqlite:///{tmp_path}/missing/events.db")
    with pytest.raises(EventStoreError, match="write failed in the store of the event sink"):
        sink.emit(recent())


def test_failed_deletion_does_not_fail_the_write(store, monkeypatch):
    monkeypatch.setattr(sql, "DELETE", "DELETE FROM missing WHERE :keep > :limit")
    sink = store.sink()
    sink.emit(recent())
    assert len(store.rows()) == 1


def test_memory_database_is_rejected():
    with pytest.raises(ValueError, match="use MemorySink"):
        SQLEventSink("sqlite://")


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"keep": 0}, "keep"), ({"prefix": "A"}, "prefix"), ({"timeout": 0}, "t")],
)
def test_setting_out_of_range_is_rejected(settings, text):
    with pytest.raises(ValueError, match=f"{text}.* must be"):
        SQLEventSink("sqlite:///x.db", **settings)

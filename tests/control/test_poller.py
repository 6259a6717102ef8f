"""Background thread that polls a store."""

import gc
import logging
import threading

import pytest

from retrytemplate.control._poller import BackgroundPoller
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT

FOR_EVER = 86_400.0


class Looker:
    """A polled object: each poll is counted and has a configured result."""

    def __init__(self, period=FOR_EVER, answers=()):
        self.looks = threading.Semaphore(0)
        self.answers = iter(answers)
        self.watcher = BackgroundPoller(self.look, period, name="looker")

    def look(self):
        answer = next(self.answers, True)
        self.looks.release()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def has_looked(self):
        return self.looks.acquire(timeout=JOIN_TIMEOUT)


def threads():
    return [each for each in threading.enumerate() if each.name == "looker"]


def ends(thread):
    thread.join(JOIN_TIMEOUT)
    return not thread.is_alive()


@pytest.fixture
def looker():
    made = Looker()
    yield made
    made.watcher.close()


def test_poller_runs_repeatedly():
    looker = Looker(period=0.001)
    looker.watcher.ensure_running()
    assert looker.has_looked()
    assert looker.has_looked()
    looker.watcher.close()


def test_poller_has_no_thread_before_it_is_needed(looker):
    assert threads() == []


def test_poller_has_one_thread_however_often_it_is_started(looker):
    for _ in range(3):
        looker.watcher.ensure_running()
    assert len(threads()) == 1


@pytest.mark.parametrize("period", [FOR_EVER, 1e300])
def test_woken_poller_runs_immediately(period):
    looker = Looker(period)
    looker.watcher.wake()
    assert looker.has_looked()
    looker.watcher.close()


def test_failed_poll_is_logged_and_repeated(caplog):
    looker = Looker(answers=[ZeroDivisionError("no store")])
    with caplog.at_level(logging.ERROR, "retrytemplate.control"):
        looker.watcher.wake()
        assert looker.has_looked()
        looker.watcher.wake()
        assert looker.has_looked()
    assert "no store" in caplog.text
    looker.watcher.close()


def test_poller_thread_ends_without_work_and_starts_again():
    looker = Looker(answers=[False])
    looker.watcher.wake()
    first = threads()
    assert looker.has_looked()
    assert all(ends(each) for each in first)
    looker.watcher.wake()
    assert looker.has_looked()
    looker.watcher.close()


def test_closed_poller_has_no_thread(looker):
    looker.watcher.ensure_running()
    looker.watcher.close()
    looker.watcher.wake()
    assert threads() == []


def test_thread_ends_when_the_polled_object_is_collected():
    looker = Looker()
    looker.watcher.ensure_running()
    (thread,) = threads()
    del looker
    gc.collect()
    assert ends(thread)


def test_thread_that_cannot_start_is_logged_and_started_again(looker, caplog, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        looker.watcher.ensure_running()
    assert "cannot start the background polling thread" in caplog.text
    looker.watcher.wake()
    assert looker.has_looked()


def _no_thread(thread):
    raise RuntimeError("can't start new thread")

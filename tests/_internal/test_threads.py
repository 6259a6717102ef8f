"""Threads whose end is awaited."""

import threading

from retrytemplate._internal.threads import Threads

TIMEOUT = 30.0


def test_wait_joins_a_thread_whose_start_has_not_returned(monkeypatch):
    worked, joined = threading.Event(), threading.Event()
    workers = []

    class Slow(threading.Thread):
        """Its start returns when its work is done; it ends when it is joined."""

        def start(self):
            workers.append(self)
            super().start()
            worked.wait(TIMEOUT)
            joined.wait(TIMEOUT)

        def run(self):
            super().run()
            worked.set()
            joined.wait(TIMEOUT)

        def join(self, timeout=None):
            joined.set()
            super().join(timeout)

    monkeypatch.setattr(threading, "Thread", Slow)
    threads = Threads("worker", [lambda: None])
    threads.start()
    try:
        assert threads.wait(TIMEOUT)
        assert [worker.is_alive() for worker in workers] == [False]
    finally:
        joined.set()


def test_end_of_the_process_waits_for_no_thread():
    found = []
    threads = Threads("worker", [lambda: found.append(threading.current_thread().daemon)] * 2)
    threads.start()
    assert threads.wait(TIMEOUT)
    assert found == [True, True]

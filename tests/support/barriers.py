"""Threads that reach one line at the same time, synchronized by a barrier."""

import threading

from retrytemplate.testing.conformance.base import JOIN_TIMEOUT


class Meeting:
    """The first steps of all threads happen at once; the main thread does not wait."""

    def __init__(self, threads, steps=1):
        self.barrier = threading.Barrier(threads)
        self.steps = steps
        self.own = threading.local()

    def come(self):
        came = self.own.came = getattr(self.own, "came", 0) + 1
        if came <= self.steps and threading.current_thread() is not threading.main_thread():
            self.barrier.wait(JOIN_TIMEOUT)

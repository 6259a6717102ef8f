"""A program that interrupts one scenario at every instruction where Python runs signal handlers.

``python -m tests.support.interrupts SCENARIO`` prints what an interrupt left: a thread that does
not end, a lock that stays held.  A watchdog ends a process that hangs.
"""

import concurrent.futures.thread
import faulthandler
import queue
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.signal_injection import LIBRARY, CutsIn

SECONDS = 60.0
"""Before the watchdog prints the stacks and ends the process."""
SOON = 5.0
"""For a thread to finish its next step."""

FUTURES = Path(concurrent.futures.thread.__file__).parent
SYNCHRONIZATION = {threading.__file__, queue.__file__}
PARTS = {
    "_internal/threads.py",
    "_storage/cancellation.py",
    "_engine/attempt_timeout.py",
    "batch/runner/base.py",
    "batch/runner/heartbeat.py",
    "cli/commands/batch/progress.py",
    "control/hedge/runners.py",
    "control/_waiters.py",
    "control/rate_limiter/admission.py",
    "demo/flaky_service.py",
}


class Interrupts(CutsIn):
    """Interrupts at instructions where threads are started, woken and awaited."""

    def __init__(self, number):
        super().__init__(number, KeyboardInterrupt)

    def __call__(self, frame, event, argument):
        # SQLAlchemy waits for connections with the same means: its locks are its own.
        if event == "call" and "sqlalchemy" in frame.f_back.f_code.co_filename:
            return None
        return super().__call__(frame, event, argument)

    @staticmethod
    @cache
    def covers(code):
        path = Path(code.co_filename)
        if path.is_relative_to(LIBRARY):
            return path.relative_to(LIBRARY).as_posix() in PARTS
        return code.co_filename in SYNCHRONIZATION or path.parent == FUTURES


# Each takes the source of interrupts, and returns the leftovers that it finds.


def attempt(interrupts):
    """An attempt in a thread, abandoned at its limit: the thread sees the stop event."""
    from retrytemplate import AttemptTimeout, RetryTemplate
    from retrytemplate.policies import NeverRetryPolicy

    template = RetryTemplate(
        policy=NeverRetryPolicy(), attempt_timeout=AttemptTimeout(0.001, in_thread=True)
    )
    stops = []

    def fn(stop):
        stops.append(stop)
        stop.wait(SECONDS)

    with suppress(Exception), interrupts:
        template.call(fn)


def chunk(interrupts):
    """A chunk whose items are processed in threads."""
    from retrytemplate import RetryTemplate
    from retrytemplate._storage.operation_runner import perform
    from retrytemplate.batch.engine.effects import Process
    from retrytemplate.batch.runner.heartbeat import Heartbeat, never
    from retrytemplate.batch.runner.sync import Driver
    from retrytemplate.control import ProcessGate

    driver = Driver(
        reader=None,
        processor=lambda item: item,
        template=RetryTemplate(),
        concurrency=2,
        is_fatal=lambda _: False,
        transactions=None,
        heartbeat=Heartbeat(never, 30.0),
        run=None,
        gate=ProcessGate(),
    )
    items = list(range(4))
    with interrupts:
        done = perform(driver._process(Process(items)))
    if done.values != items:
        yield f"processed {done.values}"


def step(interrupts):
    """A run in threads: after any interrupt another run completes it."""
    from retrytemplate.batch import ChunkStep, JobRepository

    with (
        TemporaryDirectory() as folder,
        JobRepository(f"sqlite:///{folder}/jobs.db", lease=1000.0) as jobs,
    ):
        written = []
        step = ChunkStep(
            "copy",
            reader=range(3),
            processor=lambda item: item,
            writer=lambda items, _: written.append(items),
            concurrency=2,
            repository=jobs,
        )
        interrupted = True
        try:
            with interrupts:
                step.run()
            interrupted = False
        except KeyboardInterrupt:
            pass
        report = step.run()
        if report.status != "completed" or report.crashes:
            yield f"{report.status}, {report.crashes} crashes counted"
    if interrupted:
        raise KeyboardInterrupt


def last_step(interrupts):
    """The last step on a database is made whenever the wait for it is interrupted."""
    from retrytemplate._storage.cancellation import run_uninterrupted

    made = []
    try:
        with interrupts:
            run_uninterrupted(lambda: made.append(1))
    finally:
        # One that comes before the start is as if it had come before the call.
        if made != [1] and "__init__" not in interrupts.where and interrupts.looks > 1:
            print(f"the step was made {len(made)} times after {interrupts.where}")


def hedged(interrupts):
    """Hedged calls: the caller's pool can be used and shut down afterwards."""
    from concurrent.futures import ThreadPoolExecutor

    from retrytemplate.control import Hedge

    over = threading.Event()

    def fn(stop):
        if not over.is_set():
            over.set()
            stop.wait(SECONDS)
        return "value"

    pool = ThreadPoolExecutor(3)
    try:
        hedge = Hedge(0.0, idempotent=True, executor=pool)
        with interrupts:
            hedge.call(fn)
    finally:
        over.set()
        futures = [pool.submit(int) for _ in range(3)]
        concurrent.futures.wait(futures, SOON)
        stuck = [each for each in futures if not each.done()]
        pool.shutdown(wait=False, cancel_futures=True)
        if stuck:
            print(f"{len(stuck)} tasks of the pool wait after {interrupts.where}")
    return ()


def waiter(interrupts):
    """A thread in a queue that another one wakes."""
    from retrytemplate.control._waiters import ThreadWaiter

    waits = ThreadWaiter()
    waits.wake()
    try:
        with interrupts:
            waits.wait(SOON)
    finally:
        threading.Thread(target=waits.wake, daemon=True).start()


def permit(interrupts):
    """A thread that waits for a permit of a rate limiter: interrupted, it returns the permit."""
    from retrytemplate.control import RateLimiter

    limiter = RateLimiter("billing", permits=1, per=0.02, max_wait=SOON)
    limiter.acquire()
    interrupted = True
    try:
        with interrupts:
            limiter.acquire()
        interrupted = False
    finally:
        shown = limiter.snapshot()
        # An interrupt after the permit was taken is as if it had come after the call.
        is_taken = interrupts.where and interrupts.where.startswith(
            ("Admission.acquire:", "Admission._grant:")
        )
        admitted = {2} if not interrupted else {1, 2} if is_taken else {1}
        if shown.waiting or shown.admitted not in admitted or limiter.pause(0.0):
            print(f"{shown} after {interrupts.where}")
    return ()


def following(interrupts):
    """A run that a thread follows."""
    from retrytemplate.cli.commands.batch.progress import PlainReporter, polled

    with interrupts, polled(lambda: None, PlainReporter(), 1000.0):
        pass


def service(interrupts):
    """The demo's service, closed again after an interrupt."""
    from retrytemplate.demo.flaky_service import PricingService

    made = PricingService()
    try:
        with interrupts, made:
            pass
    finally:
        made.close()


SCENARIOS = {
    each.__name__: each
    for each in (attempt, chunk, step, last_step, hedged, waiter, permit, following, service)
}


def after(scenario, number):
    """The leftovers after one interrupt, and the number of times Python checked for signals."""
    faulthandler.dump_traceback_later(SECONDS, exit=True)  # in place of the last one's
    interrupts, left = Interrupts(number), []
    before = set(threading.enumerate())

    def run():
        threading.main_thread = threading.current_thread  # this one stands for it
        with suppress(KeyboardInterrupt):
            left.extend(scenario(interrupts) or ())

    # A trace function that raises must not run in the main thread: see signal_injection.py.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    until = time.monotonic() + SOON
    while (stay := set(threading.enumerate()) - before) and time.monotonic() < until:
        time.sleep(0.001)  # polled: an unknown thread cannot be joined
    left += [f"the thread {each.name!r} stays" for each in stay]
    return [f"{each}, after {interrupts.where}" for each in left], interrupts.looks


def main(name, stride=1):
    for _ in range(2):  # the first one makes the code ready to be traced
        _, looks = after(SCENARIOS[name], sys.maxsize)
    assert looks > 3, looks
    for number in range(1, looks + 1, stride):
        for line in after(SCENARIOS[name], number)[0]:
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

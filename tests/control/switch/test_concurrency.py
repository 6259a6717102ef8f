"""A kill switch under threads and in loops."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from retrytemplate import (
    KillSwitchActiveError,
    RetryTemplate,
    SwitchRefusedError,
)
from retrytemplate.control import KillSwitch, MemorySwitchStore
from retrytemplate.testing import GuardConformance, VirtualClock
from tests.control.switch.shared import REASON, Recorded, SharedStore, stopped
from tests.support.event_loops import LOOPS
from tests.support.gc_probe import left_by

loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
THREADS = 32
WELL = {"by": "lee", "justification": "found and mended, see incident 9"}


def at_once(work, threads=THREADS):
    """Call it in *number* threads that begin together, each with its number."""
    barrier = threading.Barrier(threads)

    def run(number):
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


# -- threads -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("kind", [MemorySwitchStore, SharedStore])
def test_concurrent_commands_are_all_applied(kind):
    notified, recorder = [], Recorded()
    switch = KillSwitch(kind(), notifiers=[notified.append], listeners=[recorder])

    def command(number):
        stopped(switch, segment=f"s{number}")
        stopped(switch, feature="all of them")
        switch.resume(segment=f"s{number}", **WELL)

    at_once(command)
    switch.refresh()
    assert [str(each.scope) for each in switch.snapshot().entries] == ["feature 'all of them'"]
    found = [each.id for each in switch.audit(limit=1000)]
    assert len(found) == 3 * THREADS
    assert sorted(each.id for each in notified) == sorted(found)
    assert sorted(each.record.id for each in recorder.events) == sorted(found)
    switch.close()


@pytest.mark.usefixtures("switching")
def test_concurrent_advances_of_one_step_apply_once():
    switch = KillSwitch()
    stopped(switch)
    switch.resume(segment="billing", canary=(5, 25, 50, 100), **WELL)
    together = threading.Barrier(THREADS)

    def healthy():
        together.wait()
        return True

    def advance(number):
        try:
            return switch.advance(segment="billing", healthy=healthy, **WELL).share
        except SwitchRefusedError:
            return None

    shares = at_once(advance)
    assert sorted(filter(None, shares)) == [25.0]


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("kind", [MemorySwitchStore, SharedStore])
def test_call_after_an_acknowledged_stop_does_not_run(kind):
    switch = KillSwitch(kind())
    guard = switch.guard(segment="billing")
    acknowledged, over = threading.Event(), threading.Event()

    def work(number):
        if number:
            while not over.is_set():
                late = acknowledged.is_set()
                try:
                    guard.admit(None)
                except KillSwitchActiveError:
                    continue
                assert not (late and acknowledged.is_set())
            return
        for _ in range(20):
            stopped(switch)
            acknowledged.set()
            switch.check(segment="billing")
            acknowledged.clear()
            switch.resume(segment="billing", **WELL)
        over.set()

    at_once(work, 8)
    switch.close()


class LateStore(SharedStore):
    """Returns the state at the time of the request, and returns late if required."""

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.late = False
        self.requested, self.answer = threading.Event(), threading.Event()

    def load(self, known):
        found = super().load(known)
        if self.late:
            self.late = False
            self.requested.set()
            assert self.answer.wait(10)
        return found


def test_concurrent_checks_of_a_stale_copy_load_once():
    clock = VirtualClock()
    store = LateStore(clock)
    switch = KillSwitch(store, clock=clock)
    switch.check()
    clock.advance(5)
    store.late = True
    waiting = threading.Timer(0.05, store.answer.set)
    waiting.start()
    at_once(lambda number: switch.check(segment="billing"))
    assert store.loads == 2
    switch.close()


@pytest.mark.parametrize("resumes", [False, True], ids=["stop", "resume"])
def test_late_load_does_not_undo_later_changes(resumes):
    clock = VirtualClock()
    store = LateStore(clock)
    switch = KillSwitch(store, clock=clock)
    switch.check()
    if resumes:
        stopped(switch)
    store.late = True
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(switch.refresh)
        assert store.requested.wait(10)
        clock.advance(1)
        if resumes:
            switch.resume(segment="billing", **WELL)
        else:
            stopped(switch)
        store.answer.set()
        late.result()
    assert switch.check(segment="billing").allowed is resumes
    assert switch.audit()[0].action == ("resumed" if resumes else "stopped")
    switch.close()


def test_change_of_another_thread_is_reported_once():
    class Beginning(SharedStore):
        def records(self, *, before=None, limit=100):
            found = super().records(before=before, limit=limit)
            if limit == 1 and not self.begun:
                self.begun = True
                stopped(switch)
            return found

    store, listener = Beginning(), Recorded()
    store.begun = False
    switch = KillSwitch(store, listeners=[listener])
    stopped(switch, segment="search")
    assert [str(each.record.scope) for each in listener.events] == [
        "segment 'billing'",
        "segment 'search'",
    ]
    switch.close()


def test_check_after_close_loads_by_itself():
    clock = VirtualClock()
    store = SharedStore(clock=clock)
    other = KillSwitch(store, clock=clock)
    with KillSwitch(store, clock=clock) as switch:
        switch.start()
        thread = switch._poller._thread
    assert not thread.is_alive()
    switch.close()
    stopped(other)
    clock.advance(5)
    assert not switch.check(segment="billing")
    assert switch._poller._thread is thread
    other.close()


def test_switch_in_memory_has_no_thread_without_expiring_stops():
    switch = KillSwitch()
    switch.check()
    switch.stop(segment="billing", reason=REASON, by="kim", permanent=True)
    assert switch._poller._thread is None
    stopped(switch, segment="search")
    assert switch._poller._thread.is_alive()
    switch.close()


# -- loops ---------------------------------------------------------------------------------------


class SlowStore(SharedStore):
    """Returns when it is released."""

    def __init__(self):
        super().__init__()
        self.requested, self.answer = threading.Event(), threading.Event()

    def load(self, known):
        self.requested.set()
        assert self.answer.wait(10)
        return super().load(known)


@loops
@pytest.mark.parametrize("stale_after", [0, 5.0], ids=["strict", "cached"])
def test_event_loop_runs_while_a_store_is_slow(loop, stale_after):
    store = SlowStore()
    switch = KillSwitch(store, stale_after)
    guard = switch.guard(segment="billing")
    done = []

    async def work():
        done.append(await RetryTemplate(guards=[guard]).call_async(int, "17"))

    async def answer():
        while not store.requested.is_set():
            await loop.checkpoint()
        assert done == []
        store.answer.set()

    loop.run(lambda: loop.together(work, answer))
    assert done == [17]
    switch.close()


@loops
def test_task_cancelled_during_a_load_leaves_the_switch_usable(loop):
    store = SlowStore()
    switch = KillSwitch(store)
    guard = switch.guard(segment="billing")
    calls = []

    async def main():
        async def made():
            await loop.checkpoint()
            calls.append("made")

        async def work():
            await guard.call_async(made)

        def when():
            if store.requested.is_set():
                store.answer.set()
            return store.requested.is_set()

        await loop.cancelled(work, when)

    loop.run(main)
    assert calls == []
    assert switch.check(segment="billing")
    stopped(switch)
    assert not switch.check(segment="billing")
    switch.close()


@loops
def test_rejection_in_a_task_notifies_the_listeners(loop):
    listener = Recorded()
    switch = KillSwitch(listeners=[listener])
    stopped(switch)
    with pytest.raises(KillSwitchActiveError):
        loop.run(lambda: switch.guard(segment="billing").call_async(int, "17"))
    assert listener.kinds == ["SwitchChanged", "CallRejected"]


def test_asynchronous_check_needs_no_thread_when_nothing_is_stopped():
    switch = KillSwitch(SharedStore())
    switch.check()
    guard = switch.guard(segment="billing")
    steps = guard.admit_async(None)
    with pytest.raises(StopIteration):
        steps.send(None)
    switch.close()


# -- guards --------------------------------------------------------------------------------------


def test_canary_key_is_read_from_the_context():
    switch = KillSwitch()
    contexts = []

    def key(context):
        contexts.append(context)
        return "user-17"

    guard = switch.guard(segment="billing", key=key)
    template = RetryTemplate(guards=[guard])
    template.call(int, "17")
    assert contexts == []
    stopped(switch)
    switch.resume(segment="billing", canary=(99.9, 100), **WELL)
    assert template.call(int, "17") == 17
    assert contexts[0].attempt == 1
    assert guard.call(int, "17") == 17
    assert contexts[-1] is None


@pytest.mark.parametrize("driver", ["alone", "in a template"])
def test_rejection_leaves_no_cycle(driver):
    switch = KillSwitch(listeners=[Recorded()])
    stopped(switch)
    guard = switch.guard(segment="billing")
    template = RetryTemplate(guards=[guard])

    def rejected():
        with suppress(KillSwitchActiveError):
            (guard if driver == "alone" else template).call(int, "17")
        next(iter(switch.listeners)).events.clear()

    assert left_by(rejected) == 0


def test_guard_of_asynchronous_calls_is_left_by_its_task():
    switch = KillSwitch()
    guard = switch.guard(segment="billing")

    async def main():
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(guard.call_async(asyncio.sleep, 0))
        return RetryTemplate().call(int, "17")

    assert asyncio.run(main()) == 17


class TestGuard(GuardConformance):
    def make(self):
        switch = KillSwitch()
        stopped(switch, segment="search")
        self.switch = switch  # which the guard does not hold
        return switch.guard(segment="billing")

    def teardown_method(self):
        vars(self).clear()


def test_guard_wraps_functions_methods_and_coroutine_functions():
    switch = KillSwitch()
    guard = switch.guard(segment="billing")

    class Shop:
        @guard.wrap
        def charge(self, amount):
            return amount

        @guard.wrap
        async def refund(self, amount):
            return -amount

    assert Shop().charge(3) == 3
    assert asyncio.run(Shop().refund(3)) == -3
    stopped(switch)
    with pytest.raises(KillSwitchActiveError):
        Shop().charge(3)
    with pytest.raises(KillSwitchActiveError):
        asyncio.run(Shop().refund(3))

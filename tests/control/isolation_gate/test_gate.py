"""The gate of a process: exclusion, order, timeouts and cancellation, in threads and tasks."""

import asyncio
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from weakref import WeakValueDictionary

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrytemplate import Deadline, DeadlineExceededError, GateTimeoutError, MisuseError
from retrytemplate.control import GateSnapshot, HostGate, ProcessGate
from retrytemplate.control.isolation_gate import gate as gate_module
from retrytemplate.control.isolation_gate.gate import _innermost
from retrytemplate.testing import VirtualClock, run, run_trio
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.support import forked_python
from tests.support.event_loops import LOOPS
from tests.support.signal_injection import CutsIn, Signal

EMPTY = GateSnapshot(shared=0, exclusive=0, waiting=0)
loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
both_modes = pytest.mark.parametrize("mode", ["shared", "exclusive"])


class Down(Exception):
    """The error of a failing attempt."""


def enter(gate, mode, timeout=None):
    return getattr(gate, mode)(timeout)


def until(condition):
    """Wait until the condition holds."""
    over = threading.Event()
    for _ in range(int(JOIN_TIMEOUT / 0.001)):
        if condition():
            return
        over.wait(0.001)
    raise AssertionError("not reached")


class Caller(threading.Thread):
    """A thread that enters, and leaves when it is released."""

    def __init__(self, gate, mode):
        super().__init__(daemon=True)
        self.gate, self.mode = gate, mode
        self.inside, self.released = threading.Event(), threading.Event()
        self.start()

    def run(self):
        with enter(self.gate, self.mode):
            self.inside.set()
            assert self.released.wait(JOIN_TIMEOUT)

    def release(self):
        self.released.set()
        self.join(JOIN_TIMEOUT)


@pytest.fixture
def gate():
    made = ProcessGate()
    yield made
    assert made.snapshot() == EMPTY
    assert _innermost.get() is None


# -- exclusion and order ---------------------------------------------------------------------------


def test_exclusive_entry_stops_those_after_it(gate):
    first = Caller(gate, "shared")
    assert first.inside.wait(JOIN_TIMEOUT)
    suspect = Caller(gate, "exclusive")
    until(lambda: gate.snapshot().waiting == 1)
    assert not gate.is_open()
    late = Caller(gate, "shared")
    until(lambda: gate.snapshot().waiting == 2)
    first.release()
    assert suspect.inside.wait(JOIN_TIMEOUT)
    assert not late.inside.is_set()
    suspect.release()
    assert late.inside.wait(JOIN_TIMEOUT)
    assert gate.is_open()
    late.release()


@both_modes
def test_entry_ends_however_the_attempt_ends(gate, mode):
    for end in (Down, KeyboardInterrupt, asyncio.CancelledError):
        with pytest.raises(end), enter(gate, mode):
            raise end
    assert gate.snapshot() == EMPTY


def test_threads_and_tasks_of_both_loops_exclude_each_other(gate, switching):
    inside, lock, done = {"shared": 0, "exclusive": 0}, threading.Lock(), []

    def change(mode, by):
        with lock:
            inside[mode] += by
            assert inside["exclusive"] <= 1
            assert not (inside["exclusive"] and inside["shared"])

    def in_threads(seed):
        random = Random(seed)
        for _ in range(40):
            mode = random.choice(["shared", "shared", "exclusive"])
            with enter(gate, mode):
                change(mode, 1)
                change(mode, -1)
        done.append(seed)

    async def task(loop, seed):
        random = Random(seed)
        for _ in range(8):
            mode = random.choice(["shared", "shared", "exclusive"])
            async with enter(gate, mode):
                change(mode, 1)
                await loop.checkpoint()
                change(mode, -1)
        done.append(seed)

    def in_loop(loop):
        loop.run(lambda: loop.together(*[lambda seed=seed: task(loop, seed) for seed in range(5)]))

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(in_threads, seed) for seed in range(2)]
        futures += [pool.submit(in_loop, loop) for loop in LOOPS]
        for future in futures:
            future.result(JOIN_TIMEOUT)
    assert len(done) == 12


# -- entries inside entries ------------------------------------------------------------------------


@both_modes
def test_shared_entry_inside_another_entry_passes_those_that_wait(gate, mode):
    with enter(gate, mode):
        suspect = Caller(gate, "exclusive")
        until(lambda: gate.snapshot().waiting == 1)
        with gate.shared(), gate.shared():
            assert not suspect.inside.is_set()
    assert suspect.inside.wait(JOIN_TIMEOUT)
    suspect.release()


def test_exclusive_entry_inside_exclusive_one_is_granted(gate):
    with gate.exclusive(), gate.shared(), gate.exclusive():
        assert gate.snapshot() == GateSnapshot(shared=1, exclusive=2, waiting=0)


def test_exclusive_entry_inside_shared_one_is_misuse(gate):
    with gate.shared():
        with (
            pytest.raises(MisuseError, match="give the inner work a gate of its own"),
            gate.exclusive(),
        ):
            raise AssertionError("not reached")
        assert gate.snapshot() == GateSnapshot(shared=1, exclusive=0, waiting=0)
        with ProcessGate().exclusive():
            pass


@loops
def test_child_task_may_enter_while_its_parent_is_inside(gate, loop):
    async def child():
        async with gate.shared():
            await loop.checkpoint()

    async def main():
        async with gate.exclusive():
            await loop.together(child, child)

    loop.run(main)


def test_child_task_that_outlives_the_entry_of_its_parent_waits_like_others(gate):
    async def main():
        goes = asyncio.Event()

        async def child():
            await goes.wait()
            async with gate.shared(timeout=0):
                raise AssertionError("not reached")

        async with gate.shared():
            task = asyncio.create_task(child())
        async with gate.exclusive():
            goes.set()
            with pytest.raises(GateTimeoutError):
                await task

    asyncio.run(main())


def test_entry_in_use_cannot_be_entered_again(gate):
    entry = gate.shared()
    with entry:
        with pytest.raises(MisuseError, match="this entry is in use"), entry:
            raise AssertionError("not reached")
        assert gate.snapshot().shared == 1
    with entry:
        assert gate.snapshot().shared == 1


def test_generator_closed_elsewhere_ends_its_entry(gate):
    def work():
        with gate.shared():
            yield

    started = work()
    next(started)
    thread = threading.Thread(target=started.close)
    thread.start()
    thread.join(JOIN_TIMEOUT)
    assert gate.snapshot() == EMPTY
    with gate.exclusive():
        pass
    _innermost.set(None)


# -- timeouts --------------------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize("timeout", [0, 0.001])
def test_thread_that_is_not_granted_in_time_leaves_the_queue(gate, mode, timeout):
    holder = Caller(gate, "exclusive")
    assert holder.inside.wait(JOIN_TIMEOUT)
    with pytest.raises(GateTimeoutError, match=f"no {mode} entry .* 1 inside") as raised:
        enter(gate, mode, timeout).__enter__()
    assert raised.value.component == "isolation gate"
    assert gate.snapshot() == GateSnapshot(shared=0, exclusive=1, waiting=0)
    holder.release()


def test_exclusive_timeout_lets_in_those_behind(gate):
    with ThreadPoolExecutor(2) as pool:
        with gate.shared():
            suspect = pool.submit(gate.exclusive(timeout=0.05).__enter__)
            until(lambda: gate.snapshot().waiting == 1 or suspect.done())
            late = Caller(gate, "shared")
            with pytest.raises(GateTimeoutError):
                suspect.result(JOIN_TIMEOUT)
            assert late.inside.wait(JOIN_TIMEOUT)
        late.release()


def in_asyncio(main, clock):
    return run(main(), clock=clock)


def in_trio(main, clock):
    return run_trio(main, clock=clock)


both_runs = pytest.mark.parametrize("runs", [in_asyncio, in_trio])


async def tried(gate, timeout):
    async with gate.exclusive(timeout):
        raise AssertionError("not reached")


async def beside_an_entry(gate, work, loop):
    """Call it in a task that is not inside the shared entry of another one."""
    ended = []

    async def holder():
        async with gate.shared():
            while not ended:
                await loop.checkpoint()

    async def other():
        while not gate.snapshot().shared:
            await loop.checkpoint()
        try:
            await work()
        finally:
            ended.append(True)

    await loop.together(holder, other)


@loops
def test_task_that_is_not_granted_in_time_leaves_the_queue(gate, loop):
    async def work():
        with pytest.raises(GateTimeoutError):
            await tried(gate, 0.001)

    loop.run(lambda: beside_an_entry(gate, work, loop))


@loops
def test_deadline_shortens_the_wait(gate, loop):
    async def work():
        with pytest.raises(DeadlineExceededError, match="isolation gate"), Deadline(0.001):
            await tried(gate, None)

    loop.run(lambda: beside_an_entry(gate, work, loop))


@both_runs
def test_timeout_is_measured_by_the_loop(runs):
    gate, clock = ProcessGate(), VirtualClock()
    holder = Caller(gate, "shared")
    assert holder.inside.wait(JOIN_TIMEOUT)

    async def main():
        with pytest.raises(GateTimeoutError):
            await tried(gate, 5.0)
        return clock.monotonic()

    assert runs(main, clock) == 5.0
    holder.release()


@pytest.mark.parametrize(
    ("timeout", "error"), [(-1, ValueError), ("1", TypeError), (float("nan"), ValueError)]
)
@both_modes
def test_wrong_timeout_is_rejected(gate, mode, timeout, error):
    with pytest.raises(error, match="timeout must be a number of seconds"):
        enter(gate, mode, timeout)


# -- cancellation and interruption -----------------------------------------------------------------


@loops
@pytest.mark.parametrize("seed", range(8))
def test_tasks_cancelled_anywhere_leave_no_entry(gate, loop, seed):
    random = Random(seed)
    inside = {"shared": 0, "exclusive": 0}

    async def work():
        while True:
            mode = random.choice(["shared", "shared", "exclusive"])
            async with enter(gate, mode):
                inside[mode] += 1
                assert inside["exclusive"] <= 1
                assert not (inside["exclusive"] and inside["shared"])
                try:
                    for _ in range(random.randrange(3)):
                        await loop.checkpoint()
                finally:
                    inside[mode] -= 1
            await loop.checkpoint()

    async def cancelled():
        while True:
            steps = random.randrange(6)

            def over():
                nonlocal steps
                steps -= 1
                return steps < 0

            await loop.cancelled(work, over)

    async def stop():
        for _ in range(random.randrange(50, 150)):
            await loop.checkpoint()
        raise Down

    with pytest.raises(ExceptionGroup):
        loop.run(lambda: loop.together(*[work] * 4, *[cancelled] * 3, stop))
    assert gate.snapshot() == EMPTY


def test_entry_for_a_closed_loop_passes_to_the_next(gate):
    holder = Caller(gate, "exclusive")
    assert holder.inside.wait(JOIN_TIMEOUT)

    async def wait():
        await gate.exclusive().__aenter__()

    loop = asyncio.new_event_loop()
    left = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    left._log_destroy_pending = False
    loop.close()
    late = Caller(gate, "shared")
    until(lambda: gate.snapshot().waiting == 2)
    holder.release()
    assert late.inside.wait(JOIN_TIMEOUT)
    late.release()


class SignalInGate(CutsIn):
    """A signal handler that raises anywhere in the code of the gate, but where it leaves."""

    @staticmethod
    def covers(code):
        here = "isolation_gate" in code.co_filename or "_waiters" in code.co_filename
        return here and code.co_name != "__exit__"


@both_modes
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", [ProcessGate, HostGate])
def test_signal_anywhere_leaves_no_entry(kind, mode, waits, tmp_path, monkeypatch):
    def made():
        monkeypatch.setattr(gate_module, "_host_cores", WeakValueDictionary())
        return HostGate(directory=tmp_path) if kind is HostGate else ProcessGate()

    number, reached = 1, True
    while reached:
        gate = made()
        if waits:
            holder = Caller(gate if kind is ProcessGate else made(), "exclusive")
            assert holder.inside.wait(JOIN_TIMEOUT)
            late = threading.Timer(0.002, holder.release)
            late.start()
        signals = SignalInGate(number)
        entry = enter(gate, mode)
        with suppress(Signal), signals, entry:
            pass
        reached = signals.number == sys.maxsize
        if waits:
            late.join(JOIN_TIMEOUT)
        assert gate.snapshot() == EMPTY, signals.where
        assert _innermost.get() is None, signals.where
        with (gate if kind is ProcessGate else made()).exclusive(timeout=0):
            pass
        number += 1
    assert number > 10


def test_signal_handler_that_enters_while_its_thread_waits_is_rejected(gate):
    holder = Caller(gate, "exclusive")
    assert holder.inside.wait(JOIN_TIMEOUT)
    rejected = []

    def handler(*_):
        if not holder.released.is_set():  # a later signal finds the main thread inside
            try:
                gate.shared().__enter__()
            except GateTimeoutError as error:
                rejected.append(error)
            holder.released.set()

    before = signal.signal(signal.SIGUSR1, handler)

    def send():
        until(lambda: gate.snapshot().waiting == 1)
        while not holder.released.is_set():  # a signal before the wait does not end the wait
            os.kill(os.getpid(), signal.SIGUSR1)
            holder.released.wait(0.05)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with gate.exclusive(timeout=JOIN_TIMEOUT):
            assert rejected
    finally:
        sender.join(JOIN_TIMEOUT)
        signal.signal(signal.SIGUSR1, before)
        holder.join(JOIN_TIMEOUT)


def test_forked_child_starts_with_an_empty_gate():
    program = """
import os
from retrytemplate.control import ProcessGate

gate = ProcessGate()
with gate.shared():
    child = os.fork()
    if not child:
        with gate.exclusive(timeout=0):
            pass
if not child:
    with gate.exclusive(timeout=0):
        os._exit(0)
_, status = os.waitpid(child, 0)
print(status, gate.snapshot())
"""
    done = forked_python.run([sys.executable, "-c", program])
    assert done.stdout == f"0 {EMPTY}\n", done.stderr


# -- real callers against a model ------------------------------------------------------------------


class Task(Caller):
    """A task of a loop in a thread of its own, which can be cancelled."""

    def run(self):
        asyncio.run(self.main())

    async def main(self):
        self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
        self.ends = asyncio.Event()
        with suppress(asyncio.CancelledError):
            async with enter(self.gate, self.mode):
                self.inside.set()
                await self.ends.wait()

    def release(self):
        self.loop.call_soon_threadsafe(self.ends.set)
        self.join(JOIN_TIMEOUT)

    def cancel(self):
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.join(JOIN_TIMEOUT)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["thread", "task", "leave", "leave", "cancel"]),
            st.booleans(),
            st.integers(0, 9),
        ),
        max_size=16,
    )
)
def test_threads_and_tasks_are_granted_in_order_of_arrival(steps):
    gate, inside, waiting = ProcessGate(), [], []

    def admit():
        while waiting:
            modes = [each.mode for each in inside]
            if "exclusive" in modes or (modes and waiting[0].mode == "exclusive"):
                return
            inside.append(waiting.pop(0))

    def agrees():
        modes = [each.mode for each in inside]
        expected = GateSnapshot(modes.count("shared"), modes.count("exclusive"), len(waiting))
        until(lambda: gate.snapshot() == expected)
        for each in inside:
            assert each.inside.wait(JOIN_TIMEOUT)
        assert not any(each.inside.is_set() for each in waiting)

    def end(caller, how):
        getattr(caller, how)()
        (inside if caller in inside else waiting).remove(caller)
        admit()

    for what, exclusive, which in steps:
        if what in ("thread", "task"):
            kind = Caller if what == "thread" else Task
            waiting.append(kind(gate, "exclusive" if exclusive else "shared"))
            admit()
        elif what == "leave" and inside:
            end(inside[which % len(inside)], "release")
        elif what == "cancel":
            tasks = [each for each in inside + waiting if isinstance(each, Task)]
            if tasks:
                end(tasks[which % len(tasks)], "cancel")
        agrees()
    while inside:
        end(inside[0], "release")
    assert gate.snapshot() == EMPTY

"""A bulkhead: admission, waiting and rejection; and that no slot is lost."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from retrytemplate import BulkheadFullError, Deadline, DeadlineExceededError, MisuseError
from retrytemplate.control import Bulkhead, CallRejected, ControlListener, Strategy
from retrytemplate.control._waiters import ThreadWaiter
from retrytemplate.control.bulkhead.priority_semaphore import (
    LimitRamp,
    PrioritySemaphore,
    SlotRequest,
)
from retrytemplate.testing import VirtualClock, run, run_trio
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.support.event_loops import LOOPS

loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])


class Down(Exception):
    """The error of a failing call."""


def taken(bulkhead):
    shown = bulkhead.snapshot()
    return shown.in_use, shown.waiting, shown.keys


def until(condition):
    """Wait until the condition holds."""
    over = threading.Event()
    for _ in range(int(JOIN_TIMEOUT / 0.001)):
        if condition():
            return
        over.wait(0.001)
    raise AssertionError("not reached")


# -- the number of slots ---------------------------------------------------------------------------


@pytest.mark.statement("S4-50")
def test_full_dependency_leaves_the_other_free():
    llm, database = Bulkhead("llm", limit=2, queue=0), Bulkhead("database", limit=1, queue=0)
    with llm.slot(), llm.slot():
        with pytest.raises(BulkheadFullError, match="2 of 2 slots are taken") as raised:
            llm.call(int)
        assert raised.value.name == "llm"
        assert database.call(int, "17") == 17
    assert llm.call(int, "17") == 17
    assert (llm.snapshot().admitted, llm.snapshot().rejected) == (3, 1)


def test_slot_is_released_however_the_call_ends():
    bulkhead = Bulkhead("llm", limit=1, queue=0)
    for end in (Down, KeyboardInterrupt, asyncio.CancelledError):

        def fails(end=end):
            raise end

        with pytest.raises(end):
            bulkhead.call(fails)
    assert taken(bulkhead) == (0, 0, 0)


def test_thread_waits_for_a_slot():
    bulkhead = Bulkhead("llm", limit=1, max_wait=JOIN_TIMEOUT)
    with ThreadPoolExecutor(1) as pool:
        with bulkhead.slot():
            waits = pool.submit(bulkhead.call, int, "17")
            until(lambda: bulkhead.snapshot().waiting == 1)
            assert not waits.done()
        assert waits.result(JOIN_TIMEOUT) == 17


def test_thread_without_a_slot_is_rejected_and_leaves_the_queue():
    bulkhead = Bulkhead("llm", limit=1, max_wait=0.001)
    with bulkhead.slot(), pytest.raises(BulkheadFullError):
        bulkhead.call(int)
    assert taken(bulkhead) == (0, 0, 0)


def test_full_queue_and_queue_without_wait_reject_at_once():
    for each in ({"queue": 0}, {"max_wait": 0}):
        bulkhead = Bulkhead("llm", limit=1, **each)
        with bulkhead.slot(), pytest.raises(BulkheadFullError):
            bulkhead.call(int)


def in_asyncio(main, clock):
    return run(main(), clock=clock)


def in_trio(main, clock):
    return run_trio(main, clock=clock)


@pytest.mark.parametrize("runs", [in_asyncio, in_trio])
def test_task_waits_at_most_max_wait(runs):
    bulkhead = Bulkhead("llm", limit=1, max_wait=5.0)
    clock = VirtualClock()

    async def main():
        async with bulkhead.slot():
            with pytest.raises(BulkheadFullError):
                await bulkhead.call_async(int)
        return clock.monotonic()

    assert runs(main, clock) == 5.0


@pytest.mark.parametrize("runs", [in_asyncio, in_trio])
def test_task_waits_at_most_until_its_deadline(runs):
    bulkhead = Bulkhead("llm", limit=1, max_wait=60.0)
    clock = VirtualClock()

    async def main():
        async with bulkhead.slot():
            with Deadline(2.0, clock=clock):
                with pytest.raises(DeadlineExceededError, match="bulkhead 'llm'"):
                    await bulkhead.call_async(int)
                waited = clock.monotonic()
                with pytest.raises(BulkheadFullError):  # nothing is left: it is rejected at once
                    await bulkhead.call_async(int)
            return waited, clock.monotonic()

    assert runs(main, clock) == (2.0, 2.0)


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.statement("S4-53")
def test_key_with_a_thousand_calls_does_not_limit_other_keys():
    bulkhead = Bulkhead("llm", limit=10, queue=2000, per_key=2, max_wait=JOIN_TIMEOUT)
    most = {}

    async def ask(user):
        async with bulkhead.slot(key=user):
            shown = bulkhead.snapshot()
            mine = bulkhead._semaphore.keys[user].taken
            most[user] = max(most.get(user, 0), mine)
            assert shown.in_use <= 10
            await asyncio.sleep(0)
            order.append(user)

    order = []

    async def main():
        async with asyncio.TaskGroup() as group:
            for _ in range(1000):
                group.create_task(ask("greedy"))
            for number in range(20):
                group.create_task(ask(number))

    asyncio.run(main())
    assert max(most.values()) == 2
    assert max(order.index(number) for number in range(20)) < 60
    assert taken(bulkhead) == (0, 0, 0)


def test_full_key_admits_its_next_request_when_a_slot_is_released():
    semaphore = PrioritySemaphore(limit=10, queue=10, priorities=1, per_key=1, fairness=0)
    first, second, third = (SlotRequest("kim", 0) for _ in range(3))
    for ticket in (first, second, third):
        assert semaphore.acquire(ticket, wait=True)
    other = SlotRequest("lee", 0)
    assert semaphore.acquire(other, wait=True)
    assert [each.state for each in (first, second, third, other)] == ["in", *["waiting"] * 2, "in"]
    assert semaphore.release(other) == []
    assert semaphore.release(second) == []
    assert semaphore.release(first) == [third]
    assert semaphore.release(third) == []
    assert semaphore.keys == {}


# -- lanes -----------------------------------------------------------------------------------------


def queued(semaphore, *lanes):
    tickets = [SlotRequest(None, priority) for priority in lanes]
    assert all(semaphore.acquire(ticket, wait=True) for ticket in tickets)
    return tickets


def served(semaphore, holder, number):
    """The requests in the order of their admission, as each holder releases its slot."""
    order = []
    for _ in range(number):
        (holder,) = semaphore.release(holder)
        order.append(holder)
    return order


@pytest.mark.statement("S4-52")
def test_priority_call_skips_queue_of_normal_calls():
    semaphore = PrioritySemaphore(limit=1, queue=10**4, priorities=2, per_key=None, fairness=10)
    (holder,) = queued(semaphore, 0)
    queued(semaphore, *[1] * 1000)
    served_first = [served(semaphore, holder, 3)[-1]]
    vips = queued(semaphore, 0, 0, 0)
    assert served(semaphore, served_first[0], 3) == vips


def test_every_tenth_slot_goes_to_the_longest_waiting_request():
    semaphore = PrioritySemaphore(limit=1, queue=10**4, priorities=2, per_key=None, fairness=10)
    (holder,) = queued(semaphore, 0)
    normal = queued(semaphore, *[1] * 5)
    vips = queued(semaphore, *[0] * 100)
    order = served(semaphore, holder, 50)
    assert [number for number, each in enumerate(order, 1) if each in normal] == [
        10,
        20,
        30,
        40,
        50,
    ]
    assert [each for each in order if each in vips] == vips[:45]


def test_lanes_are_strict_without_fairness():
    semaphore = PrioritySemaphore(limit=1, queue=100, priorities=3, per_key=None, fairness=0)
    (holder,) = queued(semaphore, 2)
    low, middle, high = queued(semaphore, 2, 1, 0)
    assert served(semaphore, holder, 3) == [high, middle, low]


@pytest.mark.parametrize(("fairness", "turns"), [(3, [3, 6, 9]), (0, [])])
def test_fairness_among_priorities_of_a_key_serves_the_longest_waiting(fairness, turns):
    semaphore = PrioritySemaphore(limit=50, queue=10**4, priorities=2, per_key=1, fairness=fairness)
    holder, *others = (SlotRequest("kim", priority) for priority in (0, 1, 1, 1, *[0] * 20))
    for ticket in (holder, *others):
        assert semaphore.acquire(ticket, wait=True)
    order = served(semaphore, holder, 10)
    assert [number for number, each in enumerate(order, 1) if each.priority == 1] == turns
    assert [each for each in order if each.priority == 1] == others[: len(turns)]


def test_slot_names_its_lane():
    bulkhead = Bulkhead("llm", priorities=("gold", "silver", "rest"))
    with bulkhead.slot(priority="silver"):
        assert bulkhead.snapshot().in_use == 1
    with pytest.raises(ValueError, match="priority must be one of 'gold', 'silver', 'rest'"):
        bulkhead.slot(priority="vip")


# -- another number --------------------------------------------------------------------------------


def test_larger_limit_admits_waiting_calls_and_smaller_ends_none():
    bulkhead = Bulkhead("llm", limit=1, max_wait=JOIN_TIMEOUT)

    async def main():
        release = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(bulkhead.call_async(release.wait))
            await asyncio.sleep(0)
            assert taken(bulkhead) == (1, 3, 0)
            bulkhead.resize(3)
            assert taken(bulkhead) == (3, 1, 0)
            bulkhead.resize(1)
            assert taken(bulkhead) == (3, 1, 0)
            assert bulkhead.limit == 1
            release.set()
        assert taken(bulkhead) == (0, 0, 0)

    asyncio.run(main())


# -- a number that grows ---------------------------------------------------------------------------


def admits(bulkhead):
    """The number of concurrent calls that it admits now."""
    with ExitStack() as slots:
        with pytest.raises(BulkheadFullError):
            while True:
                slots.enter_context(bulkhead.slot())
        return bulkhead.snapshot().in_use


@pytest.mark.statement("S4-55")
def test_limit_grows_evenly_over_the_given_time():
    clock = VirtualClock()
    bulkhead = Bulkhead("llm", limit=2, queue=0, clock=clock)
    bulkhead.resize(5, over=timedelta(seconds=30))
    seen = []
    for seconds in (0.0, 9.0, 1.0, 9.0, 1.0, 10.0, 60.0):
        clock.advance(seconds)
        seen.append(admits(bulkhead))
    assert seen == [2, 2, 3, 3, 4, 5, 5]


def test_limit_shrinks_at_once():
    bulkhead = Bulkhead("llm", limit=5, queue=0, clock=VirtualClock())
    bulkhead.resize(2, over=30)
    assert admits(bulkhead) == 2


def test_resize_during_a_ramp_starts_from_the_present_limit():
    clock = VirtualClock()
    bulkhead = Bulkhead("llm", limit=2, queue=0, clock=clock)
    bulkhead.resize(12, over=10)
    clock.advance(4)
    bulkhead.resize(10, over=8)
    clock.advance(2)
    assert (bulkhead.limit, admits(bulkhead)) == (10, 7)
    bulkhead.resize(1)
    clock.advance(60)
    assert (bulkhead.limit, admits(bulkhead)) == (1, 1)


@pytest.mark.statement("S4-55")
@pytest.mark.parametrize("before", [True, False], ids=["grows already", "waits already"])
@pytest.mark.parametrize(
    ("runs", "loop"), [(in_asyncio, LOOPS[0]), (in_trio, LOOPS[1])], ids=["asyncio", "trio"]
)
def test_tasks_are_admitted_as_the_limit_grows_without_a_release(runs, loop, before):
    clock = VirtualClock()
    bulkhead = Bulkhead("llm", limit=1, max_wait=60.0, clock=clock)
    came, stays = [], []

    async def comes():
        slot = bulkhead.slot()
        await slot.__aenter__()
        stays.append(slot)
        came.append(clock.monotonic())

    async def resizes():
        await clock.sleep_async(0.5)  # no waiting call was woken until then
        bulkhead.resize(4, over=30.0)

    async def main():
        await comes()
        if before:
            await resizes()
            await loop.together(comes, comes, comes)
        else:
            await loop.together(comes, comes, comes, resizes)

    runs(main, clock)
    assert came == [0.0, 10.5, 20.5, 30.5]


@pytest.mark.parametrize("runs", [in_asyncio, in_trio])
def test_task_waits_up_to_its_limit_while_the_bulkhead_grows(runs):
    clock = VirtualClock()
    bulkhead = Bulkhead("llm", limit=1, max_wait=7.0, clock=clock)

    async def main():
        async with bulkhead.slot(key="kim"):
            bulkhead.resize(11, over=100.0)
            with pytest.raises(BulkheadFullError):
                await bulkhead.call_async(int)
            assert clock.monotonic() == 7.0
            assert await bulkhead.call_async(int, "17") == 17
        return clock.monotonic()

    assert runs(main, clock) == 10.0
    assert taken(bulkhead) == (0, 0, 0)


def test_thread_is_admitted_as_the_limit_grows_without_a_release():
    bulkhead = Bulkhead("llm", limit=1, max_wait=JOIN_TIMEOUT)
    with bulkhead.slot(), ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(bulkhead.call, int, "17") for _ in range(3)]
        until(lambda: bulkhead.snapshot().waiting == 3)
        bulkhead.resize(2, over=0.01)
        assert [each.result(JOIN_TIMEOUT) for each in waits] == [17, 17, 17]


def test_woken_thread_can_wait_again():
    waiter = ThreadWaiter()
    waiter.wake()
    waiter.wait(JOIN_TIMEOUT)
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(waiter.wait, JOIN_TIMEOUT)
        with pytest.raises(TimeoutError):
            again.result(0.01)
        waiter.wake()
        again.result(JOIN_TIMEOUT)


@pytest.mark.parametrize("goes", [True, False], ids=["leaves", "looks"])
def test_waiting_call_is_admitted_by_any_event_after_the_limit_has_grown(goes):
    clock = VirtualClock()
    bulkhead = Bulkhead("llm", limit=2, max_wait=JOIN_TIMEOUT, clock=clock)

    async def main():
        one, other = bulkhead.slot(), bulkhead.slot()
        await one.__aenter__()
        await other.__aenter__()
        bulkhead.resize(3, over=100.0)
        waits = [asyncio.create_task(bulkhead.slot().__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        clock.advance(100.0)  # which no timer of this loop sees
        if goes:
            await one.__aexit__(None, None, None)
        else:
            bulkhead.snapshot()
        assert (bulkhead._semaphore.in_use, bulkhead._semaphore.waiting) == (3, 0 if goes else 1)
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)

    asyncio.run(main())


@given(start=st.integers(1, 50), more=st.integers(1, 10**20), over=st.floats(1e-3, 1e6))
def test_growing_limit_reaches_its_end_in_few_steps(start, more, over):
    growth, now, steps = LimitRamp(start, start + more, 17.5, over), 17.5, 0
    while seconds := growth.wait(now):
        before, now = growth.at(now), now + seconds
        share = Fraction(now - 17.5) / Fraction(over)
        assert growth.at(now) - before <= -(-more // 100) + 1
        assert growth.at(now) - start <= more * share * (1 + Fraction(1, 10**6)) + 1
        steps += 1
    assert steps <= 250
    assert growth.at(now) == start + more


# -- threads and tasks -----------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["wrap", "slot"])
def test_many_threads_are_never_more_than_the_limit(driver, switching):
    bulkhead = Bulkhead("llm", limit=3, queue=100, max_wait=JOIN_TIMEOUT)
    inside, most, lock = [0], [0], threading.Lock()

    def work():
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        with lock:
            inside[0] -= 1

    def work_in_slot():
        with bulkhead.slot():
            work()

    works = bulkhead.wrap(work) if driver == "wrap" else work_in_slot

    def many():
        for _ in range(400):
            works()

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(many) for _ in range(16)]:
            future.result(JOIN_TIMEOUT)
    assert most[0] <= 3
    assert taken(bulkhead) == (0, 0, 0)
    assert bulkhead.snapshot().admitted == 6400


def test_slot_admitted_as_soon_as_it_waits_is_counted():
    class Interleaved:
        """Another thread releases its slot between the queueing of a request and the next step."""

        def __getattr__(self, name):
            return getattr(monitor, name)

        def run(self, step, *args):
            result = monitor.run(step, *args)
            if bulkhead._semaphore.waiting:
                first.__exit__(None, None, None)
            return result

    bulkhead = Bulkhead("llm", limit=1, queue=1, max_wait=JOIN_TIMEOUT)
    first = bulkhead.slot()
    first.__enter__()
    monitor = bulkhead._monitor
    object.__setattr__(bulkhead, "_monitor", Interleaved())
    with bulkhead.slot():
        pass
    assert bulkhead.snapshot().admitted == 2


@loops
@pytest.mark.parametrize("seed", range(8))
def test_tasks_cancelled_anywhere_leave_no_slot_taken(loop, seed):
    random = Random(seed)
    bulkhead = Bulkhead("llm", limit=3, queue=50, per_key=2, max_wait=JOIN_TIMEOUT)
    inside = [0]

    async def work():
        while True:
            async with bulkhead.slot(
                key=random.randrange(4), priority=random.choice(["vip", "normal"])
            ):
                inside[0] += 1
                assert inside[0] <= 3
                try:
                    for _ in range(random.randrange(3)):
                        await loop.checkpoint()
                finally:
                    inside[0] -= 1

    async def resize():
        while True:
            bulkhead.resize(random.randrange(1, 4), over=random.choice([0.0, 0.001]))
            await loop.checkpoint()

    async def stop():
        for _ in range(random.randrange(20, 60)):
            await loop.checkpoint()
        raise Down

    with pytest.raises(ExceptionGroup):
        loop.run(lambda: loop.together(*[work] * 20, *[resize] * (seed % 2), stop))
    assert taken(bulkhead) == (0, 0, 0)


def test_threads_and_tasks_of_both_loops_share_it(switching):
    bulkhead = Bulkhead("llm", limit=2, queue=100, max_wait=JOIN_TIMEOUT)
    lock, inside, done = threading.Lock(), [0], [0]

    def enter():
        with lock:
            inside[0] += 1
            assert inside[0] <= 2

    def leave():
        with lock:
            inside[0] -= 1
            done[0] += 1

    def in_threads():
        for _ in range(50):
            with bulkhead.slot():
                enter()
                leave()

    async def task(loop):
        for _ in range(10):
            async with bulkhead.slot():
                enter()
                await loop.checkpoint()
                leave()

    def in_loop(loop):
        loop.run(lambda: loop.together(*[lambda: task(loop)] * 5))

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(in_threads) for _ in range(2)]
        futures += [pool.submit(in_loop, loop) for loop in LOOPS]
        for future in futures:
            future.result(JOIN_TIMEOUT)
    assert done[0] == 200
    assert taken(bulkhead) == (0, 0, 0)


def test_slot_for_a_closed_loop_passes_to_the_next_waiter():
    bulkhead = Bulkhead("llm", limit=1, max_wait=JOIN_TIMEOUT)
    holder = bulkhead.slot().__enter__()

    async def wait():
        await bulkhead.slot().__aenter__()

    loop = asyncio.new_event_loop()
    left = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    left._log_destroy_pending = False
    loop.close()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(bulkhead.call, int, "17")
        until(lambda: bulkhead.snapshot().waiting == 2)
        holder.__exit__(None, None, None)
        assert late.result(JOIN_TIMEOUT) == 17
    assert taken(bulkhead) == (0, 0, 0)


# -- entry points ----------------------------------------------------------------------------------


def test_bulkhead_is_a_strategy_and_rejects_unawaited_results():
    bulkhead = Bulkhead("llm")
    assert isinstance(bulkhead, Strategy)

    async def up():
        return "up"

    with pytest.raises(MisuseError, match=r"use call_async\(\)"):
        bulkhead.call(lambda: up())
    assert asyncio.run(bulkhead.call_async(up)) == "up"
    assert asyncio.run(bulkhead.wrap(up)()) == "up"


def test_wrapped_function_takes_a_slot():
    bulkhead = Bulkhead("llm", limit=1, queue=0)
    seen = []

    @bulkhead.wrap
    def wrapped(end=None):
        seen.append(bulkhead.snapshot().in_use)
        if end is not None:
            raise end

    wrapped()
    for end in (Down, KeyboardInterrupt, asyncio.CancelledError):
        with pytest.raises(end):
            wrapped(end)
    with bulkhead.slot(), pytest.raises(BulkheadFullError):
        wrapped()
    assert (seen, bulkhead.snapshot().admitted, taken(bulkhead)) == ([1] * 4, 5, (0, 0, 0))
    with pytest.raises(MisuseError, match=r"use call_async\(\)"):
        bulkhead.wrap(lambda: asyncio.sleep(0))()
    assert taken(bulkhead) == (0, 0, 0)


def test_waiting_call_enters_when_a_wrapped_function_ends():
    bulkhead = Bulkhead("llm", limit=1, max_wait=JOIN_TIMEOUT)
    begun, go = threading.Event(), threading.Event()

    @bulkhead.wrap
    def wrapped():
        begun.set()
        go.wait(JOIN_TIMEOUT)
        return 17

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(wrapped)
        begun.wait(JOIN_TIMEOUT)
        others = pool.submit(wrapped), pool.submit(bulkhead.call, int, "17")
        until(lambda: bulkhead.snapshot().waiting == 2)
        go.set()
        assert [each.result(JOIN_TIMEOUT) for each in (first, *others)] == [17] * 3
    assert (bulkhead.snapshot().admitted, taken(bulkhead)) == (3, (0, 0, 0))


@loops
@pytest.mark.parametrize("seed", range(4))
def test_wrapped_tasks_cancelled_anywhere_leave_no_slot_taken(loop, seed):
    random = Random(seed)
    bulkhead = Bulkhead("llm", limit=3, queue=50, max_wait=JOIN_TIMEOUT)
    inside = [0]

    @bulkhead.wrap
    async def work():
        inside[0] += 1
        assert inside[0] <= 3
        try:
            for _ in range(random.randrange(3)):
                await loop.checkpoint()
        finally:
            inside[0] -= 1

    async def works():
        while True:
            await work()
            await loop.checkpoint()

    async def stop():
        for _ in range(random.randrange(20, 60)):
            await loop.checkpoint()
        raise Down

    with pytest.raises(ExceptionGroup):
        loop.run(lambda: loop.together(*[works] * 20, stop))
    assert taken(bulkhead) == (0, 0, 0)


def test_wrapped_function_enters_when_the_limit_grows():
    clock = VirtualClock()
    bulkhead = Bulkhead("llm", limit=1, queue=0, clock=clock)
    wrapped = bulkhead.wrap(lambda text: int(text))
    bulkhead.resize(2, over=10.0)
    with bulkhead.slot():
        with pytest.raises(BulkheadFullError):
            wrapped("17")
        clock.advance(10.0)
        assert wrapped("17") == 17
    assert taken(bulkhead) == (0, 0, 0)


def test_rejections_are_reported_with_an_error_each():
    events = []

    class Listens(ControlListener):
        def on_event(self, event):
            events.append(event)
            raise ZeroDivisionError

    bulkhead = Bulkhead("llm", limit=1, queue=0, listeners=[Listens()])
    with bulkhead.slot():
        for _ in range(2):
            with pytest.raises(BulkheadFullError):
                bulkhead.call(int)
    assert [type(each) for each in events] == [CallRejected] * 2
    assert events[0].error is not events[1].error


# -- a slot is used once at a time -----------------------------------------------------------------


def test_slot_in_use_cannot_be_entered_again():
    bulkhead = Bulkhead("llm", limit=2, queue=0)
    slot = bulkhead.slot(key="kim")
    with slot:
        with pytest.raises(MisuseError, match="slot of the bulkhead 'llm' is in use"), slot:
            pass
        assert taken(bulkhead) == (1, 0, 0)
    assert taken(bulkhead) == (0, 0, 0)
    with slot:
        assert taken(bulkhead) == (1, 0, 0)


@loops
def test_waiting_slot_cannot_be_entered_again(loop):
    bulkhead = Bulkhead("llm", limit=1, max_wait=JOIN_TIMEOUT)
    held, slot, seen = bulkhead.slot(), bulkhead.slot(), []

    async def waits():
        async with slot:
            seen.append("in")

    async def enters_again():
        while bulkhead.snapshot().waiting == 0:
            await loop.checkpoint()
        with pytest.raises(MisuseError, match="is in use"):
            await slot.__aenter__()
        seen.append("rejected")
        await held.__aexit__(None, None, None)

    async def main():
        await held.__aenter__()
        await loop.together(waits, enters_again)

    loop.run(main)
    assert (seen, taken(bulkhead)) == (["rejected", "in"], (0, 0, 0))


def test_rejected_slot_can_be_entered_later():
    bulkhead = Bulkhead("llm", limit=1, queue=0)
    slot = bulkhead.slot()
    with bulkhead.slot(), pytest.raises(BulkheadFullError), slot:
        pass
    with slot:
        assert taken(bulkhead) == (1, 0, 0)
    assert taken(bulkhead) == (0, 0, 0)


# -- the rules against a model ---------------------------------------------------------------------


class PrioritySemaphores(RuleBasedStateMachine):
    """Compared with lists that are searched from the front each time."""

    tickets = Bundle("tickets")

    @initialize(
        limit=st.integers(1, 4),
        queue=st.integers(0, 6),
        per_key=st.sampled_from([None, 1, 2]),
        fairness=st.integers(0, 3),
    )
    def make(self, limit, queue, per_key, fairness):
        self.semaphore = PrioritySemaphore(limit, queue, 2, per_key, fairness)
        self.limit, self.queue, self.per_key, self.fairness = limit, queue, per_key, fairness
        self.inside, self.waiting = [], []
        self.fast_acquired = []
        self.now = self.since = self.over = 0
        self.from_ = self.to = limit

    def allows(self, ticket, others):
        if self.per_key is None or ticket.key is None:
            return True
        return sum(each.key == ticket.key for each in others) < self.per_key

    @rule(target=tickets, key=st.sampled_from([None, "a", "b"]), priority=st.integers(0, 1))
    def acquire(self, key, priority):
        ticket = SlotRequest(key, priority)
        entered = self.semaphore.acquire(ticket, wait=True)
        if len(self.inside) < self.limit and self.allows(ticket, self.inside):
            assert entered
            self.inside.append(ticket)
        elif len(self.waiting) < self.queue:
            assert entered
            self.waiting.append(ticket)
        else:
            assert not entered
        return ticket

    @rule(ticket=tickets)
    def release(self, ticket):
        if ticket in self.inside:
            self.inside.remove(ticket)
        elif ticket in self.waiting:
            self.waiting.remove(ticket)
        else:
            return
        self.let_in(self.semaphore.release(ticket))

    @rule()
    def acquire_fast(self):
        acquired = self.semaphore.acquire_fast()
        grows = self.now < self.since + self.over and self.to > self.limit
        assert acquired == (len(self.inside) < self.limit and not grows)
        if acquired:
            self.fast_acquired.append(SlotRequest(None, 0, state="in"))
            self.inside.append(self.fast_acquired[-1])

    @precondition(lambda self: self.fast_acquired)
    @rule()
    def release_fast(self):
        self.inside.remove(self.fast_acquired.pop())
        self.let_in(self.semaphore.release_fast())

    @rule(limit=st.integers(1, 9), over=st.sampled_from([0, 0, 3, 8]))
    def resize(self, limit, over):
        self.from_, self.to = min(self.limit, limit), limit
        self.since, self.over = self.now, over
        self.grow()
        self.let_in(self.semaphore.resize(limit, self.now, over))

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds):
        self.now += seconds
        self.grow()
        self.let_in(self.semaphore.apply_ramp(self.now))

    def grow(self):
        passed, more = self.now - self.since, self.to - self.from_
        self.limit = self.to if passed >= self.over else self.from_ + more * passed // self.over

    def let_in(self, admitted):
        for ticket in admitted:
            assert ticket in self.waiting
            self.waiting.remove(ticket)
            assert self.allows(ticket, self.inside)
            self.inside.append(ticket)

    @invariant()
    def agrees(self):
        if not hasattr(self, "semaphore"):
            return
        semaphore = self.semaphore
        assert {each for each in self.inside if each.state != "in"} == set()
        assert (semaphore.in_use, semaphore.waiting) == (len(self.inside), len(self.waiting))
        assert semaphore.limit == self.limit
        assert set(semaphore.queued()) == set(self.waiting)
        if len(self.inside) < self.limit:  # a waiting call waits for a slot of its key
            assert not [each for each in self.waiting if self.allows(each, self.inside)]
        used = {each.key for each in self.inside + self.waiting if each.key is not None}
        assert set(semaphore.keys) == (used if self.per_key else set())


TestPrioritySemaphores = PrioritySemaphores.TestCase
TestPrioritySemaphores.settings = settings(max_examples=200, stateful_step_count=40)


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": ""}, "name must be a non-blank str"),
        ({"limit": 0}, "limit must be"),
        ({"limit": 2.5}, "limit must be"),
        ({"queue": -1}, "queue must be"),
        ({"max_wait": -1}, "max_wait must be"),
        ({"max_wait": float("inf")}, "max_wait must be"),
        ({"per_key": 0}, "per_key must be"),
        ({"priorities": "vip"}, "priorities must be a list or tuple of names, got 'vip'"),
        ({"priorities": ()}, "priorities must contain at least one name"),
        ({"priorities": ("a", "a")}, "priorities must differ"),
        ({"priorities": ("a", 1)}, "priorities: each must be a non-blank str"),
        ({"fairness": -1}, "fairness must be"),
        ({"listeners": [17]}, "listeners"),
        ({"clock": 17}, "clock must be"),
    ],
)
def test_bulkhead_with_wrong_settings_is_rejected(given, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        Bulkhead(**{"name": "llm", **given})


def test_list_of_priorities_is_kept_as_a_tuple():
    assert Bulkhead("llm", priorities=["gold", "rest"]).priorities == ("gold", "rest")


@pytest.mark.parametrize(
    ("limit", "given", "problem"),
    [
        (0, {}, "limit must be"),
        (60, {"over": -1}, "over must be"),
        (60, {"over": float("inf")}, "over must be"),
        (60, {"over": "30"}, "over must be"),
        (60, {"queue": -1}, "queue must be"),
        (60, {"max_wait": float("inf")}, "max_wait must be"),
    ],
)
def test_resize_to_a_wrong_number_is_rejected(limit, given, problem):
    bulkhead = Bulkhead("llm")
    with pytest.raises((TypeError, ValueError), match=problem):
        bulkhead.resize(limit, **given)
    assert (bulkhead.limit, bulkhead.snapshot().limit) == (50, 50)


def test_resize_of_the_queue_admits_more_waiting_calls():
    bulkhead = Bulkhead("llm", limit=1, queue=0, max_wait=60)
    entered = threading.Event()
    with bulkhead.slot():
        with pytest.raises(BulkheadFullError, match="0 of 0 wait"):
            bulkhead.call(int, "17")
        bulkhead.resize(queue=1)
        waiting = threading.Thread(target=bulkhead.call, args=[entered.set])
        waiting.start()
        until(lambda: bulkhead.snapshot().waiting == 1)
        bulkhead.resize(queue=0)
        with pytest.raises(BulkheadFullError, match="1 of 0 wait"):
            bulkhead.call(int, "17")
    waiting.join(10)
    assert entered.is_set()
    assert (bulkhead.limit, bulkhead.queue) == (1, 0)


def test_resize_of_the_longest_wait_applies_to_later_calls():
    bulkhead = Bulkhead("llm", limit=1, max_wait=60)
    bulkhead.resize(max_wait=0.0)
    with bulkhead.slot(), pytest.raises(BulkheadFullError):
        bulkhead.call(int, "17")
    assert bulkhead.worst_case(2.0, 2.0, 0.0) == 2.0


def test_setting_of_a_bulkhead_cannot_be_assigned():
    bulkhead = Bulkhead("llm", limit=1)
    with pytest.raises(AttributeError, match=r"limit of a Bulkhead .*; use resize\(\)"):
        bulkhead.limit = 2
    with pytest.raises(AttributeError, match="make another Bulkhead"):
        bulkhead.fairness = 2
    assert (bulkhead.limit, bulkhead.queue) == (1, 100)

"""A hedge with a cancelled caller or slow losers leaves nothing running."""

import asyncio
import gc
import signal
from contextlib import nullcontext

import pytest
import trio
from trio.lowlevel import in_trio_task

from retrytemplate.control import AttemptFailed, HedgeStarted
from retrytemplate.testing import VirtualClock, run
from tests.support.slow_backend import Backend, Down, EventRecorder, hedge, in_asyncio, in_trio

loops = pytest.mark.parametrize("runs", [in_asyncio, in_trio])


async def cut(runs, fn, *moments):
    """The result of a call whose caller is cancelled at these moments."""
    return await (cut_in_asyncio if runs is in_asyncio else cut_in_trio)(fn, moments)


async def cut_in_asyncio(fn, moments):
    task, loop = asyncio.create_task(fn()), asyncio.get_running_loop()
    for moment in moments:
        loop.call_later(moment, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        assert task.cancelled()
        return "cancelled"


async def cut_in_trio(fn, moments):
    result = "cancelled"

    async def cancel_at(moment):
        await trio.sleep(moment)  # virtual seconds
        scope.cancel()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            for moment in moments:
                nursery.start_soon(cancel_at, moment)
            result = await fn()
        nursery.cancel_scope.cancel()
    return result


class Slow(Backend):
    """Its calls take five seconds to close."""

    closing = 0

    async def ask(self):
        try:
            return await super().ask()
        finally:
            self.closing += 1
            # In asyncio a task is cancelled once; a scope of trio stays so.
            with trio.CancelScope(shield=True) if in_trio_task() else nullcontext():
                await self.clock.sleep_async(5.0)
            self.closing -= 1


@loops
@pytest.mark.parametrize("moments", [(1.5,), (1.5, 2.5)], ids=["once", "twice"])
@pytest.mark.parametrize("kind", [Backend, Slow], ids=["at once", "slowly"])
def test_cancelled_caller_closes_all_calls_first(runs, moments, kind):
    clock = VirtualClock()
    backend = kind(clock, 60.0, 60.0, 60.0)
    made = hedge(clock=clock, max_hedges=2)

    async def main():
        ended = await cut(runs, lambda: made.call_async(backend.ask), *moments)
        return ended, backend.running, clock.monotonic()

    took = 1.5 if kind is Backend else 6.5
    assert runs(main, clock) == ("cancelled", 0, took)
    assert (backend.began, sorted(backend.cancelled)) == ([0.0, 1.0], [1, 2])
    assert getattr(backend, "closing", 0) == 0


@loops
def test_result_waits_until_the_losers_are_closed(runs):
    clock = VirtualClock()
    backend = Slow(clock, 60.0)

    async def quick():
        if backend.began:
            return "quick"
        return await backend.ask()

    async def main():
        return await hedge(clock=clock).call_async(quick), backend.closing, clock.monotonic()

    assert runs(main, clock) == ("quick", 0, 6.0)


@loops
def test_caller_cancelled_while_losers_are_closed_gets_no_result(runs):
    clock = VirtualClock()
    backend = Slow(clock, 60.0)

    async def quick():
        return "quick" if backend.began else await backend.ask()

    async def main():
        ended = await cut(runs, lambda: hedge(clock=clock).call_async(quick), 3.0, 4.0)
        return ended, backend.closing, clock.monotonic()

    assert runs(main, clock) == ("cancelled", 0, 6.0)


@loops
def test_result_of_a_loser_that_ignores_cancellation_is_dropped(runs):
    clock, recorder = VirtualClock(), EventRecorder()
    backend = Backend(clock, 60.0, 0.5)

    async def stubborn():
        try:
            return await backend.ask()
        except BaseException:
            return "too late"

    async def main():
        return await hedge(clock=clock, listeners=[recorder]).outcome_async(stubborn)

    outcome = runs(main, clock)
    assert (outcome.value, outcome.source, outcome.failures) == ("answer 2", 2, ())
    assert AttemptFailed not in recorder.kinds


@loops
def test_failure_while_the_caller_is_cancelled_is_reported(runs):
    clock, recorder = VirtualClock(), EventRecorder()
    backend = Backend(clock, 60.0, 60.0)

    async def careless():
        try:
            await backend.ask()
        finally:
            raise Down("while it was closed")

    async def main():
        made = hedge(clock=clock, listeners=[recorder])
        return await cut(runs, lambda: made.call_async(careless), 1.5)

    assert runs(main, clock) == "cancelled"
    assert recorder.kinds == [HedgeStarted, AttemptFailed, AttemptFailed]
    assert [str(each.error) for each in recorder.events[1:]] == ["while it was closed"] * 2


@loops
def test_group_with_a_cancellation_is_reported_without_it(runs):
    clock, recorder = VirtualClock(), EventRecorder()
    backend = Backend(clock, 60.0, 0.5)

    async def grouped():
        try:
            return await backend.ask()
        except BaseException as exc:
            raise BaseExceptionGroup("both", [exc, Down()]) from None

    async def main():
        return await hedge(clock=clock, listeners=[recorder]).call_async(grouped)

    assert runs(main, clock) == "answer 2"
    (lost,) = [each for each in recorder.events if isinstance(each, AttemptFailed)]
    assert [type(each) for each in lost.error.exceptions] == [Down]


@loops
@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_base_exception_while_a_loser_is_closed_is_raised(runs, end):
    clock = VirtualClock()
    backend = Backend(clock, 60.0, 0.5)

    async def interrupted():
        try:
            return await backend.ask()
        except BaseException as exc:
            raise end from exc

    async def main():
        with pytest.raises(end):
            await hedge(clock=clock).call_async(interrupted)
        return backend.running

    assert runs(main, clock) == 0


@loops
def test_cancelled_caller_starts_nothing(runs):
    clock = VirtualClock()
    backend = Backend(clock, 60.0)
    made = hedge(clock=clock)

    async def main():
        return await cut(runs, lambda: made.call_async(backend.ask), 0.0)

    assert runs(main, clock) == "cancelled"
    assert (backend.running, len(backend.began) <= 1) == (0, True)


@loops
@pytest.mark.parametrize("moment", [each / 4 for each in range(16)])
def test_cancellation_at_any_moment_leaves_nothing_running(runs, moment):
    clock = VirtualClock()
    backend = Backend(clock, 60.0, (0.5, Down()), 60.0, 0.6)
    made = hedge(clock=clock, max_hedges=3)

    async def main():
        ended = await cut(runs, lambda: made.call_async(backend.ask), moment)
        return ended, backend.running

    ended, running = runs(main, clock)
    assert running == 0
    assert ended == ("cancelled" if moment < 3.1 else "answer 4")


def test_trio_call_cancelled_before_it_ran_is_not_made():
    """Trio runs the two tasks in random order."""
    queries = []

    async def ask():
        queries.append(1)

    async def main():
        for _ in range(40):
            with trio.CancelScope() as scope:
                scope.cancel()
                await hedge().call_async(ask)

    trio.run(main)
    assert len(queries) < 40


def test_trio_keyboard_interrupt_while_closing_losers_is_raised():
    clock = VirtualClock()
    backend = Slow(clock, 60.0)

    @trio.lowlevel.enable_ki_protection
    def interrupt():
        signal.raise_signal(signal.SIGINT)

    async def ask():
        if backend.began:
            return "quick"
        try:
            return await backend.ask()
        finally:
            seen.append(backend.closing)

    async def closing():
        await clock.sleep_async(3.0)
        interrupt()

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(closing)
            with pytest.raises(KeyboardInterrupt):
                await hedge(clock=clock).call_async(ask)

    seen = []
    in_trio(main, clock)
    assert (seen, clock.monotonic()) == ([0], 6.0)


async def test_asyncio_cancellation_at_any_step_leaves_nothing_running():
    answered = 0
    for steps in range(20):
        began, over = [], []

        async def ask(began=began, over=over):
            began.append(1)
            try:
                for _ in range(len(began) * 4 if len(began) < 3 else 2):
                    await asyncio.sleep(0)
                if len(began) < 3:
                    raise Down
            finally:
                over.append(1)

        task = asyncio.create_task(hedge(delay=0, max_hedges=2).call_async(ask))
        for _ in range(steps):
            await asyncio.sleep(0)
        answered += not task.cancel()
        await asyncio.wait([task])
        assert len(began) == len(over)
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert 0 < answered < 20


async def test_asyncio_cancellation_raised_by_a_call_passes():
    async def cancels():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await hedge().call_async(cancels)
    assert asyncio.current_task().cancelling() == 0


async def test_asyncio_call_cancelled_before_it_runs_is_cancelled():
    queries = []

    async def ask():
        queries.append(1)

    caller = asyncio.create_task(hedge().call_async(ask))
    before = asyncio.all_tasks()
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await asyncio.wait([caller])
    assert (caller.cancelled(), queries) == (True, [])


def test_asyncio_coroutine_that_is_closed_closes_its_calls():
    seen = []

    async def ask():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main():
        call = hedge().call_async(ask)
        call.send(None)
        await asyncio.sleep(0)
        call.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert (run(main()), seen) == (1, ["cancelled"])


def test_asyncio_coroutine_can_be_closed_after_its_loop():
    async def ask():
        await asyncio.Event().wait()

    calls = []

    async def main():
        calls.append(hedge().call_async(ask))
        calls[0].send(None)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    calls.pop().close()
    gc.collect()


def test_asyncio_timeout_around_a_hedge_is_a_timeout():
    clock = VirtualClock()
    backend = Backend(clock, 60.0, 60.0)

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await hedge(clock=clock).call_async(backend.ask)
        return backend.running, asyncio.current_task().cancelling()

    assert run(main(), clock=clock) == (0, 0)

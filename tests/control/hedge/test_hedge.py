"""A hedge: the start of its calls, the winning result, and the error if all fail.

Time is virtual: a call that takes ten seconds takes none.
"""

import asyncio
import gc
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    Deadline,
    DeadlineExceededError,
    MisuseError,
    NoBackoff,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
)
from retrytemplate.control import (
    AttemptFailed,
    CircuitBreaker,
    Consecutive,
    ControlListener,
    Hedge,
    HedgeStarted,
    HedgeWon,
    Quantile,
    Strategy,
    Timeout,
)
from retrytemplate.testing import VirtualClock, run
from tests.support.gc_probe import left_by, no_collector
from tests.support.slow_backend import Backend, Down, EventRecorder, hedge, in_asyncio, in_trio

loops = pytest.mark.parametrize("runs", [in_asyncio, in_trio])


def hedged_call(runs, *takes, given=None, **settings):
    """The outcome of one call, and its backend."""
    clock, recorder = VirtualClock(), EventRecorder()
    backend = Backend(clock, *takes)
    made = hedge(clock=clock, listeners=[recorder], **settings)

    async def main():
        return await made.outcome_async(backend.ask, *(given or ()))

    outcome = runs(main, clock)
    return outcome, backend, recorder


# -- when calls are made ---------------------------------------------------------------------------


@loops
def test_call_that_returns_in_time_is_made_once(runs):
    outcome, backend, recorder = hedged_call(runs, 0.9)
    assert (outcome.value, outcome.source, outcome.attempts) == ("answer 1", 1, 1)
    assert (outcome.hedged, outcome.elapsed, backend.began) == (False, 0.9, [0.0])
    assert recorder.events == []


@loops
def test_hedge_starts_after_the_delay_and_the_first_result_wins(runs):
    outcome, backend, _ = hedged_call(runs, 60.0, 0.5)
    assert (outcome.value, outcome.source, outcome.attempts) == ("answer 2", 2, 2)
    assert (outcome.hedged, outcome.elapsed) == (True, 1.5)
    assert (backend.began, backend.cancelled, backend.running) == ([0.0, 1.0], [1], 0)


@loops
def test_first_call_may_win_after_a_hedge_started(runs):
    outcome, backend, _ = hedged_call(runs, 1.5, 60.0)
    assert (outcome.value, outcome.source, outcome.attempts) == ("answer 1", 1, 2)
    assert (backend.cancelled, backend.running) == ([2], 0)


@loops
def test_hedges_start_one_delay_apart_up_to_the_maximum(runs):
    outcome, backend, _ = hedged_call(runs, 60.0, 60.0, 60.0, 2.5, max_hedges=3)
    assert backend.began == [0.0, 1.0, 2.0, 3.0]
    assert (outcome.source, outcome.elapsed) == (4, 5.5)
    assert sorted(backend.cancelled) == [1, 2, 3]


@loops
def test_failed_call_starts_the_next_at_once(runs):
    outcome, backend, recorder = hedged_call(runs, (0.25, Down("a")), 0.5)
    assert backend.began == [0.0, 0.25]
    assert (outcome.value, outcome.elapsed) == ("answer 2", 0.75)
    assert [str(each) for each in outcome.failures] == ["a"]
    assert recorder.kinds == [HedgeStarted, AttemptFailed, HedgeWon]
    assert recorder.events[0].error is outcome.failures[0]


@loops
def test_delay_restarts_after_a_failure(runs):
    _, backend, _ = hedged_call(runs, (0.25, Down()), 60.0, 0.0, max_hedges=2)
    assert backend.began == [0.0, 0.25, 1.25]


@loops
def test_failed_hedge_leaves_the_first_call_running(runs):
    outcome, backend, recorder = hedged_call(runs, 3.0, (0.5, Down("b")))
    assert (outcome.value, outcome.source, outcome.elapsed) == ("answer 1", 1, 3.0)
    assert [type(each) for each in outcome.failures] == [Down]
    assert backend.running == 0
    assert recorder.kinds == [HedgeStarted, AttemptFailed]
    assert (recorder.events[1].number, str(recorder.events[1].error)) == (2, "b")


@loops
def test_delay_of_zero_starts_all_calls_at_once(runs):
    outcome, backend, _ = hedged_call(runs, 60.0, 2.0, 60.0, delay=0, max_hedges=2)
    assert backend.began == [0.0, 0.0, 0.0]
    assert (outcome.source, outcome.elapsed) == (2, 2.0)


@loops
def test_earlier_call_wins_when_two_results_arrive_together(runs):
    outcome, backend, recorder = hedged_call(runs, 2.0, 1.0)
    assert (outcome.value, outcome.source) == ("answer 1", 1)
    assert (backend.running, recorder.kinds) == (0, [HedgeStarted])


@loops
def test_no_call_starts_when_failure_and_result_arrive_together(runs):
    takes = [(2.0, KeyError("first")), 0.5, 60.0]
    outcome, backend, recorder = hedged_call(runs, *takes, delay=1.5, max_hedges=2, on=(Down,))
    assert (outcome.value, backend.began) == ("answer 2", [0.0, 1.5])
    assert recorder.kinds == [HedgeStarted, AttemptFailed, HedgeWon]


@loops
def test_delay_can_be_a_timedelta_and_function_synchronous(runs):
    outcome, *_ = hedged_call(runs, 60.0, 0.0, delay=timedelta(seconds=2))
    assert outcome.elapsed == 2.0

    async def main():
        return await hedge().call_async(str.upper, "rome")

    assert runs(main, VirtualClock()) == "ROME"


# -- failures --------------------------------------------------------------------------------------


@loops
def test_failure_of_the_first_call_is_raised_with_the_others(runs):
    takes = [(5.0, Down("first")), (0.5, KeyError("second")), (0.25, OSError("third"))]
    outcome, *_ = hedged_call(runs, *takes, max_hedges=2)
    error = outcome.exception
    assert (type(error), str(error), outcome.source) == (Down, "first", None)
    assert [type(each) for each in error.__cause__.exceptions] == [KeyError, OSError]
    assert error.__notes__ == [
        "call 2 failed, too: KeyError: 'second'",
        "call 3 failed, too: OSError: third",
    ]
    assert [type(each) for each in outcome.failures] == [Down, KeyError, OSError]


@loops
def test_failure_outside_of_on_ends_the_call_at_once(runs):
    outcome, backend, recorder = hedged_call(
        runs, 60.0, (0.5, KeyError("no such city")), on=(Down,)
    )
    assert (type(outcome.exception), outcome.elapsed) == (KeyError, 1.5)
    assert (backend.cancelled, backend.running) == ([1], 0)
    assert recorder.kinds == [HedgeStarted]
    assert not hasattr(outcome.exception, "__notes__")


def odd(exc):
    raise ZeroDivisionError


@loops
def test_predicate_that_raises_ends_the_call_with_the_failure_as_cause(runs):
    outcome, backend, _ = hedged_call(runs, 60.0, (0.5, Down("first")), on=odd)
    assert (type(outcome.exception), outcome.elapsed) == (ZeroDivisionError, 1.5)
    assert type(outcome.exception.__cause__) is Down
    assert (outcome.attempts, outcome.source) == (2, None)
    assert (backend.cancelled, backend.running) == ([1], 0)


@loops
def test_error_of_a_predicate_has_the_failure_as_cause(runs):
    clock = VirtualClock()
    backend = Backend(clock, (0.5, Down))

    async def main():
        with pytest.raises(ZeroDivisionError) as raised:
            await hedge(clock=clock, on=odd).call_async(backend.ask)
        assert type(raised.value.__cause__) is Down

    runs(main, clock)


@loops
@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, MisuseError])
@pytest.mark.parametrize("takes", [[60.0, None], [None, 60.0]], ids=["the hedge", "the call"])
def test_base_exception_passes_and_closes_all_calls(runs, end, takes):
    clock = VirtualClock()
    backend = Backend(clock, *[(1.5, end()) if each is None else each for each in takes])
    seen = []

    async def main():
        try:
            await hedge(clock=clock).outcome_async(backend.ask)
        except BaseException as exc:
            seen.append((type(exc), backend.running))
        # The loop continues: it was not the loop that was ended.

    runs(main, clock)
    assert seen == [(end, 0)]


@loops
def test_loser_with_failed_cleanup_is_reported(runs):
    class Stubborn(Backend):
        async def ask(self):
            try:
                return await super().ask()
            except BaseException as exc:
                raise Down("while it was closed") from exc

    clock, recorder = VirtualClock(), EventRecorder()
    backend = Stubborn(clock, 60.0, 0.5)

    async def main():
        return await hedge(clock=clock, listeners=[recorder]).outcome_async(backend.ask)

    outcome = runs(main, clock)
    assert outcome.value == "answer 2"
    assert recorder.kinds == [HedgeStarted, AttemptFailed, HedgeWon]
    assert (recorder.events[1].number, str(recorder.events[1].error)) == (1, "while it was closed")


@loops
@pytest.mark.parametrize("takes", [[0.0], [60.0, 0.0], [(0.0, Down)] * 2, [(0.0, MisuseError)]])
@pytest.mark.parametrize("on", [Exception, odd])
def test_call_leaves_no_cycle(runs, takes, on):
    clock, left = VirtualClock(), []
    made = hedge(clock=clock, on=on)

    async def main():
        for _ in range(5):
            with no_collector():
                for _ in range(20):
                    with suppress(Down, MisuseError, ZeroDivisionError):
                        await made.call_async(Backend(clock, *takes).ask)
                left.append(gc.collect())

    runs(main, clock)
    assert min(left) == 0


def test_call_of_a_cancelled_caller_leaves_no_cycle():
    made = hedge(60.0)

    async def cancelled():
        task = asyncio.ensure_future(made.call_async(asyncio.Event().wait))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    with asyncio.Runner() as runner:
        assert left_by(lambda: runner.run(cancelled())) == 0


# -- deadlines -------------------------------------------------------------------------------------


@loops
def test_wait_ends_with_the_deadline(runs):
    clock = VirtualClock()
    backend = Backend(clock, 60.0, 60.0)

    async def main():
        with Deadline(1.5, kind="request", clock=clock):
            return await hedge(clock=clock).outcome_async(backend.ask)

    outcome = runs(main, clock)
    error = outcome.exception
    assert (type(error), error.kind, error.outcome_unknown) == (
        DeadlineExceededError,
        "request",
        True,
    )
    assert (outcome.elapsed, sorted(backend.cancelled), backend.running) == (1.5, [1, 2], 0)


@loops
def test_hedge_without_remaining_time_is_not_started(runs):
    clock = VirtualClock()
    backend = Backend(clock, 60.0, (0.0, Down("late")))

    async def main():
        with Deadline(1.0, clock=clock):
            return await hedge(clock=clock).outcome_async(backend.ask)

    assert type(runs(main, clock).exception) is DeadlineExceededError
    assert backend.began == [0.0]


@loops
def test_failure_at_the_deadline_is_raised_unchanged(runs):
    clock = VirtualClock()

    def fails():
        clock.advance(5.0)
        raise Down

    async def main():
        with Deadline(1.0, clock=clock):
            return await hedge(clock=clock).outcome_async(fails)

    outcome = runs(main, clock)
    assert (type(outcome.exception), outcome.attempts) == (Down, 1)


@loops
def test_expired_deadline_prevents_the_call(runs):
    clock = VirtualClock()
    backend = Backend(clock, 0.0)

    async def main():
        with Deadline(0.0, clock=clock):
            return await hedge(clock=clock).outcome_async(backend.ask)

    outcome = runs(main, clock)
    assert type(outcome.exception) is DeadlineExceededError
    assert (outcome.attempts, backend.began, outcome.exception.outcome_unknown) == (0, [], False)


@loops
def test_deadline_error_has_the_earlier_failure_as_cause(runs):
    clock = VirtualClock()
    backend = Backend(clock, (0.5, Down("first")), 60.0)

    async def main():
        with Deadline(2.0, clock=clock):
            return await hedge(clock=clock).outcome_async(backend.ask)

    error = runs(main, clock).exception
    assert (type(error), str(error.__cause__)) == (DeadlineExceededError, "first")


# -- the learned delay -----------------------------------------------------------------------------


@loops
def test_no_call_is_hedged_before_the_quantile_has_enough_samples(runs):
    learned = Quantile(0.5, minimum=3)
    for took in (2.0, 3.0, 4.0):
        outcome, backend, _ = hedged_call(runs, took, 0.0, delay=learned)
        assert (outcome.attempts, backend.began) == (1, [0.0])
    outcome, backend, _ = hedged_call(runs, 60.0, 0.5, delay=learned)
    assert backend.began == [0.0, 3.0]


@loops
def test_losing_call_is_recorded_with_its_time_so_far(runs):
    learned = Quantile(0.5, minimum=1, initial=1.0)
    hedged_call(runs, 60.0, 0.25, delay=learned)
    assert learned.value() == 1.25


class Ticking(VirtualClock):
    """One second passes with each reading."""

    def monotonic(self):
        self.advance(1.0)
        return super().monotonic()


def test_learned_time_of_the_winner_ends_with_its_own_result():
    learned = Quantile(0.5, minimum=1)

    async def ask():
        return "answer"

    asyncio.run(hedge(learned, clock=Ticking()).call_async(ask))
    assert learned.value() == 1.0


@loops
def test_failed_call_is_not_recorded_in_the_quantile(runs):
    learned = Quantile(0.5, minimum=1, initial=5.0)
    hedged_call(runs, (0.25, Down()), 2.0, delay=learned)
    assert learned.value() == 2.0
    hedged_call(runs, (0.25, Down()), (0.5, Down()), delay=learned)
    assert learned.value() == 2.0


def test_delay_does_not_shrink_when_every_twentieth_call_is_slow():
    """The delay learned from winners alone would be that of fast calls."""
    clock, learned = VirtualClock(), Quantile(0.9, minimum=20, initial=1.0, window=100)
    made = hedge(delay=learned, clock=clock)
    hedges = 0

    async def main():
        nonlocal hedges
        for number in range(400):
            slow = 60.0 if number % 20 == 0 else 0.1 + number % 10 / 100
            backend = Backend(clock, slow, 0.1)
            hedges += (await made.outcome_async(backend.ask)).attempts - 1

    run(main(), clock=clock)
    assert 0.15 < learned.value() < 0.25
    assert hedges <= 400 * 0.15


# -- each call has a context of its own ------------------------------------------------------------


@loops
def test_each_call_copies_the_context_of_the_caller(runs):
    clock, user = VirtualClock(), ContextVar("user")
    seen = []

    async def ask():
        seen.append((user.get(), Deadline.current().remaining()))
        user.set(len(seen))
        await clock.sleep_async(60.0 / len(seen) ** 6)
        return user.get()

    async def main():
        user.set("kim")
        with Deadline(100.0, clock=clock):
            answer = await hedge(clock=clock).call_async(ask)
        return answer, user.get()

    assert runs(main, clock) == (2, "kim")
    assert seen == [("kim", 100.0), ("kim", 99.0)]


# -- with the others -------------------------------------------------------------------------------


@loops
def test_hedge_around_a_template_gives_each_call_its_own_attempts(runs):
    clock, attempts = VirtualClock(), []
    template = RetryTemplate(SimpleRetryPolicy(3), NoBackoff(), clock=clock)

    @hedge(clock=clock).wrap
    @template.wrap
    async def ask():
        attempts.append((clock.monotonic(), current_context().attempt))
        if len(attempts) < 2:
            raise Down
        await clock.sleep_async(60.0 if clock.monotonic() < 1.0 else 0.5)
        return "answer"

    assert runs(ask, clock) == "answer"
    assert (attempts, clock.monotonic()) == ([(0.0, 1), (0.0, 2), (1.0, 1)], 1.5)


@loops
def test_inside_a_template_each_attempt_is_hedged(runs):
    clock = VirtualClock()
    backend = Backend(clock, (0.0, Down()), (0.0, Down()), 60.0, 0.5)
    template = RetryTemplate(SimpleRetryPolicy(2), NoBackoff(), clock=clock)
    call = template.wrap(hedge(clock=clock).wrap(backend.ask))
    assert runs(call, clock) == "answer 4"
    assert backend.running == 0


@loops
def test_losing_call_is_not_a_failure_of_the_inner_breaker(runs):
    clock = VirtualClock()
    backend = Backend(clock, 60.0, 0.5)
    breaker = CircuitBreaker("backend", window=Consecutive(1), clock=clock)
    call = hedge(clock=clock).wrap(breaker.wrap(backend.ask))
    assert runs(call, clock) == "answer 2"
    assert breaker.snapshot().state == "closed"


@loops
def test_timeout_around_a_hedge_cuts_all_calls(runs):
    clock = VirtualClock()
    backend = Backend(clock, 60.0, 60.0)
    call = Timeout(1.5, on_timeout="no answer", clock=clock).wrap(
        hedge(clock=clock).wrap(backend.ask)
    )
    assert runs(call, clock) == "no answer"
    assert (clock.monotonic(), sorted(backend.cancelled), backend.running) == (1.5, [1, 2], 0)


@loops
def test_hedge_inside_a_hedge_multiplies_calls(runs):
    clock = VirtualClock()
    backend = Backend(clock, 60.0, 60.0, 60.0, 0.25)
    call = hedge(delay=5.0, clock=clock).wrap(hedge(delay=1.0, clock=clock).wrap(backend.ask))
    assert runs(call, clock) == "answer 4"
    assert backend.began == [0.0, 1.0, 5.0, 6.0]
    assert sorted(backend.cancelled) == [1, 2, 3]


# -- looking ---------------------------------------------------------------------------------------


@loops
def test_snapshot_counts_and_listener_errors_change_nothing(runs):
    clock = VirtualClock()
    backend = Backend(clock, 0.5, 60.0, 0.5, 1.5, 60.0)

    class Angry(ControlListener):
        def on_event(self, event):
            raise ZeroDivisionError

    made = hedge(clock=clock, name="weather", listeners=[Angry()])

    async def main():
        return [await made.call_async(backend.ask) for _ in range(3)]

    assert runs(main, clock) == ["answer 1", "answer 3", "answer 4"]
    shown = made.snapshot()
    assert (shown.name, shown.delay, shown.calls, shown.hedges, shown.won) == (
        "weather",
        1.0,
        3,
        2,
        1,
    )
    assert (shown.rejected, shown.abandoned) == (0, 0)


@loops
def test_event_names_its_call(runs):
    outcome, _, recorder = hedged_call(runs, 60.0, 60.0, 0.5, max_hedges=2)
    assert outcome.source == 3
    calls = [(type(each), each.name, each.number) for each in recorder.events]
    assert calls == [
        (HedgeStarted, "hedge", 2),
        (HedgeStarted, "hedge", 3),
        (HedgeWon, "hedge", 3),
    ]
    assert recorder.events[-1].started == 3


def test_hedge_is_a_strategy_and_keeps_the_name_of_the_function():
    async def ask(city):
        """Ask."""

    assert isinstance(hedge(), Strategy)
    wrapped = hedge().wrap(ask)
    assert (wrapped.__name__, asyncio.iscoroutinefunction(wrapped)) == ("ask", True)


# -- rejections ------------------------------------------------------------------------------------


def test_hedge_requires_idempotent_true():
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'idempotent'"):
        Hedge(0.05)
    with pytest.raises(ValueError, match="idempotent must be True, got False: a hedge makes the"):
        Hedge(0.05, idempotent=False)
    assert Hedge(idempotent=True).delay == 0.05


def test_hedge_is_frozen():
    for made, name in ((hedge(), "delay"), (Quantile(0.5), "q")):
        with pytest.raises(AttributeError):
            setattr(made, name, 0.7)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"idempotent": 1}, "idempotent must be True, got 1"),
        ({"idempotent": None}, "idempotent must be True, got None"),
        ({"delay": -1}, "delay must be .*, or a Quantile, got -1"),
        ({"delay": float("inf")}, "delay must be"),
        ({"delay": float("nan")}, "delay must be"),
        ({"delay": "0.05"}, "delay must be .*, or a Quantile, got '0.05'"),
        ({"delay": Quantile}, "delay must be .*, or a Quantile, got <class"),
        ({"delay": None}, "delay must be"),
        ({"max_hedges": 0}, "max_hedges must be an int >= 1, got 0"),
        ({"max_hedges": True}, "max_hedges must be an int >= 1"),
        ({"on": 17}, "17"),
        ({"budget": 17}, "budget must be a RetryBudget or None, got 17"),
        ({"executor": 17}, "executor must be an object with the methods submit, got 17"),
        ({"name": ""}, "name must be a non-blank str"),
        ({"listeners": [17]}, "listeners"),
        ({"clock": 17}, "clock must"),
    ],
)
def test_hedge_with_wrong_settings_is_rejected(settings, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        Hedge(**{"idempotent": True} | settings)


# -- for any times and failures --------------------------------------------------------------------

TAKES = st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=2, max_size=5)


def timetable(takes, delay):
    """The start of each call, the winner and the end: the rules, implemented independently."""
    now, begins, ends, failed = 0.0, [0.0], {0: takes[0][0]}, set()
    while True:
        last = len(begins) == len(takes)
        number = min(set(ends) - failed, key=ends.get, default=None)
        if number is None:
            return begins, None, now
        if not last and begins[-1] + delay < ends[number]:
            now = begins[-1] + delay
        else:
            now = ends[number]
            if takes[number][1]:
                return begins, number + 1, now
            failed.add(number)
        if not last:
            ends[len(begins)] = now + takes[len(begins)][0]
            begins.append(now)


@given(TAKES, st.integers(1, 8), st.sampled_from([in_asyncio, in_trio]))
def test_calls_follow_the_timetable_for_any_durations(takes, delay, runs):
    # No two things happen at one moment: each call takes a fraction that none of the others has.
    takes = [(took + 2.0 ** -(number + 3), fine) for number, (took, fine) in enumerate(takes)]
    clock = VirtualClock()
    backend = Backend(clock, *((took, None if fine else Down()) for took, fine in takes))
    made = hedge(delay, max_hedges=len(takes) - 1, clock=clock)

    async def main():
        return await made.outcome_async(backend.ask)

    outcome = runs(main, clock)
    found = (backend.began, outcome.source, outcome.elapsed)
    assert found == timetable(takes, delay)
    assert (backend.running, outcome.attempts) == (0, len(backend.began))

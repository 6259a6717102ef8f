"""The traps that others fell into: where each of them is held, and those of whole pipelines."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retrytemplate import DeadlineExceededError, RetryTemplate, SimpleRetryPolicy, current_context
from retrytemplate.control import Bulkhead, CircuitBreaker, Consecutive, Pipeline, Timeout
from retrytemplate.testing import VirtualClock, run, run_trio

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30.0

HELD = {
    "the cap is drawn before the jitter, and all wait as long": [
        ("backoff/test_exponential.py", "test_delays_at_the_cap_still_differ"),
    ],
    "a late outcome moves a circuit that is half-open": [
        ("control/breaker/test_breaker.py", "test_a_success_that_comes_late_moves_nothing"),
        (
            "control/breaker/test_breaker.py",
            "test_a_late_result_of_a_wrapped_function_moves_nothing_either",
        ),
    ],
    "a probe that is cancelled, or never reported, keeps its place": [
        (
            "control/breaker/test_breaker.py",
            "test_a_cancelled_call_gives_its_place_back_and_decides_nothing",
        ),
        (
            "control/breaker/test_breaker.py",
            "test_a_call_whose_end_is_never_heard_of_loses_its_place",
        ),
        (
            "control/test_traps.py",
            "test_a_probe_that_the_timeout_cuts_keeps_no_place_and_has_failed",
        ),
    ],
    "a breaker calls under its lock, lets all probes in, or raises one exception for all": [
        (
            "control/breaker/test_breaker.py",
            "test_no_lock_is_held_while_anything_of_the_callers_runs",
        ),
        (
            "control/breaker/test_concurrency.py",
            "test_half_open_lets_three_of_thirty_two_threads_in",
        ),
        ("control/breaker/test_concurrency.py", "test_half_open_lets_three_of_a_thousand_tasks_in"),
        ("control/breaker/test_breaker.py", "test_every_rejection_raises_a_new_exception"),
        ("control/test_traps.py", "test_threads_in_one_pipeline_are_in_their_calls_at_once"),
    ],
    "the state of a call is on the object that all share": [
        ("test_concurrency.py", "test_counts_never_mix_between_threads"),
        ("test_concurrency.py", "test_counts_never_mix_between_tasks"),
        ("test_concurrency.py", "test_backoffs_of_different_threads_grow_separately"),
        ("control/test_traps.py", "test_each_of_two_loops_that_share_a_pipeline_has_its_attempts"),
    ],
    "a time limit looks between the attempts, and limits nothing": [
        ("test_common_complaints.py", "test_total_limit_ends_the_call"),
        ("test_common_complaints.py", "test_hung_attempt_does_not_prevent_the_retry"),
        ("_engine/test_deadline.py", "test_a_wait_that_takes_all_that_is_left_does_not_fit"),
        ("control/timeout/test_timeout.py", "test_what_is_called_inherits_the_limit"),
    ],
    "a cancellation is retried, since no rule excludes it": [
        (
            "test_common_complaints.py",
            "test_retrying_all_but_one_type_swallows_no_cancellation",
        ),
        ("control/test_any_order.py", "test_a_cancelled_call_leaves_nothing_behind_in_any_order"),
    ],
    "a token is taken after the wait, or for a retry that never comes": [
        (
            "control/budget/test_budget.py",
            "test_a_retry_takes_a_token_and_an_empty_bucket_fails_at_once",
        ),
        ("control/budget/test_budget.py", "test_a_token_is_taken_only_where_a_retry_follows"),
        ("control/budget/test_budget.py", "test_a_wait_that_is_cut_off_costs_nothing"),
        (
            "control/budget/test_budget.py",
            "test_parent_has_to_grant_too_and_its_rejection_costs_nothing",
        ),
    ],
    "a limit around a shield leaves a task behind, one around a queue loses an item": [
        (
            "control/timeout/test_timeout.py",
            "test_shielded_task_continues_and_its_owner_gets_the_result",
        ),
        (
            "control/timeout/test_timeout.py",
            "test_an_item_that_comes_in_the_moment_of_the_cut_is_got_or_still_there",
        ),
    ],
    "a key is looked up and then set, or set when all is over": [
        (
            "control/idempotency/test_operations.py",
            "test_of_many_threads_with_one_key_one_has_the_effect",
        ),
        ("control/idempotency/test_operations.py", "test_an_operation_is_completed_once"),
        (
            "control/idempotency/test_operations.py",
            "test_by_hand_a_late_completion_leaves_as_it_is",
        ),
    ],
}


@pytest.mark.parametrize("trap", HELD)
def test_each_trap_is_held_where_it_is_said(trap):
    for path, name in HELD[trap]:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name}(" in text


# -- through a pipeline ----------------------------------------------------------------------------


class Down(Exception):
    """Worth another attempt."""


def guarded(**settings):
    return Pipeline(
        Timeout(PATIENCE),
        RetryTemplate(SimpleRetryPolicy(3, retry_on=Down)),
        CircuitBreaker("service", **settings),
        Bulkhead("service"),
    )


def test_threads_in_one_pipeline_are_in_their_calls_at_once():
    all_inside = threading.Barrier(10)

    @guarded().wrap
    def call():
        all_inside.wait(PATIENCE)  # breaks where one waits for another
        return threading.get_ident()

    with ThreadPoolExecutor(10) as pool:
        calls = [pool.submit(call) for _ in range(10)]
        assert len({each.result(PATIENCE) for each in calls}) == 10


def test_each_of_two_loops_that_share_a_pipeline_has_its_attempts():
    both = threading.Barrier(2)

    @guarded(minimum_calls=50).wrap
    async def call(numbers):
        numbers.append(current_context().attempt)
        both.wait(PATIENCE)  # each attempt of the one goes with one of the other
        await asyncio.sleep(0)
        raise Down

    def loop():
        numbers = []
        with pytest.raises(Down):
            asyncio.run(call(numbers))
        return numbers

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(loop) for _ in range(2)]
        assert [each.result(PATIENCE) for each in calls] == [[1, 2, 3]] * 2


def in_asyncio(main, clock):
    return run(main(), clock=clock)


def in_trio(main, clock):
    return run_trio(main, clock=clock)


@pytest.mark.parametrize("runs", [in_asyncio, in_trio])
def test_a_probe_that_the_timeout_cuts_keeps_no_place_and_has_failed(runs):
    clock = VirtualClock()
    breaker = CircuitBreaker(
        "service",
        window=Consecutive(1),
        reset_timeout=30,
        reset_jitter=0,
        half_open_calls=1,
        required_successes=1,
        clock=clock,
    )
    pipeline = Pipeline(Timeout(2.0, clock=clock), breaker)

    async def main():
        outcome = await pipeline.outcome_async(int, "x")
        assert (type(outcome.exception), breaker.state) == (ValueError, "open")
        await clock.sleep_async(30)
        outcome = await pipeline.outcome_async(clock.sleep_async, 60)
        assert type(outcome.exception) is DeadlineExceededError
        seen = breaker.snapshot()
        assert (seen.state, seen.probes, seen.successes) == ("open", 0, 0)
        await clock.sleep_async(30)
        return await pipeline.call_async(int, "17"), breaker.state

    assert runs(main, clock) == (17, "closed")

"""Common mistakes in resilience libraries: the tests that exclude each, and whole pipelines."""

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
        ("control/breaker/test_breaker.py", "test_late_success_changes_nothing"),
        (
            "control/breaker/test_breaker.py",
            "test_late_result_of_a_wrapped_function_changes_nothing",
        ),
    ],
    "a probe that is cancelled, or never reported, keeps its place": [
        (
            "control/breaker/test_breaker.py",
            "test_cancelled_probe_releases_its_permit_and_decides_nothing",
        ),
        (
            "control/breaker/test_breaker.py",
            "test_probe_without_an_end_loses_its_permit",
        ),
        (
            "control/test_traps.py",
            "test_probe_cut_by_the_timeout_is_released_as_a_failure",
        ),
    ],
    "a breaker calls under its lock, lets all probes in, or raises one exception for all": [
        (
            "control/breaker/test_breaker.py",
            "test_no_lock_is_held_while_user_code_runs",
        ),
        (
            "control/breaker/test_concurrency.py",
            "test_half_open_admits_three_of_thirty_two_threads",
        ),
        ("control/breaker/test_concurrency.py", "test_half_open_admits_three_of_a_thousand_tasks"),
        ("control/breaker/test_breaker.py", "test_every_rejection_raises_a_new_exception"),
        ("control/test_traps.py", "test_threads_in_one_pipeline_are_in_their_calls_at_once"),
    ],
    "the state of a call is on the object that all share": [
        ("test_concurrency.py", "test_counts_never_mix_between_threads"),
        ("test_concurrency.py", "test_counts_never_mix_between_tasks"),
        ("test_concurrency.py", "test_backoffs_of_different_threads_grow_separately"),
        ("control/test_traps.py", "test_loops_that_share_a_pipeline_have_their_own_attempts"),
    ],
    "a time limit looks between the attempts, and limits nothing": [
        ("test_common_complaints.py", "test_total_limit_ends_the_call"),
        ("test_common_complaints.py", "test_hung_attempt_does_not_prevent_the_retry"),
        ("_engine/test_deadline.py", "test_wait_as_long_as_the_remaining_time_is_not_started"),
        ("control/timeout/test_timeout.py", "test_called_function_inherits_the_limit"),
    ],
    "a cancellation is retried, since no rule excludes it": [
        (
            "test_common_complaints.py",
            "test_retrying_all_but_one_type_swallows_no_cancellation",
        ),
        (
            "control/test_decorator_order.py",
            "test_cancelled_call_leaves_nothing_behind_in_any_order",
        ),
    ],
    "a token is taken after the wait, or for a retry that never comes": [
        (
            "control/budget/test_budget.py",
            "test_empty_bucket_rejects_retries_at_once",
        ),
        ("control/budget/test_budget.py", "test_token_is_taken_only_when_a_retry_follows"),
        ("control/budget/test_budget.py", "test_cancelled_wait_costs_nothing"),
        (
            "control/budget/test_budget.py",
            "test_retry_needs_the_parent_and_its_rejection_costs_nothing",
        ),
    ],
    "a limit around a shield leaves a task behind, one around a queue loses an item": [
        (
            "control/timeout/test_timeout.py",
            "test_shielded_task_continues_and_its_owner_gets_the_result",
        ),
        (
            "control/timeout/test_timeout.py",
            "test_item_that_arrives_at_the_limit_is_returned_or_stays_queued",
        ),
    ],
    "a key is looked up and then set, or set when all is over": [
        (
            "control/idempotency/test_operations.py",
            "test_concurrent_threads_with_one_key_have_one_effect",
        ),
        ("control/idempotency/test_operations.py", "test_operation_is_completed_once"),
        (
            "control/idempotency/test_operations.py",
            "test_late_manual_completion_raises_without_a_note",
        ),
    ],
}


@pytest.mark.parametrize("trap", HELD)
def test_each_trap_has_its_tests(trap):
    for path, name in HELD[trap]:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name}(" in text


# -- through a pipeline ----------------------------------------------------------------------------


class Down(Exception):
    """A retryable error."""


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


def test_loops_that_share_a_pipeline_have_their_own_attempts():
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
def test_probe_cut_by_the_timeout_is_released_as_a_failure(runs):
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

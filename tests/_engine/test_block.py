"""The block form: a loop of attempts, in threads, asyncio and trio."""

import asyncio
import gc

import pytest
import trio

from retrytemplate import (
    AttemptTimeout,
    AttemptTimeoutError,
    Deadline,
    DeadlineExceededError,
    ExhaustedRetryError,
    MisuseError,
    ResultRetryPolicy,
    RetryListener,
    RetryState,
    SimpleRetryPolicy,
    UnacceptableResultError,
    current_context,
)
from retrytemplate.testing import AsyncRecorder, Recorder, VirtualClock, run, run_trio
from tests.support.runners import made

KEY = RetryState("order-17")
STATEFUL = RetryState("order-17", rollback_for=())


def both(template, body, **how):
    """Run an async function on virtual time under asyncio, then under trio."""
    return [
        run(body(template), clock=template.clock),
        run_trio(body, template, clock=template.clock),
    ]


# -- the loop -----------------------------------------------------------------------------------


@pytest.mark.parametrize("listeners", [[], [Recorder()]], ids=["inline", "engine"])
def test_loop_ends_after_the_first_success(listeners):
    seen = []
    for attempt in made(listeners=listeners).attempts():
        with attempt as context:
            seen.append(context.attempt)
            if len(seen) < 3:
                raise ValueError
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("listeners", [[], [Recorder()]], ids=["inline", "engine"])
def test_last_exception_is_raised_by_the_loop(listeners):
    failures = [ValueError("one"), ValueError("two")]
    with pytest.raises(ValueError) as caught:
        for attempt in made(2, listeners=listeners).attempts():
            with attempt as context:
                raise failures[context.attempt - 1]
    assert caught.value is failures[1]
    assert current_context() is None


@pytest.mark.parametrize("kind", [Recorder, AsyncRecorder])
def test_async_loop_awaits_the_ends_of_its_blocks(kind):
    async def body(template):
        seen = []
        async for attempt in template.attempts():
            async with attempt as context:
                seen.append(context.attempt)
                if len(seen) < 3:
                    raise ValueError
        return seen

    template = made(delay=5.0, listeners=[kind()])
    assert both(template, body) == [[1, 2, 3], [1, 2, 3]]
    assert template.clock.sleeps == [5.0] * 4


def test_plain_with_serves_tasks_when_no_end_is_awaited():
    async def body(template):
        attempts = template.attempts(recovery=recover)
        async for attempt in attempts:
            with attempt:
                raise ValueError
        return attempts.result

    async def recover(context):
        return f"after {context.retry_count}"

    template = made(delay=5.0)
    assert both(template, body) == ["after 3", "after 3"]
    assert template.clock.sleeps == [5.0] * 4


def test_plain_with_in_tasks_raises_the_last_exception():
    async def body(template):
        async for attempt in template.attempts():
            with attempt:
                raise ValueError("last")

    template = made(delay=5.0)
    with pytest.raises(ValueError, match="last"):
        run(body(template), clock=template.clock)


def test_context_is_current_inside_its_block_only():
    template = made()
    for attempt in template.attempts():
        assert current_context() is None
        with attempt as context:
            assert current_context() is context
            if context.attempt == 1:
                raise ValueError
        assert current_context() is None


def test_loops_nest_and_the_outer_context_is_the_parent():
    pairs = []
    for outer in made(2).attempts():
        with outer as above:
            for inner in made(2).attempts():
                with inner as below:
                    assert below.parent is above
                    pairs.append((above.attempt, below.attempt))
                    raise_until((above.attempt, below.attempt), (2, 2))
    assert pairs == [(1, 1), (1, 2), (2, 1), (2, 2)]


def raise_until(numbers, last):
    if numbers != last:
        raise ValueError


def test_execution_in_the_block_has_its_context_as_parent():
    for attempt in made().attempts():
        with attempt as context:
            parent = made().execute(lambda nested: nested.parent)
    assert parent is context


def test_attributes_are_kept_from_block_to_block():
    for attempt in made().attempts():
        with attempt as context:
            count = context.attributes["count"] = context.attributes.get("count", 0) + 1
            if count < 3:
                raise ValueError
    assert count == 3


# -- results and recoveries ---------------------------------------------------------------------


def test_result_of_the_last_block_is_kept():
    attempts = made().attempts()
    for attempt in attempts:
        with attempt as context:
            attempt.result = context.attempt
            if context.attempt < 2:
                raise ValueError
    assert attempts.result == 2


def test_result_that_the_policy_rejects_is_retried():
    attempts = made(policy=ResultRetryPolicy(lambda result: result < 3)).attempts()
    for attempt in attempts:
        with attempt as context:
            attempt.result = context.attempt
    assert attempts.result == 3


def test_result_rejected_in_every_attempt_raises_an_error():
    policy = ResultRetryPolicy(lambda result: True, SimpleRetryPolicy(2))
    with pytest.raises(UnacceptableResultError) as caught:
        for attempt in made(policy=policy).attempts():
            with attempt as context:
                attempt.result = context.attempt
    assert caught.value.result == 2


def test_result_of_an_earlier_block_is_not_used_for_the_next():
    judged = []
    policy = ResultRetryPolicy(lambda result: judged.append(result) or result == "no")
    attempts = made(policy=policy).attempts()
    for attempt in attempts:
        with attempt as context:
            if context.attempt == 1:
                attempt.result = "no"
    assert judged == ["no", None]
    assert attempts.result is None


def test_recovery_value_is_the_result():
    attempts = made(2).attempts(recovery=lambda context: f"after {context.retry_count}")
    for attempt in attempts:
        with attempt:
            raise ValueError
    assert attempts.result == "after 2"


def test_recovery_that_raises_ends_the_loop():
    def recover(context):
        raise LookupError("nor this")

    with pytest.raises(LookupError, match="nor this"):
        for attempt in made(1).attempts(recovery=recover):
            with attempt:
                raise ValueError


# -- with a state -------------------------------------------------------------------------------


def deliver(template, failure=None, **how):
    attempts, calls = template.attempts(state=KEY, **how), []
    for attempt in attempts:
        with attempt as context:
            calls.append(context.attempt)
            if failure is not None:
                raise failure
    return calls, attempts.result


def test_stateful_failure_leaves_at_once_and_the_next_loop_continues():
    template = made(2, name="orders")

    for _ in range(2):
        with pytest.raises(ValueError):
            deliver(template, ValueError())
    assert deliver(template, recovery=lambda context: "dead") == ([], "dead")
    assert len(template.cache) == 0


def test_loop_of_an_exhausted_state_raises_without_an_iteration():
    template = made(1, name="orders")
    with pytest.raises(ValueError):
        deliver(template, ValueError())
    with pytest.raises(ExhaustedRetryError):
        deliver(template)


# -- leaving early ------------------------------------------------------------------------------


@pytest.mark.parametrize("stateful", [False, True])
def test_breaking_out_of_a_block_is_a_success(stateful):
    recorder = Recorder()
    template = made(name="orders", listeners=[recorder])
    for attempt in template.attempts(state=KEY if stateful else None):
        with attempt:
            break
    assert recorder.hooks == ["open", "before_attempt", "on_success", "on_first_success", "close"]
    assert deliver(template)[0] == [1]


def test_returning_from_a_block_is_a_success():
    recorder = Recorder()

    def body():
        for attempt in made(listeners=[recorder]).attempts():
            with attempt as context:
                if context.attempt == 1:
                    raise ValueError
                return context.attempt

    assert body() == 2
    assert recorder.hooks[-3:] == ["on_success", "on_end", "close"]
    assert current_context() is None


def test_returning_from_an_asynchronous_block_is_a_success():
    recorder = AsyncRecorder()

    async def body(template):
        async for attempt in template.attempts():
            async with attempt as context:
                if context.attempt == 1:
                    raise ValueError
                return context.attempt

    assert both(made(listeners=[recorder]), body) == [2, 2]
    assert recorder.hooks.count("close") == 2


class Hooks(RetryListener):
    """Records the names of hooks only: a kept exception would keep the loop alive."""

    def __init__(self):
        self.hooks = []

    def open(self, context):
        self.hooks.append("open")

    def before_attempt(self, context):
        self.hooks.append("before_attempt")

    def close(self, context, exception):
        self.hooks.append("close")


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_loop_left_between_attempts_closes_and_frees_the_key(blocks):
    listener = Hooks()
    template = made(name="orders", listeners=[listener])
    state = RetryState("order-17", rollback_for=())

    def leave():
        for attempt in template.attempts(state=state):
            if listener.hooks.count("before_attempt") > blocks:
                break
            with attempt:
                raise ValueError

    leave()
    gc.collect()
    assert listener.hooks == ["open", *["before_attempt"] * (blocks + 1), "close"]
    assert current_context() is None
    assert deliver(template)[0] == [blocks + 1], "no AttemptInProgressError"


def test_async_loop_left_between_attempts_closes_and_frees_the_key():
    listener = Hooks()
    template = made(name="orders", listeners=[listener])
    state = RetryState("order-17", rollback_for=())

    async def leave(template):
        async for attempt in template.attempts(state=state):
            if listener.hooks.count("before_attempt") > 1:
                break
            async with attempt:
                raise ValueError

    run(leave(template), clock=template.clock)
    gc.collect()
    assert listener.hooks == ["open", "before_attempt", "before_attempt", "close"]
    assert deliver(template)[0] == [2], "no AttemptInProgressError"


# -- misuse -------------------------------------------------------------------------------------


@pytest.mark.parametrize("listeners", [[], [Recorder()]], ids=["inline", "engine"])
def test_iteration_without_its_block_is_misuse(listeners):
    with pytest.raises(MisuseError, match="with attempt"):
        for _attempt in made(listeners=listeners).attempts():
            pass


async def test_async_iteration_without_its_block_is_misuse():
    with pytest.raises(MisuseError, match="with attempt"):
        async for _attempt in made().attempts():
            pass


def test_block_outside_the_loop_is_misuse():
    with pytest.raises(MisuseError, match="inside the loop"), made().attempts():
        pass


def test_awaitable_in_a_plain_loop_is_named_in_the_error():
    with pytest.raises(MisuseError, match=r"AsyncRecorder\.\w+ returned an awaitable"):
        for attempt in made(listeners=[AsyncRecorder()]).attempts():
            with attempt:
                pass


def test_attempts_serve_one_execution():
    attempts = made().attempts()
    for attempt in attempts:
        with attempt:
            pass
    with pytest.raises(MisuseError, match="call attempts"):
        iter(attempts)
    with pytest.raises(MisuseError, match="call attempts"):
        aiter(attempts)


@pytest.mark.parametrize("listeners", [[], [Recorder()]], ids=["inline", "engine"])
def test_loop_object_has_the_attributes_of_the_context(listeners):
    template = made(listeners=listeners)
    attempts = template.attempts()
    known = []
    with pytest.raises(ValueError):
        for attempt in attempts:
            with attempt as context:
                attempt.attributes["page"] = context.attempt
                assert attempt.attributes is context.attributes
                known.append((attempt.attempt, attempt.retry_count, attempt.closed))
                raise ValueError(f"failure {attempt.attempt}")
    assert known == [(1, 0, False), (2, 1, False), (3, 2, False)]
    assert (attempts.attempt, attempts.retry_count, attempts.closed) == (3, 3, True)
    assert [failure.message for failure in attempts.history] == [f"failure {n}" for n in (1, 2, 3)]
    assert attempts.exhausted
    assert str(attempts.last_exception) == "ValueError: failure 3"
    assert attempts.attributes == {"page": 3}


@pytest.mark.parametrize("listeners", [[], [Recorder()]], ids=["inline", "engine"])
def test_giving_up_by_the_loop_object_is_giving_up(listeners):
    calls = []
    with pytest.raises(ValueError):
        for attempt in made(listeners=listeners).attempts():
            with attempt:
                calls.append(attempt.attempt)
                attempt.give_up()
                raise ValueError
    assert calls == [1]


# -- limits -------------------------------------------------------------------------------------


def test_asynchronous_block_is_cut_at_the_attempt_timeout():
    async def body(template):
        seen = []
        async for attempt in template.attempts():
            async with attempt as context:
                seen.append((context.attempt, template.clock.monotonic() - start[0]))
                if context.attempt < 3:
                    await template.clock.sleep_async(60.0)
        return seen

    template, start = made(attempt_timeout=2.0, clock=VirtualClock()), [0.0]
    assert run(body(template), clock=template.clock) == [(1, 0.0), (2, 2.0), (3, 4.0)]
    start[0] = template.clock.monotonic()
    assert run_trio(body, template, clock=template.clock) == [(1, 0.0), (2, 2.0), (3, 4.0)]


def test_async_block_cut_in_every_attempt_raises_the_attempt_timeout():
    async def body(template):
        async for attempt in template.attempts():
            async with attempt:
                await template.clock.sleep_async(60.0)

    template = made(2, attempt_timeout=2.0)
    with pytest.raises(AttemptTimeoutError, match="2 seconds"):
        run(body(template), clock=template.clock)
    with pytest.raises(AttemptTimeoutError, match="2 seconds"):
        run_trio(body, template, clock=template.clock)


def test_outer_cancellation_wins_over_the_attempt_timeout():
    async def body(template):
        async with asyncio.timeout(1.0):
            async for attempt in template.attempts():
                async with attempt:
                    await template.clock.sleep_async(60.0)

    template = made(5, attempt_timeout=2.0)
    with pytest.raises(TimeoutError) as caught:
        run(body(template), clock=template.clock)
    assert not isinstance(caught.value, AttemptTimeoutError)
    assert template.clock.monotonic() == 1.0


def test_outer_cancel_scope_wins_over_the_attempt_timeout():
    async def body(template):
        with trio.move_on_after(1.0) as scope:
            async for attempt in template.attempts():
                async with attempt:
                    await template.clock.sleep_async(60.0)
        return scope.cancelled_caught

    template = made(5, attempt_timeout=2.0)
    assert run_trio(body, template, clock=template.clock)
    assert template.clock.monotonic() == 1.0


async def fail_when_cancelled():
    try:
        await trio.sleep_forever()
    finally:
        raise OSError("cleaning up failed")


def test_block_with_nursery_that_fails_at_the_limit_is_retried():
    async def body(template):
        seen = []
        async for attempt in template.bind(state=STATEFUL).attempts():
            async with attempt as context:
                seen.append(repr(context.last_exception))
                if context.attempt == 1:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(fail_when_cancelled)
        return seen, current_context(), template.cache.peek(template.scoped_key("order-17"))

    recorder = Recorder()
    template = made(2, attempt_timeout=2.0, name="work", listeners=[recorder])
    (_, second), context, record = run_trio(body, template, clock=template.clock)
    assert "OSError('cleaning up failed')" in second
    assert "Cancelled" not in second
    assert (context, record) == (None, None)
    assert recorder.hooks[-1] == "close"


def test_block_with_nursery_that_fails_at_the_last_limit_raises_that():
    begun = []

    async def body(template):
        async for attempt in template.attempts():
            async with attempt, trio.open_nursery() as nursery:
                begun.append(attempt)
                nursery.start_soon(fail_when_cancelled)

    template = made(2, attempt_timeout=2.0)
    with pytest.raises(ExceptionGroup) as caught:
        run_trio(body, template, clock=template.clock)
    assert [type(each) for each in caught.value.exceptions] == [OSError]
    assert len(begun) == 2


def test_late_block_without_tasks_fails_when_values_are_discarded():
    limit = AttemptTimeout(2.0, on_late_result="discard")
    template, seen = made(attempt_timeout=limit), []
    for attempt in template.attempts():
        with attempt as context:
            seen.append(context.last_exception)
            template.clock.advance(3.0 if context.attempt < 3 else 1.0)
    assert [type(e) for e in seen] == [type(None), AttemptTimeoutError, AttemptTimeoutError]


def test_block_can_read_its_remaining_time():
    template = made(attempt_timeout=2.0)
    for attempt in template.attempts():
        with attempt:
            assert Deadline.current().remaining() == 2.0
            template.clock.advance(0.5)
            assert Deadline.current().remaining() == 1.5
    assert Deadline.current() is None


def test_expired_deadline_prevents_further_blocks():
    template, calls = made(9, delay=4.0), []
    with pytest.raises(DeadlineExceededError) as caught, Deadline(10.0, clock=template.clock):
        for attempt in template.attempts():
            with attempt as context:
                calls.append(context.attempt)
                raise ValueError("slow")
    assert calls == [1, 2, 3]
    assert isinstance(caught.value.__cause__, ValueError)
    assert template.clock.sleeps == [4.0, 4.0], "a wait that does not fit is not begun"


def test_deadline_cuts_an_asynchronous_block():
    async def body(template):
        async with Deadline(3.0, clock=template.clock):
            async for attempt in template.attempts():
                async with attempt:
                    await template.clock.sleep_async(60.0)

    template = made(9)
    with pytest.raises(DeadlineExceededError):
        run(body(template), clock=template.clock)
    assert template.clock.monotonic() == 3.0
    with pytest.raises(DeadlineExceededError):
        run_trio(body, template, clock=template.clock)
    assert template.clock.monotonic() == 6.0

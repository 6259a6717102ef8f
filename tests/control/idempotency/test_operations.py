"""Operations with a single effect: replayed results, failures, lost claims."""

import asyncio
import gc
import math
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import trio
from attrs import evolve

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    CacheUnavailableError,
    CircuitOpenError,
    DeadlineExceededError,
    IdempotencyKeyReusedError,
    InconsistentKeyError,
    LeaseLostError,
    MemoryRetryContextCache,
    MisuseError,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.caches import Record
from retrytemplate.control import (
    CircuitBreaker,
    Consecutive,
    ControlListener,
    OperationReplayed,
    OperationResult,
    Operations,
    OperationUnknown,
    OperationUnrecorded,
    RetryBudget,
    Strategy,
)
from retrytemplate.control.idempotency.keys import _operation
from retrytemplate.testing import VirtualClock
from retrytemplate.testing.clock import checkpoint
from tests.support.event_loops import LOOPS
from tests.support.failing_cache import Down
from tests.support.signal_injection import Signal, left_behind

KEY = "order-17/charge"


class Lost(Exception):
    """The connection broke; the outcome of the request is unknown."""


class Declined(Exception):
    """The other side rejected the request."""

    outcome_unknown = False


class Charge:
    """An effect, counted; ``failures`` are raised first."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.made = 0

    def __call__(self, amount=1):
        if self.failures:
            raise self.failures.pop(0)
        self.made += amount
        return {"receipt": self.made}

    async def awaited(self, amount=1):
        await asyncio.sleep(0)
        return self(amount)


class EventRecorder(ControlListener):
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)


class Blocking(MemoryRetryContextCache):
    blocking = True


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def cache(clock):
    return MemoryRetryContextCache(clock=clock)


@pytest.fixture
def recorder():
    return EventRecorder()


@pytest.fixture
def operations(cache, recorder):
    return Operations(cache, listeners=[recorder])


@pytest.fixture
def charge():
    return Charge()


# -- once ------------------------------------------------------------------------------------------


@pytest.mark.statement("S4-25")
def test_repeated_key_does_not_repeat_the_effect(operations, charge, clock):
    answers = [operations.call(KEY, charge, 30)]
    clock.advance(86_399)
    answers.append(operations.call(KEY, charge, 30))
    assert answers == [{"receipt": 30}] * 2
    assert charge.made == 30


@pytest.mark.statement("S4-25")
def test_expired_key_is_a_new_operation(operations, charge, clock):
    operations.call(KEY, charge)
    clock.advance(86_400)
    assert operations.call(KEY, charge) == {"receipt": 2}


@pytest.mark.statement("S1-80")
def test_second_caller_gets_the_result_or_an_in_progress_error(operations):
    with operations.start_once(KEY) as operation:
        assert operation.result is None
        with pytest.raises(AttemptInProgressError, match=r"'operations/operation/s:order-17/cha"):
            operations.start_once(KEY)
        operation.complete({"receipt": 1})
    with operations.start_once(KEY) as operation:
        assert operation.result == OperationResult({"receipt": 1}, replayed=True)


@pytest.mark.statement("S1-81")
def test_operation_is_completed_once(operations):
    first = operations.start_once(KEY)
    assert first.complete({"receipt": 1}) == {"receipt": 1}
    assert first.result == OperationResult({"receipt": 1}, replayed=False)
    second = operations.start_once(KEY)
    for operation in (first, second):
        with pytest.raises(AlreadyCompletedError, match="was completed before"):
            operation.complete({"receipt": 2})
    assert operations.call(KEY, int) == {"receipt": 1}


@pytest.mark.statement("S4-26")
def test_concurrent_threads_with_one_key_have_one_effect(operations):
    barrier, inside = threading.Barrier(16), []

    def effect():
        inside.append(threading.get_ident())
        return len(inside)

    def deliver(_):
        barrier.wait(60)
        try:
            return operations.call(KEY, effect)
        except AttemptInProgressError:
            return None

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(deliver, range(16)))
    assert len(inside) == 1
    assert set(answers) <= {1, None}
    assert 1 in answers


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
def test_concurrent_tasks_with_one_key_have_one_effect(loop, operations):
    made, rejections = [], []

    async def effect():
        made.append(1)
        await loop.checkpoint()
        return "done"

    async def deliver():
        try:
            assert await operations.call_async(KEY, effect) == "done"
        except AttemptInProgressError:
            rejections.append(1)

    async def main():
        await loop.together(*[deliver] * 5)
        assert await operations.call_async(KEY, effect) == "done"

    loop.run(main)
    assert (len(made), len(rejections)) == (1, 4)


def test_other_keys_are_other_operations(operations, charge):
    for key in ("a", 1, "1", ("a", 1), b"a"):
        operations.call(key, charge)
    assert charge.made == 5


def test_stores_of_other_names_do_not_share_keys(cache, charge):
    for name in ("payments", "refunds", "payments/eu"):
        Operations(cache, name=name).call(KEY, charge)
    assert charge.made == 3


def test_no_template_has_the_key_of_an_operation(operations, cache):
    named = RetryTemplate(name="operations", cache=cache)
    assert named.scoped_key("operation/s:a") != operations.scoped_key("a")
    assert not named.scoped_key(("operation", "a")).startswith("operations/operation/")


@pytest.mark.parametrize("value", [None, False, 0, "", [], {"a": [1, 2.5, None, "ä", True]}])
def test_every_json_value_is_a_result(operations, value):
    assert operations.call(KEY, lambda: value) == value
    assert operations.call(KEY, int) == value


def test_first_result_is_normalised_as_json(operations):
    assert operations.call(KEY, lambda: (1, (2, 3))) == [1, [2, 3]]
    assert operations.call(KEY, int) == [1, [2, 3]]


def test_result_changed_by_its_caller_is_returned_unchanged(operations):
    for _ in range(3):
        receipt = operations.call(KEY, lambda: {"lines": [1]})
        assert receipt == {"lines": [1]}
        receipt["lines"].append(2)


def test_replay_is_reported(operations, charge, recorder):
    operations.call(KEY, charge)
    assert recorder.events == []
    operations.call(KEY, charge)
    assert recorder.events == [OperationReplayed(name="operations", key=KEY)]


# -- failures --------------------------------------------------------------------------------------


def test_next_call_runs_after_a_failure(operations):
    charge = Charge(Declined("no"))
    with pytest.raises(Declined):
        operations.call(KEY, charge)
    with operations.start_once(KEY) as operation:
        assert (operation.attempt, operation.outcome_unknown) == (2, False)
        operation.complete(charge())
    assert charge.made == 1


def test_exception_leaves_the_outcome_unknown_until_completion(operations, recorder):
    charge = Charge(Lost("reset"), Declined("no"))
    for kind in (Lost, Declined):
        with pytest.raises(kind):
            operations.call(KEY, charge)
    with operations.start_once(KEY) as operation:
        assert (operation.attempt, operation.outcome_unknown) == (3, True)
        operation.complete()
    assert recorder.events == [
        OperationUnknown(name="operations", key=KEY, attempt=attempt) for attempt in (2, 3)
    ]


class Odd(Exception):
    """An object whose attribute access raises."""

    @property
    def outcome_unknown(self):
        raise RuntimeError


class Undecided(Exception):
    outcome_unknown = None


def odd():
    raise Odd


def undecided():
    raise Undecided


def lost_another():
    raise LeaseLostError("of a key inside of it")


def rejected():
    raise CircuitOpenError("open")


def refused_again():
    template = RetryTemplate(guards=[RetryBudget.tokens(capacity=5, cost=5, refund=0)])
    template.outcome(Charge(Lost()))
    template.call(Charge(Lost()))


def cut():
    raise DeadlineExceededError("over", outcome_unknown=True)


def declined_because_of():
    raise Declined from Lost()


def refused_before_it_began():
    raise DeadlineExceededError("over")


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("fails", "unknown", "attempt"),
    [
        (rejected, False, 1),
        (refused_again, True, 2),
        (cut, True, 2),
        (refused_before_it_began, False, 2),
        (declined_because_of, False, 2),
        (interrupted, True, 2),
        (lost_another, True, 2),
        (odd, True, 2),
        (undecided, True, 2),
    ],
)
def test_failure_determines_whether_the_outcome_is_unknown(operations, fails, unknown, attempt):
    with pytest.raises(BaseException) as caught:
        operations.call(KEY, fails)
    assert not isinstance(caught.value, MisuseError | RuntimeError)
    operation = operations.start_once(KEY)
    assert (operation.outcome_unknown, operation.attempt) == (unknown, attempt)


def test_manual_failure_states_whether_the_outcome_is_unknown(operations):
    for unknown in (False, True):
        with operations.start_once(KEY) as operation:
            operation.fail(outcome_unknown=unknown)
        assert operations.start_once(KEY).outcome_unknown is unknown
        operations.cache.forget(operations.scoped_key(KEY))


def test_operation_without_an_end_is_a_misuse(operations):
    with (
        pytest.raises(MisuseError, match=r"'order-17/charge' was neither completed nor failed"),
        operations.start_once(KEY),
    ):
        pass
    assert operations.start_once(KEY).outcome_unknown


def test_released_operation_cannot_be_ended_again(operations):
    with operations.start_once(KEY) as operation:
        operation.fail()
        for end in (operation.complete, operation.fail):
            with pytest.raises(MisuseError, match="was released: start it again"):
                end()


def test_exception_of_the_block_ends_the_operation_and_is_raised(operations):
    with pytest.raises(Lost), operations.start_once(KEY):
        raise Lost
    assert operations.start_once(KEY).attempt == 2


def test_exception_after_the_completion_changes_nothing(operations):
    with pytest.raises(Lost), operations.start_once(KEY) as operation:
        operation.complete(17)
        raise Lost
    assert operations.call(KEY, int) == 17


def test_error_of_an_operation_is_not_retried_by_a_template(operations):
    operations.start_once(KEY)
    outcome = RetryTemplate().outcome(operations.call, KEY, int)
    assert (type(outcome.exception), outcome.attempts) == (AttemptInProgressError, 1)


def test_template_around_an_operation_retries_it(operations):
    charge = Charge(Lost(), Lost())
    assert RetryTemplate().call(operations.call, KEY, charge) == {"receipt": 1}


# -- looking up ------------------------------------------------------------------------------------


def looking(cache, lookup):
    made = Operations(cache, lookup=lookup)
    with pytest.raises(Lost):
        made.call(KEY, Charge(Lost()))
    return made


@pytest.mark.statement("S1-83")
def test_unknown_outcome_is_looked_up_and_not_repeated(cache, charge):
    calls = []

    def lookup(key):
        calls.append(key)
        return OperationResult({"receipt": "found"})

    operations = looking(cache, lookup)
    assert calls == []
    for _ in range(2):
        assert operations.call(KEY, charge) == {"receipt": "found"}
    assert (calls, charge.made) == ([KEY], 0)


def test_operation_that_lookup_does_not_find_is_repeated(cache, charge):
    assert looking(cache, lambda key: None).call(KEY, charge) == {"receipt": 1}


def test_asynchronous_lookup_is_awaited(cache, charge):
    async def lookup(key):
        await asyncio.sleep(0)
        return OperationResult("found")

    assert asyncio.run(looking(cache, lookup).call_async(KEY, charge)) == "found"


def test_failed_lookup_leaves_the_operation_unchanged(cache, charge):
    def lookup(key):
        raise ConnectionError("away")

    operations = looking(cache, lookup)
    with pytest.raises(ConnectionError, match="away"):
        operations.call(KEY, charge)
    operation = operations.start_once(KEY)
    assert (charge.made, operation.attempt, operation.outcome_unknown) == (0, 2, True)


def test_lookup_must_return_a_result_or_none(cache, charge):
    operations = looking(cache, lambda key: "found")
    with pytest.raises(MisuseError, match="must return an OperationResult or None, got 'found'"):
        operations.call(KEY, charge)
    assert charge.made == 0


def test_found_result_that_cannot_be_stored_changes_nothing(cache, charge):
    operations = looking(cache, lambda key: OperationResult(object()))
    with pytest.raises(TypeError, match="must be a JSON value"):
        operations.call(KEY, charge)
    operation = operations.start_once(KEY)
    assert (charge.made, operation.attempt, operation.outcome_unknown) == (0, 2, True)


# -- fingerprints ----------------------------------------------------------------------------------


def test_another_request_under_the_same_key_is_rejected(operations):
    with operations.start_once(KEY, fingerprint={"amount": 30, "to": "kim"}) as operation:
        operation.complete("done")
    same = operations.start_once(KEY, fingerprint={"to": "kim", "amount": 30})
    assert same.result.value == "done"
    with pytest.raises(IdempotencyKeyReusedError, match="was begun with another request"):
        operations.start_once(KEY, fingerprint={"amount": 31, "to": "kim"})
    assert operations.start_once(KEY).result.value == "done"


def test_another_request_after_a_failure_is_rejected_and_frees_the_key(operations):
    operations.start_once(KEY, fingerprint=[1]).fail()
    with pytest.raises(IdempotencyKeyReusedError):
        operations.start_once(KEY, fingerprint=[2])
    assert operations.start_once(KEY, fingerprint=[1]).attempt == 2


def test_fingerprint_is_kept_by_an_attempt_without_one(operations):
    operations.start_once(KEY, fingerprint=[1]).fail()
    operations.start_once(KEY).fail()
    with pytest.raises(IdempotencyKeyReusedError):
        operations.start_once(KEY, fingerprint=[2])


def test_fingerprint_is_stored_as_a_hash_before_the_effect(operations, cache):
    operation = operations.start_once(KEY, fingerprint="card 4242")
    record = cache.peek(operations.scoped_key(KEY))
    assert (record.phase, record.worker, record.failures) == (
        "attempting",
        operation._reservation._claim.worker,
        0,
    )
    assert "4242" not in str(record.attributes)
    operation.complete()


def test_fingerprint_that_is_not_json_is_rejected_before_the_reservation(operations):
    with pytest.raises(TypeError, match="fingerprint must be a JSON value"):
        operations.start_once(KEY, fingerprint={1, 2})
    operations.start_once(KEY).complete()


# -- results that cannot be kept -------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, math.nan, {1, 2}, b"x"], ids=lambda v: type(v).__name__
)
def test_result_that_is_not_json_is_rejected_with_the_operation(operations, value):
    with pytest.raises(
        TypeError, match=r"the result of the operation 'operations/.*' must be a JSON value"
    ):
        operations.call(KEY, lambda: value)
    operation = operations.start_once(KEY)
    assert operation.outcome_unknown
    with operation:
        with pytest.raises(TypeError):
            operation.complete(value)
        operation.complete("in words")
    assert operations.call(KEY, int) == "in words"


class Failing(dict):
    def items(self):
        raise RuntimeError


def test_result_that_cannot_be_encoded_marks_the_operation_failed(operations):
    with pytest.raises(RuntimeError):
        operations.call(KEY, lambda: Failing(a=1))
    assert operations.start_once(KEY).outcome_unknown


# -- a store that is away, a hold that is lost -----------------------------------------------------


@pytest.mark.parametrize("on_store_error", ["raise", "run_unguarded"])
def test_function_is_not_called_when_the_store_is_unavailable(charge, on_store_error):
    cache = Down(lambda step, record: step == "begin", on_store_error=on_store_error)
    operations = Operations(cache)
    with pytest.raises(CacheUnavailableError, match="down"):
        operations.call(KEY, charge)
    assert charge.made == 0


def test_earlier_result_that_cannot_be_read_is_an_error(charge):
    cache = Down(lambda step, record: step == "peek")
    operations = Operations(cache)
    operations.call(KEY, charge)
    with pytest.raises(CacheUnavailableError):
        operations.call(KEY, charge)
    assert charge.made == 1


def test_store_lost_during_the_call_does_not_lose_the_result(charge, recorder):
    operations = Operations(Down(lambda step, record: step == "succeed"), listeners=[recorder])
    assert operations.call(KEY, charge) == {"receipt": 1}
    (event,) = recorder.events
    assert (type(event), event.key) == (OperationUnrecorded, KEY)
    assert type(event.error) is CacheUnavailableError
    with pytest.raises(AttemptInProgressError):
        operations.call(KEY, charge)


def test_unrecorded_result_is_returned_as_json_has_it():
    operations = Operations(Down(lambda step, record: step == "succeed"))
    assert operations.call(KEY, lambda: (1, (2, 3))) == [1, [2, 3]]


def test_manual_completion_can_be_repeated_after_a_store_error():
    away = [True]
    operations = Operations(Down(lambda step, record: step == "succeed" and away[0]))
    with operations.start_once(KEY) as operation:
        with pytest.raises(CacheUnavailableError):
            operation.complete(17)
        away.clear(), away.append(False)
        operation.complete(17)
    assert operations.call(KEY, int) == 17


def test_failure_that_cannot_be_saved_is_raised_with_a_note():
    operations = Operations(Down(lambda step, record: step == "fail"))
    with pytest.raises(Lost) as caught:
        operations.call(KEY, Charge(Lost()))
    (note,) = caught.value.__notes__
    assert note.startswith("the operation 'order-17/charge' could not be left as failed: CacheUn")


def test_lost_attempt_that_cannot_be_saved_prevents_the_call(charge):
    down = [True]
    cache = Down(lambda step, record: step == "fail" and down[0])
    operations = Operations(cache)
    cache.lost = "a crashed one"
    with pytest.raises(CacheUnavailableError):
        operations.call(KEY, charge)
    down[0] = False
    cache.lost = "a crashed one"
    assert operations.start_once(KEY).attempt == 2
    assert charge.made == 0


@pytest.mark.statement("S1-81")
def test_late_completion_is_rejected(operations, cache):
    def taken_over():
        cache.forget(operations.scoped_key(KEY))
        operations.call(KEY, lambda: "the other's")
        return "the late one's"

    with pytest.raises(LeaseLostError, match="no longer held by") as caught:
        operations.call(KEY, taken_over)
    assert not hasattr(caught.value, "__notes__")
    assert operations.call(KEY, int) == "the other's"


def test_late_manual_completion_raises_without_a_note(operations, cache):
    with pytest.raises(LeaseLostError) as caught, operations.start_once(KEY) as operation:
        cache.forget(operations.scoped_key(KEY))
        operation.complete()
    assert not hasattr(caught.value, "__notes__")


def test_late_failure_changes_nothing(operations, cache):
    with pytest.raises(Lost), operations.start_once(KEY):
        cache.forget(operations.scoped_key(KEY))
        operations.call(KEY, lambda: "the other's")
        raise Lost
    assert operations.call(KEY, int) == "the other's"


def test_completion_marker_without_a_result_is_not_a_result(operations, cache):
    claim = cache.begin(operations.scoped_key(KEY), worker="another")
    cache.succeed(claim, remember=60)
    with pytest.raises(AlreadyCompletedError):
        operations.call(KEY, int)


KNOWN = {"outcome_unknown": False}


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        (KNOWN, "has no result"),
        ({"result": 1}, "is not from an operation"),
        (KNOWN | {"result": 1, "fingerprint": 17}, "is not from an operation"),
        (KNOWN | {"result": math.nan}, "result must be a JSON value"),
    ],
    ids=["no result", "nothing known", "no fingerprint", "no JSON"],
)
def test_record_without_an_operation_result_cannot_be_read(clock, attributes, problem):
    operations = Operations(MemoryRetryContextCache(clock=clock))
    claim = operations.cache.begin(operations.scoped_key(KEY), worker="another")
    record = Record(phase="done", attributes=attributes)
    operations.cache.succeed(claim, remember=60, record=record)
    with pytest.raises(CacheUnavailableError, match=f"under 'operations/.*'.* {problem}"):
        operations.call(KEY, int)


@pytest.mark.parametrize(
    "attributes",
    [None, {}, {"outcome_unknown": "yes"}, {"outcome_unknown": 1}, KNOWN | {"fingerprint": [1]}],
    ids=["none", "empty", "text", "number", "fingerprint"],
)
def test_function_is_not_called_when_the_record_cannot_be_read(
    operations, cache, charge, attributes
):
    key = operations.scoped_key(KEY)
    cache.swap(key, Record(failures=1, attributes=attributes), 0)
    for _ in range(2):
        problem = r"under 'operations/.*' is not from an operation"
        with pytest.raises(CacheUnavailableError, match=problem):
            operations.call(KEY, charge)
    assert charge.made == 0
    cache.forget(key)
    assert operations.call(KEY, charge) == {"receipt": 1}


def test_result_that_expires_during_the_read_is_missing(clock):
    class Late(MemoryRetryContextCache):
        def peek(self, key):
            clock.advance(86_400)
            return super().peek(key)

    operations = Operations(Late(clock=clock))
    assert [operations.call(KEY, lambda: "first"), operations.call(KEY, lambda: "second")] == [
        "first",
        "second",
    ]


class Interrupting(MemoryRetryContextCache):
    """A signal interrupts one step, before or after it is made."""

    def __init__(self, step, *, made):
        super().__init__()
        self.step, self.made = step, made

    def cut(self, step, *args, **kwargs):
        interrupts, self.step = self.step == step, self.step if self.step != step else None
        if not interrupts or self.made:
            value = getattr(super(), step)(*args, **kwargs)
        if interrupts:
            raise KeyboardInterrupt
        return value

    def begin(self, *args, **kwargs):
        return self.cut("begin", *args, **kwargs)

    def succeed(self, *args, **kwargs):
        return self.cut("succeed", *args, **kwargs)

    def fail(self, *args, **kwargs):
        return self.cut("fail", *args, **kwargs)


@pytest.mark.parametrize("made", [False, True])
def test_signal_in_the_reservation_leaves_the_key_free(made, charge):
    operations = Operations(Interrupting("begin", made=made))
    with pytest.raises(KeyboardInterrupt):
        operations.call(KEY, charge)
    assert charge.made == 0
    assert operations.start_once(KEY).attempt == 1


@pytest.mark.parametrize("made", [False, True])
def test_signal_in_the_completion_keeps_the_result(made, charge):
    operations = Operations(Interrupting("succeed", made=made))
    with pytest.raises(KeyboardInterrupt) as caught:
        operations.call(KEY, charge)
    assert not hasattr(caught.value, "__notes__")
    assert operations.call(KEY, charge) == {"receipt": 1}


@pytest.mark.parametrize("made", [False, True])
def test_signal_while_a_failure_is_saved_keeps_the_failure(made):
    for by_hand in (False, True):
        operations = Operations(Interrupting("fail", made=made))
        with pytest.raises(KeyboardInterrupt) as caught:
            if by_hand:
                with operations.start_once(KEY):
                    raise Lost
            operations.call(KEY, Charge(Lost()))
        assert type(caught.value.__context__) is Lost
        assert operations.start_once(KEY).attempt == 2


def test_signal_during_the_release_of_the_key_is_not_swallowed(operations, cache, monkeypatch):
    operations.start_once(KEY, fingerprint=1).fail()

    def interrupted(claim):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        operations.start_once(KEY, fingerprint=2)


def test_signal_during_the_release_after_a_lookup_is_not_swallowed(cache, monkeypatch):
    operations = looking(cache, lambda key: "no result")

    def interrupted(claim):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        operations.call(KEY, int)


def by_call(operations, effect):
    operations.call(KEY, effect)


def by_lookup(operations, effect):
    evolve(operations, lookup=lambda key: None).call("failed", effect)


def by_hand(operations, effect):
    with operations.start_once(KEY, fingerprint=1) as operation:
        operation.complete(effect())


def of_another_request(operations, effect):
    operations.start_once("failed", fingerprint=2)


def by_replay(operations, effect):
    operations.call("completed", effect)


def in_a_loop(operations, effect):
    async def awaited():
        await asyncio.sleep(0)
        return effect()

    asyncio.run(operations.call_async(KEY, awaited))


def cut(driver, effect, signal):
    """The remaining state after the signal."""
    cache, swallowed = MemoryRetryContextCache(), signal.number < sys.maxsize
    operations = Operations(cache)
    operations.call("completed", int)
    operations.start_once("failed", fingerprint=1).fail(outcome_unknown=True)
    try:
        with signal:
            driver(operations, effect)
    except Signal:
        swallowed = False
    except (Lost, IdempotencyKeyReusedError):
        pass
    left = {"a signal": swallowed, "the key": bool(cache._claims), "the name": _operation()}
    return [f"{what} after {signal.where}" for what, stays in left.items() if stays]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize(
    ("driver", "failures"),
    [
        (by_call, []),
        (by_call, [Lost()]),
        (by_lookup, []),
        (by_hand, []),
        (by_hand, [Lost()]),
        (of_another_request, []),
        (by_replay, []),
        (in_a_loop, [Lost()]),
    ],
)
def test_signal_at_any_instruction_frees_the_key(driver, failures):
    assert left_behind(lambda signal: cut(driver, Charge(*failures), signal)) == []


def test_listener_that_raises_base_exception_frees_the_key(operations, recorder, monkeypatch):
    operations.start_once(KEY).fail(outcome_unknown=True)

    def interrupted(event):
        raise KeyboardInterrupt

    monkeypatch.setattr(recorder, "on_event", interrupted)
    with pytest.raises(KeyboardInterrupt):
        operations.start_once(KEY)
    monkeypatch.undo()
    assert operations.start_once(KEY).attempt == 2


# -- asynchronous ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
def test_asynchronous_methods_have_the_same_results(loop, operations):
    async def main():
        async with await operations.start_once_async(KEY, fingerprint=1) as operation:
            await operation.fail_async(outcome_unknown=True)
        async with await operations.start_once_async(KEY, fingerprint=1) as operation:
            assert (operation.attempt, operation.outcome_unknown) == (2, True)
            assert await operation.complete_async((1, 2)) == [1, 2]
        assert (await operations.start_once_async(KEY)).result.value == [1, 2]
        with pytest.raises(MisuseError):
            async with await operations.start_once_async("another"):
                pass

    loop.run(main)


async def cancelled_in_asyncio(call):
    async def cuts():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        await call(cuts)
    asyncio.current_task().uncancel()


async def cancelled_in_trio(call):
    async def cuts():
        scope.cancel()
        await trio.lowlevel.checkpoint()

    with trio.CancelScope() as scope:
        await call(cuts)
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("loop", "cancelled"),
    list(zip(LOOPS, [cancelled_in_asyncio, cancelled_in_trio], strict=True)),
    ids=["asyncio", "trio"],
)
def test_cancelled_operation_can_be_repeated_with_unknown_outcome(loop, cancelled, operations):
    async def main():
        await cancelled(lambda effect: operations.call_async(KEY, effect))

    loop.run(main)
    assert operations.start_once(KEY).outcome_unknown


def test_closed_coroutine_ends_its_operation(operations):
    async def suspended():
        await asyncio.Event().wait()

    async def by_hand():
        async with await operations.start_once_async("by hand"):
            await asyncio.Event().wait()

    async def main():
        for coroutine in (operations.call_async(KEY, suspended), by_hand()):
            coroutine.send(None)
            coroutine.close()

    asyncio.run(main())
    assert operations.start_once(KEY).outcome_unknown
    assert operations.start_once("by hand").outcome_unknown


class Awaited:
    """A cache with asynchronous steps, in any loop."""

    blocking = False
    record_limit = None

    def __init__(self):
        self.cache = MemoryRetryContextCache()

    def __getattr__(self, name):
        async def step(*args, connection=None, record=None, **kwargs):
            await checkpoint()
            if record is not None:
                kwargs["record"] = record
            return getattr(self.cache, name)(*args, **kwargs)

        return step


@pytest.mark.parametrize(
    ("loop", "cancelled"),
    list(zip(LOOPS, [cancelled_in_asyncio, cancelled_in_trio], strict=True)),
    ids=["asyncio", "trio"],
)
def test_cancellation_does_not_prevent_the_failure_from_being_saved(loop, cancelled):
    async def main():
        operations = Operations(Awaited())
        await cancelled(lambda effect: operations.call_async(KEY, effect))
        operation = await operations.start_once_async(KEY)
        assert (operation.attempt, operation.outcome_unknown) == (2, True)
        await operation.complete_async()

    loop.run(main)


def test_closed_block_leaves_the_key_to_its_lease_without_a_loop():
    operations = Operations(Awaited())

    class Forever:
        def __await__(self):
            yield self

    async def by_hand():
        async with await operations.start_once_async(KEY):
            await Forever()

    @types.coroutine
    def until_it_waits(coroutine):
        while not isinstance(waits := coroutine.send(None), Forever):
            yield waits

    async def main():
        coroutine = by_hand()
        await until_it_waits(coroutine)
        coroutine.close()
        with pytest.raises(AttemptInProgressError):
            await operations.start_once_async(KEY)

    asyncio.run(main())


def test_coroutine_function_in_a_synchronous_call_is_misuse(operations, charge):
    with pytest.raises(MisuseError, match=r"awaited.* returned an awaitable"):
        operations.call(KEY, charge.awaited)
    assert charge.made == 0


def test_blocking_store_is_rejected_in_asynchronous_use(charge):
    operations = Operations(Blocking())

    async def main():
        for use in (
            operations.start_once_async(KEY),
            operations.call_async(KEY, charge.awaited),
            operations.idempotent(lambda: KEY).call_async(charge.awaited),
        ):
            with pytest.raises(MisuseError, match="Blocking blocks"):
                await use

    asyncio.run(main())


# -- as a strategy ---------------------------------------------------------------------------------


def test_wrapped_function_gets_its_key_from_the_arguments(operations, charge):
    once = operations.idempotent(lambda order, amount: (order, "charge"))
    assert isinstance(once, Strategy)

    @once.wrap
    def pay(order, amount):
        return charge(amount)

    assert [pay("a", 30), pay("a", 30), pay("b", amount=1)] == [
        {"receipt": 30},
        {"receipt": 30},
        {"receipt": 31},
    ]


def test_coroutine_function_is_wrapped(operations, charge):
    @operations.idempotent(lambda order: order).wrap
    async def pay(order):
        return await charge.awaited()

    async def main():
        return [await pay("a"), await pay("a")]

    assert asyncio.run(main()) == [{"receipt": 1}] * 2


def test_fingerprint_is_made_from_the_arguments(operations, charge):
    once = operations.idempotent(
        lambda order, amount: order, fingerprint=lambda order, amount: amount
    )
    once.call(lambda order, amount: charge(amount), "a", 30)
    with pytest.raises(IdempotencyKeyReusedError):
        once.call(lambda order, amount: charge(amount), "a", 31)


def test_rejection_by_an_inner_breaker_is_not_an_attempt(operations, charge):
    breaker = CircuitBreaker("provider", window=Consecutive(1))
    with pytest.raises(Lost):
        operations.call("another", breaker.call, Charge(Lost()))
    with pytest.raises(CircuitOpenError):
        operations.call(KEY, breaker.call, charge)
    assert operations.start_once(KEY).attempt == 1


def test_retries_inside_are_one_operation(operations):
    charge = Charge(Lost(), Lost())
    retries = RetryTemplate(SimpleRetryPolicy(3))
    assert operations.call(KEY, retries.call, charge) == {"receipt": 1}
    assert operations.call(KEY, retries.call, charge) == {"receipt": 1}


# -- what it is made of ----------------------------------------------------------------------------


class OfOld(MemoryRetryContextCache):
    def succeed(self, claim, *, connection=None, remember=None):
        super().succeed(claim, connection=connection, remember=remember)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"cache": {}}, TypeError, "cache must be an object with the methods begin, renew"),
        ({"cache": OfOld()}, TypeError, r"cache must keep a result: succeed\(\) needs the param"),
        ({"ttl": 0}, ValueError, "ttl must be a number of seconds or a datetime.timedelta > 0"),
        ({"ttl": "day"}, TypeError, "ttl must be"),
        ({"lease": -1}, ValueError, "lease must be .* got -1"),
        ({"lookup": "up"}, TypeError, "lookup must be a function of the key or None, got 'up'"),
        ({"name": " "}, TypeError, "name must be a non-blank str, got ' '"),
        ({"listeners": [1]}, TypeError, "listeners: each must be an object with the methods"),
    ],
)
def test_settings_out_of_range_are_rejected(settings, error, message):
    with pytest.raises(error, match=message):
        Operations(**settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["order"], "key must be callable"), ([str.upper, "x"], "fingerprint must be callable")],
)
def test_wrong_type_of_function_is_rejected(arguments, message):
    key, *fingerprint = arguments
    with pytest.raises(TypeError, match=message):
        Operations().idempotent(key, **({"fingerprint": fingerprint[0]} if fingerprint else {}))


def test_key_must_be_valid_for_a_template(operations):
    with pytest.raises(InconsistentKeyError):
        operations.start_once(None)


def test_times_may_be_timedeltas():
    operations = Operations(ttl=timedelta(days=2), lease=timedelta(minutes=1))
    assert (operations.ttl, operations.lease) == (172_800.0, 60.0)


def test_lease_argument_replaces_the_lease_of_the_store():
    calls = []

    class RecordingCache(MemoryRetryContextCache):
        def begin(self, key, **how):
            calls.append(how["lease"])
            return super().begin(key, **how)

    Operations(RecordingCache()).call("a", int)
    Operations(RecordingCache(), lease=5).call("a", int)
    assert calls == [None, 5]


def test_repr_of_an_operation_has_key_and_attempt(operations):
    operation = operations.start_once(KEY)
    assert repr(operation) == "<Operation 'order-17/charge' attempt=1 result=None>"
    assert operation.fence > 0
    operation.complete()
    assert operations.start_once(KEY).fence is None


def test_calls_leave_no_cycle(operations):
    gc.collect()
    gc.disable()
    try:
        operations.call(KEY, int)
        with pytest.raises(AttemptInProgressError):
            operations.call("a", operations.call, "a", int)
        gc_after = gc.collect()
    finally:
        gc.enable()
    assert gc_after == 0

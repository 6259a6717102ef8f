"""The rules of one message, without a runtime."""

import asyncio
import logging
import re
from pathlib import Path

import pytest

from retrytemplate.errors import (
    AlreadyCompletedError,
    AttemptInProgressError,
    AttemptTimeoutError,
    CacheUnavailableError,
    CircuitOpenError,
    ExclusiveRequiredError,
    LeaseLostError,
    RetryLater,
    TerminatedRetryError,
)
from retrytemplate.workers import DeadLetter, Message, RedeliveryPolicy, Release
from retrytemplate.workers.crash_attribution import RetryRequested
from retrytemplate.workers.engine import (
    OUTCOMES,
    Action,
    Attempted,
    DeadLettered,
    Delay,
    Emit,
    EnterGate,
    Execute,
    Interrupted,
    LeaveGate,
    Outcome,
    Rules,
    Settle,
    process,
    process_undecodable,
)

MESSAGE = Message("m-1", b"")
SUPPORTED = Rules(RedeliveryPolicy(not_on=KeyError), supports_delay=True)
LOCAL = Rules(RedeliveryPolicy(), max_local_delay=60.0)


def letter(phase="handler"):
    return DeadLetter("l", "k", "bad row", phase, 1, 0, (), 0.0, 0.0, MESSAGE)


def driven(steps, *attempts, gate=None, settled=None):
    """Perform the effects; the executions end as given."""
    effects, endings, reply = [], iter(attempts), None
    while True:
        try:
            effect = steps.send(reply)
        except StopIteration as end:
            return effects, end.value
        effects.append(effect)
        reply = None, None
        if isinstance(effect, EnterGate):
            reply = None, gate
        elif isinstance(effect, Execute):
            reply = next(endings), None
        elif isinstance(effect, Settle):
            reply = None, settled


def handler(error, **fields):
    return Attempted(None, error, is_handlers=True, **fields)


def template(error, **fields):
    return Attempted(None, error, **fields)


ROWS = [
    (Outcome.COMPLETED, [Attempted("value")]),
    (Outcome.RETRY_REQUESTED, [handler(RetryRequested("busy", 2.0), delay=2.0)]),
    (Outcome.REJECTED, [Attempted(DeadLettered(letter(), True))]),
    (Outcome.RELEASED, [template(Interrupted(Release("later")))]),
    (Outcome.FAILED, [handler(ConnectionError("unreachable"), delay=2.0)]),
    (Outcome.FAILED_UNLISTED, [handler(ValueError("bad"), delay=2.0)]),
    (
        Outcome.EXHAUSTED,
        [handler(KeyError("id"), is_last=True), Attempted(DeadLettered(letter(), False))],
    ),
    (Outcome.TIMED_OUT, [handler(AttemptTimeoutError("30 s"), delay=2.0)]),
    (Outcome.DEFERRED, [template(RetryLater("early", retry_after=2.0), delay=2.0)]),
    (Outcome.DEFERRED, [template(Interrupted(CircuitOpenError("open")), delay=2.0)]),
    (Outcome.IN_PROGRESS, [template(AttemptInProgressError("held"), delay=2.0)]),
    (Outcome.ALREADY_COMPLETED, [template(AlreadyCompletedError("done"))]),
    (Outcome.LEASE_LOST, [template(LeaseLostError("taken over"))]),
    (Outcome.STORE_UNAVAILABLE, [template(CacheUnavailableError("unreachable"))]),
    (Outcome.STORE_UNAVAILABLE, [template(TerminatedRetryError("full"))]),
    (Outcome.CANCELLED, [handler(asyncio.CancelledError())]),
    (Outcome.CRASHED, [Attempted(DeadLettered(letter("crash"), False))]),
    (
        Outcome.LETTER_NOT_WRITTEN,
        [template(OSError("unreachable"), is_recoverys=True, delay=2.0)],
    ),
]


@pytest.mark.parametrize(("outcome", "attempts"), ROWS)
@pytest.mark.statement("S1-70")
def test_row_of_the_table_is_followed(outcome, attempts):
    effects, result = driven(process(SUPPORTED), *attempts)
    assert (result.outcome, result.action) == (outcome, OUTCOMES[outcome].action)
    settled = [each.action for each in effects if isinstance(each, Settle)]
    in_execution = result.action in (Action.DEAD_LETTER, Action.NONE)
    assert settled == ([] if in_execution else [result.action])
    assert effects[-2:] == [LeaveGate(), Emit("settled", result)]


def test_table_of_the_page_equals_the_code():
    text = (Path(__file__).parents[2] / "docs/guide/messages.md").read_text(encoding="utf-8")
    rows = re.search(r"<!-- outcomes -->\n.*\n.*\n((?:\|.*\n)+)", text)[1]
    expected = []
    for row in OUTCOMES.values():
        level = f"{logging.getLevelName(row.level)} " if row.level else ""
        expected.append(f"| {row.cause} | {row.context} | {row.action} | {level}|")
    assert rows.splitlines() == expected


def test_each_row_of_the_table_has_its_test():
    elsewhere = {
        Outcome.UNDECODABLE,
        Outcome.LOST_SHARED,
        Outcome.LOST_EXCLUSIVE,  # in the simulator: it is followed by another row
        Outcome.GATE_TIMED_OUT,
    }
    assert {outcome for outcome, _ in ROWS} | elsewhere == set(OUTCOMES) == set(Outcome)


def test_requeue_passes_delay_and_reason_to_the_queue():
    effects, _ = driven(process(SUPPORTED), handler(ConnectionError("unreachable"), delay=2.0))
    assert Settle(Action.REQUEUE, 2.0, "unreachable") in effects


def test_order_is_gate_execution_settlement_gate_left():
    effects, result = driven(process(SUPPORTED), Attempted("value"))
    assert effects == [
        EnterGate(False),
        Execute(False),
        Settle(Action.ACKNOWLEDGE, 0.0, ""),
        LeaveGate(),
        Emit("settled", result),
    ]


def test_suspect_leaves_the_gate_before_its_exclusive_attempt():
    required = template(ExclusiveRequiredError("lost"))
    effects, _ = driven(process(SUPPORTED), required, Attempted("value"))
    kinds = [each for each in effects if not isinstance(each, Emit)]
    assert kinds == [
        *(EnterGate(False), Execute(False), LeaveGate()),
        *(EnterGate(True), Execute(True), Settle(Action.ACKNOWLEDGE, 0.0, ""), LeaveGate()),
    ]
    assert [each.event for each in effects if isinstance(each, Emit)] == ["suspected", "settled"]


def test_known_suspect_enters_exclusively_at_once():
    effects, _ = driven(process(SUPPORTED, is_suspect=True), Attempted("value"))
    assert effects[:2] == [EnterGate(True), Execute(True)]


def test_last_failure_runs_the_recovery_in_the_same_delivery():
    effects, _ = driven(process(SUPPORTED), *ROWS[6][1])
    assert [each for each in effects if isinstance(each, Execute)] == [Execute(False)] * 2


def test_delayed_message_leaves_the_gate_and_is_not_settled():
    effects, _ = driven(process(LOCAL), handler(ConnectionError(), delay=60.0))
    assert effects[-1] == Delay(60.0, False)
    assert LeaveGate() in effects
    assert not [each for each in effects if isinstance(each, Settle)]


def test_delay_above_the_local_limit_is_left_to_the_visibility_timeout():
    effects, result = driven(process(LOCAL), handler(ConnectionError(), delay=61.0))
    assert result.action is Action.NONE
    assert not [each for each in effects if isinstance(each, Settle | Delay)]


def test_owned_message_is_kept_for_any_delay():
    rules = Rules(RedeliveryPolicy(), keeps=True)
    effects, _ = driven(process(rules), handler(ConnectionError(), delay=3600.0))
    assert effects[-1] == Delay(3600.0, False)


def test_exclusive_attempt_that_waits_too_long_is_released():
    effects, result = driven(process(SUPPORTED, is_suspect=True), gate=TimeoutError())
    assert result.outcome is Outcome.GATE_TIMED_OUT
    assert effects[1:] == [Settle(Action.RELEASE, 0.0, ""), Emit("exclusive_timed_out", result)]


def test_message_cancelled_before_the_gate_is_released():
    effects, result = driven(process(SUPPORTED), gate=asyncio.CancelledError())
    assert result.outcome is Outcome.CANCELLED
    assert not [each for each in effects if isinstance(each, Execute)]
    assert effects[1] == Settle(Action.RELEASE, 0.0, "")


def test_failed_settlement_is_not_reported_as_settled():
    effects, _ = driven(process(SUPPORTED), Attempted("value"), settled=OSError())
    assert effects[-1] == LeaveGate()


def test_undecodable_message_is_dead_lettered_without_gate():
    effects, result = driven(process_undecodable("no JSON"))
    assert effects == [Settle(Action.DEAD_LETTER, 0.0, "no JSON"), Emit("settled", result)]

"""The checks of a simulated cluster: each one finds its violation."""

from retrytemplate import CancelReason
from retrytemplate.workers import WorkerStopped
from retrytemplate.workers.testing.invariants import Observations


def violated(seen):
    return [text[:3].rstrip(":") for text in seen.violations]


def test_second_success_is_doubled_only_while_the_first_is_remembered():
    seen = Observations()
    seen.succeeded("m", 300.0, 0.0)
    seen.succeeded("m", 600.0, 300.0)
    assert violated(seen) == []
    seen.succeeded("m", 899.0, 599.0)
    assert violated(seen) == ["I2"]


def test_fence_is_ended_by_one_holder():
    seen = Observations()
    seen.ended("m", 1)
    seen.ended("m", 2)
    assert violated(seen) == []
    seen.ended("m", 2)
    assert violated(seen) == ["I7"]


def test_acknowledgement_without_a_success_is_a_lost_message():
    seen = Observations()
    seen.acknowledged("m", 1.0)
    assert violated(seen) == ["I1"]


def test_message_that_is_nowhere_is_lost():
    seen = Observations()
    seen.succeeded("done", 300.0, 0.0)
    seen.finish(["done", "waiting"], [], {"waiting"})
    assert violated(seen) == []
    seen.finish(["done", "waiting"], [], set())
    assert violated(seen) == ["I1"]


def test_shutdown_beyond_its_limits_is_found():
    seen = Observations()
    for elapsed in (10.0, 12.0):
        report = {"elapsed": elapsed}
        reason = CancelReason.SERVER_SHUTDOWN
        event = WorkerStopped(name="billing", queue_name="q", reason=reason, report=report)
        seen.event(0.0, event, 10.0)
    assert violated(seen) == ["I8"]


def test_crashes_of_a_message_are_at_most_one_more_than_its_limit():
    seen = Observations(max_crashes=2)
    for _ in range(3):
        seen.crashed("m", 0)
    assert violated(seen) == []
    seen.crashed("m", 0)
    assert violated(seen) == ["I3"]

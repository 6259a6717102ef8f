"""Results of executions, counted by name; and the decay of counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    CircuitBreakerRetryPolicy,
    CircuitOpenError,
    ExhaustedRetryError,
    Guard,
    KillSwitchActiveError,
    MaxAttemptsRetryPolicy,
    Rejected,
    RetryListener,
    RetryState,
    RetryTemplate,
    TerminatedRetryError,
)
from retrytemplate.listeners.statistics import KINDS, RollingStatistics, StatisticsListener
from retrytemplate.testing import VirtualClock
from retrytemplate.testing.conformance.base import in_threads
from tests.listeners.callbacks import Stopped, failing, fails

steps = st.lists(st.tuples(st.floats(0, 100), st.sampled_from(KINDS)), max_size=20)


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def statistics(clock):
    return StatisticsListener(clock=clock)


@pytest.fixture
def template(statistics, clock):
    return RetryTemplate(listeners=(statistics,), name="op", clock=clock)


def counts(statistics, name="op"):
    """The counts that are not zero."""
    found = statistics.find(name)
    return {kind: getattr(found, kind) for kind in KINDS if getattr(found, kind)}


# -- what counts as what ------------------------------------------------------------------------


def test_success_is_started_and_complete(template, statistics):
    template.call(lambda: "ok")

    assert counts(statistics) == {"started": 1, "complete": 1}


def test_stateless_execution_starts_once_per_attempt(template, statistics):
    template.execute(fails(2))

    assert counts(statistics) == {"started": 3, "error": 2, "complete": 1}


def test_exhausted_execution_is_an_abort(template, statistics):
    with pytest.raises(ConnectionError):
        template.execute(failing)

    assert counts(statistics) == {"started": 3, "error": 3, "abort": 1}


def test_recovered_execution_is_a_recovery_and_no_abort(template, statistics):
    template.execute(failing, recovery=lambda context: "instead")

    assert counts(statistics) == {"started": 3, "error": 3, "recovery": 1}


def test_stateful_execution_starts_once_and_its_failure_is_no_end(template, statistics):
    with pytest.raises(ConnectionError):
        template.execute(failing, state=RetryState("k"))

    assert counts(statistics) == {"started": 1, "error": 1}


def test_stateful_execution_that_only_recovers_is_not_started(template, statistics):
    for _ in range(3):
        with pytest.raises(ConnectionError):
            template.execute(failing, state=RetryState("k"))
    template.execute(failing, recovery=lambda context: "instead", state=RetryState("k"))

    assert counts(statistics) == {"started": 3, "error": 3, "recovery": 1}


def test_untracked_execution_counts_as_a_stateless_one(template, statistics):
    with pytest.raises(ConnectionError):
        template.execute(failing, state=RetryState.untracked())

    # The failure is rethrown at once, and the execution is no exhausted one.
    assert counts(statistics)["started"] == 2


@pytest.fixture
def behind_a_breaker(statistics, clock):
    """Calls that fail a number of times, all but the first by a rejection."""
    breaker = CircuitBreakerRetryPolicy(MaxAttemptsRetryPolicy(1))
    template = RetryTemplate(policy=breaker, listeners=(statistics,), name="op", clock=clock)
    state = RetryState("circuit", rollback_for=lambda exception: False)

    def call(times):
        for _ in range(times):
            with pytest.raises(ExhaustedRetryError):
                template.execute(failing, state=state)

    return call


def test_execution_rejected_by_a_circuit_is_started(statistics, behind_a_breaker):
    behind_a_breaker(2)

    assert counts(statistics) == {"started": 2, "error": 1, "abort": 2}


def test_circuit_attributes_are_copied(statistics, behind_a_breaker):
    behind_a_breaker(3)

    assert statistics.find("op").attributes == {"circuit.open": True, "circuit.short_count": 3}


def test_attributes_are_empty_without_a_circuit(template, statistics):
    template.call(lambda: "ok")

    assert statistics.find("op").attributes == {}


def test_cancellation_counts_no_end(template, statistics):
    def stop(context):
        raise Stopped

    with pytest.raises(Stopped):
        template.execute(stop)

    assert counts(statistics) == {"started": 1}


def test_vetoed_execution_counts_as_in_the_reference(statistics, clock):
    class No(RetryListener):
        def open(self, context):
            return False

    template = RetryTemplate(listeners=(No(), statistics), name="op", clock=clock)
    with pytest.raises(TerminatedRetryError):
        template.call(lambda: "ok")

    assert counts(statistics) == {"started": 1, "complete": 1}


def test_execution_without_a_name_is_not_counted(statistics, clock):
    template = RetryTemplate(listeners=(statistics,), clock=clock)
    with pytest.raises(ConnectionError):
        template.execute(failing)

    assert statistics.find_all() == ()


def test_name_set_during_execution_counts_from_there(statistics, clock):
    template = RetryTemplate(listeners=(statistics,), clock=clock)

    def callback(context):
        context.name = "late"
        return "ok"

    template.execute(callback)

    assert counts(statistics, "late") == {"started": 1, "complete": 1}


# -- finding --------------------------------------------------------------------------------------


def test_unknown_name_is_not_found(statistics):
    assert statistics.find("unknown") is None


def test_each_name_has_its_own_numbers(template, statistics):
    template.call(lambda: "ok")
    other = template.with_(name="other")
    other.execute(failing, recovery=lambda context: "instead")

    assert [entry.name for entry in statistics.find_all()] == ["op", "other"]
    assert counts(statistics) == {"started": 1, "complete": 1}


def test_snapshot_does_not_change(template, statistics):
    template.call(lambda: "ok")
    before = statistics.snapshot()["op"]
    template.execute(failing, recovery=lambda context: "instead")

    assert (before.started, before.complete, before.recovery, before.error) == (1, 1, 0, 0)
    assert before.rolled == {**dict.fromkeys(KINDS, 0), "started": 1, "complete": 1}


def test_snapshot_equals_the_running_numbers(template, statistics, clock):
    template.execute(fails(2))
    clock.advance(4.0)
    entry = statistics.find("op")
    snapshot = entry.snapshot()

    assert {kind: getattr(snapshot, kind) for kind in KINDS} == {
        kind: getattr(entry, kind) for kind in KINDS
    }
    assert snapshot.rolled == {kind: entry.rolled(kind) for kind in KINDS}
    assert snapshot.error_rate == entry.error_rate


# -- fading ---------------------------------------------------------------------------------------


def test_rolled_count_loses_two_thirds_in_a_window(clock):
    numbers = RollingStatistics(clock, window=10.0)
    for _ in range(100):
        numbers.increment("error")
    clock.advance(10.0)

    assert numbers.rolled("error") == round(100 / math.e)
    assert numbers.error == 100


def test_rolled_count_rounds_half_up(clock):
    numbers = RollingStatistics(clock, window=1 / math.log(2))
    numbers.increment("error")
    clock.advance(1.0)  # one half is left

    assert numbers.rolled("error") == 1


def test_error_rate_is_ratio_of_aborts_and_recoveries(clock):
    numbers = RollingStatistics(clock)
    for kind in ("started", "started", "started", "started", "abort", "recovery", "error"):
        numbers.increment(kind)

    assert numbers.error_rate == 0.5


def test_error_rate_is_zero_when_the_starts_have_decayed(clock):
    numbers = RollingStatistics(clock, window=1.0)
    numbers.increment("started", "abort")
    assert numbers.error_rate == 1.0
    clock.advance(5.0)

    assert numbers.error_rate == 0.0


@given(steps)
def test_rolled_counts_are_sums_of_decayed_events(sequence):
    clock, window = VirtualClock(), 15.0
    numbers = RollingStatistics(clock, window)
    events = []
    for wait, kind in sequence:
        clock.advance(wait)
        numbers.increment(kind)
        events.append((kind, clock.monotonic()))

    now = clock.monotonic()
    for kind in KINDS:
        left = sum(math.exp(-(now - then) / window) for each, then in events if each == kind)
        # Where the sum is next to a half either neighbour is right.
        assert abs(numbers.rolled(kind) - left) <= 0.5 + 1e-6
        assert getattr(numbers, kind) == sum(each == kind for each, _ in events)


def test_clock_read_out_of_order_by_two_threads_raises_no_count(clock):
    late = RollingStatistics(clock, window=1.0)
    clock.advance(1000.0)
    late.increment("error")
    clock._now -= 1000.0

    assert late.rolled("error") == 1


# -- threads and bad input ------------------------------------------------------------------------


def test_threads_lose_no_count():
    statistics = StatisticsListener()
    template = RetryTemplate(listeners=(statistics,), name="op")

    in_threads(lambda thread: [template.execute(fails(1)) for _ in range(100)], 8)

    assert counts(statistics) == {"started": 1600, "error": 800, "complete": 800}


def test_clock_is_not_read_under_the_lock():
    class Nosy(VirtualClock):
        def monotonic(self):
            # Would wait for ever if the lock were held.
            return numbers.started + 0.0 if numbers.attributes == {} else 0.0

    clock = Nosy()
    numbers = RollingStatistics(clock)
    numbers.increment("started")

    assert (numbers.rolled("started"), numbers.snapshot().started) == (1, 1)


@pytest.mark.parametrize("window", [0, -1.0, float("nan")])
@pytest.mark.parametrize("made", [StatisticsListener, RollingStatistics])
def test_window_must_be_above_zero(made, window):
    with pytest.raises(ValueError, match=r"window must be a number of seconds .* > 0"):
        made(window=window)


@pytest.mark.parametrize("made", [StatisticsListener, RollingStatistics])
def test_clock_without_methods_is_rejected(made):
    with pytest.raises(TypeError, match="clock must be an object with the methods monotonic, time"):
        made(clock=object())


def test_unknown_kind_cannot_be_counted():
    with pytest.raises(ValueError, match="kind must be one of started, complete"):
        RollingStatistics().increment("bogus")
    with pytest.raises(ValueError, match="kind must be one of started, complete"):
        RollingStatistics().rolled("bogus")


# -- rejections ----------------------------------------------------------------------------------


def rejected(context):
    raise CircuitOpenError("open", name="billing")


class Closed(Guard):
    def admit(self, context):
        raise Rejected("closed")


def stopped(context):
    raise KillSwitchActiveError("stop")


@pytest.mark.parametrize(
    ("callback", "settings"),
    [(rejected, {}), (failing, {"guards": (Closed(),)}), (stopped, {})],
    ids=["inside the attempt", "by a guard", "by a kill switch inside"],
)
def test_rejection_is_counted_and_is_no_error(statistics, template, callback, settings):
    template.with_(**settings).outcome(callback, None)

    found = statistics.find("op")
    assert (found.error, found.complete, found.rejected) == (0, 0, 1)


def test_statistics_have_a_short_representation(statistics, template):
    assert repr(statistics) == "<StatisticsListener of no executions>"
    template.call(int)
    found = statistics.find("op")
    counts = "started 1, complete 1, recovery 0, error 0, abort 0, rejected 0, error_rate 0"
    assert repr(found) == f"<RollingStatistics 'op': {counts}>"
    assert repr(found.snapshot()) == f"<RetryStatistics 'op': {counts}>"
    assert repr(statistics) == "<StatisticsListener of 'op'>"

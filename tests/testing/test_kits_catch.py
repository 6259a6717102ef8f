"""Each kit detects wrong components, by the test that names the fault."""

import asyncio
import itertools
import random
import sys
import threading
from types import SimpleNamespace

import pytest
from attrs import evolve, frozen

from retrytemplate import (
    Backoff,
    CircuitOpenError,
    ExceptionClassifier,
    Guard,
    MemoryRetryContextCache,
    RetryBudgetExhaustedError,
    RetryListener,
    RetryPolicy,
    StatefulRetryPolicy,
)
from retrytemplate.caches.base import Claim
from retrytemplate.caches.record import Record
from retrytemplate.errors import AlreadyCompletedError, AttemptInProgressError, LeaseLostError
from retrytemplate.testing import (
    AsyncCacheConformance,
    BackoffConformance,
    CacheConformance,
    ClassifierConformance,
    ClockConformance,
    Conformance,
    GuardConformance,
    ListenerConformance,
    PolicyConformance,
    VirtualClock,
)
from retrytemplate.testing.conformance import base
from retrytemplate.testing.conformance.cache import LONG, WORKERS
from tests.support.barriers import Meeting
from tests.testing.test_shipped_components import AsyncMemory, kit_for


class Pad:
    """What pieces write on that are wrong only where another thread comes between two lines.

    The first thread other than the main one reads only when another has written something else.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.first = []
        self.written = threading.Event()

    def through(self, value):
        """The content of the pad after the value was written."""
        if threading.current_thread() is threading.main_thread():
            return value
        with self.lock:
            is_first = not self.first
            if is_first:
                self.first.append(value)
            elif not self.written.is_set() and value != self.first[0]:
                self.other = value
                self.written.set()
        return self.other if is_first and self.written.wait(base.JOIN_TIMEOUT) else value


# -- policies ------------------------------------------------------------------------------------


class CountsOnItself(RetryPolicy):
    def __init__(self):
        self.failed = 0

    def allows(self, failures, failure):
        self.failed += failure is not None
        return self.failed < 3


class SaysOne(RetryPolicy):
    def allows(self, failures, failure):
        return failures < 3 and 1


class RefusesToBegin(RetryPolicy):
    def allows(self, failures, failure):
        return failure is not None


class TossesACoin(RetryPolicy):
    def allows(self, failures, failure):
        return failure is None or random.random() < 0.5


class NeedsNothing:
    needs_state = False
    dynamic = False


class GoesBeyondItsLimit(RetryPolicy):
    attempt_limit = 3

    def allows(self, failures, failure):
        return failures <= 3


class DeclaresZero(RetryPolicy):
    max_attempts = 0
    attempt_limit = None

    def allows(self, failures, failure):
        return True


class StopsForItsOwnReason(RetryPolicy):
    def allows(self, failures, failure):
        return failures < 3

    def stop_reason(self, failures, failure):
        return "too late"


class WorthMore(RetryPolicy):
    """Reading its numbers makes it another policy."""

    def allows(self, failures, failure):
        return failures < 3

    def resolved(self):
        return GoesBeyondItsLimit()


class Counting(StatefulRetryPolicy):
    """Right, for others to be wrong in one thing."""

    def start(self, now):
        return {"failed": 0}

    def record(self, state, failure, now):
        return {"failed": state["failed"] + 1}

    def decide(self, state, now):
        return state["failed"] < 3, state


class ChangesItsState(Counting):
    def record(self, state, failure, now):
        state["failed"] += 1
        return state


class ChangesItsStateWhenAsked(Counting):
    def decide(self, state, now):
        state["failed"] += 1
        return state["failed"] < 6, state


class CountsWhenAsked(Counting):
    """The engine asks after a failure, and again before the next attempt."""

    def record(self, state, failure, now):
        return state

    def decide(self, state, now):
        return state["failed"] < 6, {"failed": state["failed"] + 1}


class ShowsOneTooMany(Counting):
    def failures(self, state):
        return state["failed"] + 1


class ShowsTwoForOne(Counting):
    def failures(self, state):
        return state["failed"] * 2


class KeepsTheException(Counting):
    def record(self, state, failure, now):
        return {"failed": state["failed"] + 1, "last": failure}


class KeepsASet(Counting):
    def start(self, now):
        return {"failed": 0, "seen": set()}


class CountsWithTuples(Counting):
    def start(self, now):
        return (0,)

    def record(self, state, failure, now):
        return (*state, 1)

    def decide(self, state, now):
        return len(state) < 3, state


class KeepsKeysOfNumbers(Counting):
    """JSON converts its keys to strings, and the count restarts."""

    def start(self, now):
        return {}

    def record(self, state, failure, now):
        return {**state, 1: state.get(1, 0) + 1}

    def decide(self, state, now):
        return state.get(1, 0) < 3, state


class RemembersOutside(Counting):
    last = None

    def record(self, state, failure, now):
        type(self).last = failure
        return super().record(state, failure, now)


class SharesAScratchPad(Counting):
    def __init__(self):
        self.pad = Pad()

    def record(self, state, failure, now):
        return {"failed": self.pad.through(state["failed"]) + 1}


class SaysMaybe(Counting):
    def matches_library_error(self, failure):
        return None


class ShowsAnObject(Counting):
    def attributes(self, state):
        return {"me": self}


class AnswersOnlyAtTheRoot(Counting):
    """Its verdict depends on its position in a tree."""

    def __and__(self, other):
        return other


POLICIES = [
    (CountsOnItself, "test_the_same_course_of_events_gets_the_same_verdicts"),
    (CountsOnItself, "test_executions_do_not_mix"),
    (CountsOnItself, "test_it_is_frozen"),
    (CountsOnItself, "test_use_leaves_it_as_it_was"),
    (SaysOne, "test_a_verdict_is_true_or_false"),
    (RefusesToBegin, "test_the_first_attempt_is_allowed"),
    (TossesACoin, "test_the_same_course_of_events_gets_the_same_verdicts"),
    (NeedsNothing, "test_it_is_a_policy"),
    (GoesBeyondItsLimit, "test_there_is_no_attempt_after_the_limit"),
    (DeclaresZero, "test_declared_numbers_of_attempts_are_counts"),
    (StopsForItsOwnReason, "test_a_stop_reason_is_one_of_the_words"),
    (WorthMore, "test_reading_its_numbers_does_not_change_its_verdicts"),
    (ChangesItsState, "test_a_state_is_never_changed_in_place"),
    (ChangesItsStateWhenAsked, "test_a_state_is_never_changed_in_place"),
    (CountsWhenAsked, "test_asking_twice_is_asking_once"),
    (ShowsOneTooMany, "test_the_failures_that_it_shows_have_happened"),
    (ShowsTwoForOne, "test_the_failures_that_it_shows_have_happened"),
    (KeepsTheException, "test_the_state_is_json_and_decides_alike_elsewhere"),
    (KeepsTheException, "test_it_lets_go_of_failures"),
    (KeepsASet, "test_the_state_is_json_and_decides_alike_elsewhere"),
    (CountsWithTuples, "test_the_state_is_json_and_decides_alike_elsewhere"),
    (KeepsKeysOfNumbers, "test_the_state_is_json_and_decides_alike_elsewhere"),
    (RemembersOutside, "test_it_lets_go_of_failures"),
    (SharesAScratchPad, "test_threads_share_it"),
    (SaysMaybe, "test_its_properties_have_the_right_types"),
    (ShowsAnObject, "test_its_properties_have_the_right_types"),
    (AnswersOnlyAtTheRoot, "test_it_decides_alike_as_a_member_of_a_tree"),
]


# -- backoffs ------------------------------------------------------------------------------------


class Doubling(Backoff):
    """Right, for others to be wrong in one thing."""

    def start(self):
        return [1.0]

    def next(self, state, failure, random):
        return state[0], [min(state[0] * 2, 30.0)]


class DoublesForEver(Doubling):
    def next(self, state, failure, random):
        return float(2 ** int(state[0])), [state[0] + 1]


class OvershootsDownwards(Doubling):
    def next(self, state, failure, random):
        return state[0] - 2 * random.random(), state


class SaysNow(Doubling):
    def next(self, state, failure, random):
        return False, state


class DoublesInPlace(Doubling):
    def next(self, state, failure, random):
        state[0] *= 2
        return state[0] / 2, state


class CountsItsCalls(Doubling):
    def __init__(self):
        self.calls = 0

    def next(self, state, failure, random):
        self.calls += 1
        return float(self.calls), state


class UsesMoreOfChance(Doubling):
    def next(self, state, failure, random):
        return random.uniform(0.5, 1.5), state


class UsesTheModule(Doubling):
    def next(self, state, failure, chance):
        return random.random(), state


class KeepsAnIterator(Doubling):
    def start(self):
        return iter([1.0] * 10_000)

    def next(self, state, failure, random):
        return next(state), state


class DelaysByTheFailure(Doubling):
    """The state holds the failure."""

    def next(self, state, failure, random):
        return 1.0, [failure]


class LiesAboutWaiting(Doubling):
    never_waits = True


class ResolvesToAnother(Doubling):
    def resolved(self):
        return OvershootsDownwards()


class SharesPad(Doubling):
    def __init__(self):
        self.pad = Pad()

    def next(self, state, failure, random):
        return self.pad.through(state[0]), [state[0] + 1]


class HalfABackoff:
    dynamic = False


BACKOFFS = [
    (HalfABackoff, "test_it_is_a_backoff"),
    (DoublesForEver, "test_it_supports_many_failures"),
    (OvershootsDownwards, "test_a_delay_is_a_finite_number_of_seconds_from_zero"),
    (SaysNow, "test_a_delay_is_a_finite_number_of_seconds_from_zero"),
    (DoublesInPlace, "test_a_state_is_never_changed_in_place"),
    (CountsItsCalls, "test_the_same_random_numbers_give_the_same_delays"),
    (CountsItsCalls, "test_executions_do_not_mix"),
    (CountsItsCalls, "test_it_is_frozen"),
    (CountsItsCalls, "test_use_leaves_it_as_it_was"),
    (UsesMoreOfChance, "test_a_delay_is_a_finite_number_of_seconds_from_zero"),
    (UsesTheModule, "test_it_uses_only_the_random_source_that_is_passed"),
    (KeepsAnIterator, "test_state_is_json_that_continues_in_another_process"),
    (DelaysByTheFailure, "test_it_lets_go_of_failures"),
    (LiesAboutWaiting, "test_one_that_never_waits_has_no_delays"),
    (ResolvesToAnother, "test_reading_its_numbers_does_not_change_its_delays"),
    (SharesPad, "test_threads_share_it"),
]


# -- classifiers ---------------------------------------------------------------------------------


class CachesWhatItFinds:
    """A classified exception becomes a rule for related classes."""

    def __init__(self):
        self.rules = {}

    def classify(self, exc):
        for kind, value in self.rules.items():
            if isinstance(exc, kind):
                return value
        self.rules[type(exc).__base__] = isinstance(exc, ValueError)
        return isinstance(exc, ValueError)


class FirstSeenWins:
    seen = ()

    def classify(self, exc):
        FirstSeenWins.seen = (*FirstSeenWins.seen, type(exc))
        return len(FirstSeenWins.seen) < 5


class FollowsCausesForEver:
    def classify(self, exc):
        while exc is not None:
            if isinstance(exc, OSError):
                return True
            exc = exc.__cause__
        return False


class FollowsCausesDeeper:
    def classify(self, exc):
        return exc is not None and (isinstance(exc, OSError) or self.classify(exc.__cause__))


class ReadsTheText:
    def classify(self, exc):
        return "peer" in str(exc)


class LeavesAMark:
    def classify(self, exc):
        if exc is not None:
            exc.classified = True
        return True


class RemembersTheLast:
    def __init__(self):
        self.last = None

    def classify(self, exc):
        self.last = exc
        return True


class SharesAPad:
    def __init__(self):
        self.pad = Pad()

    def classify(self, exc):
        return self.pad.through(isinstance(exc, OSError))


CLASSIFIERS = [
    (CachesWhatItFinds, "test_the_order_of_the_failures_does_not_matter"),
    (CachesWhatItFinds, "test_use_leaves_it_as_it_was"),
    (FirstSeenWins, "test_the_same_failure_gets_the_same_value"),
    (FollowsCausesForEver, "test_circles_of_causes_end"),
    (FollowsCausesDeeper, "test_circles_of_causes_end"),
    (ReadsTheText, "test_an_exception_without_text_is_classified"),
    (LeavesAMark, "test_failures_stay_as_they_are"),
    (RemembersTheLast, "test_it_lets_go_of_failures"),
    (RemembersTheLast, "test_it_is_frozen"),
    (SharesAPad, "test_threads_share_it"),
]


# -- clocks --------------------------------------------------------------------------------------


class GoesBack(VirtualClock):
    def monotonic(self):
        return -super().monotonic()


class DoesNotSleep(VirtualClock):
    def sleep(self, delay):
        pass

    async def sleep_async(self, delay):
        await super().sleep_async(0.0)


class SleepsHalf(VirtualClock):
    def sleep(self, delay):
        super().sleep(delay / 2)

    async def sleep_async(self, delay):
        await super().sleep_async(delay / 2)


class GivesNoWay(VirtualClock):
    async def sleep_async(self, delay):
        self.sleep(delay)


class RefusesNothing(VirtualClock):
    def sleep(self, delay):
        if not delay:
            raise ValueError("nothing to sleep")
        super().sleep(delay)


class HasNoTime(VirtualClock):
    def time(self):
        return None


class SwallowsCancellation(VirtualClock):
    async def sleep_async(self, delay):
        try:
            await super().sleep_async(delay)
        except BaseException:
            self.advance(delay)


class Stopwatch:
    def monotonic(self):
        return 0.0


class WavesInThreads(VirtualClock):
    def sleep(self, delay):
        here = threading.current_thread()
        self.advance(-2.0) if here is not threading.main_thread() else super().sleep(delay)

    def advance(self, seconds):
        self._now += seconds


CLOCKS = [
    (Stopwatch, "test_it_is_a_clock"),
    (GoesBack, "test_the_monotonic_time_never_goes_back"),
    (DoesNotSleep, "test_a_sleep_takes_its_time"),
    (DoesNotSleep, "test_an_asynchronous_sleep_takes_its_time"),
    (SleepsHalf, "test_a_sleep_takes_its_time"),
    (SleepsHalf, "test_an_asynchronous_sleep_takes_its_time"),
    (GivesNoWay, "test_other_tasks_run_during_an_asynchronous_sleep"),
    (GivesNoWay, "test_a_cancellation_is_delivered_in_an_asynchronous_sleep"),
    (SwallowsCancellation, "test_a_cancellation_is_delivered_in_an_asynchronous_sleep"),
    (RefusesNothing, "test_a_sleep_of_nothing_returns"),
    (HasNoTime, "test_both_times_are_finite_numbers_of_seconds"),
    (WavesInThreads, "test_threads_share_it"),
]


# -- guards --------------------------------------------------------------------------------------


class Budget(Guard):
    """Right, for others to be wrong in one thing."""

    def __init__(self):
        self.left = 5

    def reserve(self, context, delay):
        if not self.left:
            raise RetryBudgetExhaustedError("used up", name="budget", retry_after=1.0)
        self.left -= 1

    def release(self, context):
        self.left += 1


class KeepsWhatItLent(Budget):
    def release(self, context):
        pass


class ChargesForRefusals(Budget):
    def reserve(self, context, delay):
        self.left -= 1
        if self.left < 0:
            raise RetryBudgetExhaustedError("used up")


class RaisesSomethingElse(Budget):
    def admit(self, context):
        if not self.left:
            raise RuntimeError("used up")


class RaisesOneObject(Budget):
    refusal = CircuitOpenError("open")

    def reserve(self, context, delay):
        raise self.refusal


class SaysComeBackYesterday(Budget):
    def reserve(self, context, delay):
        raise CircuitOpenError("open", retry_after=-1.0)


class RefusesAll(Guard):
    def admit(self, context):
        raise CircuitOpenError("open")


class LeavesItsLockTaken(Budget):
    """A call after a rejection would block; here it raises instead."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.left_taken = False

    def reserve(self, context, delay):
        while not self.lock.acquire(timeout=0.01):
            assert not self.left_taken, "stuck"
        self.left_taken = not self.left
        super().reserve(context, delay)
        self.lock.release()


class NoGuard:
    def admit(self, context):
        pass


GUARDS = [
    (NoGuard, "test_it_is_a_guard"),
    (KeepsWhatItLent, "test_a_released_reservation_can_be_reserved_again"),
    (KeepsWhatItLent, "test_an_interrupted_wait_is_released"),
    (ChargesForRefusals, "test_a_rejection_reserves_nothing"),
    (RaisesSomethingElse, "test_repeated_failures_raise_rejections_only"),
    (RaisesOneObject, "test_every_rejection_is_an_object_of_its_own"),
    (SaysComeBackYesterday, "test_a_rejection_has_a_valid_retry_after_or_none"),
    (RefusesAll, "test_a_first_call_is_admitted"),
    (LeavesItsLockTaken, "test_threads_share_it"),
]


# -- listeners -----------------------------------------------------------------------------------


class Raises(RetryListener):
    def on_error(self, context, exception):
        raise RuntimeError("the listener's own")


class Vetoes(RetryListener):
    def open(self, context):
        return False


class NeedsOpen(RetryListener):
    """Raises if its open was never called."""

    def __init__(self):
        self.names = []

    def open(self, context):
        self.names.append(context.name)

    def close(self, context, exception):
        self.names.pop()


class GivesUp(RetryListener):
    def on_backoff(self, context, delay):
        context.give_up()


class SwallowsTheEnd(RetryListener):
    def close(self, context, exception):
        if isinstance(exception, BaseException) and not isinstance(exception, Exception):
            raise ValueError("cut off")


class PutsObjectsIntoAttributes(RetryListener):
    def before_attempt(self, context):
        context.attributes["listener"] = self


class KeepsTheError(RetryListener):
    last = None

    def on_error(self, context, exception):
        self.last = exception


class OneAtATime(RetryListener):
    """Cannot be entered twice."""

    def __init__(self):
        self.inside = False

    def open(self, context):
        if self.inside:
            raise RuntimeError("entered twice")
        self.inside = True

    def close(self, context, exception):
        self.inside = False


class FailsInOtherThreads(RetryListener):
    def open(self, context):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("wrong thread")


class RaisesWhereTheStoreIsGone(RetryListener):
    def on_store_error(self, context, exception):
        raise RuntimeError("the listener's own")


class AsyncRaises(RetryListener):
    async def on_success(self, context, result):
        await asyncio.sleep(0)
        raise RuntimeError("the listener's own")


class RaisesAtASuccess(RetryListener):
    def on_first_success(self, name, elapsed):
        raise RuntimeError("the listener's own")


class RaisesAtTheEnd(RetryListener):
    def on_end(self, context, exception):
        raise RuntimeError("the listener's own")


LISTENERS = [
    (RaisesAtASuccess, "test_each_execution_calls_one_of_two_end_hooks"),
    (RaisesAtTheEnd, "test_calls_end_as_they_do_without_it"),
    (Stopwatch, "test_it_is_a_listener"),
    (Raises, "test_calls_end_as_they_do_without_it"),
    (AsyncRaises, "test_calls_end_as_they_do_without_it"),
    (Vetoes, "test_calls_end_as_they_do_without_it"),
    (GivesUp, "test_calls_end_as_they_do_without_it"),
    (NeedsOpen, "test_an_execution_vetoed_by_another_listener_ends_as_without_it"),
    (SwallowsTheEnd, "test_a_cancelled_call_ends_as_without_it"),
    (PutsObjectsIntoAttributes, "test_executions_with_a_state_end_as_they_do_without_it"),
    (RaisesWhereTheStoreIsGone, "test_executions_with_a_state_end_as_they_do_without_it"),
    (KeepsTheError, "test_it_lets_go_of_failures"),
    (OneAtATime, "test_one_object_serves_nested_executions"),
    (FailsInOtherThreads, "test_threads_share_it"),
]


# -- caches --------------------------------------------------------------------------------------


class Memory(MemoryRetryContextCache):
    """Right, for others to be wrong in one thing."""


class LetsEverybodyIn(Memory):
    def begin(self, key, *, worker, lease=None, fresh=False):
        return super().begin(key, worker="one", lease=lease, fresh=fresh)


class BelievesOldClaims(Memory):
    def _check(self, claim):
        self._claims.setdefault(claim.key, claim)


class KeepsSuccesses(Memory):
    def succeed(self, claim, *, connection=None, remember=None):
        self.release(claim)


class ForgetsThatItRemembers(Memory):
    def succeed(self, claim, *, connection=None, remember=None):
        super().succeed(claim)


class RemembersRecoveries(Memory):
    def succeed(self, claim, *, connection=None, remember=None, record=None):
        kept = self.peek(claim.key)
        if kept is not None and kept.phase == "recovering":
            remember = LONG
        super().succeed(claim, connection=connection, remember=remember, record=record)


class ForgetsWhatItShouldKeep(Memory):
    def succeed(self, claim, *, connection=None, remember=None, record=None):
        super().succeed(claim, connection=connection, remember=remember)


class ForgetsOnRelease(Memory):
    def release(self, claim):
        super().release(claim)
        self.forget(claim.key)


class ForgetsHalf(Memory):
    def forget(self, key):
        self._records.pop(key, None)
        self._claims.pop(key, None)


class IsNeverFresh(Memory):
    def begin(self, key, *, worker, lease=None, fresh=False):
        return super().begin(key, worker=worker, lease=lease)


class DropsWhenFresh(Memory):
    """Before the attempt is released or used."""

    def begin(self, key, *, worker, lease=None, fresh=False):
        claim = super().begin(key, worker=worker, lease=lease, fresh=fresh)
        if fresh:
            self._drop(key)
        return claim


class FailsBesideTheMark(Memory):
    def _store(self, key, record):
        marked = key in self._marks
        super()._store(key, record)
        if marked:
            self._marks[key] = LONG


class TakesWhatItWantsFresh(Memory):
    def begin(self, key, *, worker, lease=None, fresh=False):
        if fresh:
            self.forget(key)
        return super().begin(key, worker=worker, lease=lease, fresh=fresh)


class FoldsCase(Memory):
    def begin(self, key, **options):
        return super().begin(key.lower(), **options)

    def peek(self, key):
        return super().peek(key.lower())


class CutsKeys(Memory):
    def begin(self, key, **options):
        return super().begin(key[:255], **options)

    def peek(self, key):
        return super().peek(key[:255])


class RoundsTimes(Memory):
    def _store(self, key, record):
        before = record.not_before
        super()._store(key, evolve(record, not_before=before and float(int(before))))


class DropsHistory(Memory):
    def _store(self, key, record):
        super()._store(key, evolve(record, history=record.history[-1:]))


class StartsFencesAnew(Memory):
    def begin(self, key, **options):
        claim = super().begin(key, **options)
        claim.fence = 1 if claim.record is None else claim.record.fence + 1
        return claim


class ForgetsItsFences(Memory):
    def forget(self, key):
        super().forget(key)
        self._fences = itertools.count(1)


class PassesOverConnections(Memory):
    def succeed(self, claim, *, connection=None, remember=None):
        super().succeed(claim, remember=remember)


class SwapsWithoutLooking(Memory):
    def swap(self, key, record, version):
        self._store(key, record)
        return True


class ReadsThenWrites(Memory):
    """The race of every cache without compare-and-set: two steps instead of one."""

    def __init__(self):
        super().__init__()
        self.between = Meeting(WORKERS)

    def begin(self, key, *, worker, lease=None, fresh=False):
        held, record = self._claims.get(key), self.peek(key)
        self.between.come()
        if held is not None and held.worker != worker:
            raise AttemptInProgressError("held", worker=held.worker)
        claim = self._claims[key] = Claim(key, worker, record, next(self._fences))
        return claim

    def fail(self, claim, record):
        with self._lock:
            self._store(claim.key, record)
        if record.worker is None:
            self._claims.pop(claim.key, None)

    def swap(self, key, record, version):
        current = self.peek(key)
        self.between.come()
        if (0 if current is None else current.version) != version:
            return False
        with self._lock:
            self._store(key, record)
        return True


class MixesKeys(Memory):
    """One place for all keys of a scope."""

    def begin(self, key, **options):
        return super().begin(key.rpartition("/")[0], **options)


class CannotPeek(Memory):
    peek = None


class KnowsEveryKey(Memory):
    def __contains__(self, key):
        return True


class WritesOnce(Memory):
    def _store(self, key, record):
        if key not in self._records:
            super()._store(key, record)


class SwapsNever(Memory):
    def swap(self, key, record, version):
        return False


class CannotRenew(Memory):
    def renew(self, claim):
        raise LeaseLostError("there is no lease in memory")


class MarksReleases(Memory):
    def release(self, claim):
        if self.holds(claim):
            super().release(claim)
            self._store(claim.key, claim.record or Record())


CACHES = [
    (CannotPeek, "test_it_has_the_methods_of_a_cache"),
    (KnowsEveryKey, "test_an_unknown_key_has_no_record"),
    (WritesOnce, "test_failures_add_up"),
    (SwapsNever, "test_a_shared_record_is_written_on_the_version_that_was_read"),
    (CannotRenew, "test_a_lease_can_be_renewed"),
    (MarksReleases, "test_a_release_leaves_a_new_key_unknown"),
    (AsyncMemory, "test_it_has_the_methods_of_a_cache"),
    (LetsEverybodyIn, "test_a_key_is_held_from_the_beginning_of_an_attempt"),
    (LetsEverybodyIn, "test_a_key_with_failures_is_held_too"),
    (LetsEverybodyIn, "test_a_failure_that_is_followed_in_place_keeps_the_key"),
    (BelievesOldClaims, "test_a_claim_that_another_has_taken_over_writes_nothing"),
    (BelievesOldClaims, "test_a_claim_that_has_ended_writes_nothing"),
    (BelievesOldClaims, "test_a_forgotten_claim_writes_nothing"),
    (KeepsSuccesses, "test_a_success_forgets_the_key"),
    (ForgetsThatItRemembers, "test_a_remembered_success_is_not_done_again"),
    (RemembersRecoveries, "test_success_after_recovery_phase_forgets_the_key"),
    (
        ForgetsWhatItShouldKeep,
        "test_record_of_a_completed_key_is_found_without_an_attempt",
    ),
    (ForgetsOnRelease, "test_a_release_leaves_the_failures_as_they_were"),
    (ForgetsHalf, "test_forgetting_drops_everything_under_a_key"),
    (IsNeverFresh, "test_a_fresh_start_forgets_failures_and_remembered_success"),
    (DropsWhenFresh, "test_release_of_a_fresh_start_keeps_the_record"),
    (FailsBesideTheMark, "test_failure_of_a_fresh_start_replaces_the_record"),
    (TakesWhatItWantsFresh, "test_a_fresh_start_does_not_take_a_key_that_is_held"),
    (FoldsCase, "test_keys_that_differ_in_value_or_type_are_different_keys"),
    (CutsKeys, "test_keys_that_differ_in_value_or_type_are_different_keys"),
    (RoundsTimes, "test_a_failure_is_found_by_the_next_attempt"),
    (DropsHistory, "test_a_failure_can_be_looked_at"),
    (StartsFencesAnew, "test_every_attempt_is_counted_before_it_runs"),
    (StartsFencesAnew, "test_the_holder_may_begin_its_next_attempt"),
    (ForgetsItsFences, "test_a_fence_grows_where_the_key_was_forgotten_too"),
    (PassesOverConnections, "test_an_invalid_connection_is_rejected"),
    (SwapsWithoutLooking, "test_a_shared_record_is_not_written_on_another_version"),
    (ReadsThenWrites, "test_concurrency_one_of_several_gets_a_key"),
    (ReadsThenWrites, "test_concurrency_no_failure_is_lost"),
    (ReadsThenWrites, "test_concurrency_no_change_of_a_shared_record_is_lost"),
    (MixesKeys, "test_concurrency_keys_do_not_disturb_each_other"),
    (MixesKeys, "test_other_keys_are_free"),
]


class AsyncReadsThenWrites(AsyncMemory):
    """Lets other tasks run between reading and taking."""

    async def begin(self, key, *, worker, lease=None, fresh=False):
        held = self._cache._claims.get(key)
        await asyncio.sleep(0)
        if held is not None and held.worker != worker:
            raise AttemptInProgressError("held", worker=held.worker)
        self._cache._claims.pop(key, None)
        return self._cache.begin(key, worker=worker, fresh=fresh)


class AsyncDoesNotRemember(AsyncMemory):
    async def succeed(self, claim, *, connection=None, remember=None):
        self._cache.succeed(claim)


class AsyncPassesOverConnections(AsyncMemory):
    async def succeed(self, claim, *, connection=None, remember=None):
        self._cache.succeed(claim, remember=remember)


class AsyncBelievesOldClaims(AsyncMemory):
    async def renew(self, claim):
        pass


ASYNC_CACHES = [
    (Memory, "test_it_has_the_methods_of_a_cache"),
    (AsyncReadsThenWrites, "test_concurrency_one_of_several_gets_a_key"),
    (AsyncReadsThenWrites, "test_concurrency_no_failure_is_lost"),
    (AsyncDoesNotRemember, "test_a_remembered_success_is_not_done_again"),
    (AsyncPassesOverConnections, "test_an_invalid_connection_is_rejected"),
    (AsyncBelievesOldClaims, "test_a_forgotten_claim_writes_nothing"),
]

PLANTED = [
    (PolicyConformance, POLICIES),
    (BackoffConformance, BACKOFFS),
    (ClassifierConformance, CLASSIFIERS),
    (ClockConformance, CLOCKS),
    (GuardConformance, GUARDS),
    (ListenerConformance, LISTENERS),
    (CacheConformance, CACHES),
    (AsyncCacheConformance, ASYNC_CACHES),
]


@pytest.mark.parametrize(
    ("kit", "wrong", "test"),
    [
        pytest.param(kit, wrong, test, id=f"{wrong.__name__}-{test}")
        for kit, pairs in PLANTED
        for wrong, test in pairs
    ],
)
def test_faulty_component_fails_the_test_of_its_fault(kit, wrong, test):
    with pytest.raises(Exception) as caught:
        getattr(kit_for(kit, wrong), test)()
    assert not isinstance(caught.value, AttributeError) or wrong in UNFINISHED, caught.value


UNFINISHED = (UsesMoreOfChance,)


@pytest.mark.parametrize(
    ("kit", "right"),
    [
        (PolicyConformance, Counting),
        (BackoffConformance, Doubling),
        (GuardConformance, Budget),
        (CacheConformance, Memory),
    ],
)
def test_bases_of_the_faulty_components_pass(kit, right):
    assert kit_for(kit, right).run_all() == {}


@pytest.mark.parametrize("kit", [kit for kit, _ in PLANTED if kit is not AsyncCacheConformance])
def test_every_test_of_a_kit_detects_a_fault(kit):
    caught = {test for each, pairs in PLANTED if each is kit for _, test in pairs}
    assert set(kit.names_of_tests()) - caught == set()


# -- the kits as such ----------------------------------------------------------------------------


def test_run_all_returns_the_errors_of_failed_tests():
    failed = kit_for(PolicyConformance, SaysOne).run_all()
    assert list(failed) == ["test_a_verdict_is_true_or_false"]
    assert "got 1" in str(failed["test_a_verdict_is_true_or_false"])


def test_kit_test_can_be_left_out():
    class Kit(PolicyConformance):
        test_a_verdict_is_true_or_false = None

        def make(self):
            return SaysOne()

    assert "test_a_verdict_is_true_or_false" not in Kit.names_of_tests()
    assert Kit().run_all() == {}


def test_kit_requires_make():
    for kit, _ in PLANTED:
        assert issubclass(kit, Conformance)
        with pytest.raises(TypeError, match="make"):
            kit()


def test_check_frozen_rejects_replaceable_attributes():
    @frozen
    class Right:
        number: int = 1

    class Slots:
        __slots__ = "number"

        def __init__(self):
            self.number = 1

    class Plain:
        def __init__(self):
            self.number = 1

    base.check_frozen(Right())
    base.check_frozen(ExceptionClassifier({}))
    for wrong in (Slots(), Plain()):
        with pytest.raises(AssertionError, match="number can be replaced"):
            base.check_frozen(wrong)


def test_first_difference_of_long_lists_is_reported_with_its_index():
    found = [[True] * 5000, [True] * 4000 + [False] * 1000]
    with pytest.raises(AssertionError) as caught:
        base.check_same(found, [[True] * 5000] * 2, "queried again")
    assert str(caught.value) == "queried again: at [1][4000] False instead of True"


@pytest.mark.parametrize("value", [(1,), {1: 2}, {1, 2}, float("nan"), b"x", [object()]])
def test_value_changed_by_json_is_rejected(value):
    with pytest.raises(AssertionError, match="state must"):
        base.as_json(value)


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "ä", [], {}, {"a": [1, None, {"b": 0.1}]}])
def test_json_values_pass_the_round_trip(value):
    assert base.json_round_trip(value) == value


def test_errors_in_threads_reach_the_test():
    def work(place):
        if place == 3:
            raise AlreadyCompletedError("from a thread")
        return place

    with pytest.raises(AlreadyCompletedError):
        base.in_threads(work)
    with pytest.raises(LeaseLostError):
        base.in_threads(lambda place: (_ for _ in ()).throw(LeaseLostError("gone")))


def test_stuck_thread_fails_the_test(monkeypatch):
    times = itertools.chain([0.0], itertools.repeat(base.JOIN_TIMEOUT))
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: next(times)))
    release = threading.Event()
    try:
        with pytest.raises(AssertionError, match="stuck"):
            base.in_threads(lambda place: place == 0 and release.wait(30.0), number=2)
    finally:
        release.set()


def test_interrupt_of_the_wait_for_threads_is_raised_at_once(monkeypatch):
    release = threading.Event()

    class Interrupted(threading.Thread):
        def join(self, timeout=None):
            raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Thread", Interrupted)
    interval = sys.getswitchinterval()
    try:
        with pytest.raises(KeyboardInterrupt):
            base.in_threads(lambda place: release.wait())
    finally:
        release.set()
    assert sys.getswitchinterval() == interval


def test_interrupt_during_thread_start_releases_started_threads(monkeypatch):
    begun, worked = [], []

    class Interrupted(threading.Thread):
        def start(self):
            if len(begun) == 2:
                raise KeyboardInterrupt
            begun.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        base.in_threads(worked.append)
    for thread in begun:
        thread.join()
    assert not worked

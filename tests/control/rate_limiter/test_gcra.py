"""The rules of a rate limiter, compared with a naive token bucket and the bound of a window."""

from collections import deque
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from retrytemplate.control.rate_limiter.gcra import GCRA, Reservation


def acquire(limits, tokens, now, longest, bucket=None):
    """The reservation, or the wait."""
    made = []
    wait = limits.acquire(bucket or limits.single, tokens, now, longest, made)
    return made[0] if made else wait


# Powers of two, so that sums are exact.
TICK = 1 / 16
INTERVAL = 1 / 4


class TokenBucket:
    """Counts tokens, and moves the time on by one tick after the other."""

    def __init__(self, interval, burst):
        self.interval, self.burst, self.tokens, self.now = interval, burst, float(burst), 0.0
        self.queue, self.granted = deque(), []
        self.paused_until = -1.0

    def run(self, until):
        while self.now < until:
            self.now += TICK
            if self.now > self.paused_until:
                self.tokens = min(self.burst, self.tokens + TICK / self.interval)
            self.serve()

    def serve(self):
        while self.queue and self.tokens >= self.queue[0].tokens:
            reservation = self.queue.popleft()
            self.tokens -= reservation.tokens
            self.granted.append((reservation, self.now))

    def take(self, tokens):
        if self.queue or self.tokens < tokens:
            return False
        self.tokens -= tokens
        return True


class Limits(RuleBasedStateMachine):
    """Arrivals, cancellations, pauses and other rates: each grant falls due as in the bucket."""

    @initialize(burst=st.integers(1, 5))
    def make(self, burst):
        self.now = 0.0
        self.limits = GCRA(INTERVAL, burst, 10)
        self.take = self.limits.fast_function(SimpleNamespace(now=lambda: self.now))
        self.model = TokenBucket(INTERVAL, burst)
        self.waiting = []

    def settle(self):
        """Use the reservations that have fallen due."""
        for each in list(self.waiting):
            if self.limits.due(each, self.now) <= self.now:
                self.waiting.remove(each)
                self.limits.use(each)
                found = {id(one): when for one, when in self.model.granted}
                assert found[id(each)] == each.due

    @rule(tokens=st.integers(1, 5), longest=st.sampled_from([0.0, 1.0, 9.0]))
    def acquire(self, tokens, longest):
        tokens = min(tokens, self.limits.burst)
        found = acquire(self.limits, tokens, self.now, longest)
        assert self.model.take(tokens) == (found == 0.0)
        if isinstance(found, Reservation):
            assert 0 < found.due - self.now <= longest
            self.waiting.append(found)
            self.model.queue.append(found)
        else:
            assert found == 0.0 or found > longest

    @rule()
    def acquire_fast(self):
        assert self.take() == self.model.take(1)

    @rule(ticks=st.integers(1, 30))
    def pass_time(self, ticks):
        self.now += ticks * TICK
        self.model.run(self.now)
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(place=st.integers(0, 20))
    def cancel(self, place):
        gone = self.waiting.pop(place % len(self.waiting))
        self.limits.cancel(gone)
        self.model.queue.remove(gone)
        self.model.serve()
        self.settle()

    @rule(ticks=st.integers(0, 40))
    def pause(self, ticks):
        until = self.now + ticks * TICK
        self.limits.pause(until, self.now)
        if until >= self.model.paused_until:
            self.model.paused_until = until
        self.model.tokens = 0.0 if until > self.now else min(self.model.tokens, 0.0)

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "limits"):
            return
        assert self.limits.waiting == len(self.waiting) == len(self.model.queue)
        if not self.waiting:
            free = self.limits.available(self.limits.single, self.now)
            assert free == int(self.model.tokens)


TestLimits = Limits.TestCase
TestLimits.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


arrivals = st.lists(
    st.tuples(st.floats(0, 0.5), st.integers(1, 4), st.sampled_from([0.0, 0.3, 5.0])),
    min_size=1,
    max_size=60,
)


@given(arrivals=arrivals, interval=st.floats(0.01, 0.3), burst=st.integers(4, 9))
def test_granted_permits_stay_within_the_bound_of_every_window(arrivals, interval, burst):
    limits, now, granted = GCRA(interval, burst, 10), 0.0, []
    for gap, tokens, longest in arrivals:
        now += gap
        found = acquire(limits, tokens, now, longest)
        if isinstance(found, Reservation):
            granted.append((found.due, tokens))
        elif found == 0.0:
            granted.append((now, tokens))
    granted.sort()
    for first, (start, _) in enumerate(granted):
        total = 0
        for end, tokens in granted[first:]:
            total += tokens
            assert total <= burst + (end - start) / interval + 0.01


@given(interval=st.floats(0.001, 0.3), burst=st.integers(1, 9), load=st.floats(1.0, 5.0))
def test_constant_load_reaches_the_rate(interval, burst, load):
    source, granted = SimpleNamespace(time=0.0), 0
    source.now = lambda: source.time
    take = GCRA(interval, burst, 10).fast_function(source)
    while source.time < 1000 * interval:
        granted += take()
        source.time += interval / load / 10
    assert 0.95 * 1000 <= granted <= 1.001 * (1000 + burst)


@given(
    rates=st.lists(
        st.tuples(st.sampled_from([1 / 8, 1 / 4, 1.0]), st.integers(1, 8), st.integers(0, 9)),
        min_size=1,
        max_size=12,
    )
)
def test_resize_never_grants_more_than_the_largest_rate_and_burst(rates):
    limits, now, granted = GCRA(1 / 4, 4, 10), 0.0, []
    for interval, burst, ticks in rates:
        limits.resize(interval, burst, now)
        for _ in range(ticks + 1):
            while acquire(limits, 1, now, 0.0) == 0.0:
                granted.append(now)
            now += TICK
    for first, start in enumerate(granted):
        for last, end in enumerate(granted[first:], 1):
            assert last <= 8 + (end - start) * 8 + 0.01


def reserved(limits, number, tokens=1):
    found = [acquire(limits, tokens, 0.0, 99.0) for _ in range(number)]
    return [each for each in found if isinstance(each, Reservation)]


def dues(limits, reservations, now=0.0):
    return [limits.due(each, now) for each in reservations]


def test_resize_moves_waiting_calls_and_keeps_their_order():
    limits = GCRA(1.0, 1, 10)
    waiting = reserved(limits, 4)
    assert dues(limits, waiting) == [1.0, 2.0, 3.0]
    assert limits.resize(0.5, 1, 0.0) == waiting
    assert dues(limits, waiting) == [0.5, 1.0, 1.5]
    limits.resize(2.0, 1, 0.0)
    assert dues(limits, waiting) == [2.0, 4.0, 6.0]


def test_resize_keeps_the_free_permits_up_to_the_new_burst():
    limits = GCRA(1.0, 10, 10)
    assert not reserved(limits, 4)
    free = []
    for burst in (20, 4, 10):
        limits.resize(0.25, burst, 0.0)
        free.append(limits.available(limits.single, 0.0))
    assert free == [6, 4, 4]


def test_resize_after_a_pause_adds_no_delay():
    limits = GCRA(1.0, 1, 10)
    limits.pause(5.0, 0.0)
    assert acquire(limits, 1, 0.0, 0.0) == 6.0
    limits.resize(1.0, 50, 7.0)
    assert acquire(limits, 1, 7.0, 0.0) == 0.0
    assert acquire(limits, 1, 7.0, 0.0) == 1.0


def test_cancelled_reservation_moves_only_those_behind_it():
    limits = GCRA(1.0, 2, 10)
    first, second, third, fourth = reserved(limits, 6)
    assert limits.cancel(second) == [third, fourth]
    assert limits.cancel(second) == []
    assert dues(limits, [first, third, fourth]) == [1.0, 2.0, 3.0]
    assert limits.waiting == 3


def test_cancelled_reservations_wake_each_caller_once_until_it_looks():
    limits = GCRA(1.0, 1, 10)
    first, second, third, fourth = reserved(limits, 5)
    assert limits.cancel(first) == [second, third, fourth]
    assert limits.cancel(second) == []
    assert limits.due(third, 0.0) == 1.0
    assert limits.cancel(fourth) == []
    assert limits.waiting == 1


def test_permit_that_fell_due_and_was_cancelled_is_returned_once():
    limits = GCRA(1.0, 1, 10)
    first, second = reserved(limits, 3)
    assert acquire(limits, 1, 5.0, 0.0) == 0.0  # both fell due, neither has run
    limits.use(second)
    limits.cancel(first)
    limits.cancel(first)
    assert acquire(limits, 1, 5.0, 0.0) == 1.0
    assert acquire(limits, 1, 6.0, 0.0) == 0.0
    assert (limits.waiting, limits.single.queue) == (0, None)


def test_abandoned_reservation_does_not_keep_the_queue():
    limits = GCRA(1.0, 1, 10)
    reserved(limits, 2)
    assert acquire(limits, 1, 1.5, 9.0).due == 2.0
    for second in range(100, 200):
        assert acquire(limits, 1, float(second), 0.0) == 0.0
    assert limits.single.queue is None


def test_forked_child_forgets_the_waiting_calls_of_its_parent():
    limits = GCRA(1.0, 1, 10)
    reserved(limits, 5)
    limits.clear_waiting()
    assert limits.waiting == 0
    assert acquire(limits, 1, 0.0, 9.0).due == 1.0


# -- keys ------------------------------------------------------------------------------------------


def take(limits, key, now, tokens=1):
    return acquire(limits, tokens, now, 0.0, limits.bucket(key, now))


def test_each_key_has_a_limit_of_its_own():
    limits = GCRA(1.0, 1, 10)
    assert [take(limits, key, 0.0) for key in "aabb"] == [0.0, 1.0, 0.0, 1.0]


def test_key_whose_permits_are_free_again_is_removed():
    limits = GCRA(1.0, 5, 10**6)
    for number in range(1000):
        take(limits, number, number * 0.5)
        assert len(limits.buckets) <= 3
    limits.expire(10**6, 10)
    assert (len(limits.buckets), limits.evicted) == (0, 0)


def test_oldest_key_is_forgotten_when_there_are_too_many():
    limits = GCRA(1.0, 1, 3)
    for key in "abc":
        take(limits, key, 0.0)
    assert take(limits, "a", 0.0) == 1.0  # now b is the oldest
    assert take(limits, "d", 0.0) == 0.0
    assert (set(limits.buckets), limits.evicted) == ({"a", "c", "d"}, 1)


def test_key_with_waiting_calls_is_not_forgotten():
    limits = GCRA(1.0, 1, 2)
    take(limits, "a", 0.0)
    acquire(limits, 1, 0.0, 9.0, limits.bucket("a", 0.0))
    for key in "bcd":
        take(limits, key, 0.0)
    assert set(limits.buckets) == {"a", "d"}


def test_pause_holds_back_new_keys_too():
    limits = GCRA(1.0, 3, 10)
    take(limits, "a", 0.0)
    limits.pause(5.0, 0.0)
    assert [take(limits, key, 0.0) for key in "ab"] == [6.0, 6.0]
    assert take(limits, "b", 6.0) == 0.0

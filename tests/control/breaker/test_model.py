"""The breaker against a model that recomputes its state from the whole history."""

from asyncio import CancelledError
from itertools import cycle, product
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from retrytemplate import CircuitOpenError
from retrytemplate.control import Calls, CircuitBreaker, Consecutive, Seconds
from retrytemplate.testing import VirtualClock

SLOW = 3.0
RESET = 20.0
EXPIRES = 7.0


BY_HAND = ("forced_open", "disabled")


class Down(Exception):
    """The error of a failing call."""


class Model:
    """The documented rules in the simplest form; time in whole seconds."""

    def __init__(self, window, minimum, rate, slow_rate, at_once, required, growth):
        self.window, self.minimum, self.rate, self.slow_rate = window, minimum, rate, slow_rate
        self.at_once, self.required, self.growth = at_once, required, growth
        self.state, self.since, self.ended = "closed", 0, []
        self.failed_returns = 0
        self.probes, self.successes = {}, 0
        self.rejected = self.late = self.expired = 0
        self.until = None

    def change(self, state):
        self.state, self.since = state, self.since + 1
        self.probes, self.successes = {}, 0
        if state not in ("open", "half_open"):
            self.ended = []

    def look(self, now):
        if self.state == "open" and now >= self.until:
            self.change("half_open")
        elif self.state in BY_HAND and self.until is not None and now >= self.until:
            self.failed_returns = 0
            self.change("closed")

    def begin(self, now, name):
        self.look(now)
        if self.state == "half_open":
            gone = [each for each, until in self.probes.items() if now >= until]
            self.expired += len(gone)
            for each in gone:
                del self.probes[each]
            if len(self.probes) >= self.at_once:
                self.rejected += 1
                return None
            self.probes[name] = now + EXPIRES
        elif self.state not in ("closed", "disabled"):
            self.rejected += 1
            return None
        return self.since

    def end(self, now, name, since, verdict, slow):
        if since != self.since:
            self.late += 1
        elif self.state == "half_open":
            if name not in self.probes:
                self.late += 1
                return
            del self.probes[name]
            if verdict == "failure" or (verdict == "success" and slow):
                self.open(now)
            elif verdict == "success":
                self.successes += 1
                if self.successes == self.required:
                    self.failed_returns = 0
                    self.change("closed")
        elif self.state == "closed" and verdict in ("success", "failure"):
            self.ended.append((now, verdict == "failure", slow))
            if self.is_bad(now):
                self.open(now)

    def open(self, now):
        self.until = now + RESET * self.growth**self.failed_returns
        self.failed_returns += 1
        self.change("open")

    def looked_at(self, now):
        if isinstance(self.window, Calls):
            return self.ended[-self.window.number :]
        if isinstance(self.window, Seconds):
            return [each for each in self.ended if each[0] > now - self.window.seconds]
        row = []
        for each in reversed(self.ended):
            if not (each[1] or each[2]):
                break
            row.append(each)
        return row

    def is_bad(self, now):
        calls = self.looked_at(now)
        if isinstance(self.window, Consecutive):
            return len(calls) >= self.window.number
        if len(calls) < self.minimum:
            return False
        failures = sum(failed for _, failed, _ in calls)
        slow = sum(slow for _, _, slow in calls)
        return (failures > 0 and failures / len(calls) >= self.rate) or (
            slow > 0 and slow / len(calls) >= self.slow_rate
        )


RATES = st.sampled_from([0.25, 0.5, 2 / 3, 1.0])
WINDOWS = st.one_of(
    st.builds(Calls, st.integers(1, 6)),
    st.builds(Consecutive, st.integers(1, 4)),
    st.just(Seconds(10)),  # in steps of a second, as the times are
)


SETTINGS = {
    "window": WINDOWS,
    "minimum": st.integers(1, 4),
    "rates": st.tuples(RATES, RATES),
    "at_once": st.integers(1, 3),
    "required": st.integers(1, 4),
    "growth": st.sampled_from([1.0, 2.0]),
    "slow": st.sampled_from([SLOW, None]),
}


def fitting(window, minimum, rates, slow):
    """The minimum and the rates of a window; and both as arguments of a breaker."""
    if isinstance(window, Calls):
        minimum = min(minimum, window.number)
    if not slow:
        rates = rates[0], 1.0
    if isinstance(window, Consecutive):
        return minimum, rates, {}
    rate_settings = {"failure_rate": rates[0], "slow_rate": rates[1], "minimum_calls": minimum}
    return minimum, rates, rate_settings


class Breaker(RuleBasedStateMachine):
    permits = Bundle("permits")

    @initialize(**SETTINGS)
    def make(self, window, minimum, rates, at_once, required, growth, slow):
        minimum, rates, settings = fitting(window, minimum, rates, slow)
        self.clock = VirtualClock()
        self.breaker = CircuitBreaker(
            "model",
            window=window,
            slow_call=slow,
            failures=(Down,),
            reset_timeout=RESET,
            reset_jitter=0.0,
            reset_growth=growth,
            half_open_calls=at_once,
            required_successes=required,
            permit_timeout=EXPIRES,
            clock=self.clock,
            **settings,
        )
        self.model = Model(window, minimum, *rates, at_once, required, growth)
        self.names = iter(range(10**6))
        self.slow = slow or inf
        self.wrapped = self.breaker.wrap(lambda happens: happens())

    @property
    def now(self):
        return self.clock.monotonic()

    @rule(target=permits)
    def begin(self):
        name = next(self.names)
        since = self.model.begin(self.now, name)
        permit = self.breaker.permit()
        rejection = permit.acquire()
        assert (since is None) == isinstance(rejection, CircuitOpenError)
        return permit, name, since, self.now

    @rule(begun=consumes(permits), verdict=st.sampled_from(["success"] * 2 + ["failure"] * 2))
    def end(self, begun, verdict):
        self.say(begun, verdict)

    @rule(begun=consumes(permits), verdict=st.sampled_from(["ignore", "cancel"]))
    def decide_nothing(self, begun, verdict):
        self.say(begun, verdict)

    def say(self, begun, verdict):
        permit, name, since, began = begun
        if since is not None:
            self.model.end(self.now, name, since, verdict, self.now - began >= self.slow)
        getattr(permit, verdict)()

    @rule(
        verdict=st.sampled_from(["success", "failure"]),
        times=st.integers(1, 4),
        wrapped=st.booleans(),
    )
    def calls(self, verdict, times, wrapped):
        for _ in range(times):
            if wrapped:
                self.call_wrapped(verdict)
            else:
                self.say(self.begin(), verdict)

    @rule(
        verdict=st.sampled_from(["success", "failure", "ignore", "cancel"]),
        takes=st.sampled_from([0, 1, SLOW]),
        failures=st.sampled_from([0, 1, 5]),
        reset=st.booleans(),
    )
    def call_wrapped_while_others_end(self, verdict, takes, failures, reset):
        def meanwhile():
            for _ in range(failures):
                self.say(self.begin(), "failure")
            if reset:
                self.change_by_hand("closed", None, True)
            self.clock.advance(float(takes))

        self.call_wrapped(verdict, meanwhile)

    def call_wrapped(self, verdict, meanwhile=lambda: None):
        ends = {"failure": Down, "ignore": KeyError, "cancel": CancelledError}.get(verdict)
        name, began = next(self.names), self.now
        since = self.model.begin(began, name)

        def happens():
            meanwhile()
            if ends is not None:
                raise ends

        try:
            self.wrapped(happens)
        except CircuitOpenError:
            assert since is None
        except (Down, KeyError, CancelledError) as exc:
            assert type(exc) is ends
        else:
            assert ends is None
        if since is not None:
            self.model.end(self.now, name, since, verdict, self.now - began >= self.slow)

    @rule(seconds=st.integers(1, 25))
    def wait(self, seconds):
        self.clock.advance(float(seconds))

    @precondition(lambda self: self.model.state == "open")
    @rule(early=st.integers(0, 1))
    def wait_until_it_is_half_open(self, early):
        self.clock.advance(max(0.0, self.model.until - self.now - early))

    @precondition(lambda self: self.model.state == "half_open")
    @rule(verdict=st.sampled_from(["success", "failure", "ignore", "cancel"]), slow=st.booleans())
    def probe(self, verdict, slow):
        begun = self.begin()
        if slow:
            self.clock.advance(SLOW)
        self.say(begun, verdict)

    @rule(
        state=st.sampled_from(["forced_open", "disabled", "closed"]),
        seconds=st.one_of(st.none(), st.integers(1, 25)),
        really=st.sampled_from([False] * 5 + [True]),
    )
    def change_by_hand(self, state, seconds, really):
        if not really:
            return
        self.model.change(state)
        self.model.failed_returns = 0
        self.model.until = None if seconds is None else self.now + seconds
        if state == "closed":
            self.breaker.reset()
        else:
            does = self.breaker.disable if state == "disabled" else self.breaker.force_open
            self.put(does, by="kim", reason="a test", seconds=seconds)

    def put(self, does, **how):
        does(**how)

    @invariant()
    def agrees(self):
        if not hasattr(self, "model"):
            return
        model, now = self.model, self.now
        model.look(now)
        shown = self.breaker.snapshot()
        assert (shown.state, shown.generation) == (model.state, model.since)
        assert (shown.rejected, shown.late, shown.expired) == (
            model.rejected,
            model.late,
            model.expired,
        )
        assert shown.successes == model.successes
        assert shown.probes == len(model.probes)
        if model.state == "closed":
            calls = model.looked_at(now)
            assert shown.calls == len(calls)
            assert shown.slow == sum(slow for _, _, slow in calls)


TestBreaker = Breaker.TestCase
TestBreaker.settings = settings(max_examples=200, stateful_step_count=50)


@pytest.mark.parametrize("apart", [(0.0,), (3.0,), (3.0, 0.0)], ids=str)
@pytest.mark.parametrize("rate", [0.25, 0.5])
@pytest.mark.parametrize("minimum", [2, 3, 4])
@pytest.mark.parametrize("window", [Calls(3), Calls(4), Seconds(10), Consecutive(2)], ids=str)
def test_six_wrapped_calls_open_the_circuit_at_the_right_one(window, minimum, rate, apart):
    for row in product(("success", "failure"), repeat=6):
        machine = Breaker()
        machine.make(window, minimum, (rate, 1.0), 1, 1, 1.0, None)
        for verdict, seconds in zip(row, cycle(apart), strict=False):
            machine.clock.advance(seconds)
            machine.call_wrapped(verdict)
            machine.agrees()
            if machine.model.state == "open":
                break

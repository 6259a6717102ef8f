"""Two breakers that share a circuit on a real server, against the model of one breaker."""

from itertools import count
from math import inf

from hypothesis import settings
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from retrytemplate.control import Seconds
from tests.control.breaker.redis.shared import Sharing
from tests.control.breaker.test_model import EXPIRES, RESET, SETTINGS, Breaker, Down, Model, fitting

UNIT = 1e6
"""Seconds of the server for one of the model: what the test takes itself counts for nothing."""


class Clock:
    """Advances the clocks of the server and of the breakers."""

    def __init__(self, sharing):
        self.sharing = sharing

    def advance(self, units):
        self.sharing.advance(units * UNIT)

    def monotonic(self):
        return self.sharing.clock.monotonic() / UNIT


class Pair(Breaker):
    """Buffered results of a process precede its next report, so each rule is one process."""

    def __init__(self, url):
        super().__init__()
        self.sharing = Sharing(url)
        self.clock = Clock(self.sharing)

    def teardown(self):
        self.sharing.close()

    @initialize(**SETTINGS)
    def make(self, window, minimum, rates, at_once, required, growth, slow):
        minimum, rates, chosen = fitting(window, minimum, rates, slow)
        scaled = Seconds(window.seconds * UNIT) if isinstance(window, Seconds) else window
        self.breakers = [
            self.sharing.breaker(
                window=scaled,
                slow_call=slow and slow * UNIT,
                failures=(Down,),
                reset_timeout=RESET * UNIT,
                reset_growth=growth,
                reset_maximum=3600 * UNIT,
                half_open_calls=at_once,
                required_successes=required,
                permit_timeout=EXPIRES * UNIT,
                **chosen,
            )
            for _ in range(2)
        ]
        self.both = [each.wrap(lambda happens: happens()) for each in self.breakers]
        self.which = 0
        self.model = Model(window, minimum, *rates, at_once, required, growth)
        self.names = count()
        self.slow = slow or inf

    @property
    def breaker(self):
        return self.breakers[self.which]

    @property
    def wrapped(self):
        return self.both[self.which]

    @rule()
    def let_the_other_one_go_on(self):
        self.which = 1 - self.which

    def put(self, does, **how):
        if how.get("seconds"):
            how["seconds"] *= UNIT
        does(**how)

    @invariant()
    def agrees(self):
        if not hasattr(self, "model"):
            return
        model, now = self.model, self.now
        model.look(now)
        self.breakers[self.which].snapshot()
        shown = self.breakers[1 - self.which].snapshot()
        assert (shown.state, shown.generation) == (model.state, model.since)
        assert (shown.successes, shown.probes) == (model.successes, len(model.probes))
        assert self.of_both("rejected") == model.rejected
        assert self.of_both("expired") == model.expired
        if model.state == "closed":
            calls = model.looked_at(now)
            assert shown.calls == len(calls)
            assert shown.slow == sum(slow for _, _, slow in calls)

    def of_both(self, what):
        return sum(getattr(each.snapshot(), what) for each in self.breakers)


def test_breakers_that_share_a_circuit_behave_as_one(valkey_url):
    run_state_machine_as_test(
        lambda: Pair(valkey_url),
        settings=settings(max_examples=15, stateful_step_count=30, deadline=None),
    )

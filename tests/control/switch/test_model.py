"""The rules of a kill switch against a model: one dictionary and the time."""

from attrs import define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from retrytemplate import SwitchRefusedError
from retrytemplate.control import KillSwitch
from retrytemplate.testing import VirtualClock
from tests.control.switch.shared import REASON, Recorded, SharedStore

SCOPES = [
    ("everything", True),
    ("segment", "a"),
    ("segment", "b"),
    ("feature", "a"),
    ("experiment", "a"),
]
scopes = st.sampled_from(SCOPES)
NEVER = float("inf")
BY = {"by": "lee", "justification": "found and mended, incident 9"}


@define
class Known:
    """The model's state of one entry."""

    until: float
    stays: bool
    shares: tuple = ()
    overdue: bool = False

    @property
    def share(self):
        return self.shares[0] if self.shares else 0


class Switches(RuleBasedStateMachine):
    """Two switches on one store, and a list of the expected notifications."""

    def __init__(self):
        super().__init__()
        self.clock = VirtualClock()
        self.now = self.clock.time
        store = SharedStore(clock=self.clock)
        self.notified, self.recorder = [], Recorded()
        self.switch = KillSwitch(
            store, clock=self.clock, notifiers=[self.notify], listeners=[self.recorder]
        )
        self.other = KillSwitch(store, 0, clock=self.clock)
        self.known = {}
        self.expected = []

    def teardown(self):
        self.switch.close()
        self.other.close()

    def notify(self, record):
        self.notified.append((record.action, record.scope.kind, record.scope.name))

    def expect(self, action, scope):
        kind, name = scope
        self.expected.append((action, *(("global", None) if name is True else (kind, name))))

    def lift(self):
        """The first step of every command."""
        for scope, entry in list(self.known.items()):
            if self.is_expired(entry):
                del self.known[scope]
                self.expect("expired", scope)

    def look(self):
        """The step of a refresh for one entry."""
        for scope, entry in list(self.known.items()):
            if self.is_expired(entry):
                del self.known[scope]
                self.expect("expired", scope)
            elif entry.until <= self.now() and not entry.overdue:
                entry.overdue = True
                self.expect("overdue", scope)

    @rule(scope=scopes, seconds=st.sampled_from([60, 600, None]), stays=st.booleans())
    def stop(self, scope, seconds, stays):
        self.lift()
        until = NEVER if seconds is None else self.now() + seconds
        old = self.known.get(scope)
        if old is not None:
            until, stays = max(until, old.until), stays or old.stays
        end = {"permanent": True} if seconds is None else {"expires_in": seconds}
        when = "keep" if stays else None if seconds is None else "resume"
        self.switch.stop(**dict([scope]), reason=REASON, by="kim", when_expired=when, **end)
        self.known[scope] = Known(until, stays)
        self.expect("stopped", scope)

    @rule(scope=scopes, canary=st.sampled_from([None, (5, 25, 100), (50, 100), (100,)]))
    def resume(self, scope, canary):
        self.resumed(scope, canary, override=False)

    @rule(scope=scopes)
    def resume_with_an_override(self, scope):
        self.resumed(scope, None, override=True)

    def resumed(self, scope, canary, override):
        shares = canary or (100,)
        there = scope in self.known and not self.is_expired(self.known[scope])
        if not there or (scope[1] is True and shares == (100,) and not override):
            self.refused(self.other.resume, scope, canary=canary, override=override)
            return
        self.lift()
        self.other.resume(**dict([scope]), **BY, canary=canary, override=override)
        self.expect("resumed", scope)
        if shares == (100,):
            del self.known[scope]
        else:
            self.known[scope].shares, self.known[scope].stays = shares, True

    @rule(scope=scopes, healthy=st.sampled_from([None, True, False]))
    def advance(self, scope, healthy):
        entry = self.known.get(scope)
        if entry is None or not entry.shares:
            self.refused(self.switch.advance, scope, healthy=healthy)
            return
        self.lift()
        self.switch.advance(**dict([scope]), **BY, healthy=healthy)
        self.expect("rolled_back" if healthy is False else "advanced", scope)
        if healthy is False:
            entry.shares = ()
        elif entry.shares[1:] == (100,):
            del self.known[scope]
        else:
            entry.shares = entry.shares[1:]

    def refused(self, command, scope, **given):
        try:
            command(**dict([scope]), **BY, **given)
        except SwitchRefusedError:
            return
        raise AssertionError(f"{scope} was changed")

    @rule(seconds=st.sampled_from([1, 59, 60, 600]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def refresh(self):
        self.switch.refresh()
        self.look()

    def is_expired(self, entry):
        return not entry.stays and entry.until <= self.now()

    @invariant()
    def a_check_is_as_the_model_says(self):
        for names in ({}, {"segment": "a"}, {"segment": "b", "feature": "a", "experiment": "a"}):
            wanted = [("everything", True), *names.items()]
            entries = [self.known[each] for each in wanted if each in self.known]
            stopping = [each for each in entries if not self.is_expired(each)]
            decision = self.other.check(**names, key="user")
            if any(not each.shares for each in stopping):
                assert not decision
            elif not stopping:
                assert decision
            assert bool(self.other.check(**names)) == (not stopping)

    @invariant()
    def notifications_equal_the_commands(self):
        self.switch.refresh()
        self.look()
        assert self.notified == self.expected
        recorder = [(each.record.action) for each in self.recorder.events]
        assert recorder == [action for action, _, _ in self.expected]
        assert [each.action for each in reversed(self.switch.audit(limit=1000))] == recorder


Switches.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestSwitches = Switches.TestCase

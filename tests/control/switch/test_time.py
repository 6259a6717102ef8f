"""Expiry of a stop: it is lifted or followed by reminders; and the report."""

import pytest

from retrytemplate import KillSwitchActiveError
from retrytemplate.control import KillSwitch
from retrytemplate.testing import VirtualClock
from tests.control.switch.shared import REASON, Recorded, SharedStore, stopped

DAY = 86400


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def actions():
    return []


@pytest.fixture
def switch(clock, actions):
    return KillSwitch(clock=clock, notifiers=[lambda record: actions.append(record.action)])


@pytest.mark.statement("S4-65")
def test_expiring_stop_is_lifted_in_time_and_reported(switch, clock, actions):
    stopped(switch)
    clock.advance(3599)
    assert not switch.check(segment="billing")
    clock.advance(1)
    assert switch.check(segment="billing")
    switch.refresh()
    switch.refresh()
    assert actions == ["stopped", "expired"]
    assert switch.snapshot().entries == ()


@pytest.mark.statement("S4-65")
def test_kept_stop_stays_and_is_followed_by_reminders(switch, clock, actions):
    switch.stop(segment="a", reason=REASON, by="kim", expires_in=60, when_expired="keep")
    for seconds in (60, 1, DAY - 2, 1, DAY):
        clock.advance(seconds)
        switch.refresh()
    assert not switch.check(segment="a")
    assert actions == ["stopped", "overdue", "overdue", "overdue"]


def test_stop_of_everything_is_kept_by_default_when_it_expires(switch, clock, actions):
    stopped(switch, everything=True)
    clock.advance(3600)
    switch.refresh()
    assert not switch.check()
    assert actions == ["stopped", "overdue"]


def test_permanent_stop_never_expires(switch, clock):
    switch.stop(segment="billing", reason=REASON, by="kim", permanent=True)
    clock.advance(400 * DAY)
    switch.refresh()
    assert not switch.check(segment="billing")


@pytest.mark.statement("S4-65")
def test_one_of_several_switches_lifts_and_notifies(clock):
    store, actions = SharedStore(clock=clock), []
    switches = [KillSwitch(store, clock=clock, notifiers=[actions.append]) for _ in range(3)]
    stopped(switches[0])
    clock.advance(3600)
    for switch in switches:
        switch.refresh()
    assert [each.action for each in actions] == ["stopped", "expired"]
    for switch in switches:
        switch.close()


def test_command_lifts_expired_stops(switch, clock):
    stopped(switch)
    clock.advance(3600)
    stopped(switch, segment="search")
    assert [each.action for each in switch.audit()] == ["stopped", "expired", "stopped"]


def test_rejection_has_retry_after(switch, clock):
    stopped(switch)
    clock.advance(600)
    with pytest.raises(KillSwitchActiveError) as raised:
        switch.guard(segment="billing").call(int, "17")
    assert (raised.value.name, raised.value.retry_after) == ("switch", 3000)


@pytest.mark.parametrize("end", [{"permanent": True}, {"expires_in": 60, "when_expired": "keep"}])
def test_rejection_without_an_end_has_no_retry_after(switch, end):
    switch.stop(segment="billing", reason=REASON, by="kim", **end)
    with pytest.raises(KillSwitchActiveError) as raised:
        switch.guard(segment="billing").call(int, "17")
    assert raised.value.retry_after is None


def test_clock_set_back_sends_no_reminder(switch, clock, actions):
    switch.stop(segment="a", reason=REASON, by="kim", expires_in=60, when_expired="keep")
    clock.advance(60)
    switch.refresh()
    clock._to_epoch -= 10 * DAY
    switch.refresh()
    assert not switch.check(segment="a")
    assert actions == ["stopped", "overdue"]
    assert [each.age for each in switch.report().lines] == [0.0]


# -- the report ----------------------------------------------------------------------------------


@pytest.mark.statement("S4-66")
def test_report_lists_stops_with_age_reason_owner_and_end(switch, clock):
    stopped(switch)
    switch.stop(feature="export", reason="wrong totals", by="lee", permanent=True)
    switch.stop(segment="a", reason=REASON, by="max", expires_in=60, when_expired="keep")
    clock.advance(600)
    lines = switch.report().lines
    assert [(each.age, each.entry.by, each.left, each.state) for each in lines] == [
        (600, "max", -540, "stopped, overdue"),
        (600, "kim", 3000, "stopped"),
        (600, "lee", None, "stopped"),
    ]


@pytest.mark.statement("S4-66")
def test_report_has_a_readable_text(switch, clock):
    stopped(switch)
    switch.stop(feature="export", reason="wrong totals", by="lee", permanent=True)
    switch.stop(segment="a", reason=REASON, by="max", expires_in=60, when_expired="keep")
    clock.advance(DAY / 24 * 0.9)
    switch.resume(feature="export", by="lee", justification="found and mended", canary=(5, 25, 100))
    assert str(switch.report()) == (
        "switch, 2026-01-01 00:54 UTC: 3 stopped\n"
        "- segment 'a': stopped, overdue, for 54 min, by max, overdue since 2026-01-01 00:01 UTC: "
        "charged twice, incident 9\n"
        "- segment 'billing': stopped, for 54 min, by kim, resumes automatically in 6 min, "
        "2026-01-01 01:00 UTC: "
        "charged twice, incident 9\n"
        "- feature 'export': resumed for 5 %, for 54 min, by lee, permanent: wrong totals"
    )


def test_report_without_stops_has_one_line(switch):
    assert str(switch.report()) == "switch, 2026-01-01 00:00 UTC: nothing is stopped"


def test_listeners_receive_expiries(clock):
    listener = Recorded()
    switch = KillSwitch(clock=clock, listeners=[listener])
    stopped(switch)
    clock.advance(3600)
    switch.refresh()
    assert listener.actions == ["stopped", "expired"]


def test_expired_stop_is_not_in_a_report_before_it_is_lifted(clock):
    store = SharedStore(clock=clock)
    with KillSwitch(store, clock=clock) as switch:
        stopped(switch)
        clock.advance(3600)
        store.down = True
        report = switch.report()
    assert report.lines == ()
    assert report.stale == 3600

"""Several switches on one store: visibility, notifications, and an unavailable store."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import timedelta

import pytest

from retrytemplate import KillSwitchActiveError, SwitchRefusedError, SwitchStoreError
from retrytemplate.control import (
    ControlListener,
    KillSwitch,
    SwitchStoreLost,
    SwitchStoreRecovered,
    UnreadableRecord,
)
from retrytemplate.testing import VirtualClock
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.control.switch.shared import REASON, Recorded, SharedStore, stopped

STALE = 5.0
WELL = {"by": "lee", "justification": "found and mended, see incident 9"}


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def store(clock):
    return SharedStore(clock=clock)


@pytest.fixture
def make(store, clock):
    made = []

    def make(*args, **settings):
        made.append(KillSwitch(store, *args, clock=clock, **settings))
        return made[-1]

    yield make
    for switch in made:
        switch.close()


# -- what others do ------------------------------------------------------------------------------


@pytest.mark.statement("S4-73")
def test_remote_change_is_seen_within_the_bound(make, clock):
    here, there = make(), make()
    assert here.check(segment="billing")
    stopped(there)
    clock.advance(STALE)
    assert not here.check(segment="billing")
    there.resume(segment="billing", **WELL)
    clock.advance(STALE)
    assert here.check(segment="billing")


class Slow(SharedStore):
    """Responds late, with the state at the time of the request."""

    def __init__(self, clock, seconds):
        super().__init__(clock=clock)
        self.clock = clock
        self.seconds = seconds

    def load(self, known):
        found = super().load(known)
        self.clock.advance(self.seconds)
        return found


@pytest.mark.statement("S4-73")
def test_slow_store_does_not_lengthen_the_bound(clock):
    store = Slow(clock, STALE - 1)
    with KillSwitch(store, STALE, clock=clock) as here, KillSwitch(store, clock=clock) as there:
        assert here.check(segment="billing")
        store.seconds = 0
        stopped(there)
        clock.advance(1)
        assert not here.check(segment="billing")


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock counts on in a sleep")
def test_suspend_of_the_machine_makes_the_copy_stale(monkeypatch):
    slept, read_clock = [], time.clock_gettime

    def clock_gettime(which):
        return read_clock(which) + (sum(slept) if which == time.CLOCK_BOOTTIME else 0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    store = SharedStore()
    with KillSwitch(store, 3600) as here, KillSwitch(store) as there:
        assert here.check(segment="billing")
        stopped(there)
        slept.append(3600)
        assert not here.check(segment="billing")


def test_own_change_is_visible_immediately(make):
    switch = make()
    assert switch.check(segment="billing")
    stopped(switch)
    assert not switch.check(segment="billing")
    switch.resume(segment="billing", **WELL)
    assert switch.check(segment="billing")


def test_store_is_loaded_once_within_the_bound(make, store, clock):
    switch = make()
    for _ in range(100):
        switch.check(segment="billing")
        clock.advance(STALE / 101)
    assert store.loads == 1


def test_strict_switch_loads_at_every_check(make, store):
    strict, other = make(0), make()
    assert strict.check(segment="billing")
    stopped(other)
    assert not strict.check(segment="billing")
    before = store.loads
    strict.check(segment="billing")
    assert store.loads == before + 1


class EventRecorder(ControlListener):
    """Signals the arrival of an event."""

    def __init__(self):
        self.recorder = threading.Event()

    def on_event(self, event):
        self.recorder.set()


def test_poller_reports_a_change_without_a_check():
    store, listener = SharedStore(), EventRecorder()
    with KillSwitch(store, 0.1, listeners=[listener]) as here, KillSwitch(store) as there:
        here.start()
        stopped(there)
        assert listener.recorder.wait(JOIN_TIMEOUT)
        assert here.snapshot().entries


def test_unreferenced_switch_is_collected_and_its_thread_ends(store):
    switch = KillSwitch(store)
    switch.start()
    thread = switch._poller._thread
    assert thread.is_alive()
    del switch
    thread.join(10)
    assert not thread.is_alive()


def test_listeners_receive_remote_changes_once(make, clock):
    listener = Recorded()
    here, there = make(listeners=[listener]), make()
    here.check()
    stopped(there)
    there.resume(segment="billing", **WELL)
    stopped(here, segment="search")
    for _ in range(2):
        clock.advance(STALE)
        here.check()
        here.refresh()
    assert listener.actions == ["stopped", "resumed", "stopped"]


def test_listeners_receive_remote_changes_that_a_command_saw_first(make):
    listener = Recorded()
    here, there = make(listeners=[listener]), make()
    here.check()
    stopped(there)
    with pytest.raises(SwitchRefusedError):
        here.resume(segment="search", **WELL)
    here.refresh()
    assert listener.actions == ["stopped"]


def test_earlier_changes_are_not_reported(make, clock):
    stopped(make())
    listener = Recorded()
    here = make(listeners=[listener])
    here.check()
    clock.advance(STALE)
    here.refresh()
    assert listener.events == []


def test_listeners_receive_any_number_of_changes(make):
    listener = Recorded()
    here, there = make(listeners=[listener]), make()
    here.check()
    names = [f"shop {number}" for number in range(250)]
    for name in names:
        stopped(there, segment=name)
    here.refresh()
    here.refresh()
    assert [each.record.scope.name for each in listener.events] == names


@pytest.mark.parametrize("changes", [1, 3, 5])
def test_listeners_receive_changes_after_a_data_loss(make, store, clock, changes):
    listener = Recorded()
    here, there = make(listeners=[listener]), make()
    here.check()
    for name in ("billing", "search", "export"):
        stopped(there, segment=name)
    here.refresh()
    listener.events.clear()
    store.wipe()
    for number in range(changes):
        stopped(make(), segment=f"shop {number}")
    clock.advance(STALE)
    here.refresh()
    assert listener.actions == ["stopped"] * changes + ["restored"] * 3


def test_listeners_receive_no_change_twice_after_records_are_deleted(make, store):
    listener = Recorded()
    here, there = make(listeners=[listener]), make()
    here.check()
    for name in ("billing", "search", "export"):
        stopped(there, segment=name)
    here.refresh()
    for number in (2, 3):
        del store._records[number]
    stopped(there, segment="sales")
    here.refresh()
    assert [each.record.scope.name for each in listener.events] == [
        *("billing", "search", "export", "sales")
    ]


# -- notifications -------------------------------------------------------------------------------


@pytest.mark.statement("S4-63")
def test_each_change_is_recorded_and_reported_once(make):
    notified = []
    switch, other = (make(notifiers=[notified.append]) for _ in range(2))
    stopped(switch)
    other.resume(segment="billing", canary=(5, 100), **WELL)
    switch.advance(segment="billing", **WELL)
    other.refresh()
    assert [each.action for each in notified] == ["stopped", "resumed", "advanced"]
    assert tuple(notified) == switch.audit()[::-1]


@pytest.mark.statement("S4-63")
def test_change_of_a_process_without_notifiers_is_reported_by_another(make):
    notified = []
    command, service = make(), make(notifiers=[notified.append])
    stopped(command)
    service.refresh()
    assert [each.action for each in notified] == ["stopped"]


DAY = 86_400


@pytest.fixture
def long_ago(make, clock):
    """Forty-five changes of eight days ago, and one of yesterday, all pending."""
    command = make()
    for number in range(45):
        command.stop(feature=f"export {number}", reason=REASON, by="kim", permanent=True)
    clock.advance(7 * DAY)
    stopped(command)
    clock.advance(DAY / 100)


def test_change_that_is_too_old_is_counted_and_not_notified(make, store, long_ago, caplog):
    notified = []
    service = make(notifiers=[notified.append])
    service.refresh()
    service.refresh()
    assert [each.scope.name for each in notified] == ["billing"]
    assert caplog.messages == [
        "kill switch switch: 45 changes are older than max_notification_age (7 d); the notifiers "
        "were not called; see the audit log"
    ]
    assert all(each.notified for each in store.records(limit=100))


@pytest.mark.parametrize("max_notification_age", [None, 8 * DAY, timedelta(days=8)], ids=str)
def test_maximum_age_of_notifications_can_be_set(make, long_ago, max_notification_age, caplog):
    notified = []
    make(notifiers=[notified.append], max_notification_age=max_notification_age).refresh()
    assert len(notified) == 46
    assert caplog.messages == []


def test_failed_notifier_is_called_again_and_breaks_nothing(make, clock, caplog):
    notified, down = [], [True]

    def post(record):
        if down:
            raise OSError("chat is down")
        notified.append(record.action)

    switch = make(notifiers=[post])
    stopped(switch)
    assert not switch.check(segment="billing")
    assert "failed for record 1" in caplog.text
    down.clear()
    switch.refresh()
    assert notified == []
    clock.advance(60)
    switch.refresh()
    switch.refresh()
    assert notified == ["stopped"]


def test_interrupt_of_a_notifier_loses_no_notification(make, clock):
    notified = []

    def post(record):
        notified.append(record.scope.name)
        if len(notified) == 1:
            raise KeyboardInterrupt

    switch = make(notifiers=[post])
    with pytest.raises(KeyboardInterrupt):
        stopped(switch)
    assert not switch.check(segment="billing")
    stopped(switch, segment="search")
    clock.advance(60)
    switch.refresh()
    assert notified == ["billing", "search", "billing"]


def test_two_threads_notify_concurrently(make, store, caplog):
    notified = []
    switch = make(notifiers=[notified.append])
    claim = store.claim_pending_notifications

    def claim_while_another_notifies(*arguments):
        store.claim_pending_notifications = claim
        switch.refresh()
        return claim(*arguments)

    store.claim_pending_notifications = claim_while_another_notifies
    stopped(switch)
    assert [each.action for each in notified] == ["stopped"]
    assert caplog.text == ""


def test_notifier_that_returns_an_awaitable_has_failed(make, caplog):
    async def post(record):
        """Send it."""

    switch = make(notifiers=[lambda record: post(record)])
    stopped(switch)
    assert "returned an awaitable" in caplog.text
    assert not switch.store.records()[0].notified


def test_notifier_may_issue_commands(make):
    notified = []

    def spread(record):
        notified.append(str(record.scope))
        if record.scope.name == "billing":
            stopped(switch, segment="search")

    switch = make(notifiers=[spread])
    stopped(switch)
    assert notified == ["segment 'billing'", "segment 'search'"]


def test_listener_that_raises_breaks_nothing(make, caplog):
    class Broken(Recorded):
        def on_event(self, event):
            raise ValueError("broken listener")

    switch = make(listeners=[Broken()])
    stopped(switch)
    assert not switch.check(segment="billing")
    with pytest.raises(KillSwitchActiveError):
        switch.guard(segment="billing").call(int, "17")
    assert "broken listener" in caplog.text


KILLED = """
import os, signal, sys
from retrytemplate.control import KillSwitch
from retrytemplate.control.switch.store.sql import SQLSwitchStore

class Killed(SQLSwitchStore):
    def claim_pending_notifications(self, worker, lease, limit):
        os.kill(os.getpid(), signal.SIGKILL)

switch = KillSwitch(Killed(sys.argv[1]), notifiers=[print])
switch.stop(segment="billing", reason="charged twice, incident 9", by="kim", permanent=True)
"""


@pytest.mark.statement("S4-63")
@pytest.mark.skipif(os.name == "nt", reason="processes are not killed by a signal there")
def test_change_of_a_killed_process_is_reported_by_another(tmp_path):
    from retrytemplate.control.switch.store.sql import SQLSwitchStore

    url = f"sqlite:///{tmp_path / 'switch.db'}"
    died = subprocess.run([sys.executable, "-c", KILLED, url], capture_output=True, check=False)
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, b"")
    notified = []
    with (
        closing(SQLSwitchStore(url)) as store,
        KillSwitch(store, notifiers=[notified.append]) as switch,
    ):
        switch.refresh()
        switch.refresh()
        assert not switch.check(segment="billing")
    assert [str(each) for each in notified] == [
        "segment 'billing' stopped by kim: charged twice, incident 9"
    ]


# -- a store that is away ------------------------------------------------------------------------


@pytest.mark.statement("S4-73")
def test_unavailable_store_keeps_the_last_state_and_is_reported_once(make, store, clock):
    listener = Recorded()
    switch = make(listeners=[listener])
    stopped(switch)
    listener.events.clear()
    store.down = True
    for _ in range(5):
        clock.advance(STALE)
        assert not switch.check(segment="billing")
        assert switch.check(segment="search")
        switch.refresh()
    store.down = False
    clock.advance(STALE)
    assert not switch.check(segment="billing")
    lost, back = listener.events
    assert isinstance(lost, SwitchStoreLost)
    assert (lost.age, str(lost.error)) == (
        STALE,
        "the store of the kill switch cannot be read: OSError: connection reset",
    )
    assert isinstance(back, SwitchStoreRecovered)
    assert back.outage == 5 * STALE


def test_snapshot_has_the_age_of_its_state(make, store, clock):
    switch = make()
    assert (switch.snapshot().age, switch.snapshot().version) == (None, None)
    switch.check()
    store.down = True
    clock.advance(60)
    switch.check()
    snapshot = switch.snapshot()
    assert (snapshot.age, snapshot.lost, snapshot.version) == (60, True, 0)
    assert "connection reset" in snapshot.error
    assert "state read 1 min ago" in str(switch.report())


def test_unavailable_store_is_loaded_once_per_interval(make, store, clock):
    switch = make()
    switch.check()
    store.down = True
    clock.advance(STALE)
    for _ in range(100):
        switch.check()
    assert store.loads == 2


def test_hanging_store_delays_one_check_only(make, store, clock):
    switch = make()
    switch.check()

    def hangs(known):
        store.loads += 1
        clock.advance(0.9 * STALE)
        if store.loads > 2:
            switch.check()  # while the watching thread waits
        raise OSError("timed out")

    store.load = hangs
    clock.advance(STALE)
    switch.check()
    for loads in range(3, 8):
        clock.advance(STALE / 2)
        switch.refresh()
        assert store.loads == loads


@pytest.mark.parametrize(("unknown", "allowed"), [("stop", False), ("run", True)])
def test_unknown_setting_applies_before_the_first_load(make, store, clock, unknown, allowed):
    store.down = True
    switch = make(unknown=unknown)
    assert switch.check(segment="billing").allowed is allowed
    if not allowed:
        assert "the store has not answered yet" in switch.check().reason
        with pytest.raises(KillSwitchActiveError):
            switch.guard().call(int, "17")
    with pytest.raises(SwitchStoreError, match=r"has not answered yet: .*connection reset"):
        switch.report()
    store.down = False
    clock.advance(STALE)
    assert switch.check(segment="billing")


@pytest.mark.parametrize("command", ["stop", "resume", "advance", "trigger"])
def test_command_without_the_store_fails_and_changes_nothing(make, store, command):
    switch = make()
    stopped(switch)
    switch.resume(segment="billing", canary=(5, 100), **WELL)
    given = {
        "stop": {"reason": REASON, "by": "kim", "permanent": True},
        "resume": WELL,
        "advance": WELL,
        "trigger": {"reason": REASON},
    }[command]
    cause = ["provider outage"] if command == "trigger" else []
    store.down = True
    with pytest.raises(SwitchStoreError, match="connection reset"):
        getattr(switch, command)(*cause, segment="billing", **given)
    store.down = False
    assert [each.action for each in switch.audit()] == ["resumed", "stopped"]


def test_change_with_a_lost_response_is_kept_and_succeeds(make, store):
    switch = make()
    store.loses_answers = True
    stopped(switch)
    assert not switch.check(segment="billing")
    assert len(switch.audit()) == 1


def test_unknown_result_of_a_change_is_reported(make, store):
    switch = make()

    class Gone(type(store)):
        def commit(self, expected, document, records):
            super().commit(expected, document, records)
            self.down = True
            raise OSError("connection lost")

    store.__class__ = Gone
    with pytest.raises(SwitchStoreError, match="it is unknown whether segment 'billing' was ch"):
        stopped(switch)


RUBBISH = {
    "no JSON": "{",
    "no object": "[]",
    "no version": '{"entries":[]}',
    "a later format": '{"v":2}',
    "no entries": '{"v":1,"store":"a","entries":{}}',
    "an entry of a wrong type": '{"v":1,"store":"a","entries":[17]}',
    "a field that is missing": '{"v":1,"store":"a","entries":[{"kind":"global","name":null}]}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", RUBBISH.values(), ids=RUBBISH)
def test_unreadable_store_counts_as_unavailable(make, store, clock, text):
    listener = Recorded()
    switch, fresh = make(listeners=[listener]), make()
    stopped(switch)
    store.commit(1, text, [])
    clock.advance(STALE)
    assert not switch.check(segment="billing")
    assert listener.kinds[-1] == "SwitchStoreLost"
    assert not fresh.check(segment="search")
    with pytest.raises(SwitchStoreError, match=r"in the store of a kill switch|has format 2"):
        stopped(switch, segment="search")
    assert store.load(None) == (2, text)


@pytest.mark.parametrize("answer", [17, ("1", ""), (1, None), (1, "", 3)], ids=str)
def test_store_with_an_invalid_result_counts_as_unavailable(make, store, answer):
    store.load = lambda known: answer
    assert not make().check()
    assert make(unknown="run").check()


def test_corrupt_record_is_skipped_by_the_notifiers(make, store, caplog):
    notified = []
    store.commit(0, "", ["rubbish"])
    switch = make(notifiers=[notified.append], listeners=[Recorded()])
    stopped(switch)
    assert [each.action for each in notified] == ["stopped"]
    assert "record 1 cannot be read and is not sent to any notifier" in caplog.text


LATER = '{"v":2}'


def test_record_of_a_later_version_is_left_for_its_readers(make, store, clock, caplog):
    notified = []
    store.commit(0, "", [LATER])
    switch = make(notifiers=[notified.append])
    stopped(switch)
    for _ in range(3):
        clock.advance(60)
        switch.refresh()
    assert [each.action for each in notified] == ["stopped"]
    assert caplog.messages == [
        "kill switch switch: record 1 has format 2, this version reads up to 1; a process with a "
        "later version of the library must send its notification"
    ]
    clock.advance(60)
    assert [
        each.number for each in store.claim_pending_notifications("who can read it", 60.0, 10)
    ] == [1]


def test_records_of_a_later_version_do_not_hide_the_others(make, store):
    notified, claimed = [], []
    store.commit(0, "", [LATER] * 50)
    claim = store.claim_pending_notifications

    def counted(*arguments):
        claimed.append(len(found := claim(*arguments)))
        return found

    store.claim_pending_notifications = counted
    switch = make(notifiers=[notified.append])
    stopped(switch)
    assert [each.action for each in notified] == ["stopped"]
    switch.refresh()
    assert claimed == [20, 20, 11, 0, 0]


@pytest.mark.parametrize(
    ("text", "why", "later"),
    [
        ("rubbish", "record 2 in the store of a kill switch cannot be read: it is not JSON", False),
        ('{"v":2}', "record 2 has format 2, this version reads up to 1", True),
        ("", "record 2 in the store of a kill switch cannot be read: it is not JSON", False),
    ],
)
def test_unreadable_record_is_shown_among_the_others(make, store, text, why, later):
    switch = make()
    stopped(switch)
    version, document = store.load(None)
    store.commit(version, document, [text])
    stopped(switch, segment="search")
    newest, unreadable, oldest = switch.audit()
    assert (newest.scope.name, oldest.scope.name) == ("search", "billing")
    assert unreadable == UnreadableRecord(number=2, reason=why, later=later)
    assert str(unreadable) == why
    assert len(switch.report().lines) == 2


# -- a store that does not let everything be done ------------------------------------------------


def refusing(*arguments, **settings):
    raise OSError("permission denied")


@pytest.fixture
def watching(make, clock):
    """A switch that is to lift a stop, and to notify of another one."""
    recorder, notified = Recorded(), []
    switch = make(
        listeners=[recorder], notifiers=[lambda record: notified.append(record.scope.name)]
    )
    switch.check()
    stopped(make())
    clock.advance(3599)
    stopped(make(), segment="search")
    clock.advance(1)
    return switch, recorder, notified


def test_read_only_process_logs_once_and_still_notifies(store, watching, caplog):
    switch, recorder, notified = watching
    store.commit = refusing
    for _ in range(3):
        switch.refresh()
    assert caplog.messages == ["kill switch switch: expired stops cannot be updated in the store"]
    assert [each.record.scope.name for each in recorder.events] == notified == ["billing", "search"]


def test_second_outage_after_a_success_is_logged_again(store, watching, clock, caplog):
    switch, _, _ = watching
    commit = store.commit
    for _ in range(2):
        store.commit = refusing
        switch.refresh()
        store.commit = commit
        switch.refresh()
        stopped(switch)
        clock.advance(3600)
    assert (
        caplog.messages == ["kill switch switch: expired stops cannot be updated in the store"] * 2
    )


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "records",
            "kill switch switch: recent changes cannot be read from the store; the listeners are "
            "notified later",
        ),
        (
            "claim_pending_notifications",
            "kill switch switch: notifications cannot be claimed or marked as sent in the store; "
            "this or another process tries again later",
        ),
        (
            "mark_notified",
            "kill switch switch: notifications cannot be claimed or marked as sent in the store; "
            "this or another process tries again later",
        ),
    ],
)
def test_failed_notification_is_logged_once(store, watching, caplog, method, message):
    switch, _, _ = watching
    setattr(store, method, refusing)
    for _ in range(3):
        switch.refresh()
    assert caplog.messages == [message]


# -- a store that forgets ------------------------------------------------------------------------


@pytest.mark.statement("S4-73")
def test_state_lost_by_the_store_stays_stopped_and_is_restored(make, store, clock):
    notified = []
    switch = make(notifiers=[lambda record: notified.append((record.action, record.by))])
    switch.stop(segment="billing", reason=REASON, by="kim", permanent=True)
    store.wipe()
    clock.advance(STALE)
    assert not switch.check(segment="billing")
    switch.refresh()
    assert notified[1:] == [("restored", "automatic: the store had lost it")]
    assert not make().check(segment="billing")


def test_restored_state_does_not_replace_later_stops(make, store, clock):
    switch, other = make(), make()
    switch.stop(segment="billing", reason=REASON, by="kim", permanent=True)
    store.wipe()
    for name in ("billing", "search"):
        other.stop(segment=name, reason="charged twice again", by="lee", permanent=True)
    clock.advance(STALE)
    switch.refresh()
    assert {each.scope.name: each.by for each in switch.snapshot().entries} == {
        "billing": "lee",
        "search": "lee",
    }
    assert "restored" not in [each.action for each in switch.audit()]


def test_restored_stop_can_be_resumed_permanently(make, store, clock):
    switch, other = make(), make()
    switch.stop(segment="billing", reason=REASON, by="kim", permanent=True)
    other.check()
    store.wipe()
    clock.advance(1)
    switch.resume(segment="billing", **WELL)
    clock.advance(STALE)
    switch.refresh()
    assert switch.check(segment="billing")
    assert [each.action for each in switch.audit()] == ["resumed", "restored"]

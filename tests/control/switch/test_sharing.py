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
def test_a_change_elsewhere_is_seen_within_the_bound(make, clock):
    here, there = make(), make()
    assert here.check(segment="billing")
    stopped(there)
    clock.advance(STALE)
    assert not here.check(segment="billing")
    there.resume(segment="billing", **WELL)
    clock.advance(STALE)
    assert here.check(segment="billing")


class Slow(SharedStore):
    """Takes its time to answer, with what it held when it was asked."""

    def __init__(self, clock, seconds):
        super().__init__(clock=clock)
        self.clock = clock
        self.seconds = seconds

    def load(self, known):
        found = super().load(known)
        self.clock.advance(self.seconds)
        return found


@pytest.mark.statement("S4-73")
def test_a_store_that_takes_its_time_makes_the_bound_no_longer(clock):
    store = Slow(clock, STALE - 1)
    with KillSwitch(store, STALE, clock=clock) as here, KillSwitch(store, clock=clock) as there:
        assert here.check(segment="billing")
        store.seconds = 0
        stopped(there)
        clock.advance(1)
        assert not here.check(segment="billing")


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock counts on in a sleep")
def test_after_a_sleep_of_the_machine_the_store_is_asked(monkeypatch):
    slept, asked = [], time.clock_gettime

    def clock_gettime(which):
        return asked(which) + (sum(slept) if which == time.CLOCK_BOOTTIME else 0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    store = SharedStore()
    with KillSwitch(store, 3600) as here, KillSwitch(store) as there:
        assert here.check(segment="billing")
        stopped(there)
        slept.append(3600)
        assert not here.check(segment="billing")


def test_ones_own_change_is_seen_at_once(make):
    switch = make()
    assert switch.check(segment="billing")
    stopped(switch)
    assert not switch.check(segment="billing")
    switch.resume(segment="billing", **WELL)
    assert switch.check(segment="billing")


def test_within_the_bound_the_store_is_not_asked_again(make, store, clock):
    switch = make()
    for _ in range(100):
        switch.check(segment="billing")
        clock.advance(STALE / 101)
    assert store.loads == 1


def test_a_strict_switch_asks_each_time(make, store):
    strict, other = make(0), make()
    assert strict.check(segment="billing")
    stopped(other)
    assert not strict.check(segment="billing")
    before = store.loads
    strict.check(segment="billing")
    assert store.loads == before + 1


class Hears(ControlListener):
    """Lets the test know that an event has come."""

    def __init__(self):
        self.heard = threading.Event()

    def on_event(self, event):
        self.heard.set()


def test_poller_sees_a_change_without_a_check():
    store, listener = SharedStore(), Hears()
    with KillSwitch(store, 0.1, listeners=[listener]) as here, KillSwitch(store) as there:
        here.start()
        stopped(there)
        assert listener.heard.wait(JOIN_TIMEOUT)
        assert here.snapshot().entries


def test_unreferenced_switch_is_collected_and_its_thread_ends(store):
    switch = KillSwitch(store)
    switch.start()
    thread = switch._poller._thread
    assert thread.is_alive()
    del switch
    thread.join(10)
    assert not thread.is_alive()


def test_listeners_hear_of_what_others_have_changed_once(make, clock):
    told = Recorded()
    here, there = make(listeners=[told]), make()
    here.check()
    stopped(there)
    there.resume(segment="billing", **WELL)
    stopped(here, segment="search")
    for _ in range(2):
        clock.advance(STALE)
        here.check()
        here.refresh()
    assert told.actions == ["stopped", "resumed", "stopped"]


def test_listeners_hear_of_what_others_have_changed_though_a_command_saw_it_first(make):
    told = Recorded()
    here, there = make(listeners=[told]), make()
    here.check()
    stopped(there)
    with pytest.raises(SwitchRefusedError):
        here.resume(segment="search", **WELL)
    here.refresh()
    assert told.actions == ["stopped"]


def test_what_happened_before_is_no_news(make, clock):
    stopped(make())
    told = Recorded()
    here = make(listeners=[told])
    here.check()
    clock.advance(STALE)
    here.refresh()
    assert told.events == []


def test_listeners_hear_of_all_that_has_happened_however_much_it_is(make):
    told = Recorded()
    here, there = make(listeners=[told]), make()
    here.check()
    names = [f"shop {number}" for number in range(250)]
    for name in names:
        stopped(there, segment=name)
    here.refresh()
    here.refresh()
    assert [each.record.scope.name for each in told.events] == names


@pytest.mark.parametrize("changes", [1, 3, 5])
def test_listeners_hear_of_what_happens_after_the_store_has_lost_everything(
    make, store, clock, changes
):
    told = Recorded()
    here, there = make(listeners=[told]), make()
    here.check()
    for name in ("billing", "search", "export"):
        stopped(there, segment=name)
    here.refresh()
    told.events.clear()
    store.wipe()
    for number in range(changes):
        stopped(make(), segment=f"shop {number}")
    clock.advance(STALE)
    here.refresh()
    assert told.actions == ["stopped"] * changes + ["restored"] * 3


def test_listeners_hear_of_nothing_twice_though_the_records_before_it_are_deleted(make, store):
    told = Recorded()
    here, there = make(listeners=[told]), make()
    here.check()
    for name in ("billing", "search", "export"):
        stopped(there, segment=name)
    here.refresh()
    for number in (2, 3):
        del store._records[number]
    stopped(there, segment="sales")
    here.refresh()
    assert [each.record.scope.name for each in told.events] == [
        *("billing", "search", "export", "sales")
    ]


# -- notifications -------------------------------------------------------------------------------


@pytest.mark.statement("S4-63")
def test_each_change_has_a_record_and_is_reported_once(make):
    told = []
    switch, other = (make(notifiers=[told.append]) for _ in range(2))
    stopped(switch)
    other.resume(segment="billing", canary=(5, 100), **WELL)
    switch.advance(segment="billing", **WELL)
    other.refresh()
    assert [each.action for each in told] == ["stopped", "resumed", "advanced"]
    assert tuple(told) == switch.audit()[::-1]


@pytest.mark.statement("S4-63")
def test_change_of_a_process_without_notifiers_is_reported_by_another(make):
    told = []
    command, service = make(), make(notifiers=[told.append])
    stopped(command)
    service.refresh()
    assert [each.action for each in told] == ["stopped"]


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
    told = []
    service = make(notifiers=[told.append])
    service.refresh()
    service.refresh()
    assert [each.scope.name for each in told] == ["billing"]
    assert caplog.messages == [
        "switch: 45 changes are older than 7 d: the notifiers are not notified, see the audit"
    ]
    assert all(each.notified for each in store.records(limit=100))


@pytest.mark.parametrize("max_notification_age", [None, 8 * DAY, timedelta(days=8)], ids=str)
def test_how_long_ago_is_yours_to_say(make, long_ago, max_notification_age, caplog):
    told = []
    make(notifiers=[told.append], max_notification_age=max_notification_age).refresh()
    assert len(told) == 46
    assert caplog.messages == []


def test_a_notifier_that_raises_is_tried_again_and_breaks_nothing(make, clock, caplog):
    told, down = [], [True]

    def post(record):
        if down:
            raise OSError("chat is down")
        told.append(record.action)

    switch = make(notifiers=[post])
    stopped(switch)
    assert not switch.check(segment="billing")
    assert "failed for record 1" in caplog.text
    down.clear()
    switch.refresh()
    assert told == []
    clock.advance(60)
    switch.refresh()
    switch.refresh()
    assert told == ["stopped"]


def test_interrupt_of_a_notifier_loses_no_notification(make, clock):
    told = []

    def post(record):
        told.append(record.scope.name)
        if len(told) == 1:
            raise KeyboardInterrupt

    switch = make(notifiers=[post])
    with pytest.raises(KeyboardInterrupt):
        stopped(switch)
    assert not switch.check(segment="billing")
    stopped(switch, segment="search")
    clock.advance(60)
    switch.refresh()
    assert told == ["billing", "search", "billing"]


def test_two_threads_notify_concurrently(make, store, caplog):
    told = []
    switch = make(notifiers=[told.append])
    claim = store.claim_pending_notifications

    def claim_while_another_tells(*arguments):
        store.claim_pending_notifications = claim
        switch.refresh()
        return claim(*arguments)

    store.claim_pending_notifications = claim_while_another_tells
    stopped(switch)
    assert [each.action for each in told] == ["stopped"]
    assert caplog.text == ""


def test_notifier_that_returns_an_awaitable_has_failed(make, caplog):
    async def post(record):
        """Send it."""

    switch = make(notifiers=[lambda record: post(record)])
    stopped(switch)
    assert "returned an awaitable" in caplog.text
    assert not switch.store.records()[0].notified


def test_a_notifier_may_command(make):
    told = []

    def spread(record):
        told.append(str(record.scope))
        if record.scope.name == "billing":
            stopped(switch, segment="search")

    switch = make(notifiers=[spread])
    stopped(switch)
    assert told == ["segment 'billing'", "segment 'search'"]


def test_a_listener_that_raises_breaks_nothing(make, caplog):
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
    told = []
    with (
        closing(SQLSwitchStore(url)) as store,
        KillSwitch(store, notifiers=[told.append]) as switch,
    ):
        switch.refresh()
        switch.refresh()
        assert not switch.check(segment="billing")
    assert [str(each) for each in told] == [
        "segment 'billing' stopped by kim: charged twice, incident 9"
    ]


# -- a store that is away ------------------------------------------------------------------------


@pytest.mark.statement("S4-73")
def test_unavailable_store_keeps_the_last_state_and_is_reported_once(make, store, clock):
    told = Recorded()
    switch = make(listeners=[told])
    stopped(switch)
    told.events.clear()
    store.down = True
    for _ in range(5):
        clock.advance(STALE)
        assert not switch.check(segment="billing")
        assert switch.check(segment="search")
        switch.refresh()
    store.down = False
    clock.advance(STALE)
    assert not switch.check(segment="billing")
    lost, back = told.events
    assert isinstance(lost, SwitchStoreLost)
    assert (lost.age, str(lost.error)) == (
        STALE,
        "the store of the kill switch cannot be read: OSError: connection reset",
    )
    assert isinstance(back, SwitchStoreRecovered)
    assert back.outage == 5 * STALE


def test_a_snapshot_says_how_old_what_is_known_is(make, store, clock):
    switch = make()
    assert (switch.snapshot().age, switch.snapshot().version) == (None, None)
    switch.check()
    store.down = True
    clock.advance(60)
    switch.check()
    snapshot = switch.snapshot()
    assert (snapshot.age, snapshot.lost, snapshot.version) == (60, True, 0)
    assert "connection reset" in snapshot.error
    assert "as known 1 min ago" in str(switch.report())


def test_of_a_store_that_is_away_a_check_asks_once_in_a_while(make, store, clock):
    switch = make()
    switch.check()
    store.down = True
    clock.advance(STALE)
    for _ in range(100):
        switch.check()
    assert store.loads == 2


def test_for_a_store_that_does_not_answer_no_check_waits_a_second_time(make, store, clock):
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
def test_where_the_store_was_never_there_it_is_as_was_said(make, store, clock, unknown, allowed):
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
def test_a_command_fails_where_the_store_is_away_and_changes_nothing(make, store, command):
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


def test_a_change_whose_answer_is_lost_stands_and_is_not_reported_as_failed(make, store):
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
    with pytest.raises(SwitchStoreError, match="whether segment 'billing' was changed is not kn"):
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
def test_a_store_that_holds_rubbish_is_as_one_that_is_away(make, store, clock, text):
    told = Recorded()
    switch, fresh = make(listeners=[told]), make()
    stopped(switch)
    store.commit(1, text, [])
    clock.advance(STALE)
    assert not switch.check(segment="billing")
    assert told.kinds[-1] == "SwitchStoreLost"
    assert not fresh.check(segment="search")
    with pytest.raises(SwitchStoreError, match=r"in the store of a kill switch|has format 2"):
        stopped(switch, segment="search")
    assert store.load(None) == (2, text)


@pytest.mark.parametrize("answer", [17, ("1", ""), (1, None), (1, "", 3)], ids=str)
def test_a_store_that_answers_with_something_else_is_as_one_that_is_away(make, store, answer):
    store.load = lambda known: answer
    assert not make().check()
    assert make(unknown="run").check()


def test_corrupt_record_is_skipped_by_the_notifiers(make, store, caplog):
    told = []
    store.commit(0, "", ["rubbish"])
    switch = make(notifiers=[told.append], listeners=[Recorded()])
    stopped(switch)
    assert [each.action for each in told] == ["stopped"]
    assert "record 1 reaches no notifier" in caplog.text


LATER = '{"v":2}'


def test_what_a_later_version_has_written_is_left_to_who_can_read_it(make, store, clock, caplog):
    told = []
    store.commit(0, "", [LATER])
    switch = make(notifiers=[told.append])
    stopped(switch)
    for _ in range(3):
        clock.advance(60)
        switch.refresh()
    assert [each.action for each in told] == ["stopped"]
    assert caplog.messages == [
        "record 1 has format 2, this version reads up to 1: a later version of the library will "
        "notify of it"
    ]
    clock.advance(60)
    assert [
        each.number for each in store.claim_pending_notifications("who can read it", 60.0, 10)
    ] == [1]


def test_records_of_a_later_version_do_not_hide_the_others(make, store):
    told, claimed = [], []
    store.commit(0, "", [LATER] * 50)
    claim = store.claim_pending_notifications

    def counted(*arguments):
        claimed.append(len(found := claim(*arguments)))
        return found

    store.claim_pending_notifications = counted
    switch = make(notifiers=[told.append])
    stopped(switch)
    assert [each.action for each in told] == ["stopped"]
    switch.refresh()
    assert claimed == [20, 20, 11, 0, 0]


@pytest.mark.parametrize(
    ("text", "why", "later"),
    [
        ("rubbish", "record 2 in the store of a kill switch cannot be read: it is no JSON", False),
        ('{"v":2}', "record 2 has format 2, this version reads up to 1", True),
        ("", "record 2 in the store of a kill switch cannot be read: it is no JSON", False),
    ],
)
def test_a_record_that_cannot_be_read_is_shown_as_such_among_the_others(
    make, store, text, why, later
):
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
    heard, told = Recorded(), []
    switch = make(listeners=[heard], notifiers=[lambda record: told.append(record.scope.name)])
    switch.check()
    stopped(make())
    clock.advance(3599)
    stopped(make(), segment="search")
    clock.advance(1)
    return switch, heard, told


def test_read_only_process_logs_once_and_still_notifies(store, watching, caplog):
    switch, heard, told = watching
    store.commit = refusing
    for _ in range(3):
        switch.refresh()
    assert caplog.messages == ["switch: what is due cannot be written"]
    assert [each.record.scope.name for each in heard.events] == told == ["billing", "search"]


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
    assert caplog.messages == ["switch: what is due cannot be written"] * 2


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("records", "switch: the changes cannot be read"),
        (
            "claim_pending_notifications",
            "switch: the notifiers cannot be called, another process will call them",
        ),
        ("mark_notified", "switch: the notifiers cannot be called, another process will call them"),
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
def test_what_a_store_has_lost_stays_stopped_and_is_restored(make, store, clock):
    told = []
    switch = make(notifiers=[lambda record: told.append((record.action, record.by))])
    switch.stop(segment="billing", reason=REASON, by="kim", permanent=True)
    store.wipe()
    clock.advance(STALE)
    assert not switch.check(segment="billing")
    switch.refresh()
    assert told[1:] == [("restored", "automatic: the store had lost it")]
    assert not make().check(segment="billing")


def test_of_what_a_store_has_lost_nothing_is_restored_that_is_stopped_again(make, store, clock):
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

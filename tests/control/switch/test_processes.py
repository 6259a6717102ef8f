"""Several processes share a kill switch: all of them stop, although some are killed.

A check that begins later than ``stale_after`` after a stop was acknowledged does not let the work
continue: however slow the machine is, this can be checked, since the check looks at its own clock.
"""

import os
import signal
import time
from random import randrange

import pytest

from retrytemplate.control import (
    ControlListener,
    KillSwitch,
    RedisSwitchStore,
    SQLSwitchStore,
)
from retrytemplate.errors import SwitchStoreError
from tests.control.switch.conftest import opened
from tests.control.switch.working import FORKED, REASON, STALE_AFTER, WORK, Worker
from tests.support import postgres, valkey
from tests.support.event_log import EventLog
from tests.support.fork_server import processes
from tests.support.polling import wait_until

PATIENCE = 40.0
LEASE = 60.0
BY = "the supervisor"
# Where it does not matter what the server is.
ON_VALKEY = pytest.mark.parametrize("place", ["valkey"], indirect=True)


@pytest.fixture(params=["postgresql", "valkey"])
def place(request):
    return opened(request.param, request)


class Crew:
    """Processes that share a place, and a switch that commands them."""

    def __init__(self, place, folder):
        self.place = place
        self.event_log = EventLog(folder / "events")
        self.stop_file = folder / "stop"
        self.switch = KillSwitch(place.open(timeout=20.0), STALE_AFTER)
        self.at_work = []
        self.started = 0
        self.stopped = []  # from when on, and until when at least
        self.read = []

    def start(self, what):
        self.started += 1
        place = self.place
        worker = Worker(place.url, place.prefix, self.event_log, str(self.stop_file), self.started)
        process = processes.Process(target=getattr(worker, what), daemon=True)
        process.start()
        self.at_work.append(process)
        return process

    def kill(self, process):
        process.kill()
        process.join()
        self.at_work.remove(process)

    def rows(self, *what):
        """The rows of these kinds from all processes."""
        self.read += self.event_log.rows(after=len(self.read))
        return [row for row in self.read if row["what"] in what]

    def wait_for(self, rows, *what):
        """Wait for a number of rows of these kinds."""
        wait_until(lambda: len(self.rows(*what)) >= rows, self.at_work)

    def wait_for_each(self, processes, what):
        """Wait until each of the processes has added a new row of this kind."""
        now, pids = time.monotonic(), {each.pid for each in processes}

        def have_added():
            return pids <= {row["pid"] for row in self.rows(what) if row["at"] > now}

        wait_until(have_added, self.at_work)

    def stop_and_resume(self, watching):
        """Stop the work until each watcher rejects it, then until each works again."""
        self.switch.stop(segment=WORK, reason=REASON, by=BY, permanent=True)
        acknowledged = time.monotonic()
        self.wait_for_each(watching, "rejects")
        self.stopped.append((acknowledged, time.monotonic()))
        self.switch.resume(segment=WORK, by=BY, justification=REASON)
        self.wait_for_each(watching, "works")

    def ids(self):
        """The ids of the changes, the oldest first."""
        return [each.id for each in reversed(self.switch.audit(1_000_000))]

    def wait_for_all_notifications(self):
        def are_sent():
            return set(self.ids()) <= {row["key"] for row in self.notifications()}

        wait_until(are_sent, self.at_work)

    def notifications(self):
        return self.rows("notifies")

    def end(self):
        self.stop_file.touch()
        for each in self.at_work:
            each.join(PATIENCE)
        assert [each.exitcode for each in self.at_work] == [0] * len(self.at_work)

    def late(self):
        """The work that was done although the stop had to be known."""
        return [
            (row, begun)
            for begun, over in self.stopped
            for row in self.rows("works")
            if begun + STALE_AFTER < row["at"] < over
        ]


@pytest.fixture
def crew(place, tmp_path):
    made = Crew(place, tmp_path)
    yield made
    for each in made.at_work:
        each.kill()
        each.join()
    made.switch.close()
    made.event_log.close()


def replayed(records):
    """The stopped scopes after these changes, the oldest first."""
    stopped = set()
    for each in records:
        assert (each.action == "stopped") or each.scope in stopped
        if each.action == "stopped":
            stopped.add(each.scope)
        else:
            stopped.discard(each.scope)
    return stopped


@pytest.mark.stress
@pytest.mark.statement("S4-73")
def test_killed_processes_lose_no_stop_and_no_record(crew):
    watching = [crew.start("watch") for _ in range(5)]
    commanding = [crew.start("command") for _ in range(3)]
    crew.wait_for_each(watching, "works")
    for killable in (commanding, commanding, commanding, watching):
        crew.wait_for(len(crew.rows("has changed")) + randrange(3, 15), "has changed")
        crew.kill(killable.pop(0))
        if killable is commanding:
            commanding.append(crew.start("command"))
        crew.stop_and_resume(watching)
    for each in commanding:
        crew.kill(each)
    crew.place.age(2 * LEASE)  # the claim of a crashed process is free again
    crew.wait_for_all_notifications()
    crew.end()

    assert crew.late() == []
    assert len(crew.stopped) == 4
    ids = crew.ids()
    assert len(set(ids)) == len(ids)
    assert {row["key"] for row in crew.rows("has changed")} <= set(ids)
    # No change without its record, and no record without its change.
    assert crew.place.versions() == list(range(1, len(ids) + 1))
    crew.switch.refresh()
    known = crew.switch.snapshot()
    assert known.version == len(ids)
    records = reversed(crew.switch.audit(len(ids)))
    assert replayed(records) == {each.scope for each in known.entries}


@pytest.mark.statement("S4-63")
def test_one_of_two_processes_notifies_of_each_change(crew):
    watching = [crew.start("watch") for _ in range(2)]
    crew.wait_for_each(watching, "works")
    for _ in range(2):
        crew.stop_and_resume(watching)
    crew.wait_for_all_notifications()
    crew.end()
    assert crew.late() == []
    assert sorted(row["key"] for row in crew.notifications()) == sorted(crew.ids())


@ON_VALKEY
def test_suspended_process_does_not_use_its_stale_copy(crew):
    staring = crew.start("stare")
    crew.wait_for(2, "looks")
    os.kill(staring.pid, signal.SIGSTOP)
    crew.switch.stop(segment=WORK, reason=REASON, by=BY, permanent=True)
    stopped = time.monotonic()
    time.sleep(1.5 * STALE_AFTER)  # real time: a suspended process reads no virtual clock
    os.kill(staring.pid, signal.SIGCONT)

    def woken():
        return [row["allowed"] for row in crew.rows("wakes") if row["at"] > stopped]

    wait_until(woken, crew.at_work)
    crew.end()
    assert set(woken()) == {False}


def test_switch_is_usable_by_parent_and_child_after_a_fork(crew):
    forks = crew.start("fork")
    forks.join(PATIENCE)
    assert forks.exitcode == 0
    assert len(crew.ids()) == 2 * FORKED + 1


class EventRecorder(ControlListener):
    """Records its events."""

    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(type(event).__name__)


@pytest.fixture(params=["postgresql", "valkey"])
def server(request, tmp_path):
    """A server that may be killed, and how to make a store on it."""
    kind, path, made = (
        (postgres, request.getfixturevalue("postgres_binaries"), SQLSwitchStore)
        if request.param == "postgresql"
        else (valkey, request.getfixturevalue("valkey_binary"), RedisSwitchStore)
    )
    with kind.started(path, tmp_path / "server") as server:
        server.store = made(server.url, timeout=20.0)
        yield server
        server.store.close()


@pytest.mark.statement("S4-73")
def test_last_known_state_holds_while_the_server_is_unavailable(server):
    recorder = EventRecorder()
    with KillSwitch(server.store, STALE_AFTER, listeners=[recorder]) as switch:
        switch.stop(segment=WORK, reason=REASON, by=BY, permanent=True)
        server.kill()
        wait_until(lambda: "SwitchStoreLost" in recorder.events)
        wait_until(lambda: switch.snapshot().age > 3 * STALE_AFTER)
        assert not switch.check(segment=WORK).allowed
        assert switch.check(segment="another").allowed
        with pytest.raises(SwitchStoreError, match="failed in the store of the kill switch"):
            switch.stop(segment="another", reason=REASON, by=BY, permanent=True)
        server.start()
        wait_until(lambda: "SwitchStoreRecovered" in recorder.events)
        assert not switch.check(segment=WORK).allowed
        switch.resume(segment=WORK, by=BY, justification=REASON)
        assert switch.check(segment=WORK).allowed
    notifications = ["SwitchChanged", "SwitchStoreLost", "SwitchStoreRecovered", "SwitchChanged"]
    assert recorder.events == notifications

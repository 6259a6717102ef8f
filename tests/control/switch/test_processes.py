"""Several processes share a kill switch: all of them stop, although some are killed.

A check that begins later than ``stale_after`` after a stop was acknowledged does not let the work
continue: however slow the machine is, that can be said, since the check looks at its own clock.
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
from tests.support.fork_server import processes
from tests.support.witness import Witness

PATIENCE = 40.0
LEASE = 60.0
BY = "the supervisor"
# Where it does not matter what the server is.
ON_VALKEY = pytest.mark.parametrize("place", ["valkey"], indirect=True)


@pytest.fixture(params=["postgresql", "valkey"])
def place(request):
    return opened(request.param, request)


class Crew:
    """The processes at a place, and who commands them."""

    def __init__(self, place, folder):
        self.place = place
        self.witness = Witness(folder / "witness")
        self.stop_file = folder / "stop"
        self.switch = KillSwitch(place.open(timeout=20.0), STALE_AFTER)
        self.at_work = []
        self.started = 0
        self.stopped = []  # from when on, and until when at least
        self.read = []

    def start(self, what):
        self.started += 1
        place = self.place
        worker = Worker(place.url, place.prefix, self.witness, str(self.stop_file), self.started)
        process = processes.Process(target=getattr(worker, what), daemon=True)
        process.start()
        self.at_work.append(process)
        return process

    def kill(self, process):
        process.kill()
        process.join()
        self.at_work.remove(process)

    def rows(self, *what):
        """What the processes have said of these kinds."""
        self.read += self.witness.rows(after=len(self.read))
        return [row for row in self.read if row["what"] in what]

    def wait_for(self, rows, *what):
        """Wait for a number of rows of these kinds."""
        self.wait_until(lambda: len(self.rows(*what)) >= rows)

    def wait_for_each(self, processes, what):
        """Until each of the processes has said this from now on."""
        now, pids = time.monotonic(), {each.pid for each in processes}
        self.wait_until(lambda: pids <= {row["pid"] for row in self.rows(what) if row["at"] > now})

    def wait_until(self, holds):
        until = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < until
            assert all(each.exitcode is None for each in self.at_work)
            time.sleep(0.01)

    def stop_and_resume(self, watching):
        """Stop the work until each watcher rejects it, then until each works again."""
        self.switch.stop(segment=WORK, reason=REASON, by=BY, permanent=True)
        acknowledged = time.monotonic()
        self.wait_for_each(watching, "rejects")
        self.stopped.append((acknowledged, time.monotonic()))
        self.switch.resume(segment=WORK, by=BY, justification=REASON)
        self.wait_for_each(watching, "works")

    def ids(self):
        """The changes, the first first."""
        return [each.id for each in reversed(self.switch.audit(1_000_000))]

    def wait_until_all_are_told(self):
        self.wait_until(lambda: set(self.ids()) <= {row["key"] for row in self.told()})

    def told(self):
        return self.rows("notifies")

    def end(self):
        self.stop_file.touch()
        for each in self.at_work:
            each.join(PATIENCE)
        assert [each.exitcode for each in self.at_work] == [0] * len(self.at_work)

    def late(self):
        """What was worked though it had to be known that it is stopped."""
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
    made.witness.close()


def replayed(records):
    """What is stopped after these changes, the first first."""
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
def test_all_stop_and_nothing_is_lost_while_those_who_command_and_watch_are_killed(crew):
    watching = [crew.start("watch") for _ in range(5)]
    commanding = [crew.start("command") for _ in range(3)]
    crew.wait_for_each(watching, "works")
    for victims in (commanding, commanding, commanding, watching):
        crew.wait_for(len(crew.rows("has changed")) + randrange(3, 15), "has changed")
        crew.kill(victims.pop(0))
        if victims is commanding:
            commanding.append(crew.start("command"))
        crew.stop_and_resume(watching)
    for each in commanding:
        crew.kill(each)
    crew.place.age(2 * LEASE)  # the claim of a crashed process is free again
    crew.wait_until_all_are_told()
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
def test_one_of_two_processes_notifies_of_each_change_once(crew):
    watching = [crew.start("watch") for _ in range(2)]
    crew.wait_for_each(watching, "works")
    for _ in range(2):
        crew.stop_and_resume(watching)
    crew.wait_until_all_are_told()
    crew.end()
    assert crew.late() == []
    assert sorted(row["key"] for row in crew.told()) == sorted(crew.ids())


@ON_VALKEY
def test_a_process_that_stood_still_does_not_go_by_what_it_knew(crew):
    staring = crew.start("stare")
    crew.wait_for(2, "looks")
    os.kill(staring.pid, signal.SIGSTOP)
    crew.switch.stop(segment=WORK, reason=REASON, by=BY, permanent=True)
    stopped = time.monotonic()
    time.sleep(1.5 * STALE_AFTER)
    os.kill(staring.pid, signal.SIGCONT)

    def woken():
        return [row["allowed"] for row in crew.rows("wakes") if row["at"] > stopped]

    crew.wait_until(woken)
    crew.end()
    assert set(woken()) == {False}


def test_a_switch_is_used_by_parent_and_child_after_a_fork(crew):
    forks = crew.start("fork")
    forks.join(PATIENCE)
    assert forks.exitcode == 0
    assert len(crew.ids()) == 2 * FORKED + 1


class Hears(ControlListener):
    """Keeps its events."""

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


def until(holds):
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.statement("S4-73")
def test_while_the_server_is_away_what_was_known_holds_and_it_is_said_once(server):
    heard = Hears()
    with KillSwitch(server.store, STALE_AFTER, listeners=[heard]) as switch:
        switch.stop(segment=WORK, reason=REASON, by=BY, permanent=True)
        server.kill()
        until(lambda: "SwitchStoreLost" in heard.events)
        until(lambda: switch.snapshot().age > 3 * STALE_AFTER)
        assert not switch.check(segment=WORK).allowed
        assert switch.check(segment="another").allowed
        with pytest.raises(SwitchStoreError, match="failed in the store of the kill switch"):
            switch.stop(segment="another", reason=REASON, by=BY, permanent=True)
        server.start()
        until(lambda: not switch.snapshot().lost)
        assert not switch.check(segment=WORK).allowed
        switch.resume(segment=WORK, by=BY, justification=REASON)
        assert switch.check(segment=WORK).allowed
    told = ["SwitchChanged", "SwitchStoreLost", "SwitchStoreRecovered", "SwitchChanged"]
    assert heard.events == told

"""The gate of a host: locks of several processes, as gates of one process and in real ones."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from weakref import WeakValueDictionary

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from retrytemplate import GateTimeoutError, MisuseError
from retrytemplate.control import HostGate
from retrytemplate.control.isolation_gate import gate as gate_module
from retrytemplate.control.isolation_gate.entry_queue import Entry
from retrytemplate.control.isolation_gate.host_queue import HostQueue
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.control.isolation_gate.test_gate import EMPTY, Caller, enter, until
from tests.support import forked_python
from tests.support.event_loops import LOOPS

loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])


def in_other_process(directory, monkeypatch):
    """A gate with files of its own, as one of another process has."""
    monkeypatch.setattr(gate_module, "_host_cores", WeakValueDictionary())
    return HostGate(directory=directory)


@pytest.fixture
def gates(tmp_path, monkeypatch):
    """The gates of two processes."""
    return [in_other_process(tmp_path, monkeypatch) for _ in range(2)]


def is_rejected(gate, mode):
    """Whether an entry is not granted at once."""
    try:
        with enter(gate, mode, 0):
            return False
    except GateTimeoutError:
        return True


@pytest.mark.parametrize("inside", ["shared", "exclusive"])
@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_exclusive_entry_excludes_other_processes(gates, inside, mode):
    here, there = gates
    with enter(here, inside):
        assert is_rejected(there, mode) == ("exclusive" in (inside, mode))
        assert there.is_open() == (inside == "shared")
    assert not is_rejected(there, mode)
    assert there.is_open()


def test_process_that_waits_for_exclusive_entry_stops_those_after_it(gates):
    here, there = gates
    with here.shared():
        suspect = Caller(there, "exclusive")
        until(lambda: not here.is_open())  # the other process has locked the turnstile
        late = Caller(here, "shared")
        until(lambda: here.snapshot().shared == 2)
        assert not here.is_open()
        assert not late.inside.is_set()
        with here.shared():  # inside the outer entry
            assert not suspect.inside.is_set()
    assert suspect.inside.wait(JOIN_TIMEOUT)
    assert not late.inside.is_set()
    suspect.release()
    assert late.inside.wait(JOIN_TIMEOUT)
    late.release()
    assert [each.snapshot() for each in gates] == [EMPTY, EMPTY]


def test_shared_entry_that_outlives_its_exclusive_one_lets_in_shared_ones(gates):
    here, there = gates
    with here.exclusive() as outer, here.shared():
        outer.__exit__(None, None, None)  # the work of the inner entry continues in a thread
        assert not is_rejected(there, "shared")
        assert is_rejected(there, "exclusive")
    assert not is_rejected(there, "exclusive")


@loops
def test_tasks_wait_for_another_process(gates, loop):
    here, there = gates
    entered = []

    async def main():
        async with there.exclusive():
            entered.append(here.snapshot())

    holder = Caller(here, "exclusive")
    assert holder.inside.wait(JOIN_TIMEOUT)

    async def release():
        while not there.snapshot().exclusive:
            await loop.checkpoint()
        holder.released.set()

    loop.run(lambda: loop.together(main, release))
    assert entered == [EMPTY]
    holder.join(JOIN_TIMEOUT)


@loops
def test_cancelled_task_no_longer_stops_another_process(gates, loop):
    here, there = gates

    async def wait():
        async with there.exclusive():
            raise AssertionError("not reached")

    def waits():
        return there._core.queue.passing is not None

    with here.shared():
        loop.run(lambda: loop.cancelled(wait, waits))
        assert here.is_open()
    assert there.snapshot() == EMPTY


def test_timeout_of_exclusive_entry_lets_in_other_processes(gates):
    here, there = gates
    with here.shared():
        with pytest.raises(GateTimeoutError):
            there.exclusive(timeout=0.005).__enter__()
        assert here.is_open()


def test_gates_of_one_name_and_directory_know_each_other(tmp_path):
    with HostGate(directory=tmp_path).exclusive(), HostGate(directory=tmp_path).shared():
        assert not is_rejected(HostGate("other", directory=tmp_path), "exclusive")
        with pytest.raises(MisuseError), HostGate("x", directory=tmp_path).shared():
            HostGate("x", directory=tmp_path).exclusive().__enter__()


def test_deleted_file_is_created_again(gates, tmp_path):
    here, there = gates
    for each in tmp_path.iterdir():
        each.unlink()
    with here.exclusive():
        assert is_rejected(there, "shared")


PROGRAM = """
import os, sys
from retrytemplate.control import HostGate

gate = HostGate(directory=sys.argv[1])
with getattr(gate, sys.argv[2])():
    if sys.argv[3] == "fork" and not os.fork():
        os.close(1)
        sys.stdin.read()  # a child that outlives its parent
        os._exit(0)
    print("inside", flush=True)
    sys.stdin.read()
"""


def holder(directory, mode, forks=""):
    started = forked_python.Popen(
        [sys.executable, "-W", "ignore:This process", "-c", PROGRAM, str(directory), mode, forks],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert started.stdout.readline() == b"inside\n", started.stderr.read()
    return started


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
@pytest.mark.parametrize("forks", ["", "fork"])
def test_killed_process_frees_its_entry(tmp_path, mode, forks):
    gate = HostGate(directory=tmp_path)
    with holder(tmp_path, mode, forks) as other:
        assert is_rejected(gate, "exclusive")
        os.kill(other.pid, signal.SIGKILL)
        other.wait(JOIN_TIMEOUT)
        with gate.exclusive(timeout=JOIN_TIMEOUT):
            pass


# -- the files -------------------------------------------------------------------------------------


def test_default_directory_is_of_the_user_and_private(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with HostGate().exclusive():
        pass
    [made] = tmp_path.iterdir()
    assert made.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in made.iterdir()} == {0o600}
    made.chmod(0o755)
    with pytest.raises(MisuseError, match="must be a directory of this user with mode 0700"):
        HostGate()
    made.chmod(0o700)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    made.rename(tmp_path / f"retrytemplate-{os.geteuid()}")
    with pytest.raises(MisuseError, match="must be a directory of this user"):
        HostGate()


def test_link_in_place_of_the_default_directory_is_rejected(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (tmp_path / f"retrytemplate-{os.geteuid()}").symlink_to(target)
    with pytest.raises(MisuseError, match="must be a directory of this user"):
        HostGate()


def test_files_that_cannot_be_created_are_misuse(tmp_path):
    with pytest.raises(MisuseError, match="cannot create the files of a HostGate"):
        HostGate(directory=tmp_path / "missing")
    (tmp_path / "a.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MisuseError, match="cannot create the files of a HostGate"):
        HostGate("a", directory=tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_platform_without_file_locks_is_misuse(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(MisuseError, match="needs flock"):
        HostGate(directory=tmp_path)


@pytest.mark.parametrize("name", ["", "a/b", "..\\b", "a b", "x" * 101, 17, None])
def test_wrong_name_is_rejected(name, tmp_path):
    with pytest.raises((TypeError, ValueError), match="name must be"):
        HostGate(name, directory=tmp_path)


# -- the rules against a model ---------------------------------------------------------------------


class Wakes:
    """A caller whose loop runs."""

    def wake(self):
        return True


class HostQueues(RuleBasedStateMachine):
    """Three processes; a process that waits for exclusive entry stops the shared ones after it."""

    entries = Bundle("entries")

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.queues = [HostQueue(Path(self.folder.name), "gate") for _ in range(3)]
        self.granted = {}

    def teardown(self):
        for queue in self.queues:
            queue.clear()
        self.folder.cleanup()

    @rule(target=entries, number=st.integers(0, 2), is_exclusive=st.booleans())
    def enter(self, number, is_exclusive):
        entry = Entry(is_exclusive=is_exclusive)
        stopped = not self.queues[number].is_open()
        self.note(number, entry, self.queues[number].enter(entry, Wakes))
        assert not (stopped and entry in self.granted)
        return number, entry

    @rule(each=entries)
    def look(self, each):
        number, entry = each
        self.note(number, entry, self.queues[number].look(entry))

    @rule(each=entries)
    def leave(self, each):
        number, entry = each
        self.queues[number].leave(entry)
        self.granted.pop(entry, None)

    def note(self, number, entry, granted):
        if granted:
            self.granted[entry] = number

    @invariant()
    def excludes(self):
        modes = [entry.is_exclusive for entry in self.granted]
        assert not any(modes) or len(modes) == 1

    @invariant()
    def one_process_passes(self):
        assert sum(queue.passing is not None for queue in self.queues) <= 1

    @invariant()
    def last_exclusive_entry_is_granted_in_the_end(self):
        held = [entry for queue in self.queues for entry in (*queue.shared, *queue.exclusive)]
        if len(held) == 1 and not self.granted:
            [(number, queue)] = [
                (number, queue)
                for number, queue in enumerate(self.queues)
                if queue.is_inside(held[0])
            ]
            assert queue.look(held[0])
            self.granted[held[0]] = number


TestHostQueues = HostQueues.TestCase
TestHostQueues.settings = settings(max_examples=100, stateful_step_count=30)

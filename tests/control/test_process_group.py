"""Groups of processes: messages, restarts, the end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retrytemplate.control.process_group import (
    ProcessCrashed,
    ProcessEnded,
    ProcessGroup,
    ProcessMessage,
)
from tests.support import forked_python
from tests.support.fork_server import processes
from tests.support.leftovers import has_ended
from tests.support.polling import wait_until

POLL = 10.0


def greet(send, *args):
    send((os.getpid(), args))
    return 0


def fail(send):
    return 1


def crash_once(send, folder, end):
    """End the process at its first start."""
    marker = Path(folder, "crashed")
    if not marker.exists():
        marker.touch()
        end()
    send("started again")
    return 0


def exit_at_once():
    os._exit(9)


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_signals(send):
    """Return after SIGTERM and SIGINT."""
    numbers, received = {signal.SIGTERM, signal.SIGINT}, set()
    for number in numbers:
        signal.signal(number, lambda number, _: received.add(number))
    send(os.getpid())
    while received != numbers:
        time.sleep(0.01)  # the interval of the polls
    return 0


def sleep_on(send):
    send(os.getpid())
    while True:
        time.sleep(60)  # until a signal


@pytest.fixture(scope="module", autouse=True)
def fork_server():
    """The server from which the processes are forked; it stays for the run."""
    process = processes.Process(target=exit_at_once)
    process.start()
    process.join()
    process.close()


def last_event(group):
    """The event at the end of the group."""
    events = []
    while not group.is_over:
        events += group.poll(POLL)
    [event] = events
    return event


def events_of(group):
    """All events until the group is over."""
    found = []
    with group:
        while not group.is_over:
            found += group.poll(POLL)
    return found


def wait_for_messages(group, count=1):
    """That many messages; one poll may return several."""
    found = []
    while len(found) < count:
        for event in group.poll(POLL):
            assert isinstance(event, ProcessMessage), event
            found.append(event.message)
    return found


def test_processes_get_arguments_and_send_messages():
    events = events_of(ProcessGroup(greet, ("a", 1), count=2))
    messages = [event for event in events if isinstance(event, ProcessMessage)]
    assert sorted(event.number for event in messages) == [0, 1]
    assert {event.message[1] for event in messages} == {("a", 1)}
    assert len({event.message[0] for event in messages} - {os.getpid()}) == 2
    assert [event.exit_code for event in events if event not in messages] == [0, 0]


def test_process_that_fails_is_not_started_again():
    assert events_of(ProcessGroup(fail, count=1)) == [ProcessEnded(0, 1)]


@pytest.mark.parametrize(
    ("end", "code"),
    [(exit_at_once, 9), pytest.param(kill_itself, -9, marks=pytest.mark.stress)],
)
def test_crashed_process_is_started_again(tmp_path, end, code):
    group = ProcessGroup(crash_once, (str(tmp_path), end), count=1)
    assert events_of(group) == [
        ProcessCrashed(0, code, 0.1),
        ProcessMessage(0, "started again"),
        ProcessEnded(0, 0),
    ]


def crash(send):
    os._exit(9)


def test_delay_before_a_restart_grows():
    with ProcessGroup(crash, count=1) as group:
        events = []
        while len(events) < 3:
            events += group.poll(POLL)
    assert [event.delay for event in events] == [0.1, 0.2, 0.4]


def test_group_that_stops_starts_no_process_again():
    with ProcessGroup(sleep_on, count=1) as group:
        [pid] = wait_for_messages(group)
        group.stop()
        assert last_event(group) == ProcessEnded(0, 0)
    assert has_ended(pid)


def test_second_stop_sends_sigint():
    with ProcessGroup(wait_for_signals, count=1) as group:
        wait_for_messages(group)
        group.stop()
        group.stop()
        assert last_event(group) == ProcessEnded(0, 0)


def test_end_of_the_block_leaves_no_process():
    with ProcessGroup(sleep_on, count=2) as group:
        pids = wait_for_messages(group, 2)
        assert group.running == 2
    assert all(map(has_ended, pids))
    assert group.running == 0


def test_count_below_one_is_rejected():
    with pytest.raises(ValueError, match="count must be an int >= 1, got 0"):
        ProcessGroup(fail, count=0)


@pytest.mark.stress
def test_process_ends_with_its_killed_parent():
    command = [sys.executable, "-m", "tests.support.group_parent"]
    with forked_python.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: has_ended(pid))

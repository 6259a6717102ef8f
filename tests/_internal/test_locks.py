"""Monitors and every object that has one, attacked in separate processes."""

import ast
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import retrytemplate
from retrytemplate._internal.locks import Monitor, Reentered, is_interrupted
from tests.support.lock_attacks import ATTACKS, SUBJECTS

PACKAGE = Path(retrytemplate.__file__).parent
ROOT = PACKAGE.parent
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier"}
MODULES = ("threading", "asyncio", "trio")
EXEMPT = {
    "_internal/locks.py": "it is the mechanism",
    "_engine/attempt_timeout.py": "events of one call, which no other code reaches",
    "batch/runner/base.py": "a lock of one chunk, which no other code reaches",
    "batch/runner/sync.py": "a lock of one chunk, which no other code reaches",
    "batch/runner/heartbeat.py": "an event that its own thread waits for",
    "batch/journal/repository.py": "a reentrant lock around the making of an engine",
    "caches/in_process.py": "the base class of the caches that are attacked",
    "control/breaker/redis/cached.py": "attacked with the shared circuit, one report at a time",
    "cli/commands/worker/processes.py": "a program; reentrant locks around its output",
    "config/reload.py": "a reentrant lock around the reading of files",
    "control/_poller.py": "a lock that is never waited for",
    "control/_waiters.py": "events of trio, set in its own thread",
    "control/switch/cache.py": "attacked with the switch; one thread at a time asks the store",
    "demo/job.py": "a program, which has no finalizers",
    "demo/flaky_service.py": "a program, which has no finalizers",
    "_storage/redis_connection.py": "a semaphore of asyncio tasks",
    "_storage/sqlite_writer.py": "a lock of asyncio tasks",
    "observe/instruments/prometheus.py": "around prometheus_client, which has plain locks",
    "testing/scripted_random.py": "a reentrant lock of a test helper",
    "workers/runtime/intake.py": "an event of one event loop",
    "workers/runtime/run.py": "an event of one event loop",
    "workers/runtime/runtime.py": "an event of one event loop",
    "workers/runtime/threads.py": "an event of one call, which no other code reaches",
    "workers/testing/simulated_worker.py": "events of one event loop",
    "testing/conformance/base.py": "a barrier of the kit's own threads",
    "testing/clock.py": "a reentrant lock of a test helper",
}


def locks_in(path):
    """The locks that a module creates, by a call or by a factory argument."""
    text = path.read_text()
    if not any(name in text for name in (*LOCKS, "Monitor")):
        return set()
    tree = ast.parse(text)
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module in ("threading", "asyncio", "retrytemplate._internal.locks")
        for alias in node.names
    }
    used = [
        each
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for each in (node.func, *node.args, *(keyword.value for keyword in node.keywords))
    ]
    names = {each.id for each in used if isinstance(each, ast.Name)} & imported
    names |= {
        each.attr
        for each in used
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) in MODULES
    }
    return names & (LOCKS | {"Monitor"})


def test_every_module_with_a_lock_is_attacked_or_exempt():
    found = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if locks_in(path)
    }
    attacked = {where for each in SUBJECTS.values() for where in each.where}
    assert found - attacked - set(EXEMPT) == set()
    assert set(EXEMPT) - found == set()


@pytest.mark.timeout(600)  # seconds; each object has a limit of its own
@pytest.mark.parametrize("attack", ATTACKS)
def test_objects_with_locks_withstand_attack(attack):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.lock_attacks", attack],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.stdout.split("\n")[:-1] == list(SUBJECTS), done.stderr


def test_monitor_nested_run_raises_reentered():
    monitor = Monitor()

    def step():
        with pytest.raises(Reentered):
            monitor.run(int)
        return "done"

    assert monitor.run(step) == "done"


def test_monitor_nested_post_is_applied_after_the_step():
    monitor, seen = Monitor(), []

    def step():
        assert monitor.post(seen.append, 2) is None
        seen.append(1)

    monitor.run(step)
    assert seen == [1, 2]


def test_monitor_deferred_step_runs_before_the_next_one():
    monitor, seen = Monitor(), []
    monitor.defer(seen.append, 1)
    assert seen == []
    monitor.run(seen.append, 2)
    assert seen == [1, 2]


def test_monitor_guarded_step_uses_the_other_when_nested():
    monitor = Monitor()
    guarded = monitor.guarded(lambda: "step", lambda: "other")
    assert (guarded(), monitor.run(guarded)) == ("step", "other")


def test_monitor_step_that_raises_releases_the_lock():
    monitor = Monitor()
    with pytest.raises(ZeroDivisionError):
        monitor.run(lambda: 1 / 0)
    assert monitor.run(int) == 0


def test_interruption_is_seen_inside_a_critical_section_only():
    assert (is_interrupted(), Monitor().run(lambda: is_interrupted())) == (False, True)


def test_monitors_that_post_to_each_other_do_not_deadlock():
    first, second, seen = Monitor(), Monitor(), []
    both_inside = threading.Barrier(2)

    def cross(mine, other):
        def step():
            both_inside.wait(10)
            other.post(seen.append, "posted")
            with pytest.raises(Reentered):
                other.run(seen.append, "not run")
            both_inside.wait(10)

        mine.run(step)

    pair = (first, second), (second, first)
    threads = [threading.Thread(target=cross, args=each, daemon=True) for each in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == ["posted", "posted"]

"""How the suite runs: examples of the documentation included, with checks for leaked resources."""

from __future__ import annotations

import gc
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import re
import shutil
import signal
import sys
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from sybil import Sybil
from sybil.integration.pytest import SybilFile, SybilItem
from sybil.parsers import rest

import retrytemplate
from retrytemplate.listeners.defaults import _components
from tests.support.leftovers import Leftovers, Watchdog, adopt_orphans, kill_when_a_block_fails
from tests.support.pages import PARSERS, run

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# A file system in memory: thousands of small databases are written and deleted there faster.
IN_MEMORY = Path("/dev/shm")
IN_MEMORY_BYTES = 2**31
"""Free bytes that the temporary files of a run need, and those that earlier runs kept."""

# The same examples on every run and every machine; how long one takes is no test of anything here.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

# A shell that runs the suite in the background has it ignore interrupts, and all whom it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every example runs: there is no way to mark one as not to be run.
pages = Sybil(
    parsers=PARSERS,
    patterns=["README.md", "CONTRIBUTING.md", "docs/**/*.md", "docs/*.md"],
    excludes=["docs/_build/**"],
    path=".",
)


def _public_names(namespace: dict[str, Any]) -> None:
    """The examples of docstrings stand in the reference of the package: its names are known."""
    namespace.update({name: getattr(retrytemplate, name) for name in retrytemplate.__all__})


docstrings = Sybil(
    parsers=[rest.DocTestParser(), rest.PythonCodeBlockParser()],
    patterns=[f"retrytemplate{'/*' * depth}/*.py" for depth in range(4)],  # ** is one folder
    path=".",
    setup=_public_names,
)


class Examples(SybilItem):
    """All examples of a page, in their order: they build on each other."""

    def runtest(self) -> None:
        for example in run(self.example.document.examples()):
            self.example = example  # which a report names


class Page(SybilFile):
    """A page is one test, so that no two processes share it."""

    def collect(self) -> Iterator[Examples]:
        for first in islice(super().collect(), 1):
            yield Examples.from_parent(self, sybil=self.sybils[0], example=first.example)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    for sybil in (pages, docstrings):
        if sybil.should_parse(file_path):
            return Page.from_parent(parent, path=file_path, sybils=[sybil])
    return None


# The kinds of stores in the parameters of a test, and the fixtures that start one.
SERVERS = re.compile("postgres|valkey")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs no second Python."""
    for item in items:
        if isinstance(item, Examples):
            item.add_marker("documentation")
        elif SERVERS.search(f"{item.name} {item.fixturenames}"):
            item.add_marker("server")


_begun = count()
_leftovers = Leftovers()
_sharing: list[Path] = []  # the module whose tests share resources
_watchdog = pytest.StashKey[Watchdog]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Three workers on two processors: a fifth of the time a worker waits for its servers.

    The tests that kill and flood get one per processor, the default.
    """
    if config.option.markexpr == "stress":
        return None
    return max((os.cpu_count() or 1) * 3 // 2, 1)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare for what a test leaves behind; the output is not captured yet."""
    if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > IN_MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
    adopt_orphans()
    kill_when_a_block_fails()
    config.stash[_watchdog] = Watchdog(os.dup(2))


def _reset_watchdog(config: pytest.Config, limit: float | None = None) -> None:
    usual = float(config.getini("timeout"))
    config.stash[_watchdog].reset(usual if limit is None else limit)


def pytest_collection_finish() -> None:
    """Start what starts processes for the tests: it stays until the end of the run."""
    multiprocessing.resource_tracker.ensure_running()
    if "tests.support.fork_server" in sys.modules:
        multiprocessing.forkserver.ensure_running()
    if "tests.support.forked_python" in sys.modules:
        sys.modules["tests.support.forked_python"].server()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among thousands of tests that stay, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Freeze the remaining objects, so that no later garbage collection traverses them."""
    if next(_begun) % 100 == 99:
        gc.collect()
        gc.freeze()
    own = item.get_closest_marker("timeout")
    _reset_watchdog(item.config, own.args[0] if own else None)
    if _sharing != [item.path]:
        _leftovers.start()
    _components.clear()  # of earlier tests, which are not collected yet


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """What a fixture of a module or of the run starts stays longer than a test."""
    if fixturedef.scope == "function":
        return (yield)
    before = Leftovers()
    try:
        return (yield)
    finally:
        _leftovers.adopt(before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Fail the test that leaves a thread, a process, an open file or a socket behind.

    The examples of a page share what they make, until its end.  So do the tests of a module from
    the first one on that uses a fixture of the module: the last of them is compared with that one.
    """
    yield
    if not isinstance(item, pytest.Function):
        return
    if _sharing == [item.path] or _has_module_fixture(item):
        _sharing[:] = [item.path]
        if nextitem is not None and nextitem.path == item.path:
            return
        _sharing.clear()
    if left := _leftovers.found(item.funcargs):
        pytest.fail(f"the test leaves behind: {', '.join(left)}", pytrace=False)


def _has_module_fixture(item: pytest.Function) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(each.scope == "module" for several in definitions for each in several)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI on Linux, where everything can be had, a test that did not run fails the run."""
    _reset_watchdog(session.config)
    if not os.environ.get("CI") or sys.platform != "linux":
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    missed = [kind for kind in ("skipped", "xfailed") if reporter and reporter.stats.get(kind)]
    if missed and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"\nCI: there are {' and '.join(missed)} tests: that is a failure")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

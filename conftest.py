"""How the suite runs: examples of the documentation included, and nothing left to chance."""

from __future__ import annotations

import gc
import os
import signal
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from sybil import Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers import myst, rest

import retrytemplate

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

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
    parsers=[myst.PythonCodeBlockParser(), myst.DocTestDirectiveParser()],
    patterns=["README.md", "CONTRIBUTING.md", "docs/**/*.md", "docs/*.md"],
    excludes=["docs/_build/**"],
    path=".",
)


def _public_names(namespace: dict[str, Any]) -> None:
    """The examples of docstrings stand in the reference of the package: its names are known."""
    namespace.update({name: getattr(retrytemplate, name) for name in retrytemplate.__all__})


docstrings = Sybil(
    parsers=[rest.DocTestParser(), rest.PythonCodeBlockParser()],
    patterns=["retrytemplate/**/*.py", "retrytemplate/*.py"],
    path=".",
    setup=_public_names,
)

_collect_pages = pages.pytest()
_collect_docstrings = docstrings.pytest()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return _collect_pages(file_path, parent) or _collect_docstrings(file_path, parent)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Put the examples of a page back in order after the shuffle: they build on each other."""
    yield
    examples: dict[pytest.Item, list[SybilItem]] = {}
    for item in items:
        if isinstance(item, SybilItem):
            examples.setdefault(item.parent, []).append(item)
    ordered: list[pytest.Item] = []
    for item in items:
        if isinstance(item, SybilItem):
            page = examples.pop(item.parent, [])
            ordered.extend(sorted(page, key=lambda each: each.example.start))
        else:
            ordered.append(item)
    items[:] = ordered


_begun = count()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What is there by now, thousands of tests and reports, no collection has to go through."""
    if next(_begun) % 100 == 0:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI on Linux, where everything can be had, a test that did not run fails the run."""
    if not os.environ.get("CI") or sys.platform != "linux":
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    missed = [kind for kind in ("skipped", "xfailed") if reporter and reporter.stats.get(kind)]
    if missed and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"\nCI: there are {' and '.join(missed)} tests: that is a failure")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

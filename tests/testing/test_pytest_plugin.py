"""The fixtures and settings of the pytest plugin."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from retrytemplate import testing
from retrytemplate.testing import BackoffConformance

pytest_plugins = ["pytester"]

# Not imported here: an installed library's has been, by pytest, and another may not be any more.
PLUGIN = "retrytemplate.testing.pytest_plugin"

ROOT = Path(__file__).resolve().parent.parent.parent


def test_pytest_finds_the_plugin_where_the_library_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"retrytemplate": PLUGIN}


@pytest.fixture
def run_with_plugin(pytester, monkeypatch):
    """Run a test file in a fresh pytest that has this plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(source):
        pytester.makeini("[pytest]")  # else pytest uses the settings of a folder above
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess("-p", PLUGIN, "-p", "no:cacheprovider", "-vv")

    return run


def test_fixtures_skip_the_waits_of_decorators_made_at_import(run_with_plugin):
    result = run_with_plugin(
        """
        import asyncio
        from retrytemplate import AlwaysRetryPolicy, FixedBackoff, RetryTemplate, TimeoutRetryPolicy

        HOUR = 3600.0

        @RetryTemplate(backoff=FixedBackoff(HOUR)).wrap
        def read(text):
            return int(text)

        @RetryTemplate(backoff=FixedBackoff(HOUR)).wrap
        async def read_async(text):
            return int(text)

        limited = RetryTemplate(TimeoutRetryPolicy(5 * HOUR), FixedBackoff(HOUR))

        def rejects(function):
            try:
                function()
            except ValueError:
                return True

        def test_sync(no_waiting):
            assert rejects(lambda: read("seventeen"))
            assert no_waiting.sleeps == [HOUR, HOUR]

        def test_async(no_waiting):
            assert rejects(lambda: asyncio.run(read_async("seventeen")))
            assert no_waiting.sleeps == [HOUR, HOUR]

        def test_time_stands_still(retry_clock):
            outcome = limited.outcome(int, "seventeen")
            assert (outcome.attempts, outcome.elapsed) == (6, 6 * HOUR)
            assert retry_clock.monotonic() == 6 * HOUR

        def test_first_failure_is_raised(retries_off):
            assert limited.outcome(int, "seventeen").stop_reason == "inactive"

        def test_nothing_is_left_behind():
            from retrytemplate import clock, is_active
            assert clock._override is None
            assert is_active()
        """
    )
    result.assert_outcomes(passed=5)


def test_kit_runs_as_a_test_class_and_explains_its_failures(run_with_plugin):
    result = run_with_plugin(
        """
        from retrytemplate import Backoff
        from retrytemplate.testing import BackoffConformance

        class Right(Backoff):
            def start(self):
                return None

            def next(self, state, failure, random):
                return 1.0, state

        class Wrong(Right):
            def next(self, state, failure, random):
                return -17.5, state

        class TestRight(BackoffConformance):
            def make(self):
                return Right()

        class TestWrong(BackoffConformance):
            test_it_supports_many_failures = None

            def make(self):
                return Wrong()
        """
    )
    number = len(BackoffConformance.names_of_tests())
    result.assert_outcomes(passed=2 * number - 2, failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: got -17.5*", "*assert*-17.5 >= 0*"])


def test_starting_pytest_loads_neither_asyncio_nor_the_kits():
    script = (
        "import sys, pytest; before = set(sys.modules); "
        f"import {PLUGIN}; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert PLUGIN in loaded
    heavy = {"asyncio", "trio", "random", "logging", "retrytemplate.testing.conformance"}
    assert loaded & heavy == set()


def test_public_names_of_the_kits_can_be_imported():
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name
    assert dir(testing)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        testing.nothing  # noqa: B018  # the access is the test

"""Every scenario of the original library's traces, in every entry point that can run it."""

from __future__ import annotations

import asyncio

import pytest

from tests.golden.lines import SCENARIOS, lines_of, path_option
from tests.golden.model import JSON
from tests.golden.run import MODES, check

# Some policies of the file never end, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::retrytemplate.UnboundedRetryWarning")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    lines = lines_of(path_option(metafunc.config, "golden", SCENARIOS))
    metafunc.parametrize("line", [pytest.param(line, id=line["id"]) for line in lines])


def test_trace_equals_that_of_the_original(line: JSON, loop: asyncio.AbstractEventLoop) -> None:
    found = [
        f"{mode.name}: {difference}"
        for mode in MODES.values()
        if mode.serves(line["scenario"])
        for difference in check(line, mode, loop)
    ]

    assert not found, "\n".join(found)

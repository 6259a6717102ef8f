"""The golden traces of the original library: which files, and one event loop for all of them.

    python -m pytest tests/golden --golden FILE --units FILE

runs other files of the same format in place of the copies here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("golden traces")
    group.addoption("--golden", metavar="FILE", help="scenarios to run (default: the copy here)")
    group.addoption("--units", metavar="FILE", help="unit vectors to run (default: the copy here)")


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One loop for all scenarios; it is the current loop only while it runs."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()

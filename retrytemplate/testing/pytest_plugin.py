"""Fixtures that pytest finds if this library is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retrytemplate.testing import VirtualClock

# The kits report through their assertions.
pytest.register_assert_rewrite("retrytemplate.testing.conformance")


@pytest.fixture
def no_waiting() -> Iterator[VirtualClock]:
    """Skips the delays of all templates during this test; the clock with its ``sleeps``.

    See ``retrytemplate.testing.no_waiting``.
    """
    from retrytemplate import testing

    with testing.no_waiting() as clock:
        yield clock


@pytest.fixture
def retries_off() -> Iterator[None]:
    """Switches the retries of all templates off during this test; see ``set_active``."""
    from retrytemplate._engine.activity import is_active, set_active

    before = is_active()
    set_active(False)
    try:
        yield
    finally:
        set_active(before)


@pytest.fixture
def retry_clock() -> Iterator[VirtualClock]:
    """A ``VirtualClock`` that every ``SystemClock`` follows during this test.

    Only sleeps and ``retry_clock.advance`` move it on, so that elapsed times are exact.
    """
    from retrytemplate import testing

    with testing.no_waiting(testing.VirtualClock()) as clock:
        yield clock

"""Log records of exceptions that are ignored: at most one per minute."""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger("retrytemplate.observe")
LOG_INTERVAL = 60.0  # seconds between two records


class FailureLog:
    """Counts exceptions, and logs them at most once per minute.

    :param message: of the record, formatted with the *details* and the number of exceptions.
    :param now: the present time in seconds.
    """

    def __init__(
        self, message: str, *details: object, now: Callable[[], float] = monotonic
    ) -> None:
        self.errors = 0
        self._message, self._details, self._now = message, details, now
        self._numbers = count(1)
        self._silent_until: float | None = None

    def add(self) -> None:
        """Count the exception that is being handled."""
        self.errors = next(self._numbers)
        now = self._now()
        if self._silent_until is None or now >= self._silent_until:
            self._silent_until = now + LOG_INTERVAL
            with suppress(Exception):  # a handler of the log raises: no call fails for that
                LOG.exception(self._message, *self._details, self.errors)

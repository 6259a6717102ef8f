"""Who is told of an execution: the seam, and the listeners that come with the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.imports import lazy_attributes
from retrytemplate.listeners.base import HOOKS, RetryListener

if TYPE_CHECKING:
    from retrytemplate.listeners.logging import LoggingListener
    from retrytemplate.listeners.statistics import (
        RetryStatistics,
        RollingStatistics,
        StatisticsListener,
    )

__getattr__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.listeners.logging": ("LoggingListener",),
        "retrytemplate.listeners.statistics": (
            "RetryStatistics",
            "RollingStatistics",
            "StatisticsListener",
        ),
    },
)

__all__ = [
    "HOOKS",
    "LoggingListener",
    "RetryListener",
    "RetryStatistics",
    "RollingStatistics",
    "StatisticsListener",
]

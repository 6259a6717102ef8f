"""Who is told of an execution: the seam, and the listeners that come with the library."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.listeners.base": "HOOKS RetryListener",
        "retrytemplate.listeners.logging": "LoggingListener",
        "retrytemplate.listeners.statistics": (
            "RetryStatistics RollingStatistics StatisticsListener"
        ),
    },
)

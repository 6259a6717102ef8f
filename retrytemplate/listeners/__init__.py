"""Listeners: objects that are notified of the events of an execution."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.listeners.base": "HOOKS RetryListener",
        "retrytemplate.listeners.defaults": (
            "DEFAULT_LOG add_default default_listeners remove_default"
        ),
        "retrytemplate.listeners.logging": "LoggingListener",
        "retrytemplate.listeners.statistics": (
            "RetryStatistics RollingStatistics StatisticsListener"
        ),
    },
)

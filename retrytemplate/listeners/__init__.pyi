# The types of the public names; __init__.py imports them on first use.

from retrytemplate.listeners.base import HOOKS as HOOKS
from retrytemplate.listeners.base import RetryListener as RetryListener
from retrytemplate.listeners.defaults import DEFAULT_LOG as DEFAULT_LOG
from retrytemplate.listeners.defaults import add_default as add_default
from retrytemplate.listeners.defaults import default_listeners as default_listeners
from retrytemplate.listeners.defaults import remove_default as remove_default
from retrytemplate.listeners.logging import LoggingListener as LoggingListener
from retrytemplate.listeners.statistics import RetryStatistics as RetryStatistics
from retrytemplate.listeners.statistics import RollingStatistics as RollingStatistics
from retrytemplate.listeners.statistics import StatisticsListener as StatisticsListener

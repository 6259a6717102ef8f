"""Drops the log records of forked processes: their standard error is that of the run."""

import logging

logging.getLogger("retrytemplate").addHandler(logging.NullHandler())

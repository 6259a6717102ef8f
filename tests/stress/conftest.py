"""Processes that are killed, if a process can be forked."""

import os

if not hasattr(os, "fork"):
    collect_ignore = ["test_outbox_kills.py"]

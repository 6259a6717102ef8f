"""Processes that are killed: on one version, and if a process can be forked."""

import os
import sys

if sys.version_info[:2] != (3, 11) or not hasattr(os, "fork"):
    collect_ignore = ["test_outbox_kills.py"]

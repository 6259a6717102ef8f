"""Fixtures that tests of several rooms share."""

import gc
import sys

import pytest


@pytest.fixture
def unraisable(monkeypatch):
    """What was raised where nobody could catch it, in a ``__del__`` or a generator's end."""
    gc.collect()  # what earlier tests left has its say before
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: caught.append(hook.exc_value))
    return caught

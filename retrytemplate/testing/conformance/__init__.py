"""Tests for pieces of your own: a base class for each seam.

Derive from the kit of the seam and say how to make one; pytest runs the rest:

.. code-block:: python

    from retrytemplate import RetryPolicy
    from retrytemplate.testing import PolicyConformance

    class EvenOnly(RetryPolicy):
        def allows(self, failures, failure):
            return failures < 6 and failures % 2 == 0

    class TestEvenOnly(PolicyConformance):
        def make(self):
            return EvenOnly()

Without pytest, ``run_all()`` gives the tests that failed:

.. code-block:: python

    assert TestEvenOnly().run_all() == {}

A test that is not meant for your piece is taken out by name: ``test_it_is_frozen = None``.
"""

from __future__ import annotations

from retrytemplate.testing.conformance.async_cache import AsyncCacheConformance
from retrytemplate.testing.conformance.backoff import BackoffConformance
from retrytemplate.testing.conformance.base import Conformance
from retrytemplate.testing.conformance.cache import CacheConformance
from retrytemplate.testing.conformance.classifier import ClassifierConformance
from retrytemplate.testing.conformance.clock import ClockConformance
from retrytemplate.testing.conformance.guard import GuardConformance
from retrytemplate.testing.conformance.listener import ListenerConformance
from retrytemplate.testing.conformance.policy import PolicyConformance

__all__ = [
    "AsyncCacheConformance",
    "BackoffConformance",
    "CacheConformance",
    "ClassifierConformance",
    "ClockConformance",
    "Conformance",
    "GuardConformance",
    "ListenerConformance",
    "PolicyConformance",
]

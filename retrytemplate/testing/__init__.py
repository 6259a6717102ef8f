"""For your tests: time, chance and listeners under control, and kits that try your own pieces.

``VirtualClock``
    a clock on which sleeping takes no time; it records every delay
``no_waiting``
    removes all waiting, also from templates that are built already
``run``, ``virtual_loop``, ``run_trio``
    the timers of asyncio and trio on a virtual clock
``ScriptedRandom``
    chance, read from a list
``Recorder``, ``AsyncRecorder``
    listeners that write down what they are told
``PolicyConformance``, ``BackoffConformance`` ...
    base classes of tests for pieces of your own: one for each seam

pytest users have the fixtures ``no_waiting`` and ``retry_clock`` without doing anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.imports import lazy_attributes
from retrytemplate.testing.clock import Interrupted, VirtualClock
from retrytemplate.testing.recorder import AsyncRecorder, Event, Recorder
from retrytemplate.testing.scripted_random import ScriptedRandom
from retrytemplate.testing.skip_delays import no_waiting

if TYPE_CHECKING:
    from retrytemplate.testing.conformance import (
        AsyncCacheConformance,
        BackoffConformance,
        CacheConformance,
        ClassifierConformance,
        ClockConformance,
        Conformance,
        GuardConformance,
        ListenerConformance,
        PolicyConformance,
    )
    from retrytemplate.testing.event_loops import run, run_trio, virtual_loop

# Every pytest run imports this package, few need asyncio or the kits.
__getattr__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.testing.conformance": (
            "AsyncCacheConformance",
            "BackoffConformance",
            "CacheConformance",
            "ClassifierConformance",
            "ClockConformance",
            "Conformance",
            "GuardConformance",
            "ListenerConformance",
            "PolicyConformance",
        ),
        "retrytemplate.testing.event_loops": (
            "run",
            "run_trio",
            "virtual_loop",
        ),
    },
)

__all__ = [
    "AsyncCacheConformance",
    "AsyncRecorder",
    "BackoffConformance",
    "CacheConformance",
    "ClassifierConformance",
    "ClockConformance",
    "Conformance",
    "Event",
    "GuardConformance",
    "Interrupted",
    "ListenerConformance",
    "PolicyConformance",
    "Recorder",
    "ScriptedRandom",
    "VirtualClock",
    "no_waiting",
    "run",
    "run_trio",
    "virtual_loop",
]

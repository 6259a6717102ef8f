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

from retrytemplate._internal.imports import lazy_attributes

# Every pytest run imports this package; few runs need asyncio or the kits.
__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.testing.clock": "Interrupted VirtualClock",
        "retrytemplate.testing.conformance": (
            "AsyncCacheConformance BackoffConformance CacheConformance ClassifierConformance "
            "ClockConformance Conformance GuardConformance ListenerConformance PolicyConformance"
        ),
        "retrytemplate.testing.event_loops": "run run_trio virtual_loop",
        "retrytemplate.testing.recorder": "AsyncRecorder Event Recorder",
        "retrytemplate.testing.scripted_random": "ScriptedRandom",
        "retrytemplate.testing.skip_delays": "no_waiting",
    },
)

"""For your tests: virtual time, scripted randomness, recorders and conformance kits.

``VirtualClock``
    a clock whose sleeps take no time and are recorded
``no_waiting``
    removes all waiting, also from existing templates
``run``, ``virtual_loop``, ``run_trio``
    the timers of asyncio and trio on a virtual clock
``capture_events``
    a block that keeps the events of everything in the process
``ScriptedRandom``
    random numbers from a list
``Recorder``, ``AsyncRecorder``
    listeners that record the calls of their hooks
``PolicyConformance``, ``BackoffConformance`` ...
    base classes of tests, one for each kind of plug-in

pytest finds the fixtures ``no_waiting`` and ``retry_clock`` without configuration.
"""

from retrytemplate._internal.imports import lazy_attributes

# Every pytest run imports this package; few runs need asyncio or the kits.
__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.testing.capture": "capture_events",
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

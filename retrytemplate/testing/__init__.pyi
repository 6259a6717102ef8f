# The types of the public names; __init__.py imports them on first use.

from retrytemplate.testing.capture import capture_events as capture_events
from retrytemplate.testing.clock import Interrupted as Interrupted
from retrytemplate.testing.clock import VirtualClock as VirtualClock
from retrytemplate.testing.conformance import AsyncCacheConformance as AsyncCacheConformance
from retrytemplate.testing.conformance import BackoffConformance as BackoffConformance
from retrytemplate.testing.conformance import CacheConformance as CacheConformance
from retrytemplate.testing.conformance import ClassifierConformance as ClassifierConformance
from retrytemplate.testing.conformance import ClockConformance as ClockConformance
from retrytemplate.testing.conformance import Conformance as Conformance
from retrytemplate.testing.conformance import GuardConformance as GuardConformance
from retrytemplate.testing.conformance import ListenerConformance as ListenerConformance
from retrytemplate.testing.conformance import PolicyConformance as PolicyConformance
from retrytemplate.testing.event_loops import run as run
from retrytemplate.testing.event_loops import run_trio as run_trio
from retrytemplate.testing.event_loops import virtual_loop as virtual_loop
from retrytemplate.testing.recorder import AsyncRecorder as AsyncRecorder
from retrytemplate.testing.recorder import Event as Event
from retrytemplate.testing.recorder import Recorder as Recorder
from retrytemplate.testing.scripted_random import ScriptedRandom as ScriptedRandom
from retrytemplate.testing.skip_delays import no_waiting as no_waiting

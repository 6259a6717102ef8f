# The types of the public names; __init__.py imports them on first use.

from retrytemplate.workers.testing.cluster import SimulatedCluster as SimulatedCluster
from retrytemplate.workers.testing.invariants import ClusterReport as ClusterReport
from retrytemplate.workers.testing.memory_cache import LeasedMemoryCache as LeasedMemoryCache
from retrytemplate.workers.testing.memory_source import MemoryQueue as MemoryQueue
from retrytemplate.workers.testing.memory_source import MemorySource as MemorySource
from retrytemplate.workers.testing.simulated_worker import SimulatedWorker as SimulatedWorker
from retrytemplate.workers.testing.source_conformance import SourceConformance as SourceConformance

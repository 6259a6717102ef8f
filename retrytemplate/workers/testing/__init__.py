"""Tools for tests of handlers, sources and runtimes: no server, virtual time."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.workers.testing.cluster": "SimulatedCluster",
        "retrytemplate.workers.testing.invariants": "ClusterReport",
        "retrytemplate.workers.testing.memory_cache": "LeasedMemoryCache",
        "retrytemplate.workers.testing.memory_source": "MemoryQueue MemorySource",
        "retrytemplate.workers.testing.simulated_worker": "SimulatedWorker",
        "retrytemplate.workers.testing.source_conformance": "SourceConformance",
    },
)

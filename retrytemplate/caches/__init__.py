"""Storage of contexts: the protocol, the record, the cache in memory."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.caches.base": "AsyncRetryContextCache Claim RetryContextCache",
        "retrytemplate.caches.memory": "MemoryRetryContextCache",
        "retrytemplate.caches.record": "Record",
    },
)

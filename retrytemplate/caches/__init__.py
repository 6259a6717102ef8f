"""Where contexts are kept: the protocol, the record, memory, a cache that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._lazy import lazily
from retrytemplate.caches.base import AsyncRetryContextCache, Claim, RetryContextCache
from retrytemplate.caches.memory import MemoryRetryContextCache

if TYPE_CHECKING:
    from retrytemplate.caches.record import Record
    from retrytemplate.caches.simple import SimpleCache, SimpleCacheAdapter

__getattr__ = lazily(
    __name__,
    {
        "retrytemplate.caches.record": ("Record",),
        "retrytemplate.caches.simple": ("SimpleCache", "SimpleCacheAdapter"),
    },
)

__all__ = [
    "AsyncRetryContextCache",
    "Claim",
    "MemoryRetryContextCache",
    "Record",
    "RetryContextCache",
    "SimpleCache",
    "SimpleCacheAdapter",
]

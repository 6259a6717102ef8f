"""Storage of contexts: the protocol, the record, the cache in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.imports import lazy_attributes
from retrytemplate.caches.base import AsyncRetryContextCache, Claim, RetryContextCache
from retrytemplate.caches.memory import MemoryRetryContextCache

if TYPE_CHECKING:
    from retrytemplate.caches.record import Record

__getattr__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.caches.record": ("Record",),
    },
)

__all__ = [
    "AsyncRetryContextCache",
    "Claim",
    "MemoryRetryContextCache",
    "Record",
    "RetryContextCache",
]

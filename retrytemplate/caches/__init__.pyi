# The types of the public names; __init__.py imports them on first use.

from retrytemplate.caches.base import AsyncRetryContextCache as AsyncRetryContextCache
from retrytemplate.caches.base import Claim as Claim
from retrytemplate.caches.base import RetryContextCache as RetryContextCache
from retrytemplate.caches.memory import MemoryRetryContextCache as MemoryRetryContextCache
from retrytemplate.caches.record import Record as Record

"""How long to wait before the next attempt: backoffs, a concept a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._lazy import lazily
from retrytemplate.backoff.base import Backoff, RandomSource

if TYPE_CHECKING:
    from retrytemplate.backoff.exponential import ExponentialBackoff
    from retrytemplate.backoff.fixed import FixedBackoff
    from retrytemplate.backoff.none import NoBackoff
    from retrytemplate.backoff.retry_after import RetryAfterBackoff
    from retrytemplate.backoff.uniform import UniformRandomBackoff

__getattr__ = lazily(
    __name__,
    {
        "retrytemplate.backoff.exponential": ("ExponentialBackoff",),
        "retrytemplate.backoff.fixed": ("FixedBackoff",),
        "retrytemplate.backoff.none": ("NoBackoff",),
        "retrytemplate.backoff.retry_after": ("RetryAfterBackoff",),
        "retrytemplate.backoff.uniform": ("UniformRandomBackoff",),
    },
)

__all__ = [
    "Backoff",
    "ExponentialBackoff",
    "FixedBackoff",
    "NoBackoff",
    "RandomSource",
    "RetryAfterBackoff",
    "UniformRandomBackoff",
]

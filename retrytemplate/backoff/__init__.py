"""How long to wait before the next attempt: backoffs, a concept a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.imports import lazy_attributes
from retrytemplate.backoff.base import Backoff, RandomSource

if TYPE_CHECKING:
    from retrytemplate.backoff.base import NoBackoff
    from retrytemplate.backoff.exponential import ExponentialBackoff
    from retrytemplate.backoff.fixed import FixedBackoff, UniformRandomBackoff
    from retrytemplate.backoff.retry_after import RetryAfterBackoff

__getattr__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.backoff.base": ("NoBackoff",),
        "retrytemplate.backoff.exponential": ("ExponentialBackoff",),
        "retrytemplate.backoff.fixed": (
            "FixedBackoff",
            "UniformRandomBackoff",
        ),
        "retrytemplate.backoff.retry_after": ("RetryAfterBackoff",),
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

"""Backoffs: the delay before the next attempt."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.backoff.base": "Backoff NoBackoff RandomSource",
        "retrytemplate.backoff.exponential": "ExponentialBackoff",
        "retrytemplate.backoff.fixed": "FixedBackoff UniformRandomBackoff",
        "retrytemplate.backoff.retry_after": "RetryAfterBackoff",
    },
)

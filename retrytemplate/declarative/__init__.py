"""Declarative retry: a decorator, recoverers in a class, a proxy for an object."""

from retrytemplate.declarative.decorator import retryable
from retrytemplate.declarative.proxy import intercept
from retrytemplate.declarative.recovery_methods import recover

__all__ = ["intercept", "recover", "retryable"]

"""The settings of a template by name, as ``with_`` and ``retry_with`` take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retrytemplate._checks import Seconds
    from retrytemplate.attempt_timeout import AttemptTimeout
    from retrytemplate.backoff.base import Backoff
    from retrytemplate.clock import Clock
    from retrytemplate.context import RetryContext
    from retrytemplate.guards import Guard
    from retrytemplate.policies.base import RetryPolicy

__all__ = ["SurroundingSettings", "TemplateSettings"]


class SurroundingSettings(TypedDict, total=False):
    """The parameters of ``RetryTemplate`` that say nothing of when to retry."""

    cache: Any
    name: str | None
    listeners: Iterable[Any]
    guards: Iterable[Guard]
    recovery: Callable[[RetryContext], Any] | None
    raise_last: bool
    clock: Clock
    random: Any


class TemplateSettings(SurroundingSettings, total=False):
    """The parameters of ``RetryTemplate``, none of them required."""

    policy: RetryPolicy
    backoff: Backoff
    attempt_timeout: AttemptTimeout | Seconds | None

"""The settings of a template by name, for type checkers; not imported at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retrytemplate._engine.attempt_timeout import AttemptTimeout
    from retrytemplate._engine.context import RetryContext
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.backoff.base import Backoff
    from retrytemplate.clock import Clock
    from retrytemplate.guards import Guard
    from retrytemplate.policies.base import RetryPolicy

__all__ = ["SurroundingSettings", "TemplateSettings"]


class SurroundingSettings(TypedDict, total=False):
    """The parameters of ``RetryTemplate`` other than policy, backoff and attempt timeout."""

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

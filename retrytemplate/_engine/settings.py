"""The settings of a template: their checks, and their names for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from retrytemplate._engine.failure_rules import takes_context
from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.validation import SECONDS, check_text_or_none, to_tuple
from retrytemplate.guards import Guard
from retrytemplate.listeners.base import HOOKS
from retrytemplate.state import RetryState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retrytemplate._engine.attempt_timeout import AttemptTimeout
    from retrytemplate._engine.context import RetryContext
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.backoff.base import Backoff
    from retrytemplate.clock import Clock
    from retrytemplate.policies.base import RetryPolicy

__all__ = [
    "SurroundingSettings",
    "TemplateSettings",
    "check_name_field",
    "check_recovery",
    "check_recovery_field",
    "check_state",
    "check_state_field",
    "to_attempt_timeout",
    "to_guards",
    "to_listeners",
]


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


def check_recovery(value: Any) -> None:
    """Raise unless it is a function of the context, a recovery chosen per call, or None."""
    if value is not None and not (callable(value) or hasattr(type(value), "for_call")):
        raise TypeError(f"recovery must be a function of the context or None, got {value!r}")


def check_state(value: Any) -> None:
    """Raise unless it is a state, one made per call, or None."""
    if value is not None and not (
        isinstance(value, RetryState) or hasattr(type(value), "for_call")
    ):
        raise TypeError(f"state must be a RetryState or None, got {value!r}")


def to_attempt_timeout(value: Any) -> Any:
    if value is None:
        return None
    from retrytemplate._engine.attempt_timeout import AttemptTimeout

    if isinstance(value, AttemptTimeout):
        return value
    try:
        return AttemptTimeout(value)
    except (TypeError, ValueError) as exc:
        raise type(exc)(
            f"attempt_timeout must be {SECONDS} > 0, an AttemptTimeout or None, got {value!r}"
        ) from None


def check_recovery_field(instance: Any, attribute: Any, value: Any) -> None:
    check_recovery(value)
    if callable(value) and not takes_context(value):
        raise TypeError(f"recovery must be a function of the context, got {value!r}")


def check_state_field(instance: Any, attribute: Any, value: Any) -> None:
    check_state(value)


def to_listeners(value: Iterable[Any]) -> tuple[Any, ...]:
    listeners = to_tuple("listeners", value)
    for listener in listeners:
        hooks = (*HOOKS, "on_first_success")
        if isinstance(listener, type) or not any(hasattr(listener, hook) for hook in hooks):
            raise TypeError(f"listeners must be RetryListener objects, got {listener!r}")
        if is_async(getattr(listener, "on_first_success", None)):
            raise TypeError(f"listeners: on_first_success must be synchronous, got {listener!r}")
    return listeners


def to_guards(value: Iterable[Guard]) -> tuple[Guard, ...]:
    guards = to_tuple("guards", value)
    for guard in guards:
        if not isinstance(guard, Guard):
            raise TypeError(f"guards must be Guard objects, got {guard!r}")
    return guards


def check_name_field(instance: Any, attribute: Any, value: Any) -> None:
    check_text_or_none("name", value)
    if value is None and getattr(instance.cache, "durable", False):
        raise ValueError("name is required with a durable cache: it is the scope of the keys")

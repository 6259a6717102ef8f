"""Data that a template prepares once for all its executions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from retrytemplate._engine.activity import policy_in_force
from retrytemplate._engine.deadline import warn_of_overrun
from retrytemplate._engine.first_success import with_context_arguments
from retrytemplate._internal.imports import is_library_module
from retrytemplate.clock import fast_monotonic
from retrytemplate.guards import Guard
from retrytemplate.listeners.base import HOOKS, RetryListener
from retrytemplate.listeners.defaults import DEFAULT_LOG, INFO, NO_LOG, with_defaults
from retrytemplate.policies.base import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from retrytemplate._engine.deadline import Deadline
    from retrytemplate.backoff.base import Backoff
    from retrytemplate.clock import Clock
    from retrytemplate.listeners.defaults import DefaultLog

    Hooks = tuple[Callable[..., Any], ...]

    class Settings(Protocol):
        """The attributes of a template that a plan reads."""

        @property
        def policy(self) -> RetryPolicy: ...
        @property
        def backoff(self) -> Backoff: ...
        @property
        def cache(self) -> Any: ...
        @property
        def clock(self) -> Clock: ...
        @property
        def random(self) -> Any: ...
        @property
        def guards(self) -> Any: ...  # pyright sees no plain field where attrs converts
        @property
        def attempt_timeout(self) -> Any: ...
        @property
        def raise_last(self) -> bool: ...
        @property
        def _scope(self) -> str: ...


__all__ = [
    "ExecutionPlan",
    "admit_hook",
    "fingerprint_of",
]


FORWARD = ("open", "before_attempt")


class ExecutionPlan:
    """The settings of a template, and the hooks that its listeners and guards override."""

    __slots__ = (
        "_fingerprint",
        "admit",
        "admit_async",
        "attempt_timeout",
        "backoff",
        "before_attempt",
        "cache",
        "clock",
        "close",
        "direct_first_attempt",
        "dynamic",
        "first_success_hooks",
        "guard_scope",
        "has_backoff",
        "has_pre_attempt_checks",
        "inheritable_guards",
        "inline_first_attempt",
        "is_unobserved",
        "keeps_context",
        "log",
        "logged_on_backoff",
        "logged_on_end",
        "measured",
        "monotonic_source",
        "needs_state",
        "notifies_end",
        "observes_backoff",
        "on_attempt_lost",
        "on_backoff",
        "on_end",
        "on_error",
        "on_first_success",
        "on_overrun",
        "on_recovery",
        "on_store_error",
        "on_success",
        "open",
        "policy",
        "policy_may_deny_first_attempt",
        "policy_only",
        "raise_last",
        "random",
        "reports_overruns",
        "reserve",
        "result_rules",
        "scope",
        "success_hooks",
        "times_first_attempt",
        "unbounded",
        "untimed_first_attempt",
    )

    open: Hooks
    on_attempt_lost: Hooks
    before_attempt: Hooks
    on_overrun: Hooks
    on_success: Hooks
    on_error: Hooks
    on_backoff: Hooks
    on_recovery: Hooks
    on_store_error: Hooks
    on_end: Hooks
    close: Hooks

    def __init__(self, template: Settings, listeners: tuple[Any, ...]) -> None:
        self.policy = policy = policy_in_force(template.policy)
        self.backoff = template.backoff
        self.cache = template.cache
        self.scope = template._scope
        self.clock = template.clock
        self.monotonic_source = fast_monotonic(template.clock)
        self.random = template.random
        self.raise_last = template.raise_last
        self.attempt_timeout = template.attempt_timeout
        self.needs_state = policy.needs_state
        self.keeps_context: bool = policy.keeps_context
        self.result_rules = policy.result_rules()
        self.dynamic = policy.dynamic or template.backoff.dynamic
        self.has_backoff = not template.backoff.never_waits
        listeners, log = _split_log(with_defaults(listeners, RetryListener))
        for name in HOOKS:
            hooks = tuple(overridden(listeners, name, RetryListener)) if listeners else ()
            setattr(self, name, hooks if name in FORWARD else hooks[::-1])
        self.on_first_success: Hooks = tuple(
            overridden(listeners, "on_first_success", RetryListener)
        )[::-1]
        self.first_success_hooks = with_context_arguments(self.on_first_success)
        self.success_hooks = self.first_success_hooks + self.close
        guards = template.guards
        self.on_success += tuple(overridden(guards, "on_success", Guard))
        self.admit: Hooks = tuple(guard.admit for guard in guards)
        self.admit_async: Hooks = tuple(map(admit_hook, guards))
        self.inheritable_guards: tuple[Any, ...] = tuple(each for each in guards if each.inherited)
        self.guard_scope = _guard_scope(self.inheritable_guards)
        self.reserve = tuple((guard.reserve, guard.release) for guard in guards)
        # A wait of zero seconds is still announced and reserved, where hooks or guards exist.
        self.observes_backoff = bool(self.on_backoff or self.reserve)
        if self.random is None and (self.has_backoff or self.observes_backoff):
            from random import Random

            self.random = Random()
        self.unbounded = policy.never_ends and not self.has_backoff
        hooked = self.on_first_success or any(getattr(self, name) for name in HOOKS)
        special = self.needs_state or self.dynamic or self.result_rules or self.attempt_timeout
        self.reports_overruns = bool(self.on_overrun)
        if not any(getattr(each, "writes_log", False) for each in listeners):
            self.on_overrun += (warn_of_overrun,)
        self.measured = bool(special or hooked or guards)
        self.has_pre_attempt_checks = bool(self.needs_state or guards)
        self._choose_first_attempt(special, listeners)
        self._append_log(log)
        self._fingerprint: str | None = None

    def _choose_first_attempt(self, special: Any, listeners: tuple[Any, ...]) -> None:
        """Choose how the first attempt is made.

        Directly, if only guards are checked before it and it has no limit.  Inline, if there are
        no guards and no hooks before it or after a success either: hooks of failures do not
        matter.  The short rules continue from there where only the policy has to be queried after
        a failure.
        """
        self.policy_may_deny_first_attempt = not self.needs_state and not _is_own_policy(
            self.policy
        )
        self.direct_first_attempt = not special and not self.policy_may_deny_first_attempt
        of_success = self.open or self.before_attempt or self.on_success or self.close
        self.inline_first_attempt = self.direct_first_attempt and not (of_success or self.admit)
        self.policy_only = self.inline_first_attempt and not (self.has_backoff or self.measured)
        self.notifies_end = bool(self.on_end)
        timed = (each for each in listeners if getattr(each, "needs_start_time", True))
        self.times_first_attempt = self.inline_first_attempt and bool(
            self.on_first_success or tuple(overridden(timed, "on_end", RetryListener))
        )
        self.untimed_first_attempt = self.inline_first_attempt and not self.times_first_attempt
        # Whether no hook is called for a first attempt that returns or is cancelled.
        self.is_unobserved = self.untimed_first_attempt and not self.notifies_end

    def _append_log(self, log: DefaultLog | None) -> None:
        """Add the hooks of the built-in log, which change nothing in the rest of the plan."""
        self.log = log or NO_LOG
        self.logged_on_backoff, self.logged_on_end = self.on_backoff, self.on_end
        if log is not None:
            self.logged_on_backoff += (log.on_backoff,)
            self.on_store_error += (log.on_store_error,)
            self.logged_on_end += (log.on_end,)

    def backoff_hooks(self) -> Hooks:
        """The hooks of a retry, with the built-in log while its level is enabled."""
        return self.logged_on_backoff if self.log.is_enabled(INFO) else self.on_backoff

    def end_hooks(self) -> Hooks:
        """The hooks of another end than a first success, in the same way."""
        return self.logged_on_end if self.log.is_enabled(INFO) else self.on_end

    @property
    def fingerprint(self) -> str:
        """Identifies a policy tree with its settings."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self.policy)
        return self._fingerprint


def _split_log(listeners: list[Any]) -> tuple[tuple[Any, ...], DefaultLog | None]:
    """The listeners without the built-in log, and that log unless another listener logs."""
    others = tuple(each for each in listeners if each is not DEFAULT_LOG)
    is_replaced = any(getattr(each, "writes_log", False) for each in others)
    return others, None if is_replaced or len(others) == len(listeners) else DEFAULT_LOG


def _guard_scope(guards: tuple[Any, ...]) -> Deadline | None:
    """Placeholder of a deadline that passes these guards to inner templates."""
    if not guards:
        return None
    from retrytemplate._engine.deadline import with_inherited_guards

    return with_inherited_guards(None, guards)


def _is_own_policy(policy: Any) -> bool:
    """Whether every policy of the tree is the library's: those always allow the first attempt."""
    if not is_library_module(type(policy).__module__):
        return False
    if not attrs.has(type(policy)):
        return False
    members = (getattr(policy, field.name) for field in attrs.fields(type(policy)))
    return all(
        _is_own_policy(each)
        for member in members
        for each in (member if isinstance(member, tuple) else (member,))
        if isinstance(each, RetryPolicy)
    )


def overridden(parts: Iterable[Any], name: str, base: type) -> Iterable[Callable[..., Any]]:
    """The hooks of that name which are more than the empty one of the base class."""
    for part in parts:
        hook = getattr(part, name, None)
        if hook is not None and getattr(hook, "__func__", None) is not getattr(base, name):
            yield hook


def admit_hook(guard: Any) -> Callable[..., Any]:
    """The admission hook of a guard where it may be awaited."""
    return getattr(guard, "admit_async", None) or guard.admit  # type: ignore[no-any-return]  # of a guard


def fingerprint_of(value: Any) -> str:
    """A policy tree as text: classes and plain settings, without addresses."""
    if attrs.has(type(value)):
        parts = (
            f"{field.name}={fingerprint_of(getattr(value, field.name))}"
            for field in attrs.fields(type(value))
            if field.init
        )
        return f"{type(value).__qualname__}({','.join(parts)})"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, tuple | list):
        return f"[{','.join(map(fingerprint_of, value))}]"
    if isinstance(value, dict):
        pairs = (f"{fingerprint_of(k)}:{fingerprint_of(v)}" for k, v in value.items())
        return f"{{{','.join(pairs)}}}"
    return getattr(value, "__qualname__", type(value).__qualname__)

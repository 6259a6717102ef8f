"""Checks of a kill switch, and the guard that repeats one before every attempt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate._engine.context import current_context
from retrytemplate.control._enclosing import run_under_guard, run_under_guard_async
from retrytemplate.control._strategy import StrategyBase, reject_awaitable, returns_result
from retrytemplate.control._threads import run_in_thread
from retrytemplate.control.events import Listeners, reject
from retrytemplate.control.switch import transitions
from retrytemplate.control.switch.canary import KEY_SUBJECT
from retrytemplate.errors import KillSwitchActiveError
from retrytemplate.guards import Guard
from retrytemplate.state import encode_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import RetryContext
    from retrytemplate.clock import Clock
    from retrytemplate.control._strategy import P, T
    from retrytemplate.control.switch.cache import StateCache, StateSnapshot
    from retrytemplate.control.switch.model import Decision, DeclaredScopes, SwitchScope

MAX_CACHED_CHECKS = 1024


@define(eq=False, repr=False)
class SwitchGuard(Guard, StrategyBase):
    """Rejects the calls of stopped scopes; created by ``KillSwitch.guard``.

    In ``RetryTemplate(guards=[...])`` it checks every attempt.  It is a strategy as well:
    ``guard.call(fn)``, or in a ``Pipeline``, checks the call.  In both cases, it checks every
    attempt of a template inside, every hedge and every fallback, too.

    >>> from retrytemplate.control import KillSwitch
    >>> switch = KillSwitch()
    >>> billing = switch.guard(segment="billing")
    >>> billing.call(int, "17")
    17
    >>> record = switch.stop(
    ...     segment="billing", reason="charged twice", by="kim", permanent=True
    ... )
    >>> billing.call(int, "17")
    Traceback (most recent call last):
    retrytemplate.errors.KillSwitchActiveError: segment 'billing' is stopped by kim: charged twice
    """

    inherited = True

    _switch: SwitchChecks
    _scope_check: ScopeCheck
    _key: Any
    name: str = field(init=False)
    _known_allowed: Callable[[], bool] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.name, self._known_allowed = self._switch.name, self._scope_check.known_allowed

    @property
    def scopes(self) -> tuple[SwitchScope, ...]:
        """The checked scopes, in the order of the check."""
        return self._scope_check.scopes

    @property
    def what(self) -> str:
        """The checked scopes, in words."""
        return " or ".join(map(str, self.scopes))

    def admit(self, context: RetryContext | None) -> None:
        """Reject the attempt if one of the scopes is stopped.

        :raises KillSwitchActiveError: one of them is stopped.
        """
        if not self._known_allowed():
            self._decide(context)

    async def admit_async(self, context: RetryContext | None) -> None:
        """The same for a task: the store is read in a thread, if it has to be read."""
        if self._known_allowed():
            return
        if not self._switch._cache.is_fresh():
            await run_in_thread(self._switch._refresh_if_stale)
        self._raise_if_stopped(
            self._switch._decide_from_cache(self._scope_check, lambda: self._key_of(context))
        )

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, unless it is stopped."""
        self.admit(current_context())
        value: T = run_under_guard(self, fn, args, kwargs)
        reject_awaitable(value, fn)
        return value

    @returns_result
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, unless it is stopped, and await it."""
        await self.admit_async(current_context())
        return await run_under_guard_async(self, fn, args, kwargs)

    def describe(self) -> str:
        """Its effect on a call, with its scopes."""
        return f"no call, attempt, hedge or other answer while {self.what} is stopped"

    def _decide(self, context: RetryContext | None) -> None:
        self._raise_if_stopped(
            self._switch._decide(self._scope_check, lambda: self._key_of(context))
        )

    def _key_of(self, context: RetryContext | None) -> Any:
        return self._key(context) if callable(self._key) else self._key

    def _raise_if_stopped(self, decision: Decision) -> None:
        if decision.allowed:
            return
        retry_after = self._switch._remaining_stop_time(decision)
        reject(
            self._switch.listeners,
            KillSwitchActiveError(decision.reason, name=self.name, retry_after=retry_after),
        )

    def __repr__(self) -> str:
        return f"<SwitchGuard {self.name!r}: {self.what}>"


@define(eq=False, init=False)
class ScopeCheck:
    """Whether all of some scopes may run.

    :param known_allowed: whether none of them is stopped in the current snapshot, a fast check; if
        False, the state has to be read.
    """

    scopes: tuple[SwitchScope, ...]
    known_allowed: Callable[[], bool]
    _allowed_snapshot: list[Any]  # the latest such view, and its version

    def __init__(self, cache: StateCache, scopes: tuple[SwitchScope, ...]) -> None:
        self.scopes = scopes
        allowed: list[Any] = [object(), -1]
        self._allowed_snapshot = allowed
        if cache.store.shared:
            now = cache.now
            self.known_allowed = lambda: (
                now() < cache.trusted_until and cache.snapshot is allowed[0]
            )
        else:
            self.known_allowed = lambda: (
                cache.is_version(allowed[1]) and cache.snapshot is allowed[0]
            )

    def remember_if_allowed(self, snapshot: StateSnapshot) -> None:
        """Cache the snapshot if none of the scopes is stopped in it."""
        if snapshot.entries.keys().isdisjoint(self.scopes):
            self._allowed_snapshot[:] = snapshot, snapshot.version


class SwitchChecks(ABC):
    """Provides ``check`` and ``guard`` to a switch."""

    __slots__ = ()

    name: str
    _scopes: DeclaredScopes
    _scope_checks: dict[tuple[Any, ...], ScopeCheck]
    _unknown: Decision
    listeners: Listeners
    _clock: Clock
    _cache: StateCache

    @abstractmethod
    def _refresh_if_stale(self) -> None:
        """Read the store if the cached state is too old."""

    def check(
        self,
        *,
        segment: str | None = None,
        feature: str | None = None,
        experiment: str | None = None,
        key: Any = None,
    ) -> Decision:
        """Whether a call may be made now: checks the global stop first, then the named scopes.

        :param key: the owner of the call, such as a user; it decides while a canary runs.
        :raises UnknownScopeError: a name was not declared.
        :raises InconsistentKeyError: the key is not valid.

        The result is a pair, too: ``allowed, reason = switch.check(...)``.  While the store does
        not answer, the last known state holds, and nothing is raised.
        """
        try:
            check = self._scope_checks[segment, feature, experiment]
        except (KeyError, TypeError):  # the latter: no name at all
            check = self._scope_check(segment, feature, experiment)
        if key is not None and type(key) is not str:
            encode_key(key, KEY_SUBJECT)
        return transitions.ALLOWED if check.known_allowed() else self._decide(check, _constant(key))

    def guard(
        self,
        *,
        segment: str | None = None,
        feature: str | None = None,
        experiment: str | None = None,
        key: Any = None,
    ) -> SwitchGuard:
        """A guard for templates, and a strategy for pipelines, that rejects stopped calls.

        :param key: the owner of the call, or a function of the context that returns it (of None,
            outside of a template).
        :raises UnknownScopeError: a name was not declared.

        >>> from retrytemplate import RetryTemplate
        >>> from retrytemplate.control import KillSwitch
        >>> switch = KillSwitch()
        >>> template = RetryTemplate(guards=[switch.guard(segment="finance")])
        >>> template.call(int, "17")
        17
        """
        check = self._scope_check(segment, feature, experiment)
        if key is not None and not callable(key):
            encode_key(key, KEY_SUBJECT)
        return SwitchGuard(self, check, key)

    def _scope_check(self, *names: str | None) -> ScopeCheck:
        check = ScopeCheck(self._cache, self._scopes.required(*names))
        if len(self._scope_checks) >= MAX_CACHED_CHECKS:
            self._scope_checks.clear()
        self._scope_checks[names] = check
        return check

    def _decide(self, check: ScopeCheck, key: Callable[[], Any]) -> Decision:
        """Decide by the state, and read the store first if the state is stale."""
        if not self._cache.is_fresh():
            self._refresh_if_stale()
        return self._decide_from_cache(check, key)

    def _decide_from_cache(self, check: ScopeCheck, key: Callable[[], Any]) -> Decision:
        snapshot = self._cache.snapshot
        if snapshot is None:
            return self._unknown
        check.remember_if_allowed(snapshot)
        return transitions.decide(snapshot.entries, check.scopes, key, self._clock.time())

    def _remaining_stop_time(self, decision: Decision) -> float | None:
        """Seconds until the stop expires by itself."""
        entry = decision.entry
        if entry is None or entry.until is None or entry.when_expired != "resume":
            return None
        return max(0.0, entry.until - self._clock.time())


def _constant(key: Any) -> Callable[[], Any]:
    return lambda: key

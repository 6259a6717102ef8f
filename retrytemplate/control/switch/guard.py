"""The guard of one scope of a kill switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate._engine.context import current_context
from retrytemplate.control._enclosing import run_under_guard, run_under_guard_async
from retrytemplate.control._strategy import StrategyBase, reject_awaitable, returns_result
from retrytemplate.control._threads import run_in_thread
from retrytemplate.control.events import reject
from retrytemplate.errors import KillSwitchActiveError
from retrytemplate.guards import Guard

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from retrytemplate._engine.context import RetryContext
    from retrytemplate.control.switch.cache import StateCache, StateSnapshot
    from retrytemplate.control.switch.model import Decision, SwitchScope
    from retrytemplate.control.switch.switch import KillSwitch

__all__ = ["ScopeCheck", "SwitchGuard"]


if TYPE_CHECKING:
    P = ParamSpec("P")
    T = TypeVar("T")


@define(eq=False, repr=False)
class SwitchGuard(Guard, StrategyBase):
    """Lets pass what a switch does not stop; made by ``KillSwitch.guard``.

    In ``RetryTemplate(guards=[...])`` it is asked before every attempt.  It is a strategy as well:
    ``guard.call(fn)``, or in a ``Pipeline``, asks before the call.  Either way, every attempt of a
    template inside, every hedge and every fallback is checked, too.

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

    _switch: KillSwitch
    _scope_check: ScopeCheck
    _key: Any
    name: str = field(init=False)
    _known_allowed: Callable[[], bool] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.name, self._known_allowed = self._switch.name, self._scope_check.known_allowed

    @property
    def scopes(self) -> tuple[SwitchScope, ...]:
        """What has to run, in the order in which it is asked for."""
        return self._scope_check.scopes

    @property
    def what(self) -> str:
        """What has to run for a call to be made, in words."""
        return " or ".join(map(str, self.scopes))

    def admit(self, context: RetryContext | None) -> None:
        """Reject stopped work.

        :raises KillSwitchActiveError: it is.
        """
        if not self._known_allowed():
            self._decide(context)

    async def admit_async(self, context: RetryContext | None) -> None:
        """The same where nothing may block: the store, if it has to be, is asked in a thread."""
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
            self._switch._listeners,
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
        """Remember it, if nothing of this is stopped there."""
        if snapshot.entries.keys().isdisjoint(self.scopes):
            self._allowed_snapshot[:] = snapshot, snapshot.version

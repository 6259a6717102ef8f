"""The retry template: its settings and its entry points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, TypeVar, overload

from attrs import evolve, field, fields, frozen

from retrytemplate._engine import entry, first_attempt
from retrytemplate._engine.block import NEW, STATEFUL, Attempts
from retrytemplate._engine.drivers import PLAIN
from retrytemplate._engine.frames import CONTEXT, CURRENT, DEADLINE, close_context, reset_frame
from retrytemplate._engine.plan import ExecutionPlan
from retrytemplate._engine.settings import (
    check_name_field,
    check_recovery,
    check_recovery_field,
    check_state,
    check_state_field,
    to_attempt_timeout,
    to_guards,
    to_listeners,
)
from retrytemplate._engine.wrapping import wrap
from retrytemplate._internal.locks import Monitor
from retrytemplate._internal.suggestions import check_names
from retrytemplate._internal.validation import (
    check_index,
    check_methods,
    check_text_or_none,
    checked_by,
    instance_of,
)
from retrytemplate._internal.values import Value
from retrytemplate.backoff.base import Backoff, NoBackoff
from retrytemplate.caches.base import METHODS
from retrytemplate.caches.memory import MemoryRetryContextCache
from retrytemplate.caches.snapshot import load
from retrytemplate.clock import Clock, SystemClock, check_clock
from retrytemplate.errors import MisuseError
from retrytemplate.listeners.defaults import follow, settings_version
from retrytemplate.policies.base import RetryPolicy
from retrytemplate.policies.simple import SimpleRetryPolicy
from retrytemplate.state import RetryState, encode_key, scope_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Self, Unpack

    from typing_extensions import TypeVar as TypeVarWithDefault

    from retrytemplate._engine.context import RetryContext
    from retrytemplate._engine.settings import TemplateSettings
    from retrytemplate._engine.wrapping import Method, WrappedFunction
    from retrytemplate.guards import Guard
    from retrytemplate.history import Outcome

    R_co = TypeVarWithDefault("R_co", covariant=True, default=Any)
else:
    R_co = TypeVar("R_co", covariant=True)

__all__ = ["BoundTemplate", "RetryOperations", "RetryTemplate"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


_get, _set, _reset = CURRENT.get, CURRENT.set, CURRENT.reset


class RetryOperations(Generic[R_co]):
    """The methods of a template, and of one with a recovery, a state or a label bound.

    ``R_co`` is the type of what a bound recovery returns, for type checkers.
    """

    __slots__ = ()
    __repr__ = Value.__repr__

    if TYPE_CHECKING:
        recovery: Callable[[RetryContext], Any] | None
        state: RetryState | None
        label: str | None

        @property
        def template(self) -> RetryTemplate: ...

        @property
        def _plan(self) -> ExecutionPlan: ...

        @property
        def _inline_plan(self) -> ExecutionPlan | None: ...

        def _with_changes(self, changes: Mapping[str, Any]) -> Any: ...

    def __copy__(self) -> Any:
        return evolve(self)  # type: ignore[misc]  # both that are made of this are attrs classes

    def __reduce__(self) -> Any:
        raise MisuseError(
            f"a {type(self).__name__} cannot be pickled or copied deeply: its cache and its "
            "listeners are shared; make one in each process, or use with_()"
        )

    @overload
    def execute(
        self,
        callback: Callable[[RetryContext], T],
        *,
        recovery: None = None,
        state: RetryState | None = None,
    ) -> T | R_co: ...

    @overload
    def execute(
        self,
        callback: Callable[[RetryContext], T],
        *,
        recovery: Callable[[RetryContext], R],
        state: RetryState | None = None,
    ) -> T | R: ...

    def execute(
        self,
        callback: Callable[[RetryContext], Any],
        *,
        recovery: Callable[[RetryContext], Any] | None = None,
        state: RetryState | None = None,
    ) -> Any:
        """Call *callback* until it succeeds or the policy denies another attempt.

        :param callback: called with the ``RetryContext``; its result is returned.
        :param recovery: called with the context when attempts run out; its value is returned.
        :param state: makes the execution stateful: a failure is rethrown at once and remembered
            under the state's key.
        :raises BaseException: the callback's last exception, without recovery (stateless).
        :raises ExhaustedRetryError: the same for a stateful execution whose attempts ran out
            before.
        :raises TerminatedRetryError: a listener's veto, or a failure that could not be recorded.
        :raises BackoffInterruptedError: the wait before the next attempt was ended.

        >>> from retrytemplate import RetryTemplate
        >>> RetryTemplate().execute(lambda context: f"attempt {context.attempt}")
        'attempt 1'

        Source: ``org.springframework.retry.support.RetryTemplate``.
        """
        return first_attempt.run(self, callback, None, {}, recovery, state)

    @overload
    async def execute_async(
        self,
        callback: Callable[[RetryContext], Awaitable[T]],
        *,
        recovery: None = None,
        state: RetryState | None = None,
    ) -> T | R_co: ...

    @overload
    async def execute_async(
        self,
        callback: Callable[[RetryContext], Awaitable[T]],
        *,
        recovery: Callable[[RetryContext], Awaitable[R]],
        state: RetryState | None = None,
    ) -> T | R: ...

    @overload
    async def execute_async(
        self,
        callback: Callable[[RetryContext], Awaitable[T]],
        *,
        recovery: Callable[[RetryContext], R],
        state: RetryState | None = None,
    ) -> T | R: ...

    @overload
    async def execute_async(
        self,
        callback: Callable[[RetryContext], T],
        *,
        recovery: None = None,
        state: RetryState | None = None,
    ) -> T | R_co: ...

    @overload
    async def execute_async(
        self,
        callback: Callable[[RetryContext], T],
        *,
        recovery: Callable[[RetryContext], Awaitable[R]],
        state: RetryState | None = None,
    ) -> T | R: ...

    @overload
    async def execute_async(
        self,
        callback: Callable[[RetryContext], T],
        *,
        recovery: Callable[[RetryContext], R],
        state: RetryState | None = None,
    ) -> T | R: ...

    async def execute_async(
        self,
        callback: Callable[[RetryContext], Any],
        *,
        recovery: Callable[[RetryContext], Any] | None = None,
        state: RetryState | None = None,
    ) -> Any:
        """The same as ``execute``; callback, recovery, listeners, cache may be asynchronous.

        :param callback: called with the ``RetryContext``; an awaitable result is awaited.
        :param recovery: likewise, when attempts run out.
        :param state: makes the execution stateful.
        :raises BaseException: the callback's last exception, and what ``execute`` raises.
        """
        return await first_attempt.run_async(self, callback, None, {}, recovery, state)

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | R_co:
        """Call ``fn(*args, **kwargs)`` with retry, without a context parameter.

        >>> from retrytemplate import RetryTemplate
        >>> RetryTemplate().call(int, "17")
        17
        """
        outer = _get()
        plan = self._inline_plan
        if (
            plan is None
            or self.state is not None
            or (outer is not None and outer[DEADLINE] is not None)
        ):
            result: T = first_attempt.run(self, fn, args, kwargs)
            return result
        frame: list[Any] = [None, self, None, outer, plan, fn]
        try:
            token = _set(frame)
        except BaseException:  # a signal, once it was set
            reset_frame(None, outer)
            raise
        try:
            value = fn(*args, **kwargs)
        except Exception as exc:
            frame += (exc,)  # no call, for a signal may come after one
        except BaseException as exc:  # retry_after_failure() raises a cancellation again
            if not plan.notifies_end:
                _reset(token)
                close_context(frame)
                raise
            frame += (exc,)
        else:
            _reset(token)
            if frame[CONTEXT] is not None or type(value) not in PLAIN:
                first_attempt.finish_inline_success(frame, fn, value)
            return value
        try:
            result = first_attempt.retry_after_failure(frame, fn, args, kwargs)
            return result
        finally:
            _reset(token)

    @overload
    async def call_async(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T | R_co: ...

    @overload
    async def call_async(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T | R_co: ...

    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The same as ``call`` for functions that may be asynchronous.

        >>> import asyncio
        >>> from retrytemplate import RetryTemplate
        >>> async def fetch(page):
        ...     return f"page {page}"
        >>> asyncio.run(RetryTemplate().call_async(fetch, 17))
        'page 17'
        """
        return await first_attempt.run_async(self, fn, args, kwargs)

    def outcome(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T | R_co]:
        """Call ``fn(*args, **kwargs)`` with retry; return the outcome, raise no Exception.

        >>> from retrytemplate import RetryTemplate
        >>> outcome = RetryTemplate().outcome(int, "seventeen")
        >>> outcome.ok, type(outcome.exception).__name__, outcome.attempts
        (False, 'ValueError', 3)
        """
        return entry.outcome(self, fn, args, kwargs)

    @overload
    async def outcome_async(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T | R_co]: ...

    @overload
    async def outcome_async(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T | R_co]: ...

    async def outcome_async(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Outcome[Any]:
        """The same as ``outcome`` for functions that may be asynchronous."""
        return await entry.outcome_async(self, fn, args, kwargs)

    @overload
    def wrap(self, fn: Method, *, nested: bool = False) -> Method: ...

    @overload
    def wrap(self, fn: Callable[P, T], *, nested: bool = False) -> WrappedFunction[P, T]: ...

    def wrap(self, fn: Any, *, nested: bool = False) -> Any:
        """Decorate a function so that every call of it retries; signature and types stay.

        Takes functions and coroutine functions, methods, classmethods, staticmethods, callable
        objects and partials.  A generator function (or an asynchronous one) is retried until its
        first item has gone out; later exceptions pass as they are.

        The result has ``retry_with(**changes)``: the same function under a changed template, of
        the same kind.  Of a method it is a function that takes the instance first, and of a
        classmethod the class.

        :param fn: the function.
        :param nested: whether a function that a template has wrapped already is accepted: then
            the attempts of both templates multiply.
        :raises MisuseError: a template has wrapped the function already, and ``nested`` is False.
        :raises TypeError: for a class, or an object that cannot be called.

        >>> from retrytemplate import NeverRetryPolicy, RetryTemplate
        >>> @RetryTemplate().wrap
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double(21), double.retry_with(policy=NeverRetryPolicy())(21)
        (42, 42)
        """
        return wrap(self, fn, nested=nested)

    def attempts(
        self,
        *,
        recovery: Callable[[RetryContext], Any] | None = None,
        state: RetryState | None = None,
    ) -> Attempts:
        """The block form: each iteration of the loop is an attempt, made in its ``with`` block.

        :param recovery: called with the context when attempts run out; its value is the loop's
            ``result``.
        :param state: makes the execution stateful.
        :raises TypeError: the recovery is no function, or the state no ``RetryState``.

        >>> from retrytemplate import RetryTemplate
        >>> for attempt in RetryTemplate().attempts():
        ...     with attempt as context:
        ...         number = context.attempt
        >>> number
        1
        """
        attempts = Attempts(self, None, self._plan)
        attempts._loop_state = NEW
        if recovery is not None or self.recovery is not None:
            check_recovery(recovery)
            attempts._recovery = self.recovery if recovery is None else recovery
        if state is not None or self.state is not None:
            check_state(state)
            attempts._requested_state = self.state if state is None else state
            attempts._loop_state = STATEFUL
        return attempts


@frozen(eq=False, repr=False, slots=True)
class RetryTemplate(RetryOperations[Never]):
    """Executes callbacks under a retry policy and a backoff, and remembers.

    :param policy: when to try again.
    :param backoff: how long to wait before that.
    :param name: for logs and metrics, and the scope of keys in a shared cache.
    :param listeners: notified of the events of each execution.
    :param guards: may reject an attempt or a wait.
    :param cache: where stateful executions keep their contexts; in memory by default.
    :param recovery: called with the context when attempts run out, unless a call gives its own.
    :param attempt_timeout: the limit of each attempt: seconds, a ``timedelta`` or an
        ``AttemptTimeout``.  A synchronous attempt that returns late keeps its value.
    :param raise_last: a stateful execution that is exhausted without recovery raises its last
        failure instead of ``ExhaustedRetryError``.
    :param clock: time and sleep.
    :param random: source of randomness: an object with ``random()``, such as ``random.Random``.

    Frozen but for ``register_listener``; one template serves any number of threads and tasks.

    >>> from retrytemplate import ExponentialBackoff, RetryTemplate, SimpleRetryPolicy
    >>> template = RetryTemplate(
    ...     policy=SimpleRetryPolicy(max_attempts=4, retry_on=ConnectionError),
    ...     backoff=ExponentialBackoff(initial=0.2, maximum=30.0, jitter="full"),
    ... )

    Source: ``org.springframework.retry.support.RetryTemplate``.
    """

    policy: RetryPolicy = field(
        factory=SimpleRetryPolicy, validator=instance_of(RetryPolicy, "a RetryPolicy")
    )
    backoff: Backoff = field(factory=NoBackoff, validator=instance_of(Backoff, "a Backoff"))
    cache: Any = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True, validator=check_name_field)
    listeners: tuple[Any, ...] = field(default=(), kw_only=True, converter=to_listeners)
    guards: tuple[Guard, ...] = field(default=(), kw_only=True, converter=to_guards)
    recovery: Callable[[RetryContext], Any] | None = field(
        default=None, kw_only=True, validator=check_recovery_field
    )
    attempt_timeout: Any = field(default=None, kw_only=True, converter=to_attempt_timeout)
    raise_last: bool = field(
        default=False, kw_only=True, validator=instance_of(bool, "True or False")
    )
    clock: Clock = field(factory=SystemClock, kw_only=True, validator=checked_by(check_clock))
    random: Any = field(default=None, kw_only=True)
    label: str | None = field(init=False, repr=False)
    state: RetryState | None = field(init=False, repr=False, default=None)
    # Fields, where the base class has properties.
    _inline_plan: ExecutionPlan | None = field(init=False, repr=False)  # pyright: ignore[reportIncompatibleMethodOverride]  # read at every call
    _plan: ExecutionPlan = field(init=False, repr=False)  # pyright: ignore[reportIncompatibleMethodOverride]  # read at every call
    _monitor: Monitor = field(init=False, repr=False)
    _scope: str = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        store = object.__setattr__
        if self.cache is None:
            store(self, "cache", MemoryRetryContextCache(clock=self.clock))
        else:
            check_methods("cache", self.cache, *METHODS)
            load()
        if self.random is not None:
            check_methods("random", self.random, "random")
        store(self, "_scope", scope_of(self.name))
        store(self, "label", self.name)
        store(self, "_monitor", Monitor())
        follow(self)
        self._rebuild_plan()

    def _on_settings_changed(self) -> None:
        self._monitor.post(self._rebuild_plan)

    def _rebuild_plan(self) -> None:
        version = None
        while version is not settings_version():  # another thread has changed a setting meanwhile
            version = settings_version()
            plan = ExecutionPlan(self, self.listeners)
            object.__setattr__(self, "_plan", plan)
            object.__setattr__(self, "_inline_plan", plan if plan.untimed_first_attempt else None)

    @property
    def template(self) -> RetryTemplate:
        """The template itself: what a bound one points to."""
        return self

    @overload
    def bind(
        self,
        *,
        recovery: None = None,
        state: RetryState | None = None,
        label: str | None = None,
    ) -> BoundTemplate[Never]: ...

    @overload
    def bind(
        self,
        *,
        recovery: Callable[[RetryContext], Awaitable[R]],
        state: RetryState | None = None,
        label: str | None = None,
    ) -> BoundTemplate[R]: ...

    @overload
    def bind(
        self,
        *,
        recovery: Callable[[RetryContext], R],
        state: RetryState | None = None,
        label: str | None = None,
    ) -> BoundTemplate[R]: ...

    def bind(
        self,
        *,
        recovery: Callable[[RetryContext], Any] | None = None,
        state: RetryState | None = None,
        label: str | None = None,
    ) -> BoundTemplate[Any]:
        """The same entry points with a recovery, a state or a reporting label set.

        :param recovery: replaces the recovery of the template.
        :param state: makes every execution stateful, unless a call gives its own.
        :param label: shown by contexts, logs and metrics instead of the template's name.

        >>> from retrytemplate import RetryTemplate
        >>> RetryTemplate().bind(recovery=lambda context: "no number").call(int, "seventeen")
        'no number'
        """
        return BoundTemplate(
            self,
            self.recovery if recovery is None else recovery,
            state,
            self.name if label is None else label,
        )

    def with_(self, **changes: Unpack[TemplateSettings]) -> Self:
        """A copy with some settings changed; listeners registered since are part of it.

        :param changes: settings by name, as the class takes them.
        :raises TypeError, ValueError: for an unknown setting or an invalid value.

        >>> from retrytemplate import RetryTemplate, SimpleRetryPolicy
        >>> RetryTemplate(name="orders").with_(policy=SimpleRetryPolicy(5)).name
        'orders'
        """
        return self._with_changes(changes)

    def _with_changes(self, changes: Mapping[str, Any]) -> Self:
        known = [each.name for each in fields(type(self)) if each.init]
        check_names("setting", changes, known)
        return evolve(self, **changes)

    def register_listener(self, listener: Any, index: int | None = None) -> None:
        """Add a listener, at the end or before position *index*.

        Executions that run already keep the listeners they began with.

        :param listener: an object with at least one hook of a ``RetryListener``.
        :param index: its place in the order; None: the end.
        :raises TypeError: the listener has no hook, or the index is not an int.
        """
        check_index("index", index)
        to_listeners([listener])
        self._monitor.post(self._register, listener, index)

    def _register(self, listener: Any, index: int | None) -> None:
        listeners = list(self.listeners)
        listeners.insert(len(listeners) if index is None else index, listener)
        object.__setattr__(self, "listeners", to_listeners(listeners))
        self._rebuild_plan()

    def scoped_key(self, key: Any) -> str:
        """The name of *key* in this template's cache: scoped by the template's name.

        >>> from retrytemplate import RetryTemplate
        >>> RetryTemplate(name="charge").scoped_key("order-17")
        'charge/s:order-17'
        """
        return self._scope + encode_key(key)


@frozen(eq=False, repr=False, slots=True)
class BoundTemplate(RetryOperations[R_co]):
    """A template with a recovery, a state and a label of its own: ``RetryTemplate.bind``.

    >>> from retrytemplate import RetryState, RetryTemplate
    >>> bound = RetryTemplate(name="orders").bind(state=RetryState("order-17"), label="night")
    >>> bound.call(int, "17"), bound.label, bound.template.name
    (17, 'night', 'orders')
    """

    template: RetryTemplate  # pyright: ignore[reportIncompatibleMethodOverride]  # a field here
    recovery: Callable[[RetryContext], Any] | None = field(
        default=None, validator=check_recovery_field
    )
    state: RetryState | None = field(default=None, validator=check_state_field)
    label: str | None = field(default=None, validator=checked_by(check_text_or_none))

    @property
    def _plan(self) -> ExecutionPlan:
        return self.template._plan

    @property
    def _inline_plan(self) -> ExecutionPlan | None:
        return self.template._inline_plan

    def _with_changes(self, changes: Mapping[str, Any]) -> Self:
        template = self.template._with_changes(changes)
        recovery = template.recovery if "recovery" in changes else self.recovery
        label = template.name if self.label == self.template.name else self.label
        return evolve(self, template=template, recovery=recovery, label=label)

"""The fallback: other functions are called when the first one fails."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar, overload

from attrs import field, frozen
from attrs.validators import optional

from retrytemplate._engine.final_error import safe_repr
from retrytemplate._internal.awaitables import is_async, is_awaitable
from retrytemplate._internal.locks import Monitor
from retrytemplate._internal.validation import check_function, check_text, checked_by
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.clock import given_or_system
from retrytemplate.control._enclosing import check_enclosing_guards, check_enclosing_guards_async
from retrytemplate.control._failures import combine_failures
from retrytemplate.control._predicates import exception_predicate, terminal_error
from retrytemplate.control._strategy import (
    StrategyBase,
    immutable,
    may_substitute,
    reject_awaitable,
)
from retrytemplate.control.events import (
    ControlEvent,
    Listeners,
    Observable,
    notify_listeners,
    to_listeners,
)
from retrytemplate.errors import UnacceptableResultError
from retrytemplate.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from typing import ParamSpec

    from retrytemplate.clock import Clock

    P = ParamSpec("P")

T = TypeVar("T")
PRIMARY = "primary"


@frozen(kw_only=True)
class FallbackUsed(ControlEvent):
    """The primary function failed, and a fallback returned, or all failed.

    :param source: the name of the fallback that answered; None: all failed.
    :param error: the failure of the primary function.
    """

    source: str | None
    error: BaseException


@frozen(kw_only=True)
class PrimaryAnswered(ControlEvent):
    """The primary function returned."""


@frozen(eq=False, repr=False)
class FallbackOutcome(Outcome[T]):
    """Outcome of a call, with the source of its value.

    :param source: ``"primary"``, or the name of the fallback; None: all failed.
    :param failures: the exceptions of the functions before it, in order.
    """

    source: str | None = None
    failures: tuple[BaseException, ...] = ()

    @property
    def used_fallback(self) -> bool:
        """Whether a fallback returned the result."""
        return self.ok and bool(self.failures)


def _check_fallbacks(name: str, value: Any) -> None:
    if not value:
        raise ValueError("Fallback() needs at least one fallback function")
    for link in value:
        if not callable(link) or isinstance(link, type):
            raise TypeError(f"Fallback() takes fallback functions, got {link!r}")


@immutable()
@frozen(eq=False, init=False)
class Fallback(Observable, StrategyBase):
    """A chain of fallbacks: another provider, a cache, a simpler answer, a default.

    :param fallbacks: functions with the parameters of the call, each called when all before it have
        failed; wrapped in guards of their own, if they are to have any.
    :param on: the failures that use a fallback: exception classes, a predicate, or an
        ``ExceptionClassifier``.  Other exceptions are raised at once.  A rejection, as of an open
        circuit, is an ``Exception`` like others here; but that of a kill switch counts only if
        ``KillSwitchActiveError`` itself is named.
    :param accept: whether a result is acceptable, of any function; another one is a failure.
    :param name: in events.
    :param listeners: notified when the primary function or a fallback answers, or all have failed.
    :param clock: measures how long it took.
    :raises ValueError: without a link.

    When all have failed, the primary's exception is raised: with the others' in its notes, and as a
    group as its cause.  Interrupts and cancellations leave at once.

    >>> def provider(city):
    ...     raise ConnectionError("no answer")
    >>> def cached(city):
    ...     return {"Rome": 31}[city]
    >>> def default(city):
    ...     return "not known at the moment"
    >>> weather = Fallback(cached, default)
    >>> weather.call(provider, "Rome"), weather.call(provider, "Oslo")
    (31, 'not known at the moment')
    >>> weather.outcome(provider, "Oslo").source
    'default'
    """

    fallbacks: tuple[Callable[..., Any], ...] = field(validator=checked_by(_check_fallbacks))
    on: Any
    accept: Callable[[Any], Any] | None = field(validator=optional(checked_by(check_function)))
    name: str = field(validator=checked_by(check_text))
    listeners: Listeners = field(converter=to_listeners)
    _is_failure: Callable[[BaseException], Any]
    _clock: Clock = field(converter=given_or_system)
    _counts: Counter[str] = field(init=False, factory=Counter)
    _monitor: Monitor = field(init=False, factory=Monitor)

    def __init__(
        self,
        *fallbacks: Callable[..., Any],
        on: Any = (Exception,),
        accept: Callable[[Any], Any] | None = None,
        name: str = "fallback",
        listeners: Any = (),
        clock: Clock | None = None,
    ) -> None:
        self.__attrs_init__(  # pyright: ignore[reportAttributeAccessIssue]  # attrs adds it
            fallbacks, on, accept, name, listeners, exception_predicate("on", on), clock
        )

    # Calls.  The fallbacks may give anything: hence ``T | Any``, which still is no other type.

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | Any:
        """Call the function, and the fallbacks when it fails."""
        return self.outcome(fn, *args, **kwargs).unwrap()

    @may_substitute
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The same for functions that may be asynchronous, as every link may be."""
        return (await self.outcome_async(fn, *args, **kwargs)).unwrap()

    def outcome(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> FallbackOutcome[T | Any]:
        """Call the function, and the fallbacks when it fails; raises no ``Exception``."""
        began, failures = self._clock.monotonic(), list[BaseException]()
        try:
            for who, each in self._chain(fn):
                try:
                    if failures:
                        check_enclosing_guards()
                    value = each(*args, **kwargs)
                    reject_awaitable(value, each)
                    self._check(value)
                except Exception as exc:
                    if is_never_retried(exc):
                        raise
                    failures.append(exc)
                    if not self._should_fall_back(failures):
                        return self._build_outcome(began, None, failures.pop(), None, failures)
                else:
                    return self._build_outcome(began, value, None, who, failures)
            return self._build_outcome(began, None, self._combined_error(failures), None, failures)
        finally:
            failures.clear()  # their tracebacks hold this frame

    @overload
    async def outcome_async(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> FallbackOutcome[T | Any]: ...

    @overload
    async def outcome_async(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> FallbackOutcome[T | Any]: ...

    async def outcome_async(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> FallbackOutcome[Any]:
        """The same for functions that may be asynchronous, as every link may be."""
        began, failures = self._clock.monotonic(), list[BaseException]()
        try:
            for who, each in self._chain(fn):
                try:
                    if failures:
                        await check_enclosing_guards_async()
                    value = each(*args, **kwargs)
                    if is_awaitable(value):
                        value = await value
                    self._check(value)
                except Exception as exc:
                    if is_never_retried(exc):
                        raise
                    failures.append(exc)
                    if not self._should_fall_back(failures):
                        return self._build_outcome(began, None, failures.pop(), None, failures)
                else:
                    return self._build_outcome(began, value, None, who, failures)
            return self._build_outcome(began, None, self._combined_error(failures), None, failures)
        finally:
            failures.clear()  # their tracebacks hold this frame

    def counts(self) -> Mapping[str, int]:
        """Number of results by the name of the function that returned them.

        >>> weather = Fallback(lambda city: None)
        >>> weather.call(str.upper, "rome")
        'ROME'
        >>> dict(weather.counts())
        {'primary': 1}
        """
        return self._monitor.read(self._counts.copy)

    def _count(self, who: str) -> None:
        self._counts[who] += 1

    def describe(self) -> str:
        """Its effect on a call, with the names of its functions."""
        names = ", ".join(who for who, _ in self._links())
        turns = "s" if len(self.fallbacks) == 1 else " in turn"
        return f"where the call fails, {names} answer{turns}"

    def worst_case(self, inside: float, call: float, late: float) -> float:
        """The longest call, and then each fallback."""
        return inside + len(self.fallbacks) * call

    # What both have in common.

    def _chain(self, fn: Any) -> Iterator[tuple[str, Any]]:
        yield PRIMARY, fn
        yield from self._links()

    def _links(self) -> Iterator[tuple[str, Any]]:
        for link in self.fallbacks:
            yield getattr(link, "__name__", type(link).__name__), link

    def _check(self, value: Any) -> None:
        if self.accept is not None and not self.accept(value):
            raise UnacceptableResultError(
                f"the answer is not acceptable: {safe_repr(value)}", value
            )

    def _should_fall_back(self, failures: list[BaseException]) -> bool:
        """Whether the last failure uses a fallback; else the call ends with it."""
        error = terminal_error(self._is_failure, failures[-1])
        try:
            if error is not None:
                failures[-1] = error
            return error is None
        finally:
            del error  # its traceback leads back here

    def _build_outcome(
        self,
        began: float,
        value: Any,
        error: BaseException | None,
        who: str | None,
        failures: list[BaseException],
    ) -> FallbackOutcome[Any]:
        if who is not None:
            self._monitor.post(self._count, who)
        if self.listeners and (failures or who == PRIMARY):
            notify_listeners(self.listeners, [self._event(who, failures)])
        calls = len(failures) + (not any(error is each for each in failures))
        elapsed = self._clock.monotonic() - began
        return FallbackOutcome(
            value, error, calls, (), elapsed, source=who, failures=tuple(failures)
        )

    def _event(self, who: str | None, failures: list[BaseException]) -> ControlEvent:
        if failures:
            return FallbackUsed(name=self.name, source=who, error=failures[0])
        return PrimaryAnswered(name=self.name)

    def _combined_error(self, failures: list[BaseException]) -> BaseException:
        first, *others = failures
        names = [f"the fallback {who!r}" for who, _ in self._chain(first)][1:]
        return combine_failures(first, zip(names, others, strict=True), "the fallbacks")

    def _function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        for link in self.fallbacks:
            if is_async(link):
                raise TypeError(
                    f"wrap(): the fallback {link!r} is asynchronous, but {fn!r} is synchronous; "
                    "use a synchronous fallback or make the function async"
                )
        return super()._function(fn)

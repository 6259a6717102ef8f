"""The common base of the strategies: ``call``, ``call_async`` and ``wrap``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from retrytemplate._engine.wrapping import apply_to_callable, callable_kind
from retrytemplate._internal.awaitables import close_unawaited, is_awaitable
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Never, ParamSpec, TypeVar, overload

    C = TypeVar("C")
    F = TypeVar("F")
    P = ParamSpec("P")
    T = TypeVar("T")

    S = TypeVar("S", covariant=True)

    class AsyncCall(Protocol[S]):
        """Type of ``call_async``: it returns the function's result or a substitute."""

        @overload
        async def __call__(
            self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
        ) -> T | S: ...

        @overload
        async def __call__(
            self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
        ) -> T | S: ...


def returns_result(call_async: Any) -> AsyncCall[Never]:
    """Give ``call_async`` the type of the function that it calls."""
    return call_async  # type: ignore[no-any-return]  # a cast


def may_substitute(call_async: Any) -> AsyncCall[Any]:
    """Give ``call_async`` the type of the function that it calls, or of a substitute."""
    return call_async  # type: ignore[no-any-return]  # a cast


@runtime_checkable
class Strategy(Protocol):
    """Something around a call: a template, a breaker, a pipeline of them.

    >>> from retrytemplate import RetryTemplate
    >>> isinstance(RetryTemplate(), Strategy)
    True
    """

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function with all that is around it."""
        ...

    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, and await it."""
        ...

    def wrap(self, fn: Any, /) -> Any:
        """The function with this around each call."""
        ...


class StrategyBase:
    """Provides ``wrap`` to a strategy with ``call`` and ``call_async``."""

    __slots__ = ()

    def wrap(self, fn: F, /) -> F:
        """The function, coroutine function or method, with this around each call.

        :raises TypeError: for a generator function: wrap the function that goes through it; for a
            class: wrap its methods.
        """
        wrapped: F = apply_to_callable(fn, self._wrapped)
        return wrapped

    # Read by ``Pipeline``; a strategy without these methods is described by its ``repr``, and is
    # unbounded.

    def describe(self) -> str:
        """The effect of the strategy on a call, with its numbers."""
        return repr(self)

    def max_calls(self) -> float:
        """The maximum number of calls of the function in one call of the strategy."""
        return 1

    def worst_case(self, inside: float, call: float, late: float) -> float:
        """The longest duration of a call, in seconds.

        :param inside: the longest duration of the call inside the strategy, in seconds.
        :param call: the longest duration of one call of the function, in seconds.
        :param late: seconds by which the call inside may exceed a limit.
        """
        return inside

    def _wrapped(self, fn: Any) -> Any:
        kind = callable_kind(fn)
        if kind == "function":
            return self._function(fn)
        if kind == "coroutine function":
            return self._coroutine(fn)
        raise TypeError(
            f"wrap() takes a function, got the {kind} {fn!r}; wrap the function that iterates it"
        )

    def _function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        call: Any = self.call  # type: ignore[attr-defined]  # each strategy has it

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return call(fn, *args, **kwargs)

        return wrapped

    def _coroutine(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        call: Any = self.call_async  # type: ignore[attr-defined]  # each strategy has it

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            return await call(fn, *args, **kwargs)

        return wrapped


def apply(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function, which must not return an awaitable."""
    value = fn(*args, **kwargs)
    reject_awaitable(value, fn)
    return value


async def apply_async(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the function, and await its result if it is awaitable."""
    value = fn(*args, **kwargs)
    return await value if is_awaitable(value) else value


# A context names the function that is called, not this one.
apply.calls_argument = apply_async.calls_argument = True  # type: ignore[attr-defined]


def immutable(**instead: str) -> Callable[[type[C]], type[C]]:
    """Raise an error with the alternative when a setting of a frozen class is assigned.

    :param instead: for the name of a setting, how it is changed.
    """

    def assign(self: Any, name: str, value: Any) -> None:
        kind = type(self).__name__
        raise AttributeError(
            f"{name} of a {kind} cannot be assigned after construction; "
            + instead.get(name, f"make another {kind}")
        )

    def decorate(kind: type[C]) -> type[C]:
        setattr(kind, "__setattr__", assign)  # noqa: B010  # mypy takes no assignment
        return kind

    return decorate


def reject_awaitable(value: Any, fn: Any) -> None:
    """Raise if the result of a function is an awaitable: it would never be awaited."""
    if is_awaitable(value):
        close_unawaited(value)
        raise MisuseError(f"{fn!r} returned an awaitable; use call_async()")

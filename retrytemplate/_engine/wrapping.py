"""``wrap``: a function of any kind, made to retry, with its signature kept."""

from __future__ import annotations

import inspect
from functools import partial, update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import ref

from retrytemplate._engine.first_attempt import (
    finish_inline_success,
    retry_after_failure,
    retry_after_failure_async,
    run,
    run_async,
)
from retrytemplate._engine.first_success import finish_frame, finish_success, notify_first_success
from retrytemplate._engine.frames import (
    CONTEXT,
    CURRENT,
    DEADLINE,
    OWNER,
    close_context,
    exit_frame,
    reset_frame,
)
from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.formatting import operation_of
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from typing import Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

    from retrytemplate._engine.settings import TemplateSettings

    Kind = Literal[
        "function", "coroutine function", "generator function", "asynchronous generator function"
    ]
    P = ParamSpec("P")
    T = TypeVar("T")

    class WrappedFunction(Generic[P, T]):
        """Type of a wrapped function for type checkers; at run time it is a plain function."""

        __name__: str
        __qualname__: str
        __wrapped__: Callable[P, T]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...

        def retry_with(self, **changes: Unpack[TemplateSettings]) -> WrappedFunction[P, T]: ...

    # A method keeps its exact type: a checker binds, overrides and compares functions only.

    class _OfInstance(Protocol):
        def __call__(_function, self: Any, *args: Any, **kwargs: Any) -> Any: ...

    class _OfClass(Protocol):
        def __call__(_function, cls: Any, *args: Any, **kwargs: Any) -> Any: ...

    C = TypeVar("C")
    Method = TypeVar(
        "Method",
        bound=_OfInstance | _OfClass | classmethod[Any, Any, Any] | staticmethod[Any, Any],
    )

    class Decorator(Protocol):
        """Type of a decorator that adds retry, for type checkers."""

        @overload
        def __call__(  # type: ignore[overload-overlap]  # a class is a callable, too
            self, fn: type[C], /
        ) -> type[C]: ...

        @overload
        def __call__(self, fn: Method, /) -> Method: ...

        @overload
        def __call__(self, fn: Callable[P, T], /) -> WrappedFunction[P, T]: ...


__all__ = [
    "RetryWith",
    "apply_to_callable",
    "callable_kind",
    "check_not_wrapped",
    "descriptor",
    "wrap",
]

_get, _set, _reset = CURRENT.get, CURRENT.set, CURRENT.reset


class RetryWith:
    """``retry_with`` of a wrapped function: the same function under a changed template."""

    __slots__ = ("_remake", "_wrapped")

    def __init__(self, remake: Callable[[Any], Any], wrapped: Any = None) -> None:
        self._remake = remake
        self._wrapped = None if wrapped is None else ref(wrapped)

    @classmethod
    def of(cls, fn: Any) -> RetryWith | None:
        """The settings of this function itself, not a copy made by ``functools.wraps``."""
        found: Any = getattr(fn, "__dict__", {}).get("retry_with")
        if type(found) is cls and found._wrapped is not None and found._wrapped() is fn:
            return found
        return None

    def __call__(self, **changes: Any) -> Any:
        """The same function under a changed template.

        :param changes: settings of the template by name, as ``RetryTemplate.with_`` takes them.
        :raises TypeError, ValueError: for an unknown setting or an invalid value.
        """
        return self._remake(changes)


def wrap(owner: Any, fn: Any, *, nested: bool = False) -> Any:
    """The function (or classmethod, staticmethod) with retry around each call.

    :param nested: whether the function may have retry already.
    """
    if not nested:
        check_not_wrapped(fn)

    def made(inner: Any) -> Any:
        def remake(changes: Any) -> Any:
            return wrap(owner._with_changes(changes), inner, nested=nested)

        wrapped = WRAPPERS[callable_kind(inner)](owner, inner)
        wrapped.retry_with = RetryWith(remake, wrapped)
        return wrapped

    return apply_to_callable(fn, made)


def check_not_wrapped(
    fn: Any, otherwise: str = "wrap(..., nested=True) for a retry inside a retry"
) -> None:
    """Raise if a template has wrapped the function already: attempts would multiply.

    :param otherwise: what to do to keep both templates, or neither.
    """
    inner: Any = fn
    while True:
        if isinstance(inner, partial):
            inner = inner.func
        elif isinstance(inner, MethodType | classmethod | staticmethod):
            inner = inner.__func__
        else:
            break
    if RetryWith.of(inner) is None:  # a callable object, perhaps
        inner = type(inner).__call__
    if RetryWith.of(inner) is not None:
        name = getattr(inner.__wrapped__, "__qualname__", repr(inner.__wrapped__))
        raise MisuseError(
            f"{name} is wrapped by a template already; use "
            f"{name}.retry_with(...) to change its template, or {otherwise}"
        )


def apply_to_callable(fn: Any, make: Callable[[Any], Any]) -> Any:
    """Apply *make* to a callable; descriptors keep their kind."""
    if isinstance(fn, classmethod | staticmethod):
        return descriptor(type(fn), apply_to_callable(fn.__func__, make))
    if not callable(fn):
        raise TypeError(f"wrap() takes a function or another callable, got {fn!r}")
    if isinstance(fn, type):
        raise TypeError(f"wrap() takes a function, got the class {fn!r}: wrap its methods")
    made = make(fn)
    retry_with, inner = RetryWith.of(made), RetryWith.of(fn)
    if retry_with is None and inner is not None:
        # The copy of fn's own would leave out the wrapper around it.
        retry_with = RetryWith(lambda changes: apply_to_callable(inner(**changes), make), made)
    update_wrapper(made, fn, updated=_updated(fn))
    if retry_with is not None:
        made.retry_with = retry_with
    return made


def descriptor(kind: Any, function: Any) -> Any:
    """The classmethod or staticmethod of a function, with its ``retry_with``."""
    made = kind(function)
    inner = RetryWith.of(function)
    if inner is not None:
        made.retry_with = RetryWith(lambda changes: kind(inner(**changes)))
    return made


def _updated(fn: Any) -> tuple[str, ...]:
    # The attributes of a callable object are its state, not a function's decoration.
    return ("__dict__",) if inspect.isfunction(fn) else ()


def callable_kind(fn: Any) -> Kind:
    """The kind of a callable, in words."""
    target = fn.func if isinstance(fn, partial) else fn
    if not (inspect.isroutine(target) or inspect.isfunction(target)):
        target = type(target).__call__
    if inspect.isasyncgenfunction(target):
        return "asynchronous generator function"
    if inspect.isgeneratorfunction(target):
        return "generator function"
    return "coroutine function" if is_async(fn) else "function"


def _function(owner: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    if owner.state is not None:
        return _stateful(owner, fn)
    template = owner.template
    name = owner.label or operation_of(fn)
    kind = type(None)  # of the last result: of this class none has to be awaited

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal kind
        outer = _get()
        plan, started = template._inline_plan, None
        if plan is None or (outer is not None and outer[DEADLINE] is not None):
            plan = template._plan
            if not plan.times_first_attempt or (outer is not None and outer[DEADLINE] is not None):
                return run(owner, fn, args, kwargs)
            started = plan.monotonic_source.now()
        frame = [None, owner, None, outer, plan, fn, started]
        try:
            token = _set(frame)
        except BaseException:  # a signal, once it was set
            reset_frame(None, outer)
            raise
        try:
            value = fn(*args, **kwargs) if kwargs else fn(*args)  # empty keywords would be copied
        except Exception as exc:
            frame += (exc,)  # no call, for a signal may come after one
        except BaseException as exc:  # retry_after_failure() raises a cancellation again
            if not plan.notifies_end:
                _reset(token)
                finish_frame(frame)
                raise
            frame += (exc,)
        else:
            _reset(token)
            if type(value) is kind and frame[CONTEXT] is None:
                if started is not None:
                    frame[OWNER] = None  # as close_context() does
                    elapsed = plan.monotonic_source.now() - started
                    notify_first_success(plan.on_first_success, name, elapsed)
                return value
            finish_inline_success(frame, fn, value)
            kind = type(value)
            return value
        try:
            return retry_after_failure(frame, fn, args, kwargs)
        finally:
            _reset(token)

    return wrapped


def _coroutine(owner: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    if owner.state is not None:
        return _stateful_coroutine(owner, fn)
    template = owner.template
    name = owner.label or operation_of(fn)

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        outer = _get()
        plan, started = template._inline_plan, None
        if plan is None or (outer is not None and outer[DEADLINE] is not None):
            plan = template._plan
            if not plan.times_first_attempt or (outer is not None and outer[DEADLINE] is not None):
                return await run_async(owner, fn, args, kwargs)
            started = plan.monotonic_source.now()
        frame = [None, owner, None, outer, plan, fn, started]
        token = _set(frame)
        try:
            try:
                value = await (fn(*args, **kwargs) if kwargs else fn(*args))
            except Exception as exc:
                frame.append(exc)
            except BaseException as exc:  # a cancellation, which retry_after_failure_async() raises
                if not plan.notifies_end:
                    finish_frame(frame)
                    raise
                frame.append(exc)
            else:
                if started is None:
                    close_context(frame)
                elif frame[CONTEXT] is None:
                    frame[OWNER] = None
                    elapsed = plan.monotonic_source.now() - started
                    notify_first_success(plan.on_first_success, name, elapsed)
                else:
                    finish_success(frame)
                return value
            return await retry_after_failure_async(frame, fn, args, kwargs)
        finally:
            try:
                _reset(token)
            except ValueError:  # a suspended coroutine is closed from another context
                exit_frame(frame, token)

    return wrapped


def _stateful(owner: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return run(owner, fn, args, kwargs)

    return wrapped


def _stateful_coroutine(owner: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        return await run_async(owner, fn, args, kwargs)

    return wrapped


class _FirstItem(partial[Any]):
    """A call that gets the first item of a generator; ``discard`` closes the generator."""

    discard: Callable[[], Any]

    def discard_result(self) -> Any:
        """Called by the engine for an item that is not used."""
        return self.discard()


def _generator(owner: Any, fn: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        begun: list[Any] = []  # the generator, or None for one without items; empty: recovered

        def begin(*args: Any, **kwargs: Any) -> Any:
            items = fn(*args, **kwargs)
            try:
                item = next(items)
            except StopIteration as stop:
                begun.append(None)
                return stop.value
            begun.append(items)
            return item

        def discard() -> None:
            while begun:
                items = begun.pop()
                if items is not None:
                    items.close()

        first = _FirstItem(update_wrapper(begin, fn), *args, **kwargs)
        first.discard = discard
        try:
            item = run(owner, first, ())
        except BaseException:
            discard()
            raise
        if not begun:  # the items come from a recovery
            return (yield from item)
        items = begun.pop()
        if items is None:
            return item
        while True:
            try:
                try:
                    received = yield item
                except GeneratorExit:
                    items.close()
                    raise
                except BaseException as exc:
                    item = items.throw(exc)
                else:
                    item = items.send(received)
            except StopIteration as stop:
                return stop.value

    return wrapped


def _async_generator(owner: Any, fn: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        begun: list[Any] = []

        async def begin(*args: Any, **kwargs: Any) -> Any:
            items = fn(*args, **kwargs)
            try:
                item = await anext(items)
            except StopAsyncIteration:
                begun.append(None)
                return None
            begun.append(items)
            return item

        async def discard() -> None:
            while begun:
                items = begun.pop()
                if items is not None:
                    await items.aclose()

        first = _FirstItem(update_wrapper(begin, fn), *args, **kwargs)
        first.discard = discard
        try:
            item = await run_async(owner, first, ())
        except BaseException:  # a cancellation too; it is raised again
            await discard()
            raise
        if not begun:
            async for each in _each(item):
                yield each
            return
        items = begun.pop()
        if items is None:
            return
        while True:
            try:
                try:
                    received = yield item
                except GeneratorExit:
                    await items.aclose()
                    raise
                except BaseException as exc:  # a cancellation, too, goes to the wrapped generator
                    item = await items.athrow(exc)
                else:
                    item = await items.asend(received)
            except StopAsyncIteration:
                return

    return wrapped


async def _each(items: Any) -> AsyncIterator[Any]:
    """The items of an iterable, asynchronous or not."""
    if hasattr(type(items), "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


WRAPPERS: Mapping[Kind, Callable[[Any, Any], Any]] = {
    "function": _function,
    "coroutine function": _coroutine,
    "generator function": _generator,
    "asynchronous generator function": _async_generator,
}

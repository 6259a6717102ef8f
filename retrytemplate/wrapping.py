"""``wrap``: a function of any kind, made to retry, with its signature kept."""

from __future__ import annotations

import inspect
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

from retrytemplate._checks import is_async
from retrytemplate.context import CONTEXT, CURRENT, DEADLINE, close_context, leave, restore
from retrytemplate.entrances import run_async, without_keywords
from retrytemplate.inline import finished, repeat, repeat_async, run
from retrytemplate.within import run_within_async, time_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from typing import Literal

    Kind = Literal[
        "function", "coroutine function", "generator function", "asynchronous generator function"
    ]

__all__ = ["decorated", "kind_of", "wrap"]

_get, _set, _reset = CURRENT.get, CURRENT.set, CURRENT.reset


def wrap(owner: Any, fn: Any) -> Any:
    """The function (or classmethod, staticmethod) with retry around each call."""
    return decorated(fn, lambda inner: WRAPPERS[kind_of(inner)](owner, inner))


def decorated(fn: Any, make: Callable[[Any], Any]) -> Any:
    """What *make* makes of the function, in its place."""
    if isinstance(fn, classmethod | staticmethod):
        return type(fn)(decorated(fn.__func__, make))
    if not callable(fn):
        raise TypeError(f"wrap() takes a function or another callable, got {fn!r}")
    if isinstance(fn, type):
        raise TypeError(f"wrap() takes a function, got the class {fn!r}: wrap its methods")
    return update_wrapper(make(fn), fn, updated=_updated(fn))


def _updated(fn: Any) -> tuple[str, ...]:
    # The attributes of a callable object are its state, not a function's decoration.
    return ("__dict__",) if inspect.isfunction(fn) else ()


def kind_of(fn: Any) -> Kind:
    """What kind of function it is, as the words for it."""
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
    kind = type(None)  # of the last result: of this class none has to be awaited

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal kind
        outer = _get()
        plan = template._inline
        if plan is None or (outer is not None and outer[DEADLINE] is not None):
            if kwargs:
                return run(owner, partial(fn, *args, **kwargs), ())
            return run(owner, fn, args)
        cell = [None, owner, None, outer, plan, fn]
        try:
            token = _set(cell)
        except BaseException:  # a signal, once it was set
            restore(None, outer)
            raise
        try:
            value = fn(*args, **kwargs)
        except Exception as exc:
            cell += (exc,)  # no call, for a signal may come after one
        except BaseException:
            _reset(token)
            close_context(cell)
            raise
        else:
            _reset(token)
            if type(value) is kind and cell[CONTEXT] is None:
                return value
            finished(cell, fn, value)
            kind = type(value)
            return value
        try:
            return repeat(cell, fn, args, kwargs)
        finally:
            _reset(token)

    return wrapped


def _coroutine(owner: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    if owner.state is not None:
        return _stateful_coroutine(owner, fn)
    template = owner.template

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        outer = _get()
        plan = template._inline
        if plan is None or (outer is not None and outer[DEADLINE] is not None):
            if kwargs:
                return await run_async(owner, partial(fn, *args, **kwargs), ())
            if plan is not None and outer is not None:
                limit = time_for(plan, outer[DEADLINE], cut=True)
                if limit:
                    return await run_within_async(owner, limit, fn, args, None)
            return await run_async(owner, fn, args)
        cell = [None, owner, None, outer, plan, fn]
        token = _set(cell)
        try:
            try:
                value = await fn(*args, **kwargs)
            except Exception as exc:
                cell.append(exc)
            except BaseException:
                close_context(cell)
                raise
            else:
                close_context(cell)
                return value
            return await repeat_async(cell, fn, args, kwargs)
        finally:
            try:
                _reset(token)
            except ValueError:  # a suspended coroutine is closed from another context
                leave(cell, token)

    return wrapped


def _stateful(owner: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return run(owner, *without_keywords(fn, args, kwargs))

    return wrapped


def _stateful_coroutine(owner: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        return await run_async(owner, *without_keywords(fn, args, kwargs))

    return wrapped


class Instead:
    """The recovery of a generator function: notes that it has taken the place of the generator."""

    __slots__ = ("begun", "recovery")

    def __init__(self, recovery: Any, begun: list[Any]) -> None:
        self.recovery = recovery
        self.begun = begun

    def of_call(self, failure: Any, function: Any, arguments: Any) -> Any:
        """The recovery of this call, if there is one."""
        recovery = self.recovery
        of_call = getattr(type(recovery), "of_call", None)
        if of_call is not None:
            recovery = of_call(recovery, failure, function, arguments)
        if recovery is not None:
            self.begun.clear()
        return recovery


def _instead(owner: Any, begun: list[Any]) -> Any:
    return None if owner.recovery is None else Instead(owner.recovery, begun)


def _generator(owner: Any, fn: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        begun: list[Any] = []

        def begin(*args: Any, **kwargs: Any) -> Any:
            begun.clear()
            items = fn(*args, **kwargs)
            try:
                item = next(items)
            except StopIteration as stop:
                begun.append(None)
                return stop.value
            begun.append(items)
            return item

        first = partial(update_wrapper(begin, fn), *args, **kwargs)
        item = run(owner, first, (), _instead(owner, begun))
        if not begun:  # a recovery gives the items to go on with
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
            begun.clear()
            items = fn(*args, **kwargs)
            try:
                item = await anext(items)
            except StopAsyncIteration:
                begun.append(None)
                return None
            begun.append(items)
            return item

        first = partial(update_wrapper(begin, fn), *args, **kwargs)
        item = await run_async(owner, first, (), _instead(owner, begun))
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
                except BaseException as exc:
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

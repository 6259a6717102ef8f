"""Nodes of a graph, guarded: one decorator a guard, in any order."""

from __future__ import annotations

from functools import partial
from inspect import ismethod
from typing import TYPE_CHECKING, Any, Final, TypeVar

from attrs import frozen

from retrytemplate._engine.wrapping import apply_to_callable
from retrytemplate._internal.awaitables import is_async
from retrytemplate.backoff.exponential import ExponentialBackoff
from retrytemplate.control._strategy import Strategy, StrategyBase, apply_async
from retrytemplate.control.breaker.breaker import CircuitBreaker
from retrytemplate.control.bulkhead.bulkhead import Bulkhead
from retrytemplate.control.fallback import Fallback
from retrytemplate.control.pipeline.pipeline import Pipeline
from retrytemplate.control.timeout.timeout import RERAISE, Timeout
from retrytemplate.declarative.arguments import ArgumentAdapter, signature_of
from retrytemplate.errors import CircuitOpenError, MisuseError
from retrytemplate.policies.base import RetryPolicy
from retrytemplate.policies.simple import SimpleRetryPolicy, check_retryable, types_or_predicate
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.backoff.base import Backoff

    Types = type[BaseException] | tuple[type[BaseException], ...]

F = TypeVar("F")

_TIMED_OUT: Final = object()
REFUSED: Final = (CircuitOpenError,)
TEMPLATES: Final = (RetryTemplate, BoundTemplate)


def with_timeout(seconds: Seconds | Timeout, *, on_timeout: Any = RERAISE) -> Callable[[F], F]:
    """Limit each run of a node, as ``Timeout`` does.

    :param seconds: the limit, in seconds; or a ready ``Timeout``.
    :param on_timeout: the state of a run that was cancelled at the limit, or a function of the
        node's arguments, or of as many of them as it takes, from the left, that gives one; left
        out: the error is raised.  A synchronous node cannot be cancelled: its late state is used.
    :raises MisuseError: for ``on_timeout`` beside a ready ``Timeout``, which has its own.
    :raises ValueError: for a limit that is not above 0.
    :raises TypeError: the limit is not a time, or ``on_timeout`` is asynchronous and the node is
        not.

    >>> import asyncio
    >>> @with_timeout(0.01, on_timeout=lambda state: {**state, "answer": "later"})
    ... async def ask(state: dict) -> dict:
    ...     await asyncio.sleep(60)
    ...     return {**state, "answer": "31"}
    >>> asyncio.run(ask({"city": "Rome"}))
    {'city': 'Rome', 'answer': 'later'}
    """
    if isinstance(seconds, Timeout):
        if on_timeout is not RERAISE:
            raise MisuseError(
                "on_timeout= and a Timeout are mutually exclusive; set on_timeout on the Timeout"
            )
        return _decorator(seconds.wrap)
    if on_timeout is RERAISE:
        return _decorator(Timeout(seconds, kind="node").wrap)
    if not callable(on_timeout):
        return _decorator(Timeout(seconds, kind="node", on_timeout=on_timeout).wrap)
    timeout = Timeout(seconds, kind="node", on_timeout=_TIMED_OUT)
    return _decorator(
        lambda node: TimeoutWithFallback(
            timeout, NodeArgumentFunction("on_timeout", on_timeout, node)
        ).wrap(node)
    )


def with_retry(
    template: RetryTemplate | BoundTemplate | RetryPolicy | None = None,
    /,
    *,
    retryable: Types | Callable[[BaseException], Any] | None = None,
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
    nested: bool = False,
) -> Callable[[F], F]:
    """Retry a node while it fails with a retryable error.

    :param template: a template, or a policy for a new one.
    :param retryable: without either, the retryable errors: an exception class, a tuple of them, or
        a predicate.  All other exceptions are re-raised immediately.
    :param max_attempts: runs in all; default 3, at least 1.
    :param backoff: the waits between the runs; default: full jitter below 0.2 seconds, doubled each
        time, at most 2.
    :param nested: whether a node that a template has wrapped already is accepted: then the runs of
        both multiply.
    :raises MisuseError: no template, policy or ``retryable`` is given, or a setting beside one that
        has it; the decorated node is wrapped by a template already, unless ``nested``.
    :raises ValueError: ``max_attempts`` is below 1, or a class is never retried.

    Each run gets the same state: what a failed one has changed in it in place, the next one sees.
    Do not call LangGraph's ``interrupt()`` inside: a further run repeats the question, or gets the
    answer to another one.

    >>> from retrytemplate import NoBackoff
    >>> answers = iter([ConnectionError("reset"), "31"])
    >>> @with_retry(retryable=ConnectionError, backoff=NoBackoff())
    ... def ask(state: dict) -> dict:
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return {**state, "answer": answer}
    >>> ask({"city": "Rome"})
    {'city': 'Rome', 'answer': '31'}
    """
    given = {"retryable": retryable, "max_attempts": max_attempts}
    if template is None:
        if retryable is None:
            raise MisuseError(
                "name the retryable errors, with_retry(retryable=(ConnectionError,)), or give a "
                "policy or a template"
            )
        check_retryable("retryable", types_or_predicate(retryable))
        template = SimpleRetryPolicy(3 if max_attempts is None else max_attempts, retryable)
    elif isinstance(template, RetryPolicy):
        _refuse_beside(template, given)
    else:
        _check_kind("template", template, TEMPLATES, "a RetryTemplate or a RetryPolicy")
        _refuse_beside(template, given | {"backoff": backoff})
        return _decorator(partial(template.wrap, nested=nested))
    usual = ExponentialBackoff(0.2, maximum=2.0, jitter="full")
    made = RetryTemplate(template, usual if backoff is None else backoff)
    return _decorator(partial(made.wrap, nested=nested))


def with_breaker(
    breaker: CircuitBreaker,
    *,
    fallback: Callable[..., Any] | None = None,
    on: Any = REFUSED,
) -> Callable[[F], F]:
    """Stop running a node that keeps failing, until it may work again.

    :param breaker: counts the runs, and rejects them while it is open.
    :param fallback: returns the state instead of a rejected run: a function of the
        node's arguments, or of as many of them as it takes, from the left.
    :param on: what else it answers for: exception classes, a predicate, or an
        ``ExceptionClassifier``; ``Exception`` means every failure, and then a retry around it
        sees none.
    :raises TypeError: not a breaker, or an asynchronous fallback of a node that is not.
    :raises MisuseError: for ``on`` without a fallback.

    The listeners of the breaker receive a ``FallbackUsed`` for each answer.

    >>> from retrytemplate.control import Consecutive
    >>> weather = CircuitBreaker("weather", window=Consecutive(1))
    >>> @with_breaker(weather, fallback=lambda state: {**state, "answer": "not known"})
    ... def ask(state: dict) -> dict:
    ...     return {**state, "answer": "31"}
    >>> weather.force_open(by="kim", reason="the provider moves")
    >>> ask({"city": "Rome"})
    {'city': 'Rome', 'answer': 'not known'}
    """
    _check_kind("breaker", breaker, CircuitBreaker, "a CircuitBreaker")
    if fallback is None:
        if on is not REFUSED:
            raise MisuseError(f"on={on!r} needs a fallback; pass fallback=")
        return _decorator(breaker.wrap)
    if not callable(fallback):
        raise TypeError(f"fallback must be a function of the node's state, got {fallback!r}")

    def wrap(node: Any) -> Any:
        instead = NodeArgumentFunction("fallback", fallback, node)
        return Pipeline(
            Fallback(instead, on=on, name=breaker.name, listeners=breaker.listeners), breaker
        ).wrap(node)

    return _decorator(wrap)


def with_bulkhead(bulkhead: Bulkhead) -> Callable[[F], F]:
    """Limit the concurrent runs of a node, over all graphs that share the bulkhead.

    :param bulkhead: has the limit, and rejects a run that gets no slot in time.

    >>> from retrytemplate.control import Bulkhead
    >>> @with_bulkhead(Bulkhead("llm", limit=3))
    ... def ask(state: dict) -> dict:
    ...     return {**state, "answer": "31"}
    >>> ask({"city": "Rome"})
    {'city': 'Rome', 'answer': '31'}
    """
    _check_kind("bulkhead", bulkhead, Bulkhead, "a Bulkhead")
    return _decorator(bulkhead.wrap)


def with_switch(guard: Strategy | Callable[..., Strategy]) -> Callable[[F], F]:
    """Check a kill switch before each run of a node, with one of its guards.

    :param guard: a guard of the switch, or another ``Strategy``; or a function that returns it and
        takes the leading arguments of the node, as many as it has parameters.
    :raises TypeError: another type, or an asynchronous function.

    >>> from retrytemplate.control import KillSwitch
    >>> switch = KillSwitch()
    >>> @with_switch(lambda state: switch.guard(feature="weather", key=state["user"]))
    ... def ask(state: dict) -> dict:
    ...     return {**state, "answer": "31"}
    >>> ask({"user": "kim"})
    {'user': 'kim', 'answer': '31'}
    """
    if isinstance(guard, Strategy) and not isinstance(guard, type):
        return _decorator(guard.wrap)
    choose: Any = guard
    if not callable(choose) or isinstance(choose, type) or is_async(choose):
        raise TypeError(
            "guard must be a result of KillSwitch.guard(), or a plain function that returns one, "
            f"got {guard!r}"
        )
    return _decorator(
        lambda node: StrategyPerCall(NodeArgumentFunction("guard", choose, node)).wrap(node)
    )


@frozen
class TimeoutWithFallback(StrategyBase):
    """A timeout whose answer is made of the arguments of the call."""

    timeout: Timeout
    instead: Callable[..., Any]

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        value = self.timeout.call(fn, *args, **kwargs)
        return self.instead(*args, **kwargs) if value is _TIMED_OUT else value

    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        value = await self.timeout.call_async(fn, *args, **kwargs)
        if value is not _TIMED_OUT:
            return value
        return await apply_async(self.instead, *args, **kwargs)


@frozen
class StrategyPerCall(StrategyBase):
    """The strategy that is chosen for the arguments of the call."""

    choose: Callable[..., Any]

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self.choose(*args, **kwargs).call(fn, *args, **kwargs)

    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self.choose(*args, **kwargs).call_async(fn, *args, **kwargs)


class NodeArgumentFunction:
    """A function of a node's arguments, or of as many of them as it takes, from the left."""

    def __init__(self, name: str, function: Any, node: Any) -> None:
        if is_async(function) and not is_async(node):
            raise TypeError(f"{name} must be synchronous, as {node!r} is, got {function!r}")
        self._taker = ArgumentAdapter(function, signature_of(node), 0)
        self._taker.check(name)
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._taker.adapt(args, kwargs)
        return self._taker.function(*args, **kwargs)


def _decorator(wrap: Callable[[Any], Any]) -> Callable[[F], F]:
    def decorate(node: F) -> F:
        wrapped = apply_to_callable(_function(node), wrap)
        if not hasattr(node, "__name__"):
            wrapped.__name__ = type(node).__name__  # as a graph names an object
        return wrapped  # type: ignore[no-any-return]  # a node as before

    return decorate


def _function(node: Any) -> Any:
    """The node; of a plain object its method, which has the types that a graph reads."""
    method = getattr(node, "__call__", None)  # noqa: B004  # what it is, not whether
    return method if ismethod(method) and not hasattr(node, "__wrapped__") else node


def _check_kind(name: str, value: Any, kind: Any, words: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {words}, got {value!r}")


def _refuse_beside(template: Any, given: dict[str, Any]) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise MisuseError(f"{' and '.join(names)} must be left out with {template!r}; set it there")

"""The pipeline: several strategies around one call, in a stated order."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, Any, overload

from attrs import field, frozen

from retrytemplate._engine.wrapping import apply_to_callable, check_not_wrapped
from retrytemplate._internal.formatting import format_count
from retrytemplate._internal.validation import check_flag, check_text
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.clock import given_or_system
from retrytemplate.control._strategy import (
    Strategy,
    StrategyBase,
    apply,
    apply_async,
    immutable,
    may_substitute,
)
from retrytemplate.control.breaker.breaker import CircuitBreaker
from retrytemplate.control.bulkhead.bulkhead import Bulkhead
from retrytemplate.control.pipeline.explain import describe, max_calls, worst_case_duration
from retrytemplate.control.pipeline.lint import lint
from retrytemplate.control.pipeline.probe import label
from retrytemplate.control.rate_limiter.rate_limiter import RateLimiter
from retrytemplate.control.switch.guard import SwitchGuard
from retrytemplate.control.timeout.timeout import Timeout
from retrytemplate.guards import Guard
from retrytemplate.history import Outcome
from retrytemplate.template import BoundTemplate, RetryOperations, RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.control._strategy import F, P, T
    from retrytemplate.control.pipeline.lint import LintWarning

    EntryPoints = tuple[Callable[..., Any], tuple[Callable[..., Any], ...]]

ALLOWED = "objects with call, call_async and wrap, such as a RetryTemplate or a Timeout"
# Checked before the protocol, which compares every attribute.
KNOWN = StrategyBase | RetryOperations
# They hold nothing that a call changes: one of them may stand in a pipeline twice.
STATELESS = (Timeout, RetryTemplate, BoundTemplate, SwitchGuard)


def _flat(layers: Iterable[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for each in layers:
        found.extend(each.layers if isinstance(each, Pipeline) else (each,))
    return tuple(found)


def _check_layers(layers: tuple[Any, ...]) -> None:
    if not layers:
        raise ValueError(f"Pipeline() takes at least one strategy, got none: {ALLOWED}")
    for each in layers:
        if isinstance(each, type) or not isinstance(each, KNOWN | Strategy):
            place = "; pass a guard to RetryTemplate(guards=...)" if isinstance(each, Guard) else ""
            raise TypeError(f"Pipeline() takes strategies, {ALLOWED}; got {each!r}{place}")
        if not isinstance(each, STATELESS) and sum(each is other for other in layers) > 1:
            raise ValueError(
                f"a strategy with state must appear only once in a Pipeline, "
                f"got {label(each)} twice"
            )


def _check_ends(layers: tuple[Any, ...]) -> None:
    """Reject a retry without a limit."""
    for each in layers:
        if isinstance(each, Timeout) and each.seconds < inf:
            return
        if isinstance(each, RetryTemplate | BoundTemplate) and each.template.policy.never_ends:
            raise ValueError(
                f"Pipeline(): {label(each)} has no limit, its policy is {each.template.policy!r}; "
                "limit the attempts, or put a Timeout outside of it"
            )


@immutable()
@frozen(eq=False, init=False, repr=False)
class Pipeline:
    """Strategies around a call, the outermost first.

    :param layers: templates, timeouts, breakers, bulkheads, fallbacks, whatever has ``call``,
        ``call_async`` and ``wrap``.  Those of a pipeline among them stand in its place.
    :param name: shown by ``explain``.
    :param clock: measures how long it took, for ``outcome``.
    :raises ValueError: for none at all; for one that keeps a state and is there twice; for a retry
        without end that no ``Timeout`` is outside of.

    >>> from retrytemplate import ExponentialBackoff, RetryTemplate, SimpleRetryPolicy
    >>> template = RetryTemplate(
    ...     SimpleRetryPolicy(3, retry_on=ConnectionError), ExponentialBackoff(0.1, jitter="full")
    ... )
    >>> pipeline = Pipeline(Timeout(2.0), template, CircuitBreaker("billing"), name="charge")
    >>> pipeline
    <Pipeline 'charge': Timeout 'request', RetryTemplate, CircuitBreaker 'billing'>
    >>> pipeline.call(int, "17"), pipeline.worst_case()
    (17, 2.0)
    """

    layers: tuple[Any, ...]
    name: str
    _clock: Clock
    # What a call goes through first, then the others from the inside out.  The first call prepares
    # it: most pipelines are only used by ``wrap``.
    _entries: EntryPoints | None = field(default=None, init=False)
    _entries_async: EntryPoints | None = field(default=None, init=False)

    def __init__(self, *layers: Any, name: str = "pipeline", clock: Clock | None = None) -> None:
        layers = _flat(layers)
        _check_layers(layers)
        _check_ends(layers)
        check_text("name", name)
        self.__attrs_init__(  # pyright: ignore[reportAttributeAccessIssue]  # attrs adds it
            layers, name, given_or_system(clock)
        )

    # Calls.  A layer may give its own answer, as a fallback does: hence ``T | Any``.

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | Any:
        """Call the function with all the layers around it."""
        first, inner = self._entries or self._prepare("_entries", "call", apply)
        for entry_point in inner:
            fn = _around(fn, entry_point)
        return first(fn, *args, **kwargs)

    @may_substitute
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, with all the layers around it, and await it."""
        first, inner = self._entries_async or self._prepare(
            "_entries_async", "call_async", apply_async
        )
        for entry_point in inner:
            fn = _around(fn, entry_point)
        return await first(fn, *args, **kwargs)

    def _prepare(self, name: str, entrance: str, innermost: Callable[..., Any]) -> EntryPoints:
        first, *inner = _entry_points(self.layers, entrance, innermost)
        entries = first, tuple(inner[::-1])
        object.__setattr__(self, name, entries)
        return entries

    def outcome(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T | Any]:
        """Call the function and return the outcome; raises no ``Exception``.

        ``attempts`` is how often the function was called.

        >>> from retrytemplate import RetryTemplate
        >>> outcome = Pipeline(Timeout(2.0), RetryTemplate()).outcome(int, "seventeen")
        >>> type(outcome.exception).__name__, outcome.attempts
        ('ValueError', 3)
        """
        counted = _Counted(fn, self._clock.monotonic)
        try:
            return counted.outcome(self.call(counted, *args, **kwargs))
        except BaseException as exc:
            if is_never_retried(exc):
                raise
            return counted.outcome(None, exc)

    @overload
    async def outcome_async(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T | Any]: ...

    @overload
    async def outcome_async(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T | Any]: ...

    async def outcome_async(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Outcome[Any]:
        """The same for functions that may be asynchronous."""
        counted = _Counted(fn, self._clock.monotonic)
        try:
            return counted.outcome(await self.call_async(counted, *args, **kwargs))
        except BaseException as exc:
            if is_never_retried(exc):
                raise
            return counted.outcome(None, exc)

    def wrap(self, fn: F, /, *, nested: bool = False) -> F:
        """The function, coroutine function or method, with all the layers around each call.

        The fastest entry point: everything is prepared here.

        :param nested: whether a pipeline with a template accepts a function that a template has
            wrapped already: then the attempts of both multiply.
        :raises MisuseError: a template has wrapped the function already, the pipeline has another
            one, and ``nested`` is False.
        :raises TypeError: for what a layer cannot wrap.
        """
        if not nested and any(isinstance(each, RetryOperations) for each in self.layers):
            check_not_wrapped(fn)
        wrapped: F = apply_to_callable(fn, lambda inner: _wrapped(self.layers, inner))
        return wrapped

    # Looking.

    def explain(self, *, attempt_duration: Seconds | None = None) -> str:
        """Describe the layers in order, the longest duration, and the warnings.

        The time is that of ``worst_case``, of asynchronous and of synchronous functions.  The
        warnings are those for asynchronous functions.

        :param attempt_duration: the longest that one call of the function takes, in seconds; None,
            the default: unknown.

        >>> print(Pipeline(Timeout(2.0), Bulkhead("llm", limit=3, queue=0)).explain())
        Pipeline 'pipeline', the outermost first:
          1. Timeout 'request': asynchronous calls are cancelled after 2 s; synchronous calls run to their end
          2. Bulkhead 'llm': 3 calls at once, none waits
        At most 1 call of the function: 2 s in all if it is asynchronous, unbounded if it is synchronous.
        No warnings.
        """  # noqa: E501  # lines of the output
        lines = [f"Pipeline {self.name!r}, the outermost first:"]
        for place, layer in enumerate(self.layers, start=1):
            lines.append(f"  {place}. {label(layer)}: {describe(layer)}")
        many = format_count(max_calls(self.layers), "call")
        cancelled, late = (
            _in_all(worst_case_duration(self.layers, attempt_duration, synchronous=synchronous))
            for synchronous in (False, True)
        )
        time = f"{cancelled} if it is asynchronous, {late} if it is synchronous"
        lines.append(f"At most {many} of the function: {cancelled if cancelled == late else time}.")
        found = self.lint(attempt_duration=attempt_duration)
        lines.append("Warnings:" if found else "No warnings.")
        lines.extend(f"  - {each}" for each in found)
        return "\n".join(lines)

    def lint(self, *, attempt_duration: Seconds | None = None) -> tuple[LintWarning, ...]:
        """The warnings of ``explain``, for a check of a configuration.

        >>> from retrytemplate import RetryTemplate
        >>> [each.rule for each in Pipeline(CircuitBreaker("b"), RetryTemplate()).lint()]
        ['unbounded-retry', 'breaker-outside-retry', 'no-jitter', 'retries-all-exceptions']
        """
        return lint(self.layers, attempt_duration)

    def worst_case(
        self, *, attempt_duration: Seconds | None = None, synchronous: bool = False
    ) -> float:
        """The longest that a call can take, in seconds; infinite if it is unbounded.

        :param attempt_duration: the longest that one call of the function takes, in seconds; None,
            the default: unknown.
        :param synchronous: which functions are meant.  False, the default: asynchronous ones, which
            are cancelled at a limit.  True: synchronous ones, which a limit does not end; after it
            no further attempt begins.  An attempt in a thread of its own is abandoned at its limit.
        :raises ValueError: ``attempt_duration`` is negative or infinite.

        >>> from retrytemplate import FixedBackoff, RetryTemplate, SimpleRetryPolicy
        >>> template = RetryTemplate(SimpleRetryPolicy(9), FixedBackoff(0.5))
        >>> pipeline = Pipeline(Timeout(2.0), template)
        >>> pipeline.worst_case(), pipeline.worst_case(synchronous=True)
        (2.0, inf)
        >>> pipeline.worst_case(attempt_duration=1.5, synchronous=True)
        3.5
        """
        check_flag("synchronous", synchronous)
        return worst_case_duration(self.layers, attempt_duration, synchronous=synchronous)

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}: {', '.join(map(label, self.layers))}>"


def _in_all(seconds: float) -> str:
    return "unbounded" if seconds == inf else f"{seconds:.6g} s in all"


class _Counted:
    """A function, and how often and how long it was called."""

    def __init__(self, fn: Callable[..., Any], now: Callable[[], float]) -> None:
        self.__wrapped__ = fn
        self.calls = 0
        self._now = now
        self._began = now()

    def outcome(self, value: Any, error: BaseException | None = None) -> Outcome[Any]:
        return Outcome(value, error, self.calls, (), self._now() - self._began)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


# Composition: layers that look at no argument are prepared around a function that calls another,
# so that as little as possible is left to be done at each call.


def _is_blind(layer: Any) -> bool:
    """Whether it does the same whatever function it is given, with whatever arguments."""
    kind = type(layer)
    if kind is RetryTemplate:
        timeout = layer.attempt_timeout  # in a thread, a function may get a stop flag
        may_stop = timeout is not None and timeout.in_thread
        return not (
            may_stop
            or layer.listeners  # they see the function's name
            or hasattr(type(layer.recovery), "for_call")
        )
    if kind is Timeout:
        return not layer.listeners  # their events have the function's name
    return kind in (CircuitBreaker, Bulkhead, RateLimiter, SwitchGuard)


def _entry_points(
    layers: tuple[Any, ...], entrance: str, innermost: Callable[..., Any]
) -> tuple[Callable[..., Any], ...]:
    """The entry points of the layers, each called with a function and its arguments."""
    entry_points: list[Callable[..., Any]] = []
    for blind, some in groupby(layers, key=_is_blind):
        if blind:
            entry_points.append(_wrapped(tuple(some), innermost))
        else:
            entry_points.extend(getattr(layer, entrance) for layer in some)
    return tuple(entry_points)


def _wrapped(layers: tuple[Any, ...], fn: Any) -> Any:
    for layer in reversed(layers):
        # Several templates in one pipeline are nested on purpose.
        fn = layer.wrap(fn, nested=True) if isinstance(layer, RetryOperations) else layer.wrap(fn)
    return fn


def _around(fn: Callable[..., Any], entry_point: Callable[..., Any]) -> Any:
    """The function with the inner layers around it; it keeps its parameters and its name."""
    around: Any = partial(entry_point, fn)
    around.__wrapped__ = fn
    return around

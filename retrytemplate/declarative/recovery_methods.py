"""The recovery of a call whose attempts are exhausted: a function, or a marked method."""

from __future__ import annotations

from functools import partial, update_wrapper
from inspect import Parameter, getattr_static, isfunction, unwrap
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define, field

from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.failure_text import summary, type_name
from retrytemplate.declarative.annotations import (
    UNKNOWN,
    accepts,
    capture_local_names,
    exception_types,
    hint_of,
    hint_or_unknown,
    returns_fit,
)
from retrytemplate.declarative.arguments import (
    ArgumentAdapter,
    bind_with_defaults,
    call_of,
    signature_of,
)
from retrytemplate.errors import ExhaustedRetryError, MisuseError, RecordedFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from inspect import Signature

    from retrytemplate._engine.context import RetryContext

__all__ = [
    "MARK",
    "PerCallRecovery",
    "check_named_recoverer",
    "is_recoverer",
    "recover",
    "recoverer_names",
]

F = TypeVar("F")

MARK = "__recovers__"
METHODS = (FunctionType, classmethod, staticmethod)

# An unannotated first parameter takes an argument of the call; these names suggest a mistake.
ERROR_PARAMETER_NAMES = frozenset("e err error ex exc exception failure cause".split())


def recover(method: F) -> F:
    """Mark a method as the recovery of the ``@retryable`` methods of its class.

    The annotation of its first parameter, an exception class or a union of them, selects
    the failures; the failure is passed first, then the arguments of the call, as many as it takes,
    from the left (None for missing ones).  Without such an annotation it takes every failure, with
    the lowest priority, and gets the arguments only.  Its result is returned.

    Of several, the one with the most specific exception class is called.  Its return type must be
    compatible with the failing method's: the same, a base or a subclass; if one has the same type,
    only those with the same type are candidates.  A coroutine function recovers coroutine functions
    only.  Of equally specific ones the first is called, unless later ones take exactly the
    arguments of the call and their types: then the last of these.  If none takes the
    failure, the original exception object is raised.

    A subclass may override a recoverer (None removes it); it need not be marked again.

    :raises TypeError: the argument is not a method, or its first parameter is named like an
        exception but has no annotation.

    >>> class Service:
    ...     @retryable(retry_on=ConnectionError, max_attempts=2)
    ...     def price(self, item: str) -> float:
    ...         raise ConnectionError("down")
    ...
    ...     @recover
    ...     def listed(self, error: ConnectionError, item: str) -> float:
    ...         return 9.5
    >>> Service().price("tea")
    9.5

    Source: ``org.springframework.retry.annotation.Recover``.  There a failure that no method takes
    becomes an ``ExhaustedRetryException``, and a subclass as return type does not count.
    """
    function = getattr(method, "__func__", method)
    if not isfunction(function):
        raise TypeError(f"recover marks a method, got {method!r}")
    parameters = list(signature_of(function).parameters.values())
    if not isinstance(method, staticmethod) and _is_bare(parameters):
        del parameters[0]  # self
    if _is_bare(parameters) and parameters[0].name in ERROR_PARAMETER_NAMES:
        name = parameters[0].name
        raise TypeError(
            f"the parameter {name} of {function.__qualname__} must have an annotation that names "
            f"exceptions ({name}: Exception for all)"
        )
    setattr(function, MARK, capture_local_names(function, 2))
    return method


def _is_bare(parameters: list[Parameter]) -> bool:
    return bool(parameters) and parameters[0].annotation is Parameter.empty


def is_recoverer(member: Any) -> bool:
    """Whether a member of a class's namespace is marked."""
    return hasattr(getattr(member, "__func__", member), MARK)


def recoverer_names(cls: type) -> list[str]:
    """The names of the recoverers of a class: its own first, then those of its bases."""
    names = [
        name
        for base in cls.__mro__
        if base is not object
        for name, value in vars(base).items()
        if type(value) in METHODS and is_recoverer(value)
    ]
    return list(dict.fromkeys(names))


def check_named_recoverer(cls: type, name: str, asynchronous: bool) -> None:
    """Raise unless the class has a recoverer of that name that can be used."""
    member = getattr_static(cls, name, None)
    if name not in recoverer_names(cls):
        reason = "is not marked @recover" if member is not None else "does not exist"
        raise MisuseError(
            f"recover must name a method marked @recover: {cls.__qualname__}.{name} {reason}"
        )
    if is_async(getattr(member, "__func__", member)) and not asynchronous:
        raise MisuseError(
            f"recover names the coroutine function {cls.__qualname__}.{name}, which a synchronous "
            "method cannot await"
        )


class Recoverer:
    """A marked method, bound to its object, and the types of its signature."""

    __slots__ = ("function", "local_names", "method", "parameters", "returns", "selectors")

    def __init__(self, method: Any, function: Any) -> None:
        self.method = method
        self.function = function
        self.local_names: dict[str, Any] = getattr(unwrap(function), MARK, {})
        signature = signature_of(method)
        self.parameters = list(signature.parameters.values())
        self.returns = hint_or_unknown(function, signature.return_annotation, self.local_names)
        self.selectors = self._selectors()
        if self.selectors:
            del self.parameters[0]

    def _selectors(self) -> tuple[type[BaseException], ...]:
        if not self.parameters:
            return ()
        first = self.parameters[0]
        try:
            return exception_types(hint_of(self.function, first.annotation, self.local_names))
        except Exception as error:
            raise MisuseError(
                f"the annotation {first.annotation!r} of {first.name} in "
                f"{self.function.__qualname__} cannot be resolved: {summary(error)}; "
                "recovery needs the class at run time, not only under TYPE_CHECKING"
            ) from error

    def distance(self, lineage: list[type]) -> int | None:
        """The distance of its exception class from the failure's; None: not a match."""
        kinds = self.selectors or (BaseException,)
        found = [lineage.index(kind) for kind in kinds if kind in lineage]
        return min(found) if found else None

    def fits(self, values: tuple[Any, ...]) -> bool:
        """Whether it takes the failure and exactly these arguments, by number and type."""
        if not self.selectors or len(self.parameters) != len(values):
            return False
        hints = [
            hint_or_unknown(self.function, p.annotation, self.local_names) for p in self.parameters
        ]
        return all(accepts(hint, value) for hint, value in zip(hints, values, strict=True))


def find_recoverers(holder: Any, only: str | None = None) -> Iterator[Recoverer]:
    """The recoverers of an instance, or of a class whose classmethod failed."""
    cls = holder if isinstance(holder, type) else type(holder)
    for name in recoverer_names(cls) if only is None else (only,):
        member = getattr_static(cls, name, None)
        function = getattr(member, "__func__", member)
        needs_instance = isfunction(member) and cls is holder
        if isfunction(function) and not needs_instance:
            yield Recoverer(getattr(holder, name), function)


def lineage_of(failure: BaseException, selectors: Iterable[type]) -> list[type]:
    """The classes of a failure, most specific first.

    A recorded failure has only the name of its class, which is searched among the subclasses of
    *selectors*.
    """
    own = list(type(failure).__mro__)
    if not isinstance(failure, RecordedFailure):
        return own
    for kind in selectors:
        if kind not in own:
            found = _subclass_named(kind, failure.type_name)
            if found is not None:
                return [each for each in found.__mro__ if each not in own] + own
    return own


def _subclass_named(kind: type[Any], name: str) -> type | None:
    waiting, seen = [kind], {kind}
    while waiting:
        each = waiting.pop()
        if type_name(each) == name:
            return each
        new = set(each.__subclasses__()) - seen
        seen |= new
        waiting.extend(new)
    return None


@define(eq=False, repr=False)
class PerCallRecovery:
    """The recovery of a function, selected for each call by the failure and the arguments.

    :param fn: the function that may fail.
    :param holder: the qualified name of the class that defines the method; "" for a method of any
        class, None for a function.
    :param fallback: a function instead of recoverers.
    :param name: the only recoverer to use.
    :param otherwise: the recovery if no recoverer takes the failure.
    """

    fn: Any
    asynchronous: bool = field(default=False, kw_only=True)
    holder: str | None = field(default=None, kw_only=True)
    fallback: Any = field(default=None, kw_only=True)  # then its adapter
    name: str | None = field(default=None, kw_only=True)
    otherwise: Callable[[RetryContext], Any] | None = field(default=None, kw_only=True)
    signature: Signature = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.signature = signature_of(self.fn)
        if self.fallback is not None:
            self.fallback = ArgumentAdapter(self.fallback, self.signature, 1)

    def for_call(
        self, failure: BaseException | None, function: Any, arguments: tuple[Any, ...]
    ) -> Callable[[RetryContext], Any] | None:
        """The recovery of this call; None: no recovery."""
        args, kwargs = call_of(self.fn, function, arguments)
        if self.fallback is not None:
            return _bind_recovery(self.fallback, args, kwargs)
        if args and self._is_method_of(args[0]):
            try:
                found = self._nearest(failure or _no_attempt(), args, kwargs)
            except MisuseError as error:
                return partial(_raise, error)
            if found is not None:
                own = list(self.signature.parameters.values())[1:]
                n_leading = 1 if found.selectors else 0
                adapter = ArgumentAdapter(
                    found.method, self.signature.replace(parameters=own), n_leading
                )
                return _bind_recovery(adapter, args[1:], kwargs, fill=True)
        return self.otherwise

    def _is_method_of(self, holder: Any) -> bool:
        if not self.holder:
            return self.holder is not None
        cls = holder if isinstance(holder, type) else type(holder)
        module = self.fn.__module__
        return any(
            base.__qualname__ == self.holder and base.__module__ == module for base in cls.__mro__
        )

    def _nearest(
        self, failure: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recoverer | None:
        """The recoverer with the most specific exception class; see ``recover`` for ties."""
        able = self._able(args[0])
        if not able:
            return None
        lineage = lineage_of(failure, [kind for each in able for kind in each.selectors])
        by_place, by_name, _ = bind_with_defaults(self.signature, args, kwargs)
        values = (*by_place[1:], *by_name.values())
        best, least = None, len(lineage)
        for each in able:
            distance = each.distance(lineage)
            if distance is None:
                continue
            if distance < least or (distance == least and each.fits(values)):
                best, least = each, distance
        return best

    def _able(self, holder: Any) -> list[Recoverer]:
        """The candidates, regardless of the failure."""
        able = [
            each
            for each in find_recoverers(holder, self.name)
            if self.asynchronous or not is_async(each.function)
        ]
        if self.name is not None or not able:
            return able
        returns = hint_or_unknown(self.fn, self.signature.return_annotation)
        able = [each for each in able if returns_fit(returns, each.returns)]
        same = [each for each in able if each.returns == returns and returns is not UNKNOWN]
        return same or able


def _bind_recovery(
    adapter: ArgumentAdapter, args: tuple[Any, ...], kwargs: dict[str, Any], fill: bool = False
) -> Callable[[RetryContext], Any]:
    """Call the adapted function with the failure and the arguments.

    The failure is read from the context at the call: a closure over it would keep it alive.
    """
    function, failure_first = adapter.function, adapter.n_leading
    args, kwargs = adapter.adapt(args, kwargs, fill)

    def recovery(context: RetryContext) -> Any:
        if failure_first:
            return function(context.last_exception or _no_attempt(), *args, **kwargs)
        return function(*args, **kwargs)

    return update_wrapper(recovery, function, updated=())


def _no_attempt() -> ExhaustedRetryError:
    return ExhaustedRetryError("no attempt was made, so there is no failure to recover from")


def _raise(error: BaseException, context: RetryContext) -> Any:
    raise error

"""``intercept``: a proxy of an object; some of its methods retry."""

from __future__ import annotations

import copy
import re
from functools import cached_property
from inspect import getattr_static
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from retrytemplate._engine.wrapping import check_not_wrapped
from retrytemplate.errors import MisuseError
from retrytemplate.template import RetryOperations

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["intercept"]

T = TypeVar("T")


class SupportsWrap(Protocol):
    """An object that can wrap a function: a template, a bound one, or another with ``wrap``."""

    def wrap(self, fn: Any, /) -> Any: ...


def intercept(service: T, pattern: str | re.Pattern[str], template: SupportsWrap) -> T:
    """A proxy for an object whose matching methods retry; the object is not changed.

    :param service: any object; its methods may be asynchronous or not.
    :param pattern: a regular expression that the whole name of a method must match
        (``re.fullmatch``).
    :param template: wraps the methods: a ``RetryTemplate``, or a bound template.
    :raises ValueError: the pattern is not a regular expression, or no method matches it.
    :raises MisuseError: a matching method is already wrapped by a template.

    Everything else is passed to the object: attributes (read, set, deleted), properties, operators
    and other special methods, ``isinstance``.  Only calls from outside retry: a method of the
    object calls its other methods without the proxy.  A special method that
    returns the object (``__enter__``) returns the proxy.  Copies are proxies of copies; pickling
    raises ``MisuseError``.

    >>> class Service:
    ...     calls = 0
    ...
    ...     def do_remote_call(self):
    ...         self.calls += 1
    ...         if self.calls < 3:
    ...             raise ConnectionError("reset")
    ...         return "answer"
    >>> service = intercept(Service(), r".*remote_call.*", RetryTemplate())
    >>> service.do_remote_call(), service.calls, isinstance(service, Service)
    ('answer', 3, True)

    Source: the name patterns of Spring's pointcuts (``JdkRegexpMethodPointcut``).
    """
    try:
        pattern = re.compile(pattern)
        pattern.match("")
    except (re.error, TypeError) as error:  # a pattern of bytes matches no name
        message = f"pattern must be a regular expression, got {pattern!r}: {error}"
        raise ValueError(message) from error
    if not callable(getattr(template, "wrap", None)):
        raise TypeError(f"template must be an object with the method wrap, got {template!r}")
    if not _has_match(service, pattern):
        raise ValueError(
            f"pattern must match a method of {type(service).__qualname__}, got {pattern.pattern!r}"
        )
    if isinstance(template, RetryOperations):
        for method in _matches(service, pattern):
            check_not_wrapped(method, "leave it out of the pattern")
    return cast("T", _proxy_class(type(service))(service, pattern, template))


def _is_method(service: Any, name: str, value: Any) -> bool:
    """Whether the attribute is called rather than read: no special name, no property, no class."""
    if (name[:2] == name[-2:] == "__") or not callable(value) or isinstance(value, type):
        return False
    return not isinstance(getattr_static(type(service), name, None), property | cached_property)


def _has_match(service: Any, pattern: Any) -> bool:
    """Whether a method matches; True for objects with ``__getattr__``, which may match."""
    if hasattr(type(service), "__getattr__"):
        return True
    return any(True for _ in _matches(service, pattern))


def _matches(service: Any, pattern: Any) -> Iterator[Any]:
    """The matching methods."""
    static = type(service)
    for name in dir(service):
        if pattern.fullmatch(name) and not isinstance(
            getattr_static(static, name, None), property | cached_property
        ):
            value = getattr(service, name, None)
            if _is_method(service, name, value):
                yield value


# Special methods of the proxy itself, and those that create or copy objects.
PROXY_METHODS = frozenset(
    """
    __class__ __class_getitem__ __copy__ __deepcopy__ __del__ __delattr__ __delete__ __dict__
    __dir__ __doc__ __get__ __getattr__ __getattribute__ __getnewargs__ __getnewargs_ex__
    __getstate__ __init__ __init_subclass__ __module__ __new__ __reduce__ __reduce_ex__ __set__
    __set_name__ __setattr__ __setstate__ __sizeof__ __slots__ __subclasshook__ __weakref__
    """.split()
)
COPYING = frozenset(("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__"))

_get = object.__getattribute__


class Proxy:
    """A proxy; subclasses add the special methods of the object's class."""

    __slots__ = ("__weakref__", "_pattern", "_service", "_template", "_wrapped")

    _service: Any
    _pattern: Any
    _template: SupportsWrap
    _wrapped: dict[str, tuple[Any, Any]]

    def __init__(self, service: Any, pattern: Any, template: SupportsWrap) -> None:
        store = object.__setattr__
        store(self, "_service", service)
        store(self, "_pattern", pattern)
        store(self, "_template", template)
        store(self, "_wrapped", {})

    def __getattribute__(self, name: str) -> Any:
        if name in COPYING:
            return _get(self, name)
        service = _get(self, "_service")
        value = getattr(service, name)
        if not _get(self, "_pattern").fullmatch(name) or not _is_method(service, name, value):
            return value
        return _retrying_method(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_get(self, "_service"), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_get(self, "_service"), name)

    def __dir__(self) -> list[str]:
        return dir(_get(self, "_service"))

    def __copy__(self) -> Any:
        return _proxy_of_copy(self, copy.copy(_get(self, "_service")))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _proxy_of_copy(self, copy.deepcopy(_get(self, "_service"), memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind = type(_get(self, "_service")).__qualname__
        raise MisuseError(
            f"a proxy of intercept() cannot be pickled; pickle the {kind} and intercept it again"
        )

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(0)


def _proxy_of_copy(proxy: Proxy, service: Any) -> Any:
    return type(proxy)(service, _get(proxy, "_pattern"), _get(proxy, "_template"))


def _retrying_method(proxy: Proxy, name: str, value: Any) -> Any:
    """The method with retry, wrapped once while the object has the same method."""
    known = _get(proxy, "_wrapped")
    method, wrapped = known.get(name, (None, None))
    if not _is_same_method(method, value):
        wrapped = _get(proxy, "_template").wrap(value)
        known[name] = value, wrapped
    return wrapped


def _is_same_method(method: Any, other: Any) -> bool:
    if type(method) is MethodType and type(other) is MethodType:
        # Each access creates a new bound method.
        return method.__func__ is other.__func__ and method.__self__ is other.__self__
    return method is other


# Proxy classes by the class of their objects; they hold names only.
_classes: WeakKeyDictionary[type, type[Proxy]] = WeakKeyDictionary()


def _proxy_class(kind: type) -> type[Proxy]:
    """The proxy class for objects of this class, with all of its special methods."""
    made = _classes.get(kind)
    if made is None:
        names = {name for name in dir(kind) if name[:2] == name[-2:] == "__"} - PROXY_METHODS
        methods = {name: _special(name) for name in names if _is_special(_member(kind, name))}
        # The value None (``__hash__``, ``__iter__``) disables a method.
        missing = {name: None for name in names if _member(kind, name, "") is None}
        made = _classes[kind] = type("Proxy", (Proxy,), {"__slots__": (), **methods, **missing})
    return made


def _member(kind: type, name: str, default: Any = None) -> Any:
    """The special method of a class; the interpreter searches classes only."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), default)


def _is_special(member: Any) -> bool:
    """Whether a member is a method rather than data under a special name."""
    kind = type(member)
    return not hasattr(kind, "__set__") and (callable(member) or hasattr(kind, "__get__"))


def _special(name: str) -> Any:
    """A special method of the proxy that calls the object's."""
    if name == "__aenter__":

        async def enter(self: Proxy) -> Any:
            return _to_proxy(self, await _bound(self, name)())

        return enter

    def special(self: Proxy, *args: Any, **kwargs: Any) -> Any:
        return _to_proxy(self, _bound(self, name)(*map(_to_service, args), **kwargs))

    return special


def _bound(proxy: Proxy, name: str) -> Any:
    service = _get(proxy, "_service")
    kind = type(service)
    member = _member(kind, name)
    bind = getattr(type(member), "__get__", None)
    return member if bind is None else bind(member, service, kind)


def _to_proxy(proxy: Proxy, value: Any) -> Any:
    """The proxy, if the object returned itself (``__enter__``, ``__iadd__``)."""
    return proxy if value is _get(proxy, "_service") else value


def _to_service(value: Any) -> Any:
    """The object of a proxy: operators of built-in classes take no proxy."""
    return _get(value, "_service") if issubclass(type(value), Proxy) else value

"""The arguments of a call, handed on to a function that may take fewer of them."""

from __future__ import annotations

from functools import partial
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ArgumentAdapter", "Call", "bind_with_defaults", "call_of", "signature_of"]

Call = tuple[tuple[Any, ...], dict[str, Any]]

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def signature_of(fn: Any) -> Signature:
    """Its signature; one that takes anything, where it tells none."""
    try:
        return signature(fn)
    except (TypeError, ValueError):
        anything = Parameter("args", Parameter.VAR_POSITIONAL)
        return Signature([anything, Parameter("kwargs", Parameter.VAR_KEYWORD)])


def call_of(fn: Any, function: Any, arguments: tuple[Any, ...]) -> Call:
    """What *fn* was called with, from what an execution calls: itself, or a partial made of it."""
    if function is fn or not isinstance(function, partial):
        return arguments, {}
    args, kwargs = function.args + arguments, function.keywords
    if isinstance(fn, partial) and function.func is fn.func:
        # A partial of a partial is one: take out what was bound before.
        bound = fn.keywords
        args = args[len(fn.args) :]
        kwargs = {k: v for k, v in kwargs.items() if k not in bound or bound[k] is not v}
    return args, kwargs


def bind_with_defaults(
    source: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The arguments of a call with the defaults: by place, by name only, and the places' names."""
    try:
        given = source.bind(*args, **kwargs)
    except TypeError:  # the call itself was wrong
        return args, kwargs, {}
    given.apply_defaults()
    return given.args, given.kwargs, given.arguments


class ArgumentAdapter:
    """A function that is handed the arguments of calls of another one, after some of our own."""

    __slots__ = ("function", "n_leading", "signature", "source")

    def __init__(self, function: Callable[..., Any], source: Signature, n_leading: int) -> None:
        self.function = function
        self.signature = signature_of(function)
        self.source = source
        self.n_leading = n_leading

    def adapt(self, args: tuple[Any, ...], kwargs: dict[str, Any], fill: bool = False) -> Call:
        """As they were given, if it can be called so; else as many as it takes, from the left.

        :param fill: give None for what it takes beyond them.
        """
        if self._accepts(args, kwargs):
            return args, kwargs
        by_place, by_name, names = bind_with_defaults(self.source, args, kwargs)
        waiting = list(by_place)
        taken: list[Any] = []
        named: dict[str, Any] = {}
        for each in list(self.signature.parameters.values())[self.n_leading :]:
            if each.kind == Parameter.VAR_POSITIONAL:
                taken, waiting = taken + waiting, []
            elif each.kind == Parameter.VAR_KEYWORD:
                named = by_name | named
            elif waiting and each.kind != Parameter.KEYWORD_ONLY:
                taken.append(waiting.pop(0))
            elif each.name in by_name and each.kind != Parameter.POSITIONAL_ONLY:
                named[each.name] = by_name[each.name]
            elif each.name in names and each.kind == Parameter.KEYWORD_ONLY:
                named[each.name] = names[each.name]
            elif fill and each.default is Parameter.empty:
                if each.kind == Parameter.POSITIONAL_ONLY:
                    taken.append(None)
                else:
                    named[each.name] = None
        return tuple(taken), named

    def _accepts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            self.signature.bind(*[None] * self.n_leading, *args, **kwargs)
        except TypeError:
            return False
        return True

    def check(self, name: str, first: str = "") -> None:
        """Raise unless it can take what every call gives.

        :param name: the argument that it was given as.
        :param first: what it gets before the arguments of the call.
        """
        args, kwargs = _sample(self.source)
        args, kwargs = self.adapt(args, kwargs)
        if not self._accepts(args, kwargs):
            words = ", ".join(filter(None, (first, *_names(self.source))))
            raise TypeError(
                f"{name} must take ({words}), or fewer of them from the left, "
                f"got {_name(self.function)}{self.signature}"
            )


def _sample(source: Signature) -> Call:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for each in source.parameters.values():
        if each.kind in POSITIONAL:
            args.append(None)
        elif each.kind == Parameter.KEYWORD_ONLY:
            kwargs[each.name] = None
    return tuple(args), kwargs


def _names(source: Signature) -> list[str]:
    stars: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
    return [stars.get(each.kind, "") + each.name for each in source.parameters.values()]


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or repr(function)

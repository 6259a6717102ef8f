"""The arguments of a call, adapted to a function that may take fewer of them."""

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
    """The signature of a function; ``(*args, **kwargs)`` if it has none."""
    try:
        return signature(fn)
    except (TypeError, ValueError):
        anything = Parameter("args", Parameter.VAR_POSITIONAL)
        return Signature([anything, Parameter("kwargs", Parameter.VAR_KEYWORD)])


def call_of(fn: Any, function: Any, arguments: tuple[Any, ...]) -> Call:
    """The arguments of *fn*, from the function of an execution: *fn*, or a partial of it."""
    if function is fn or not isinstance(function, partial):
        return arguments, {}
    args, kwargs = function.args + arguments, function.keywords
    if isinstance(fn, partial) and function.func is fn.func:
        # A partial of a partial is one partial: remove the arguments bound before.
        bound = fn.keywords
        args = args[len(fn.args) :]
        kwargs = {k: v for k, v in kwargs.items() if k not in bound or bound[k] is not v}
    return args, kwargs


def bind_with_defaults(
    source: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The arguments of a call with defaults: positional, keyword-only, and all by name."""
    try:
        given = source.bind(*args, **kwargs)
    except TypeError:  # the call itself was wrong
        return args, kwargs, {}
    given.apply_defaults()
    return given.args, given.kwargs, given.arguments


class ArgumentAdapter:
    """Adapts the arguments of calls to another function, after *n_leading* other arguments."""

    __slots__ = ("function", "n_leading", "signature", "source")

    def __init__(self, function: Callable[..., Any], source: Signature, n_leading: int) -> None:
        self.function = function
        self.signature = signature_of(function)
        self.source = source
        self.n_leading = n_leading

    def adapt(self, args: tuple[Any, ...], kwargs: dict[str, Any], fill: bool = False) -> Call:
        """The arguments unchanged if the function takes them; else as many as it takes.

        :param fill: pass None for required parameters without an argument.
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
        """Raise unless the function can take the arguments of every call.

        :param name: the name of the argument that holds the function.
        :param first: the name of the argument before those of the call.
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

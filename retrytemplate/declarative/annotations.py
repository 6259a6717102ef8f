"""Annotations as types: the exceptions that one names, and whether types are compatible."""

from __future__ import annotations

import re
import sys
from inspect import Parameter, unwrap
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from types import FrameType

__all__ = [
    "UNKNOWN",
    "accepts",
    "capture_local_names",
    "exception_types",
    "hint_of",
    "hint_or_unknown",
    "returns_fit",
]

UNKNOWN: Any = Any
"""The type of a missing annotation, or of an optional one that cannot be resolved."""

WORD = re.compile(r"\w+")
NUMBERS: dict[Any, Any] = {float: (float, int), complex: (complex, float, int)}


def hint_of(function: Any, annotation: Any, local_names: dict[str, Any] | None = None) -> Any:
    """The type of an annotation of the function.

    :param local_names: names visible where the function was defined, besides its module's.
    :raises NameError: a name is not defined (yet).
    """
    if annotation is Parameter.empty:
        return UNKNOWN
    module = getattr(unwrap(function), "__globals__", {})
    holder = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(holder, module, {**module, **(local_names or {})})["it"]


def hint_or_unknown(
    function: Any, annotation: Any, local_names: dict[str, Any] | None = None
) -> Any:
    """The type of an annotation, or ``UNKNOWN`` if it cannot be resolved."""
    try:
        return hint_of(function, annotation, local_names)
    except Exception:
        return UNKNOWN


def capture_local_names(function: Any, depth: int) -> dict[str, Any]:
    """The local names of functions and classes around a definition that its annotations use.

    Annotations that are strings can name classes local to a function; those can be found only
    while the definition runs.
    """
    texts = [each for each in function.__annotations__.values() if isinstance(each, str)]
    words = {word for text in texts for word in WORD.findall(text)}
    around = [each for each in function.__qualname__.split(".")[:-1] if each != "<locals>"]
    frame: FrameType | None = sys._getframe(depth)
    names: dict[str, Any] = {}
    for name in reversed(around):
        if not words or frame is None or frame.f_code.co_name != name:
            break
        names = {word: frame.f_locals[word] for word in words if word in frame.f_locals} | names
        frame = frame.f_back
    return names


def members(hint: Any) -> tuple[Any, ...]:
    """The types of a union; any other type by itself."""
    if get_origin(hint) is Annotated:
        return members(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def exception_types(hint: Any) -> tuple[type[BaseException], ...]:
    """The exception classes that an annotation names; nothing if it names anything else."""
    kinds = tuple(get_origin(each) or each for each in members(hint))
    if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        return kinds
    return ()


def accepts(hint: Any, value: Any) -> bool:
    """Whether an argument may fit a parameter, judged by its class; None always fits."""
    if value is None:
        return True
    for each in members(hint):
        kind = get_origin(each) or each
        if not isinstance(kind, type):
            return True
        try:
            if isinstance(value, NUMBERS.get(kind, kind)):
                return True
        except TypeError:  # a protocol that is not for run time
            return True
    return False


def returns_fit(failing: Any, recovering: Any) -> bool:
    """Whether the return type of a recoverer is compatible with the failing method's.

    The same type, a base of it (as in Spring Retry), or a subclass of it; None only for None.
    """
    return _within(failing, recovering) or _within(recovering, failing)


def _within(narrow: Any, wide: Any) -> bool:
    return all(any(_is_a(each, other) for other in members(wide)) for each in members(narrow))


def _is_a(narrow: Any, wide: Any) -> bool:
    kind, base = get_origin(narrow) or narrow, get_origin(wide) or wide
    if kind is UNKNOWN or base is UNKNOWN:
        return True
    if not isinstance(kind, type) or not isinstance(base, type):
        return True  # a type variable or literal: unknown
    if NoneType in (kind, base):
        return kind is base
    try:
        related = issubclass(kind, base)
    except TypeError:  # a protocol that is not for run time
        return True
    given, wanted = get_args(narrow), get_args(wide)
    return related and (not given or not wanted or given == wanted)

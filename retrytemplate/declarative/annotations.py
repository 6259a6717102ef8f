"""Annotations as types: which exceptions one names, and whether types fit each other."""

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
"""What an annotation says that is missing, or cannot be found where that does not matter."""

WORD = re.compile(r"\w+")
NUMBERS: dict[Any, Any] = {float: (float, int), complex: (complex, float, int)}


def hint_of(function: Any, annotation: Any, local_names: dict[str, Any] | None = None) -> Any:
    """The type that an annotation of the function stands for.

    :param local_names: names visible where the function was defined, besides its module's.
    :raises NameError: for a name that is not there (yet).
    """
    if annotation is Parameter.empty:
        return UNKNOWN
    module = getattr(unwrap(function), "__globals__", {})
    holder = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(holder, module, {**module, **(local_names or {})})["it"]


def hint_or_unknown(
    function: Any, annotation: Any, local_names: dict[str, Any] | None = None
) -> Any:
    """The same where a name that cannot be found does no harm."""
    try:
        return hint_of(function, annotation, local_names)
    except Exception:
        return UNKNOWN


def capture_local_names(function: Any, depth: int) -> dict[str, Any]:
    """The local names of functions and classes around a definition that its annotations use.

    Where annotations are strings, the moment of the definition is the only one at which classes
    that are local to a function can be found.
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
    """Whether an argument fits a parameter, as far as its class can tell; None fits always."""
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
    """Whether what a recoverer returns can stand for what the failing method returns.

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
        return True  # a type variable, a literal: cannot be told
    if NoneType in (kind, base):
        return kind is base
    try:
        related = issubclass(kind, base)
    except TypeError:  # a protocol that is not for run time
        return True
    given, wanted = get_args(narrow), get_args(wide)
    return related and (not given or not wanted or given == wanted)

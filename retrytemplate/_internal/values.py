"""Equality, hash and representation of value objects; the type of JSON values."""

from __future__ import annotations

from typing import Any

__all__ = ["JSON", "MAX_STORED_INT", "Value"]


JSON = Any
"""A JSON value: None, bool, int, float, str, list, dict of those."""


class Value:
    """Equality, hash and representation by the attrs fields of a class.

    For classes made with ``@frozen(eq=False, repr=False)``; other classes keep those of ``object``.
    attrs would compile these methods for every class, a third of the time of its import.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        fields = _fields(self)
        if fields is None:
            return self is other
        return all(
            getattr(self, each.name) == getattr(other, each.name) for each in fields if each.eq
        )

    def __hash__(self) -> int:
        fields = _fields(self)
        if fields is None:
            return object.__hash__(self)
        hashed = (each.name for each in fields if (each.eq if each.hash is None else each.hash))
        return hash((self.__class__, *(getattr(self, name) for name in hashed)))

    def __repr__(self) -> str:
        fields = _fields(self)
        if fields is None:
            return object.__repr__(self)
        shown = ((each, getattr(self, each.name)) for each in fields if each.init and each.repr)
        arguments = (
            f"{each.alias}={value!r}" for each, value in shown if not _same(value, each.default)
        )
        return f"{type(self).__qualname__}({', '.join(arguments)})"


def _same(value: Any, default: Any) -> bool:
    # A default that was pickled or read from a store is another object.
    return value is default or (type(value) is type(default) and (value == default) is True)


def _fields(value: Any) -> Any:
    return getattr(type(value), "__attrs_attrs__", None)


# It fits the integer column of every store, with a margin for increments.
MAX_STORED_INT = 2**62

"""Codecs: they convert items to text for the journal and for dead letters."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, Protocol

from retrytemplate.caches.record_schema import loads

PLAIN = {str, int, bool, type(None)}


class Codec(Protocol):
    """Turns an item into text and back.

    >>> class Text:
    ...     def encode(self, item):
    ...         return str(item)
    ...     def decode(self, text):
    ...         return int(text)
    >>> codec: Codec = Text()
    >>> codec.decode(codec.encode(17))
    17
    """

    def encode(self, item: Any, /) -> str:
        """The item as text.

        :raises TypeError: ``decode`` could not make the same item of it.
        """
        ...

    def decode(self, text: str, /) -> Any:
        """Decode an item from the text of ``encode``.

        :raises ValueError: it made no such text.
        """
        ...


class JsonCodec:
    """Items as JSON, without loss: ``decode`` returns an item equal to the encoded one.

    Hence it takes None, bool, int, finite float, str, list, and dict with str keys, and none of
    their subclasses.  It rejects types that JSON lacks (datetime, Decimal, your classes)
    and values that would be decoded as another type (a tuple as a list, the key 1 as "1").
    For other items write a codec: two methods.

    >>> codec = JsonCodec()
    >>> codec.decode(codec.encode({"id": 17, "tags": ["new"]}))
    {'id': 17, 'tags': ['new']}
    >>> codec.encode({"id": 17, "tags": ("new",)})
    Traceback (most recent call last):
        ...
    TypeError: JSON cannot keep the tuple at item['tags']: give the step a codec for such items
    """

    def encode(self, item: Any) -> str:
        """The item as JSON.

        :raises TypeError: it would not come back as it is.
        """
        try:
            _check(item, "item")
            text = json.dumps(item)
        except RecursionError:
            raise TypeError("JSON cannot keep the item: it is nested too deep") from None
        except ValueError as exc:  # an int of more digits than Python reads
            raise TypeError(f"JSON cannot keep the item: {exc}") from exc
        if "\\ud" in text and json.loads(text) != item:  # JSON makes one character of a pair
            raise TypeError("JSON cannot keep the item: JSON reads two of its surrogates as one")
        return text

    def decode(self, text: str) -> Any:
        """The item of its JSON.

        :raises ValueError: it is not JSON, or has a number that is not finite.
        """
        return loads(text)

    def __repr__(self) -> str:
        return "JsonCodec()"


def _check(value: Any, where: str) -> None:
    kind = type(value)
    if kind in PLAIN:
        return
    if kind is dict:
        for key, each in value.items():
            if type(key) is not str:
                raise _rejected(f"the key {key!r}", where)
            if type(each) not in PLAIN:
                _check(each, f"{where}[{key!r}]")
    elif kind is list:
        for index, each in enumerate(value):
            if type(each) not in PLAIN:
                _check(each, f"{where}[{index}]")
    elif kind is not float:
        raise _rejected(f"the {kind.__qualname__}", where)
    elif not isfinite(value):
        raise _rejected(f"{value!r}", where)


def _rejected(what: str, where: str) -> TypeError:
    return TypeError(f"JSON cannot keep {what} at {where}: give the step a codec for such items")

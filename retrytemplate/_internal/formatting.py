"""Durations and moments as text, and text for one line of output."""

from __future__ import annotations

from functools import partial
from math import inf
from os.path import basename
from typing import Any

__all__ = [
    "execution_name",
    "format_age",
    "format_count",
    "format_limit",
    "format_moment",
    "format_span",
    "key_text",
    "one_line",
    "operation_of",
    "printable",
    "qualified_name",
    "subject",
    "with_text",
]

# An object whose ``__getattr__`` returns an object for every name has an endless ``__wrapped__``.
MAX_WRAPPERS = 100


def printable(text: str) -> str:
    r"""The text with every character escaped that is not printable, such as line breaks.

    >>> printable("red \x1b[31m\nnext")
    'red \\x1b[31m\\nnext'
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def one_line(text: str) -> str:
    r"""The first line that is not blank, with characters escaped that are not printable.

    >>> one_line("\n  404 Not Found\nFor more information: ...")
    '404 Not Found'
    """
    if text.isprintable():
        return text
    lines = text.strip().splitlines()
    return printable(lines[0]) if lines else ""


def with_text(name: str, text: str) -> str:
    """The name and the text, or the name alone where there is no text.

    >>> with_text("ValueError", "no such order"), with_text("StopIteration", "")
    ('ValueError: no such order', 'StopIteration')
    """
    return f"{name}: {text}" if text else name


def operation_of(function: Any) -> str:
    """The qualified name of a function; for a lambda its file and line.

    For wrappers and partials it is the name of the inner function.

    >>> operation_of(partial(int, base=2)), operation_of(basename)
    ('int', 'posixpath.basename')
    """
    for _ in range(MAX_WRAPPERS):
        inner = getattr(function, "__wrapped__", None)
        if inner is None and isinstance(function, partial):
            inner = function.func
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None)
    if code is not None and code.co_name == "<lambda>":
        return f"{basename(code.co_filename)}:{code.co_firstlineno}"
    return qualified_name(function)


def qualified_name(function: Any) -> str:
    """The module and qualified name; for an object without a name those of its class."""
    if not isinstance(getattr(function, "__qualname__", None), str):
        function = getattr(function, "func", type(function))
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None)
    return name if module in (None, "builtins") else f"{module}.{name}"


def subject(context: Any) -> str:
    """The template, the function and the key of an execution, for a log line."""
    return execution_name(context.name, context.operation, context.key)


def execution_name(name: str | None, operation: str, key: Any) -> str:
    """The template, the function and the key of an execution, for a log line.

    >>> execution_name("charge", "shop.pay", "order-17"), execution_name(None, "shop.pay", None)
    ('charge (shop.pay) key=order-17', 'shop.pay')
    """
    text = f"{name} ({operation})" if name and name != operation else operation
    return printable(text if key is None else f"{text} key={key_text(key)}")


def key_text(key: Any) -> str:
    """A key of stateful retry for a log line."""
    return key if isinstance(key, str) else repr(key)


def format_span(seconds: float) -> str:
    """A duration in one unit, or in two units if the larger one is coarse.

    >>> format_span(7), format_span(90), format_span(7020), format_span(3 * 86_400 + 7200)
    ('7 s', '2 min', '1 h 57 min', '3 d 2 h')
    >>> format_span(86_399.9), format_span(1e6), format_span(1e300)
    ('24 h', '12 d', '1.157407e+295 d')
    """
    if seconds < 59.5:
        return f"{max(0.0, seconds):.0f} s"
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 600:
        return _units(minutes, 60, "h", "min")
    if hours < 48:
        return f"{hours} h"
    return _units(hours, 24, "d", "h") if hours < 240 else f"{round(seconds / 86_400):.7g} d"


def _units(number: int, size: int, large: str, small: str) -> str:
    whole, rest = divmod(number, size)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def format_age(seconds: float) -> str:
    """A duration before now, or, if negative, after now.

    >>> format_age(125), format_age(-125)
    ('2 min ago', 'in 2 min')
    """
    return f"{format_span(seconds)} ago" if seconds >= 0 else f"in {format_span(-seconds)}"


def format_moment(seconds: float, *, to_minute: bool = False) -> str:
    """A time since the epoch as a date and a time.

    >>> format_moment(1795273756.5651), format_moment(1795273756.5651, to_minute=True)
    ('2026-11-21 15:09:16.565 UTC', '2026-11-21 15:09 UTC')
    """
    from datetime import UTC, datetime  # 2 ms of the import of the library

    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # no year that a calendar has
        return f"{seconds:g} s after 1970"
    precision = "minutes" if to_minute else "milliseconds"
    return f"{when.replace(tzinfo=None).isoformat(' ', precision)} UTC"


def format_limit(seconds: float) -> str:
    """A time limit.

    >>> format_limit(0.5), format_limit(inf)
    ('0.5 s', 'no limit')
    """
    return "no limit" if seconds == inf else f"{seconds:.6g} s"


def format_count(count: float, noun: str) -> str:
    """A number with its noun, in the singular or plural.

    >>> format_count(1, "call"), format_count(3, "call"), format_count(inf, "call")
    ('1 call', '3 calls', 'any number of calls')
    """
    if count == inf:
        return f"any number of {noun}s"
    return f"{count:.0f} {noun}{'' if count == 1 else 's'}"

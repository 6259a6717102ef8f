"""Text for one line of output: escaped, shortened to its first line, joined with a type name."""

from __future__ import annotations

from functools import partial
from os.path import basename
from typing import Any

__all__ = ["one_line", "operation_of", "printable", "qualified_name", "subject", "with_text"]

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
    name, operation, key = context.name, context.operation, context.key
    text = f"{name} ({operation})" if name and name != operation else operation
    if key is not None:
        text = f"{text} key={key}" if isinstance(key, str) else f"{text} key={key!r}"
    return printable(text)

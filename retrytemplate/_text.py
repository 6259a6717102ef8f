"""Text from outside as part of a line: escaped, cut to its first line, joined with a type name."""

from __future__ import annotations

__all__ = ["one_line", "printable", "with_text"]


def printable(text: str) -> str:
    r"""The text with every character escaped that does not print: line breaks, control characters.

    >>> printable("red \x1b[31m\nnext")
    'red \\x1b[31m\\nnext'
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def one_line(text: str) -> str:
    r"""The first line that is not blank, with what does not print escaped.

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

"""The content of configuration files, each value with its place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate.config.errors import ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MASK = "***"
INVALID: Any = object()
"""The value after a problem was reported."""
LONGEST = 80
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")
# A secret of fewer characters is masked only where it is a word.
WORD = 4


@frozen(eq=False)
class Node:
    """A value of a file: a scalar, a dict of nodes, or a list of nodes.

    :param path: the setting, from the section.
    :param line: line of the key, from 1, and *column*; None: unknown.
    :param secrets: the texts that no output may contain: values of environment variables, and the
        value made of them.
    """

    value: Any
    path: str
    file: str
    line: int | None = None
    column: int | None = None
    secrets: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The file, with the line if it is known."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {name: each.plain() for name, each in self.value.items()}
        if isinstance(self.value, list):
            return [each.plain() for each in self.value]
        return self.value

    def masked(self) -> Any:
        """The value without places, and without values from the environment."""
        if isinstance(self.value, dict):
            return {name: each.masked() for name, each in self.value.items()}
        if isinstance(self.value, list):
            return [each.masked() for each in self.value]
        return MASK if self.secrets else self.value

    def all_secrets(self) -> tuple[str, ...]:
        """The secrets of the node and of all nodes in it."""
        inner: Iterable[Node] = ()
        if isinstance(self.value, dict):
            inner = self.value.values()
        elif isinstance(self.value, list):
            inner = self.value
        return (*self.secrets, *(each for node in inner for each in node.all_secrets()))


@frozen(eq=False)
class Problems:
    """The problems found so far, without duplicates."""

    _found: dict[ConfigProblem, None] = field(factory=dict, init=False)

    def report(self, node: Node, message: str, suggestion: str | None = None) -> None:
        """Add a problem at a node; the values of its environment variables are masked."""
        message = mask(message, node.all_secrets())
        found = ConfigProblem(node.path, message, node.file, node.line, node.column, suggestion)
        self._found[found] = None

    def sorted(self) -> tuple[ConfigProblem, ...]:
        """The problems in the order of the files."""
        return tuple(
            sorted(self._found, key=lambda each: (each.file, each.line or 0, each.column or 0))
        )

    def __len__(self) -> int:
        return len(self._found)


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text with all secrets replaced, also those that ``repr`` escapes.

    >>> mask("got 'pa\\\\nss' at host", ["pa\\nss", ""])
    "got '***' at host"
    """
    forms = {form for each in secrets for form in (each, repr(each)[1:-1]) if form.strip()}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) < WORD:
            text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", MASK, text)
        else:
            text = text.replace(form, MASK)
    return text


def substitute(node: Node, environ: Mapping[str, str], problems: Problems) -> Node:
    """The node of a text with the values of its ``${NAME}`` and ``${NAME:-default}``."""
    secrets: list[str] = []

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        known = environ.get(name)
        if known or (known is not None and default is None):
            secrets.append(known)
            return known
        if default is None:
            problems.report(node, f"environment variable {name} is not set and has no default")
        return default or ""

    text: str = node.value
    if "${" not in text:
        return node
    before = len(problems)
    if "${" in VARIABLE.sub("", text):
        problems.report(node, "a variable must be ${NAME} or ${NAME:-default}")
    made: Any = VARIABLE.sub(value, text)
    if len(problems) > before:
        made = INVALID
    elif secrets:
        secrets.append(made)
    return Node(made, node.path, node.file, node.line, node.column, tuple(secrets))


def shown(value: Any) -> str:
    """A value in an error message, in the notation of the file."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."

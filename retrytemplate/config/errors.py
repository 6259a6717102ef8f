"""Problems of configuration files, and the errors that report them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from retrytemplate._internal.suggestions import did_you_mean
from retrytemplate.errors import RetryError

if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class ConfigProblem:
    """A problem of a configuration file.

    :param path: the setting, such as ``retry.endpoints.billing.max_attempts``; empty: the file.
    :param message: the allowed values and the present one, or the cause.
    :param file: the file.
    :param line: line of the key, from 1; None: unknown, as in TOML.
    :param column: column of the key, from 1; None: unknown.
    :param suggestion: the most similar known name; None: no name is similar.

    >>> print(ConfigProblem("retry", "unknown section", "a.yaml", 3, 1, "retry"))
    a.yaml:3:1: retry: unknown section; did you mean retry?
    """

    path: str
    message: str
    file: str
    line: int | None = None
    column: int | None = None
    suggestion: str | None = None

    @property
    def place(self) -> str:
        """The file, with line and column if they are known."""
        numbers = (each for each in (self.line, self.column) if each is not None)
        return ":".join((self.file, *map(str, numbers)))

    def __str__(self) -> str:
        path = f"{self.path}: " if self.path else ""
        hint = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{self.place}: {path}{self.message}{hint}"


class ConfigError(RetryError, ValueError):
    """A configuration is not valid; ``problems`` lists everything that has to be corrected.

    Raised by ``load``.  Correct the files; ``retrytemplate config check`` shows the same list.
    """

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems: tuple[ConfigProblem, ...] = tuple(problems)
        count = len(self.problems)
        lines = "".join(f"\n  {each}" for each in self.problems)
        super().__init__(f"{count} problem{'' if count == 1 else 's'}:{lines}")


class UnknownEndpointError(RetryError, LookupError):
    """The configuration has no endpoint of this name.

    Raised by ``Config.endpoint``, ``Config.effective`` and ``Config.wrap_all``.  Add the endpoint
    to a section of the configuration, or correct the name.
    """

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        names = sorted(known)
        there = ", ".join(map(repr, names)) or "none"
        super().__init__(
            f"unknown endpoint {name!r}; known endpoints: {there}{did_you_mean(name, names)}"
        )

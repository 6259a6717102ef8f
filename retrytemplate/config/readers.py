"""Readers: each turns values of one notation into arguments, and describes the notation."""

from __future__ import annotations

import re
from math import inf
from typing import Any, Protocol

from attrs import field, frozen

from retrytemplate._internal.suggestions import nearest
from retrytemplate.classify.exceptions import ExceptionClassifier
from retrytemplate.config.nodes import INVALID, Node, Problems, shown

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
NUMERAL = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
DURATION_TEXT = re.compile(rf"({NUMERAL})(ms|s|m|h|d)")
SHARE_TEXT = re.compile(rf"({NUMERAL})%")
CLASS_NAME = r"^[^.]+(\.[^.]+)+$"
VARIABLE = {"type": "string", "pattern": r"\$\{"}


class Context(Protocol):
    """The environment of a value: where problems are reported and names are looked up."""

    @property
    def problems(self) -> Problems:
        """Where problems are reported."""
        ...

    def function(self, node: Node) -> Any:
        """The registered function that a node names, or ``INVALID``."""
        ...

    def store(self, node: Node, user: str) -> Any:
        """The store that a node names, for objects of a section, or ``INVALID``."""
        ...


class Reader:
    """Reads the values of one notation.

    ``allowed`` describes the notation in errors and in the documentation.
    """

    allowed: str

    def fits(self, value: Any) -> bool:
        """Whether a plain value has the notation, at its top level."""
        raise NotImplementedError

    def convert(self, node: Node, context: Context) -> Any:
        """The argument of a node that fits, or ``INVALID``."""
        return node.value

    def read(self, node: Node, context: Context) -> Any:
        """The argument of a node; ``INVALID`` after a problem was reported."""
        if node.value is INVALID:
            return INVALID
        if not self.fits(node.value):
            message = f"must be {self.allowed}, got {shown(node.value)}"
            context.problems.report(node, message)
            return INVALID
        return self.convert(node, context)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the notation."""
        raise NotImplementedError

    def writes(self, value: Any) -> bool:
        """Whether an argument can be written in this notation."""
        return self.fits(value)

    def write(self, value: Any) -> Any:
        """An argument in this notation."""
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Null(Reader):
    allowed = "null"

    def fits(self, value: Any) -> bool:
        return value is None

    def schema(self) -> dict[str, Any]:
        return {"type": "null"}


class _Flag(Reader):
    allowed = "true or false"

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


class _Text(Reader):
    allowed = "text"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip())

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


class _Number(Reader):
    allowed = "a number"

    def fits(self, value: Any) -> bool:
        return _is_number(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number"}


class _Duration(Reader):
    allowed = "a duration such as 500ms or 2s, or a number of seconds"

    def fits(self, value: Any) -> bool:
        return _is_number(value) or (
            isinstance(value, str) and DURATION_TEXT.fullmatch(value) is not None
        )

    def convert(self, node: Node, context: Context) -> Any:
        if not isinstance(node.value, str):
            return node.value
        number, unit = DURATION_TEXT.fullmatch(node.value).groups()  # type: ignore[union-attr]
        return float(f"{number}e-3") if unit == "ms" else float(number) * UNITS[unit]

    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "pattern": f"^{DURATION_TEXT.pattern}$"}
        return {"anyOf": [{"type": "number"}, text, VARIABLE]}

    def writes(self, value: Any) -> bool:
        return _is_number(value)

    def write(self, value: Any) -> Any:
        """The duration in its largest whole unit."""
        if value == inf:
            return value
        for unit in ("d", "h", "m", "s"):
            if value >= UNITS[unit] and value % UNITS[unit] == 0:
                return f"{value / UNITS[unit]:.0f}{unit}"
        text = f"{value * 1000:.6g}ms" if 0 < value < 1 else f"{value:.6g}s"
        return text if DURATION_TEXT.fullmatch(text) else value


class _Share(Reader):
    allowed = "a share such as 30%, or a number"

    def fits(self, value: Any) -> bool:
        return _is_number(value) or (
            isinstance(value, str) and SHARE_TEXT.fullmatch(value) is not None
        )

    def convert(self, node: Node, context: Context) -> Any:
        return float(f"{node.value[:-1]}e-2") if isinstance(node.value, str) else node.value

    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "pattern": f"^{SHARE_TEXT.pattern}$"}
        return {"anyOf": [{"type": "number"}, text, VARIABLE]}

    def writes(self, value: Any) -> bool:
        return _is_number(value)

    def write(self, value: Any) -> Any:
        return f"{value * 100:.6g}%"


class _Function(Reader):
    allowed = "the name of a registered function"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def convert(self, node: Node, context: Context) -> Any:
        return context.function(node)

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


NULL, FLAG, TEXT, NUMBER = _Null(), _Flag(), _Text(), _Number()
DURATION, SHARE, FUNCTION = _Duration(), _Share(), _Function()


@frozen
class Whole(Reader):
    """Whole numbers; the constructor checks the range.

    :param least: the smallest one, for the schema.
    """

    least: int

    @property
    def allowed(self) -> str:  # type: ignore[override]  # of the settings of the reader
        """The notation, with the range."""
        return f"a whole number >= {self.least}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least}


class Word(Reader):
    """One of some words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.allowed = " or ".join(words)

    def read(self, node: Node, context: Context) -> Any:
        if node.value is INVALID or self.fits(node.value):
            return node.value
        suggestion = nearest(node.value, self.words) if isinstance(node.value, str) else None
        message = f"must be {self.allowed}, got {shown(node.value)}"
        context.problems.report(node, message, suggestion)
        return INVALID

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.words

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(self.words)}, VARIABLE]}


class OneOf(Reader):
    """One of several notations; the first that fits is used."""

    def __init__(self, *readers: Reader) -> None:
        self.readers = readers
        self.allowed = " or ".join(each.allowed for each in readers)

    def fits(self, value: Any) -> bool:
        return any(each.fits(value) for each in self.readers)

    def convert(self, node: Node, context: Context) -> Any:
        return next(each for each in self.readers if each.fits(node.value)).read(node, context)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [each.schema() for each in self.readers]}

    def writes(self, value: Any) -> bool:
        return any(each.writes(value) for each in self.readers)

    def write(self, value: Any) -> Any:
        return next(each for each in self.readers if each.writes(value)).write(value)


@frozen
class ListOf(Reader):
    """A list of values of one notation; at least one."""

    of: Reader

    @property
    def allowed(self) -> str:  # type: ignore[override]  # of the settings of the reader
        """The notation of the items."""
        return f"a list: {self.of.allowed}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and bool(value)

    def convert(self, node: Node, context: Context) -> Any:
        items = [self.of.read(each, context) for each in node.value]
        return INVALID if INVALID in items else tuple(items)

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.of.schema(), "minItems": 1}


class Classes(Reader):
    """Names of exception classes and their values, as ``from_config`` takes them."""

    allowed = "a mapping of exception classes to true or false"

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict) and bool(value)

    def convert(self, node: Node, context: Context) -> Any:
        checked = [self._check(each, context) for each in node.value.values()]
        if not all(checked):
            return INVALID
        try:
            return ExceptionClassifier.from_config(node.plain())
        except (ValueError, TypeError) as error:
            context.problems.report(node, str(error).removeprefix("rules "))
            return INVALID

    def _check(self, node: Node, context: Context) -> bool:
        """Whether the value of a class is valid; a problem is reported."""
        if isinstance(node.value, bool):
            return True
        status = node.value.get("status") if isinstance(node.value, dict) else None
        if status is None or len(node.value) > 1 or not isinstance(status.value, dict):
            message = f"must be true, false or {{status: {{5xx: true}}}}, got {shown(node.value)}"
            context.problems.report(node, message)
            return False
        flags = [FLAG.read(each, context) for each in status.value.values()]
        return INVALID not in flags

    def schema(self) -> dict[str, Any]:
        flags = {
            "type": "object",
            "propertyNames": {"pattern": "^[1-5]([0-9][0-9]|[xX][xX])$"},
            "additionalProperties": FLAG.schema(),
        }
        status = {
            "type": "object",
            "properties": {"status": flags},
            "required": ["status"],
            "additionalProperties": False,
        }
        return {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": CLASS_NAME},
            "additionalProperties": {"anyOf": [FLAG.schema(), status]},
        }

    def writes(self, value: Any) -> bool:
        return isinstance(value, tuple)

    def write(self, value: Any) -> Any:
        """The classes by name."""
        return {f"{each.__module__}.{each.__qualname__}": True for each in value}


class LevelsByType(Reader):
    """Levels of ``logging`` by the type of an event, or a pattern of types."""

    allowed = "a mapping of event types to levels"
    _level = OneOf(NULL, Word("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict)

    def convert(self, node: Node, context: Context) -> Any:
        levels = {kind: self._level.read(each, context) for kind, each in node.value.items()}
        return INVALID if INVALID in levels.values() else levels

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self._level.schema()}


@frozen
class Reference(Reader):
    """The name of a store.

    :param user: the section whose objects use the store.
    """

    user: str
    allowed: str = field(default="the name of a store of section stores", init=False)

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def convert(self, node: Node, context: Context) -> Any:
        return context.store(node, self.user)

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}

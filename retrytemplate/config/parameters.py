"""Settings: the parameters of constructors that a file may have, and mappings of them."""

from __future__ import annotations

import re
from inspect import Parameter as Argument
from inspect import signature
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.suggestions import nearest
from retrytemplate.config.nodes import INVALID, Node
from retrytemplate.config.readers import TEXT, Context, ListOf, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


@frozen
class Parameter:
    """A setting of a kind.

    :param doc: its meaning.
    :param default: as the constructor has it; ``Argument.empty``: required.
    """

    name: str
    reader: Reader
    doc: str
    default: Any = Argument.empty

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is Argument.empty

    def written_default(self) -> Any:
        """The default in the notation of a file."""
        if self.default is None or not self.reader.writes(self.default):
            return self.default
        return self.reader.write(self.default)


class Nested(Reader):
    """A mapping of settings that a constructor takes."""

    def __init__(self, constructor: Callable[..., Any], **readers: Reader) -> None:
        self.constructor = constructor
        self.parameters = parameters(constructor, **readers)
        self.allowed = f"a mapping of {', '.join(each.name for each in self.parameters)}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict)

    def convert(self, node: Node, context: Context) -> Any:
        values = read_parameters(node, self.parameters, context)
        if values is INVALID:
            return INVALID
        try:
            return self.constructor(**values)
        except (ValueError, TypeError) as error:
            name = str(error).partition(" ")[0]
            context.problems.report(node.value.get(name, node), str(error))
            return INVALID

    def schema(self) -> dict[str, Any]:
        return object_schema(self.parameters)

    def writes(self, value: Any) -> bool:
        return isinstance(value, self.constructor) if isinstance(self.constructor, type) else False

    def write(self, value: Any) -> Any:
        return {each.name: each.reader.write(getattr(value, each.name)) for each in self.parameters}


class Choice(Reader):
    """A mapping with one of several keys, each with a constructor of one argument."""

    def __init__(self, **choices: tuple[Any, Reader]) -> None:
        self.choices = choices
        self.allowed = f"a mapping with one of {', '.join(choices)}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict) and len(value) == 1

    def convert(self, node: Node, context: Context) -> Any:
        (name, each), *_ = node.value.items()
        if name not in self.choices:
            return report_unknown(name, each, self.choices, context)
        constructor, reader = self.choices[name]
        value = reader.read(each, context)
        if value is INVALID:
            return INVALID
        try:
            return constructor(value)
        except (ValueError, TypeError) as error:
            context.problems.report(each, str(error))
            return INVALID

    def schema(self) -> dict[str, Any]:
        properties = {name: reader.schema() for name, (_, reader) in self.choices.items()}
        return {
            "type": "object",
            "properties": properties,
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": False,
        }

    def writes(self, value: Any) -> bool:
        return any(type(value) is kind for kind, _ in self.choices.values())

    def write(self, value: Any) -> Any:
        for name, (kind, reader) in self.choices.items():
            if type(value) is kind:
                (argument,) = signature(kind).parameters
                return {name: reader.write(getattr(value, argument))}
        raise TypeError(value)


def parameters(constructor: Callable[..., Any], **readers: Reader) -> tuple[Parameter, ...]:
    """The settings of a constructor that a file may have; defaults and meanings are its own."""
    arguments, docs = signature(constructor).parameters, _meanings(constructor)
    return tuple(
        Parameter(name, reader, docs.get(name, ""), arguments[name].default)
        for name, reader in readers.items()
    )


def _meanings(constructor: Callable[..., Any]) -> dict[str, str]:
    """The meanings of the parameters, from the docstring."""
    text = constructor.__doc__ or ""
    found = re.findall(r":param ([\w, ]+): (.*?)(?=\n *:|\n *\n|\Z)", text, re.DOTALL)
    return {
        name.strip(): " ".join(meaning.split())
        for names, meaning in found
        for name in names.split(",")
    }


def read_parameters(node: Node, known: Sequence[Parameter], context: Context) -> Any:
    """The arguments of a mapping, by name; ``INVALID`` after a problem was reported."""
    values, complete = read_valid(node, known, context)
    return values if complete else INVALID


def read_valid(
    node: Node, known: Sequence[Parameter], context: Context
) -> tuple[dict[str, Any], bool]:
    """The valid arguments of a mapping, by name, and whether there was no problem."""
    by_name: Mapping[str, Parameter] = {each.name: each for each in known}
    values: dict[str, Any] = {}
    for name, each in node.value.items():
        if name in by_name:
            values[name] = by_name[name].reader.read(each, context)
        else:
            values[name] = report_unknown(name, each, by_name, context)
    for each in known:
        if each.required and each.name not in values:
            context.problems.report(node, f"required setting {each.name} is missing")
            values[each.name] = INVALID
    valid = {name: each for name, each in values.items() if each is not INVALID}
    return valid, len(valid) == len(values)


def report_unknown(name: str, node: Node, known: Iterable[str], context: Context) -> Any:
    """Report a setting that is unknown; returns ``INVALID``."""
    context.problems.report(node, "unknown setting", nearest(name, known))
    return INVALID


def object_schema(known: Sequence[Parameter], *, complete: bool = True) -> dict[str, Any]:
    """The JSON Schema of a mapping of settings.

    :param complete: whether the required settings must be present.
    """
    made: dict[str, Any] = {
        "type": "object",
        "properties": {
            each.name: {**each.reader.schema(), **({"description": each.doc} if each.doc else {})}
            for each in known
        },
        "additionalProperties": False,
    }
    required = [each.name for each in known if each.required]
    if complete and required:
        made["required"] = required
    return made


class Names(Reader):
    """A mapping of some words to lists of names."""

    def __init__(self, *words: str) -> None:
        self.allowed = f"a mapping of {', '.join(words)} to lists of names"
        self._lists = tuple(Parameter(each, ListOf(TEXT), doc="", default=None) for each in words)

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict)

    def convert(self, node: Node, context: Context) -> Any:
        return read_parameters(node, self._lists, context)

    def schema(self) -> dict[str, Any]:
        return object_schema(self._lists)

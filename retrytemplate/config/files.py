"""Reading of YAML and TOML files, and of folders with a file for each section."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.imports import extra
from retrytemplate._internal.suggestions import nearest
from retrytemplate.config.nodes import Node, Problems, substitute

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from os import PathLike

SUFFIXES = (".yaml", ".yml", ".toml")
LARGEST = 2**20
DEEPEST = 20
TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")

# The scalars of the core schema of YAML 1.2; a number with a leading zero is a string.
CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{f"{sign}.{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in
       ("inf", "Inf", "INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}  # fmt: skip
DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
OTHER_BASE = re.compile(r"0o[0-7]{1,20}|0x[0-9a-fA-F]{1,16}")
FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


class _InvalidFile(Exception):
    """The rest of a file cannot be read."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line, self.column = line, column


def read_files(path: str | PathLike[str]) -> dict[str, bytes]:
    """The content of the file, or of the files of a folder, by their names.

    :raises OSError: one of them cannot be read.
    """
    place = Path(path)
    if not place.is_dir():
        return {str(place): _content(place)}
    found = sorted(
        each for each in place.iterdir() if each.suffix in SUFFIXES and each.name[0] != "."
    )
    return {str(each): _content(each) for each in found}


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST + 1)


def read_sections(
    files: Mapping[str, bytes],
    folder: bool,
    known: Collection[str],
    environ: Mapping[str, str],
    problems: Problems,
) -> dict[str, Node]:
    """The sections by their names.

    :param folder: whether each file is the section of its name.
    :param known: the names of sections.
    """
    sections: dict[str, Node] = {}
    for file, content in files.items():
        path = Path(file).stem if folder else ""
        root = _read(content, _File(file, environ, problems), path)
        if root is None:
            continue
        if folder:
            found = {path: root}
        elif isinstance(root.value, dict):
            found = root.value
        else:
            problems.report(root, "the file must be a mapping of sections")
            continue
        for name, node in found.items():
            if name not in known:
                problems.report(node, "unknown section", nearest(name, known))
            elif name in sections:
                problems.report(node, f"duplicate section; the other one is {sections[name].file}")
            else:
                sections[name] = node
    return sections


@frozen(eq=False)
class _File:
    """A file that is read."""

    name: str
    environ: Mapping[str, str]
    problems: Problems

    def scalar(self, value: Any, path: str, line: int | None, column: int | None) -> Node:
        """The node of a scalar, with its variables replaced."""
        node = Node(value, path, self.name, line, column)
        return substitute(node, self.environ, self.problems) if isinstance(value, str) else node


def _read(content: bytes, file: _File, path: str) -> Node | None:
    suffix = Path(file.name).suffix
    parsers: dict[str, Callable[[str, _File, str], Node | None]]
    parsers = {".toml": _read_toml, ".yaml": _read_yaml, ".yml": _read_yaml}
    try:
        if suffix not in parsers:
            raise _InvalidFile(f"the name must end with {', '.join(SUFFIXES)}")
        if len(content) > LARGEST:
            raise _InvalidFile("the file must have at most 1 MiB")
        return parsers[suffix](_decoded(content), file, path)
    except _InvalidFile as error:
        place = Node(None, path, file.name, error.line, error.column)
        file.problems.report(place, str(error))
        return None


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _InvalidFile("the file must be UTF-8", line) from None


# YAML: events of pyyaml, with their places, become nodes.


def _read_yaml(text: str, file: _File, path: str) -> Node | None:
    with extra("config", "a configuration in YAML"):
        import yaml

    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        return _Composer(yaml.parse(text, Loader=loader), file).document(path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(filter(None, (error.context, error.problem)))
        if mark is None:
            raise _InvalidFile(f"invalid YAML: {reason}") from None
        raise _InvalidFile(f"invalid YAML: {reason}", mark.line + 1, mark.column + 1) from None
    except yaml.YAMLError as error:
        reason = str(error).partition("\n")[0]
        raise _InvalidFile(f"invalid YAML: {reason}") from None


class _Composer:
    """Makes nodes of the events of a YAML file."""

    def __init__(self, events: Iterator[Any], file: _File) -> None:
        self._events, self._file = events, file

    def document(self, path: str) -> Node:
        """The node of the only document."""
        next(self._events)
        begin = next(self._events)
        if type(begin).__name__ == "StreamEndEvent":
            raise _InvalidFile("the file is empty", 1, 1)
        root = self._node(next(self._events), path, (1, 1), 0)
        next(self._events)
        after = next(self._events)
        if type(after).__name__ == "DocumentStartEvent":
            line, column = _place(after)
            raise _InvalidFile("the file must have one document", line, column)
        return root

    def _node(self, event: Any, path: str, place: tuple[int, int], depth: int) -> Node:
        """The node that begins with an event.

        :param place: line and column of its key.
        """
        kind = type(event).__name__
        if depth > DEEPEST:
            raise _InvalidFile(f"at most {DEEPEST} levels are allowed", *_place(event))
        for name in ("anchor", "tag"):
            if kind != "AliasEvent" and getattr(event, name) is not None:
                self._report(event, path, f"a YAML {name} is not allowed")
        if kind == "ScalarEvent":
            value = event.value if event.style or event.tag else _scalar(event.value)
            return self._file.scalar(value, path, *place)
        if kind == "MappingStartEvent":
            return Node(self._mapping(path, depth), path, self._file.name, *place)
        if kind == "SequenceStartEvent":
            return Node(self._sequence(path, depth), path, self._file.name, *place)
        self._report(event, path, "a YAML alias is not allowed")
        return Node(None, path, self._file.name, *place)

    def _mapping(self, path: str, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while type(key := next(self._events)).__name__ != "MappingEndEvent":
            place = _place(key)
            if type(key).__name__ == "ScalarEvent":
                name = key.value
                inner = f"{path}.{name}" if path else name
            else:
                self._report(key, path, "a key must be text")
                self._node(key, path, place, depth + 1)
                name, inner = None, path
            if getattr(key, "anchor", None) is not None or getattr(key, "tag", None) is not None:
                self._report(key, inner, "a key must have no YAML anchor or tag")
            node = self._node(next(self._events), inner, place, depth + 1)
            if name in found:
                self._report(key, inner, f"duplicate key; the first is in line {found[name].line}")
            elif name is not None:
                found[name] = node
        return found

    def _sequence(self, path: str, depth: int) -> list[Node]:
        found: list[Node] = []
        while type(event := next(self._events)).__name__ != "SequenceEndEvent":
            found.append(self._node(event, f"{path}[{len(found)}]", _place(event), depth + 1))
        return found

    def _report(self, event: Any, path: str, message: str) -> None:
        line, column = _place(event)
        self._file.problems.report(Node(None, path, self._file.name, line, column), message)


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _scalar(text: str) -> Any:
    """The value of a plain scalar."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if DECIMAL.fullmatch(text):
        return int(text)
    if OTHER_BASE.fullmatch(text):
        return int(text, 0)
    return float(text) if FLOAT.fullmatch(text) else text


# TOML: the parser gives no places.


def _read_toml(text: str, file: _File, path: str) -> Node:
    import tomllib

    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise _InvalidFile(f"at most {DEEPEST} levels are allowed") from None
    except ValueError as error:
        place = TOML_PLACE.search(str(error))
        numbers = [int(each) for each in place.groups() if each] if place else []
        reason = TOML_PLACE.sub("", str(error))
        raise _InvalidFile(f"invalid TOML: {reason}", *numbers) from None
    return _toml_node(found, file, path, 0)


def _toml_node(value: Any, file: _File, path: str, depth: int) -> Node:
    if depth > DEEPEST:
        raise _InvalidFile(f"at most {DEEPEST} levels are allowed")
    if isinstance(value, dict):
        value = {
            name: _toml_node(each, file, f"{path}.{name}" if path else name, depth + 1)
            for name, each in value.items()
        }
    elif isinstance(value, list):
        value = [
            _toml_node(each, file, f"{path}[{index}]", depth + 1)
            for index, each in enumerate(value)
        ]
    return file.scalar(value, path, None, None)

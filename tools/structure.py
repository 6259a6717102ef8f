"""Measure the structure of the library: imports, sizes of files and functions, duplicates.

    python tools/structure.py             # print the measures
    python tools/structure.py --list      # and the modules, files and functions that are counted
    python tools/structure.py --check     # fail if a measure is worse than in structure.toml
    python tools/structure.py --update    # write the present measures to structure.toml

Numbers of lines are printed only: a new feature may add lines.  Sources are parsed, not run.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from configparser import ConfigParser
from importlib.util import resolve_name
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "retrytemplate"
LONG_FILE, LONGEST_FILE = 400, 500
LONG_FUNCTION = 50
# A function with fewer statements is not compared with others.
COMPARED = 6
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Fields of the syntax tree in which a duplicate may differ.
INCIDENTAL = {"annotation", "returns", "type_comment", "ctx", "decorator_list", "name"}


class Module(NamedTuple):
    """A parsed source file."""

    name: str
    path: str
    text: str
    tree: ast.Module
    is_package: bool


class Import(NamedTuple):
    """An import of a module by another; *when* is "load", "call" or "types"."""

    importer: str
    imported: str
    when: str


class Measures(NamedTuple):
    """The measures by name: held numbers with the places counted, and numbers of lines."""

    held: dict[str, list[str]]
    lines: dict[str, int]


def parse(root: Path) -> list[Module]:
    """All modules of the library."""
    modules = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text(encoding="utf-8")
        modules.append(
            Module(name, path.relative_to(root).as_posix(), text, ast.parse(text), is_package)
        )
    return modules


def statements(node: ast.AST, when: str = "load") -> Iterator[tuple[ast.stmt, str]]:
    """All statements below a node, each with when it runs."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        for child in getattr(node, name, ()):
            now = when
            if name == "body" and isinstance(node, ast.If):
                now = "types" if ast.unparse(node.test).endswith("TYPE_CHECKING") else when
            elif isinstance(node, FUNCTIONS) and when == "load":
                now = "call"
            if isinstance(child, ast.stmt):
                yield child, now
            yield from statements(child, now)


def imported_names(
    tree: ast.Module, package: str
) -> Iterator[tuple[str, str | None, str | None, str]]:
    """The (module, name, alias, when) of each import; the name is None for ``import module``."""
    for node, when in statements(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, alias.asname, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            yield from ((module, alias.name, alias.asname, when) for alias in node.names)


def imports(root: Path, modules: Sequence[Module]) -> set[Import]:
    """The imports between modules; a name that a package re-exports counts for its definition."""
    names = {module.name for module in modules}
    exports: dict[tuple[str, str], tuple[str, str]] = {}
    found: list[tuple[str, str, str | None, str]] = []
    for module in modules:
        package = module.name if module.is_package else module.name.rpartition(".")[0]
        taken = list(imported_names(module.tree, package))
        found += [(module.name, source, name, when) for source, name, _, when in taken]
        if module.is_package:
            stub = (root / module.path).with_suffix(".pyi")
            if stub.is_file():
                taken += imported_names(ast.parse(stub.read_text(encoding="utf-8")), package)
            for source, name, alias, _ in taken:
                if name is not None and source != module.name:
                    exports[module.name, alias or name] = (source, name)

    def definition(module: str, name: str | None) -> str:
        if name is None:
            return module
        if (module, name) in exports:
            return definition(*exports[module, name])
        return f"{module}.{name}" if f"{module}.{name}" in names else module

    resolved = (Import(each[0], definition(each[1], each[2]), each[3]) for each in found)
    return {each for each in resolved if each.imported in names and each.imported != each.importer}


def cycles(edges: Iterable[Import]) -> list[str]:
    """The groups of modules that import each other, directly or through others."""
    graph: dict[str, set[str]] = {}
    for edge in edges:
        graph.setdefault(edge.importer, set()).add(edge.imported)

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        return seen

    reached = {name: reach(name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached.get(other, ()))
        for name in graph
        if name in reached[name]
    }
    return sorted(", ".join(sorted(group)) for group in groups)


def single_importers(edges: Iterable[Import]) -> list[str]:
    """The modules that exactly one other module imports at run time."""
    importers: dict[str, set[str]] = {}
    for edge in edges:
        if edge.when != "types":
            importers.setdefault(edge.imported, set()).add(edge.importer)
    return sorted(f"{name}: {min(by)}" for name, by in importers.items() if len(by) == 1)


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, of an attribute too."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def span(node: ast.stmt) -> range:
    """The numbers of the lines of a statement."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def functions(modules: Iterable[Module]) -> Iterator[tuple[str, ast.AST, int, list[ast.stmt]]]:
    """The place, node, lines and statements of each function; docstrings left out."""
    for module in modules:
        for node, _ in statements(module.tree):
            if isinstance(node, FUNCTIONS):
                inner = [each for each, _ in statements(node)]
                lines = len(span(node)) - sum(len(span(each)) for each in inner if is_text(each))
                code = [each for each in inner if not is_text(each)]
                yield f"{module.path}:{node.lineno} {node.name}", node, lines, code


def same(name: str) -> str:
    """A name that is the same for a function and its asynchronous twin."""
    return name.removeprefix("Async").removesuffix("_async")


def shape(node: object, local: Mapping[str, int]) -> object:
    """A syntax tree without what a duplicate may differ in: local names, texts, await."""
    if isinstance(node, ast.Await):
        return shape(node.value, local)
    if isinstance(node, ast.Name):
        return local.get(node.id, same(node.id))
    if isinstance(node, ast.arg):
        return local[node.arg]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return "text"
    if isinstance(node, ast.AST):
        fields = (getattr(node, name) for name in node._fields if name not in INCIDENTAL)
        return (same(type(node).__name__), *(shape(field, local) for field in fields))
    if isinstance(node, list):
        kept = (each for each in node if not (isinstance(each, ast.stmt) and is_text(each)))
        return tuple(shape(each, local) for each in kept)
    return same(node) if isinstance(node, str) else repr(node)


def local_names(function: ast.AST) -> dict[str, int]:
    """The arguments and variables of a function, numbered."""
    names: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            names.setdefault(node.arg, len(names))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.id, len(names))
    return names


def duplicates(found: Iterable[tuple[str, ast.AST, int, list[ast.stmt]]]) -> list[str]:
    """The pairs of functions that differ in local names, texts, annotations and await only."""
    alike: dict[object, list[tuple[str, ast.AST]]] = {}
    for place, node, _, code in found:
        if len(code) >= COMPARED:
            kinds = tuple(same(type(each).__name__) for each in code)
            alike.setdefault(kinds, []).append((place, node))
    pairs = []
    for group in alike.values():
        if len(group) > 1:
            shapes = [(place, shape(node, local_names(node))) for place, node in group]
            pairs += [f"{a[0]} = {b[0]}" for a, b in combinations(shapes, 2) if a[1] == b[1]]
    return sorted(pairs)


def lines_of_code(modules: Iterable[Module]) -> int:
    """Lines without docstrings, comments and blank lines."""
    total = 0
    for module in modules:
        code = {
            number
            for number, line in enumerate(module.text.splitlines(), 1)
            if line.strip() and not line.lstrip().startswith("#")
        }
        for node, _ in statements(module.tree):
            if is_text(node):
                code.difference_update(span(node))
        total += len(code)
    return total


def lines_of(paths: Iterable[Path]) -> int:
    """All lines of some files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def layers(root: Path) -> list[str]:
    """The lines of the contract of layers that holds for the whole library."""
    config = ConfigParser()
    config.read(root / "setup.cfg", encoding="utf-8")
    contracts = (config[name] for name in config.sections() if "importlinter:contract" in name)
    whole = (each for each in contracts if each.get("containers", "").strip() == PACKAGE)
    return [line for each in whole for line in each["layers"].split("\n") if line.strip()]


def measure(root: Path = ROOT) -> Measures:
    """All measures of a project."""
    modules = parse(root)
    edges = imports(root, modules)
    found = list(functions(modules))
    sizes = {module.path: module.text.count("\n") for module in modules}

    def over(limit: int) -> list[str]:
        return [f"{path}: {size}" for path, size in sizes.items() if size > limit]

    def cycles_of(wanted: Callable[[Import], bool]) -> list[str]:
        return cycles(filter(wanted, edges))

    held = {
        "import layers": layers(root),
        "modules in the root": [path for path in sizes if path.count("/") == 1],
        "import cycles, type-only imports included": cycles_of(lambda edge: True),
        "import cycles at run time": cycles_of(lambda edge: edge.when != "types"),
        "import cycles at import time": cycles_of(lambda edge: edge.when == "load"),
        "modules with one importer": single_importers(edges),
        f"files over {LONG_FILE} lines": over(LONG_FILE),
        f"files over {LONGEST_FILE} lines": over(LONGEST_FILE),
        f"functions over {LONG_FUNCTION} lines": [
            f"{place}: {lines}" for place, _, lines, _ in found if lines > LONG_FUNCTION
        ],
        "pairs of duplicate functions": duplicates(found),
    }
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "docs").rglob("*.rst")]
    lines = {
        "modules": len(modules),
        "lines of code of the library": lines_of_code(modules),
        "lines of the library": sum(sizes.values()),
        "lines of the tests": lines_of((root / "tests").rglob("*.py")),
        "lines of the docs": lines_of(pages),
    }
    return Measures(held, lines)


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Print, check or write the measures; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="print the places that are counted")
    parser.add_argument("--check", action="store_true", help="fail if a measure is worse")
    parser.add_argument("--update", action="store_true", help="write the present measures")
    options = parser.parse_args(arguments)
    measures = measure(root)
    counts = {name: len(places) for name, places in measures.held.items()}
    committed = root / "tools/structure.toml"
    if options.update:
        text = "".join(f'"{name}" = {count}\n' for name, count in counts.items())
        committed.write_text(text, encoding="utf-8")
    for name, count in {**counts, **measures.lines}.items():
        print(f"{name:<43}{count:>8,}")
        if options.list:
            print(*(f"    {place}\n" for place in measures.held.get(name, ())), sep="", end="")
    if not options.check:
        return 0
    allowed = tomllib.loads(committed.read_text(encoding="utf-8"))
    worse = [name for name, count in counts.items() if count > allowed.get(name, 0)]
    for name in worse:
        print(f"{name}: {counts[name]}, at most {allowed.get(name, 0)} allowed", file=sys.stderr)
    if counts != allowed and not worse:
        print("better than tools/structure.toml: run python tools/structure.py --update")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())

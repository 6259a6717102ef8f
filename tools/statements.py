"""Write docs/internals/statements.md: every statement of its list, with the tests that hold it.

    python tools/statements.py            # write the page
    python tools/statements.py --check    # fail where it is not up to date, or no test holds one

The tests are found by their ``@pytest.mark.statement("S0-03")``, on a function, a class, or a
module (``pytestmark``).  The sources are read, not run.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("feature", "rule", "pitfall", "defect", "guide")
HEAD = """\
# Statements

The guarantees of the library, and the tests that check them.
This page is made from the marks on the tests: `python tools/statements.py` writes it.

| id | kind | statement | held by |
|---|---|---|---|
"""


def marks(nodes: Sequence[ast.expr]) -> list[str]:
    """The ids in the ``pytest.mark.statement(...)`` among some expressions."""
    return [
        argument.value
        for outer in nodes
        for call in ast.walk(outer)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.statement"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def marked(body: Sequence[ast.stmt], inherited: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """The (id, name of test) pairs of a module or a class."""
    here = list(inherited)
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            here += marks([node.value])
    for node in body:
        if isinstance(node, ast.ClassDef):
            for identifier, name in marked(node.body, [*here, *marks(node.decorator_list)]):
                yield identifier, f"{node.name}::{name}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = marks(node.decorator_list)
            if node.name.startswith("test"):
                yield from ((identifier, node.name) for identifier in dict.fromkeys(here + own))
            elif own:
                raise SystemExit(f"{node.name} is marked as holding {own[0]} but is no test")


def holders(root: Path) -> dict[str, list[str]]:
    """The tests that hold each statement: ``tests/test_architecture.py::test_...`` by id."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for identifier, name in marked(ast.parse(path.read_text(encoding="utf-8")).body):
            where = path.relative_to(root).as_posix()
            found.setdefault(identifier, []).append(f"{where}::{name}")
    return found


def problems(
    statements: dict[str, dict[str, Any]], held: dict[str, list[str]], root: Path
) -> list[str]:
    """The faults, a line each: statements without a test, marks without a statement."""
    wrong = [
        f"{identifier}: {held[identifier][0]} is marked with an id that is not listed"
        for identifier in held
        if identifier not in statements
    ]
    for identifier, statement in statements.items():
        page = statement.get("page")
        if statement["kind"] not in KINDS:
            wrong.append(f"{identifier}: kind must be one of {KINDS}, got {statement['kind']!r}")
        elif statement["kind"] != "guide":
            if identifier not in held:
                wrong.append(f"{identifier}: no test is marked with it")
        elif page is None or not (root / "docs" / page).is_file():
            wrong.append(f"{identifier}: its page is missing: {page}")
    return wrong


def render(statements: dict[str, dict[str, Any]], held: dict[str, list[str]]) -> str:
    """The page as text."""
    rows = []
    for identifier, statement in statements.items():
        by = [f"`{test}`" for test in held.get(identifier, ())]
        if "page" in statement:
            by.append(f"[{statement['page']}](../{statement['page']})")
        says = statement["says"].replace("|", "\\|")
        rows.append(f"| {identifier} | {statement['kind']} | {says} | {'<br>'.join(by)} |\n")
    return HEAD + "".join(rows)


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Write or check the page; the number of problems decides the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a problem")
    check = parser.parse_args(arguments).check
    statements = tomllib.loads(
        (root / "docs/internals/statements.toml").read_text(encoding="utf-8")
    )
    held = holders(root)
    page = root / "docs/internals/statements.md"
    text = render(statements, held)
    wrong = problems(statements, held, root)
    if not check:
        page.write_text(text, encoding="utf-8")
    elif not page.is_file() or page.read_text(encoding="utf-8") != text:
        wrong.append(
            "docs/internals/statements.md is not up to date: run python tools/statements.py"
        )
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(statements)} statements, {sum(map(len, held.values()))} marks on tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Broad exception handlers in async code decide what happens to a cancellation."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "retrytemplate"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def inside(node):
    """The nodes below a node, without those of other functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from inside(child)


def catches_cancellations(handler):
    """Whether it catches every exception; ``except Exception`` catches no cancellation."""
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(each) == "BaseException" for each in types)


def undecided(source):
    """The lines of handlers that neither raise nor have a comment about the cancellation."""
    lines = source.splitlines()
    return [
        handler.lineno
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.AsyncFunctionDef)
        for handler in inside(function)
        if isinstance(handler, ast.ExceptHandler)
        and catches_cancellations(handler)
        and not any(isinstance(node, ast.Raise) for node in inside(handler))
        and "cancel" not in lines[handler.lineno - 1].partition("#")[2].lower()
    ]


@pytest.mark.statement("S1-14")
def test_broad_handlers_of_async_code_raise_or_state_the_reason_not_to():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in undecided(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("handler", "lines"),
    [
        ("except BaseException: pass", [4]),
        ("except: pass", [4]),
        ("except (OSError, BaseException) as e: pass", [4]),
        ("except BaseException: raise", []),
        ("except BaseException: pass  # a cancellation is raised below", []),
        ("except BaseException:\n        def f(): raise ValueError", [4]),
        ("except Exception: pass", []),
        ("except OSError: pass", []),
    ],
)
def test_search_finds_handlers_without_a_decision(handler, lines):
    source = f"async def f():\n    try:\n        await g()\n    {handler}\n"
    assert undecided(source) == lines
    assert undecided(source.replace("async def", "def").replace("await ", "")) == []

"""Rules of the architecture that import-linter does not check."""

import ast
import inspect
import json
import re
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest

import retrytemplate.errors
from tools import structure

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "retrytemplate"

# Packages that need an extra, or are a program.  All others are the core, new ones included.
OUTER = {"_storage", "backends", "batch", "cli", "config", "control", "demo", "integrations"}
OUTER |= {"observe", "workers"}
NO_ROOMS = {"__init__.py", "__init__.pyi", "__pycache__", "py.typed"}
CORE = sorted({path.name for path in PACKAGE.iterdir()} - OUTER - NO_ROOMS)
RULES = (
    "_engine/backoff_phase.py",
    "_engine/execution.py",
    "_engine/failure_rules.py",
    "_engine/final_error.py",
    "_engine/key_claim.py",
    "classify",
    "policies",
    "backoff",
)

IMPURE = {"time", "random", "secrets", "asyncio", "threading", "trio"}
READS_A_CLOCK = {"now", "utcnow", "today", "monotonic", "perf_counter", "monotonic_ns", "time_ns"}
# The engine asks the clock that the template was given; to the others the time is an argument.
ASKS_THE_GIVEN_CLOCK = dict.fromkeys(
    ("_engine/execution.py", "_engine/key_claim.py", "_engine/failure_rules.py"),
    ("plan.monotonic_source.now()",),
)
THIRD_PARTIES = {"attr", "attrs", "cachetools"}
# Imports by a package of another one that is loaded already whenever that line is reached.
GUESTS = {
    "_engine/drivers.py": {"trio"},
    "_internal/awaitables.py": {"trio"},
    "_internal/cancel_scope.py": {"trio"},
    "clock.py": {"trio"},
    "testing": {"trio", "pytest"},
}


def sources(*packages):
    """The files of some packages, each as its path within the package."""
    found = []
    for package in packages:
        path = PACKAGE / package
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        assert files, f"the package {package} is empty"
        found += [file.relative_to(PACKAGE).as_posix() for file in files]
    return found


def only_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def running(tree):
    """Every node that is there when the program runs, imports inside functions included."""
    for node in ast.iter_child_nodes(tree):
        if only_for_types(node):
            for other in node.orelse:
                yield other
                yield from running(other)
        else:
            yield node
            yield from running(node)


def imported(source):
    """The top-level names of the packages that a source imports."""
    names = set()
    for node in running(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("retrytemplate" if node.level else node.module.partition(".")[0])
    return names


def clock_readings(source):
    """The calls in a source that ask for the present time."""
    return [
        ast.unparse(node)
        for node in running(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in READS_A_CLOCK
    ]


def read(path):
    return (PACKAGE / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sources(*RULES))
def test_rules_import_no_time_randomness_tasks_or_threads(path):
    assert imported(read(path)) & IMPURE == set()


@pytest.mark.parametrize("path", sources(*CORE))
def test_only_the_classifier_turns_a_name_into_a_module(path):
    # ... and the package its own public names.
    by_name = {"importlib", "pkgutil", "runpy", "imp"} & imported(read(path))
    assert by_name == (
        {"importlib"} if path in ("classify/by_name.py", "_internal/imports.py") else set()
    )


@pytest.mark.parametrize("path", sources(*RULES))
def test_rules_read_no_clock_of_their_own(path):
    given = ASKS_THE_GIVEN_CLOCK.get(path, ())
    assert [call for call in clock_readings(read(path)) if not call.endswith(given)] == []


@pytest.mark.parametrize("path", sources(*CORE))
def test_core_imports_no_package_but_attrs_and_cachetools(path):
    guests = GUESTS.get(path, GUESTS.get(path.partition("/")[0], set()))
    allowed = sys.stdlib_module_names | THIRD_PARTIES | {"retrytemplate"} | guests
    assert imported(read(path)) - allowed == set()


def test_contract_of_the_core_names_each_of_its_packages():
    contracts = ConfigParser()
    contracts.read(ROOT / "setup.cfg", encoding="utf-8")
    named = contracts["importlinter:contract:core"]["source_modules"].split()
    assert set(named) == {f"retrytemplate.{package.removesuffix('.py')}" for package in CORE}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time", {"time"}),
        ("import asyncio.tasks as tasks", {"asyncio"}),
        ("from random import Random", {"random"}),
        ("def f():\n    from threading import Lock", {"threading"}),
        ("try:\n    import trio\nexcept ImportError:\n    trio = None", {"trio"}),
        ("from . import clock", {"retrytemplate"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import time", {"typing"}),
        ("import typing\nif typing.TYPE_CHECKING:\n    pass\nelse:\n    import time", None),
    ],
)
def test_import_search_finds_imports_that_run_anywhere(source, found):
    assert imported(source) == (found or {"typing", "time"})


@pytest.mark.parametrize(
    "package",
    [
        *("retrytemplate", "retrytemplate.backoff", "retrytemplate.batch", "retrytemplate.caches"),
        *("retrytemplate.classify", "retrytemplate.control", "retrytemplate.listeners"),
        *("retrytemplate.policies", "retrytemplate.backends", "retrytemplate.testing"),
        *("retrytemplate.observe", "retrytemplate.workers"),
    ],
)
def test_lazy_module_is_listed_before_it_is_loaded(package):
    result = subprocess.run(
        [sys.executable, "-c", f"import {package} as p; print(*{{*p.__all__}} - {{*dir(p)}})"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == []


@pytest.mark.parametrize(
    "call", ["datetime.now(UTC)", "datetime.datetime.utcnow()", "date.today()", "clock.monotonic()"]
)
def test_clock_search_finds_readings(call):
    assert clock_readings(f"def f():\n    return [{call}]") == [call]


def test_name_imported_by_another_package_is_in_all():
    modules = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in sources(*CORE)
    }
    imported_names = {
        (node.module.removeprefix("retrytemplate."), alias.name)
        for path in modules.values()
        for node in running(ast.parse(read(path)))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("retrytemplate.")
        for alias in node.names
    }
    unlisted = {
        f"{module}.{name}"
        for module, name in imported_names
        if module in modules
        and f"{module}.{name}" not in modules
        and name not in getattr(import_module(f"retrytemplate.{module}"), "__all__", ())
    }
    assert unlisted == set()


@pytest.fixture(scope="module")
def loaded_by_the_import():
    """The modules that ``import retrytemplate`` adds to a fresh interpreter."""
    script = (
        "import sys, json; before = set(sys.modules); import retrytemplate; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", ["asyncio", "logging", "random", "trio", "concurrent.futures"])
def test_importing_the_package_loads_no_heavy_modules(loaded_by_the_import, module):
    assert "retrytemplate.template" in loaded_by_the_import
    assert module not in loaded_by_the_import


def test_importing_the_package_loads_no_package_but_attrs_and_cachetools(loaded_by_the_import):
    packages = {name.partition(".")[0] for name in loaded_by_the_import}
    assert packages - sys.stdlib_module_names - THIRD_PARTIES == {"retrytemplate"}


def test_declared_dependencies_are_attrs_and_cachetools():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.match(r"[\w-]+", each).group() for each in project["dependencies"]}
    assert names == {"attrs", "cachetools"}


RAISERS = (
    "guard|template|execution|cache|listener|library|part|"
    "breaker|bulkhead|budget|gate|limiter|switch|rule|Deadline|RetryState"
)


@pytest.mark.parametrize("name", retrytemplate.errors.__all__)
def test_docstring_of_every_error_names_its_source(name):
    words = inspect.cleandoc(getattr(retrytemplate.errors, name).__doc__ or "")
    assert re.search(r"\b(raise[sd]?|given)\b", words, re.IGNORECASE), words
    assert re.search(rf"\b({RAISERS})s?\b", words), words


def test_structure_is_no_worse_than_committed(capsys):
    assert structure.main(["--check"]) == 0, capsys.readouterr().err

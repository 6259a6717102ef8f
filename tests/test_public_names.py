"""The public names, and the paths that users import them from."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

MODULES = (
    "retrytemplate",
    "retrytemplate.backoff",
    "retrytemplate.batch",
    "retrytemplate.caches",
    "retrytemplate.caches.record",
    "retrytemplate.config",
    "retrytemplate.control",
    "retrytemplate.control.breaker.replay",
    "retrytemplate.integrations.starlette",
    "retrytemplate.listeners",
    "retrytemplate.observe",
    "retrytemplate.simulation",
    "retrytemplate.testing",
    "retrytemplate.workers",
    "retrytemplate.workers.testing",
)
ROOT = Path(__file__).resolve().parent.parent
LAZY = sorted(
    ".".join(file.parent.relative_to(ROOT).parts)
    for file in (ROOT / "retrytemplate").rglob("__init__.py")
    if "lazy_attributes(" in file.read_text(encoding="utf-8")
)
PATHS = (Path(__file__).parent / "public_names.txt").read_text(encoding="utf-8").split()


def test_public_names_are_those_of_the_committed_list():
    assert (
        sorted(f"{each}.{name}" for each in MODULES for name in import_module(each).__all__)
        == PATHS
    )


@pytest.mark.parametrize("path", PATHS)
def test_public_name_can_be_imported_from_its_path(path):
    module, _, name = path.rpartition(".")
    assert hasattr(import_module(module), name)


@pytest.mark.parametrize("package", LAZY)
def test_stub_imports_each_public_name_from_its_module(package):
    stub = (ROOT / package.replace(".", "/") / "__init__.pyi").read_text(encoding="utf-8")
    typed = {}
    for node in ast.parse(stub).body:
        module = import_module(node.module)
        names = [alias.name for alias in node.names]
        names = module.__all__ if names == ["*"] else names
        typed |= {name: getattr(module, name) for name in names}
    actual = import_module(package)
    assert typed == {name: getattr(actual, name) for name in actual.__all__}

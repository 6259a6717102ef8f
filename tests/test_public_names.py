"""The public names, and the paths that users import them from."""

from importlib import import_module
from pathlib import Path

import pytest

MODULES = (
    "retrytemplate",
    "retrytemplate.backoff",
    "retrytemplate.batch",
    "retrytemplate.caches",
    "retrytemplate.caches.record",
    "retrytemplate.control",
    "retrytemplate.control.breaker.replay",
    "retrytemplate.listeners",
    "retrytemplate.simulation",
    "retrytemplate.testing",
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

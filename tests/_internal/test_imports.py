"""Names that a package does not have: the error names the right module."""

import subprocess
import sys

import pytest

import retrytemplate
from retrytemplate._internal.imports import is_library_module

WRONG = {
    "from retrytemplate import Pipeline": "'retrytemplate'; Pipeline is in retrytemplate.control",
    "from retrytemplate import ChunkStep": "; ChunkStep is in retrytemplate.batch",
    "from retrytemplate import VirtualClock": "; VirtualClock is in retrytemplate.testing",
    "from retrytemplate import simulate": "; simulate is in retrytemplate.simulation",
    "from retrytemplate.control import RetryTemplate": "; RetryTemplate is in retrytemplate",
    "from retrytemplate import RetryTemplat": "; did you mean 'RetryTemplate'?",
    "from retrytemplate import Piplne": "; did you mean 'Pipeline' of retrytemplate.control?",
    "from retrytemplate import qqqq": "cannot import name 'qqqq' from 'retrytemplate'",
}


@pytest.mark.parametrize("statement", WRONG)
def test_import_error_of_an_unknown_name_names_its_module(statement):
    with pytest.raises(ImportError) as caught:
        exec(statement)  # noqa: S102  # the import statement is the subject
    assert str(caught.value).endswith(WRONG[statement])


def test_attribute_of_another_module_names_that_module():
    with pytest.raises(AttributeError, match=r"'Pipeline'; Pipeline is in retrytemplate\.control$"):
        retrytemplate.Pipeline  # noqa: B018  # the look-up is the subject


@pytest.mark.parametrize("name", ["Pipeline", "qqqq", "__wrapped__"])
def test_unknown_name_is_no_attribute(name):
    assert not hasattr(retrytemplate, name)


def test_submodule_not_imported_yet_can_be_imported_by_name():
    code = "from retrytemplate import simulation, testing; print(simulation.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "retrytemplate.simulation\n"


@pytest.mark.parametrize(
    ("module", "own"),
    [
        ("retrytemplate", True),
        ("retrytemplate.policies.simple", True),
        ("retrytemplate.demo", False),
        ("retrytemplate.demo.orders", False),
        ("retrytemplate_plugin", False),
        ("tests._internal.test_imports", False),
        ("__main__", False),
        (None, False),
    ],
)
def test_is_own_given_a_module_excludes_users_code_and_demo(module, own):
    assert is_library_module(module) is own

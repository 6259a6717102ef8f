import email.message
import importlib
import io
import re
import subprocess
import sys
import types
import urllib.error

import httpx
import pytest
import requests

from retrytemplate import ExceptionClassifier, PredicateRetryPolicy, SimpleRetryPolicy

from_config = ExceptionClassifier.from_config


def http_error(status):
    request = httpx.Request("GET", "http://shop.test/")
    response = httpx.Response(status, request=request)
    return httpx.HTTPStatusError(f"{status}", request=request, response=response)


@pytest.fixture
def module(monkeypatch):
    """A module that is loaded for one test, with some classes in it."""
    made = types.ModuleType("shop_errors")
    made.OutOfStock = type("OutOfStock", (Exception,), {"__module__": "shop_errors"})
    made.Gone = type("Gone", (made.OutOfStock,), {"__module__": "shop_errors._private"})
    made.answer = 42
    monkeypatch.setitem(sys.modules, "shop_errors", made)
    return made


def test_names_match_like_classes():
    rules = from_config({"builtins.OSError": True, "builtins.FileNotFoundError": False})
    assert rules.classify(ConnectionError()) is True
    assert rules.classify(FileNotFoundError()) is False
    assert rules.classify(ValueError()) is False
    assert rules.classify(None) is False


def test_default_and_traversal_work_as_with_classes():
    wrapped = ValueError()
    wrapped.__cause__ = OSError()
    rules = from_config({"builtins.OSError": "os"}, default="other", traverse_causes=True)
    assert rules.classify(wrapped) == "os"
    assert rules.classify(KeyError()) == "other"
    assert from_config({"builtins.OSError": "os"}).classify(wrapped) is False


def test_groups_work_as_with_classes():
    rules = from_config({"builtins.OSError": True, "builtins.KeyError": False})
    assert rules.classify(ExceptionGroup("g", [OSError()])) is True
    assert rules.classify(ExceptionGroup("g", [OSError(), KeyError()])) is False


def test_class_may_be_named_by_its_export_or_its_module(module):
    assert from_config({"shop_errors.Gone": 1}).classify(module.Gone()) == 1
    assert from_config({"shop_errors._private.Gone": 1}).classify(module.Gone()) == 1
    assert from_config({"httpx.ReadTimeout": 1}).classify(httpx.ReadTimeout("slow")) == 1
    assert from_config({"requests.ConnectionError": 1}).classify(
        requests.exceptions.ConnectionError()
    )


def test_nearest_class_decides_among_names(module):
    rules = from_config({"shop_errors.OutOfStock": "stock", "builtins.Exception": "any"})
    assert rules.classify(module.Gone()) == "stock"
    assert rules.classify(ValueError()) == "any"


class Outer:
    class Inner(Exception):
        pass


def test_class_nested_in_class_or_function_may_be_named():
    class Local(Exception):
        pass

    for kind in (Outer.Inner, Local):
        name = f"{kind.__module__}.{kind.__qualname__}"
        assert from_config({name: 1}).classify(kind()) == 1


def test_module_that_is_not_loaded_does_not_match(monkeypatch, module):
    rules = from_config({"shop_errors.OutOfStock": 1, "later.Error": 2}, default=0)
    assert rules.classify(ValueError()) == 0
    later = types.ModuleType("later")
    later.Error = type("Error", (Exception,), {})
    monkeypatch.setitem(sys.modules, "later", later)
    assert rules.classify(later.Error()) == 2


def test_classification_imports_nothing():
    script = """
import sys
from retrytemplate.classify.exceptions import ExceptionClassifier
rules = ExceptionClassifier.from_config({"wave.Error": True, "xml.dom.DOMException": True})
assert rules.classify(ValueError()) is False
assert "wave" not in sys.modules and "xml.dom" not in sys.modules
import wave
assert rules.classify(wave.Error()) is True
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_module_with_lazy_names_is_not_triggered(monkeypatch):
    lazy = types.ModuleType("lazy_errors")
    lazy.__getattr__ = lambda name: pytest.fail("looked up")
    monkeypatch.setitem(sys.modules, "lazy_errors", lazy)
    assert from_config({"lazy_errors.Error": True}).classify(ValueError()) is False


@pytest.mark.parametrize(
    "name",
    ["builtins.NoSuchError", "builtins.dict", "shop_errors.answer", "shop_errors.OutOfStock.Part"],
)
def test_name_of_no_exception_class_raises_when_classifying(name, module):
    rules = from_config({name: True})
    with pytest.raises(ValueError, match=f"'{name}' is no exception class"):
        rules.classify(ValueError())


def test_error_does_not_show_the_value_of_a_name(monkeypatch):
    settings = types.ModuleType("shop_settings")
    settings.PASSWORD = "hunter2"
    monkeypatch.setitem(sys.modules, "shop_settings", settings)
    rules = from_config({"shop_settings.PASSWORD": True})
    with pytest.raises(ValueError, match=r"is no exception class but of type str$"):
        rules.classify(ValueError())


def test_submodule_that_is_not_loaded_may_be_loaded_later(monkeypatch, module):
    assert from_config({"shop_errors.network.Broken": 1}).classify(ValueError()) is False


@pytest.mark.parametrize(
    "name",
    [
        "builtins.NoSuchError",
        "builtins.dict",
        "no_such_module_at_all.Error",
        "email.no_such_part.Error",
        "email.errors.NoSuchError",
    ],
)
def test_validation_imports_and_rejects_at_once(name):
    with pytest.raises(ValueError, match=f"rules: '{name}' "):
        from_config({name: True}, validate=True)


def test_validation_imports_existing_modules(monkeypatch):
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    rules = from_config({"wave.Error": True, "builtins.OSError": False}, validate=True)
    assert rules.classify(sys.modules["wave"].Error()) is True


def test_validated_classifier_equals_one_that_is_not():
    rules = {"builtins.OSError": True}
    validated, other = from_config(rules, validate=True), from_config(rules)
    assert validated == other
    assert hash(validated) == hash(other)
    assert repr(validated) == repr(other)


def test_validation_finds_a_class_inside_a_class():
    name = f"{Outer.__module__}.Outer.Inner"
    assert from_config({name: True}, validate=True).classify(Outer.Inner()) is True


@pytest.mark.parametrize("missing", ["no_such_module_at_all", "shop_of_no_such_parts"])
def test_validation_names_the_cause_of_a_submodule_import_error(monkeypatch, tmp_path, missing):
    package = tmp_path / f"shop_of_{missing}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text(f"import {missing}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"cannot be imported: .*{missing}"):
        from_config({f"shop_of_{missing}.part.Error": True}, validate=True)


def test_validation_names_the_cause_of_a_module_import_error(monkeypatch, tmp_path):
    (tmp_path / "broken_shop.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be imported: .*no_such_module_at_all"):
        from_config({"broken_shop.Error": True}, validate=True)


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("ValueError", "", ".", "ValueError.", ".ValueError", 7, None),
        *(" builtins.OSError", "builtins.OSError ", "builtins .OSError", "builtins.OSError\n"),
        *("builtins..OSError", "..builtins.OSError", ".builtins.OSError", "builtins.OSError."),
        *("builtins.OSError()", "builtins.OS-Error", "shop/builtins.OSError"),
        "builtins.\u200bOSError",
    ],
)
def test_name_without_module_or_class_is_rejected_and_named(name, validate):
    says = f"with their module, like 'builtins.OSError', got {name!a}"
    with pytest.raises(ValueError, match=f"{re.escape(says)}$"):
        from_config({"builtins.OSError": True, name: True}, validate=validate)


LOOKALIKE = "builtins.OS\u0415rror"  # a Cyrillic E


def test_name_with_lookalike_letters_is_shown_escaped():
    says = re.escape(r"'builtins.OS\u0415rror' is no exception class")
    with pytest.raises(ValueError, match=says):
        from_config({LOOKALIKE: True}, validate=True)
    with pytest.raises(ValueError, match=says):
        from_config({LOOKALIKE: True}).classify(OSError())


@pytest.mark.parametrize("source", ["1/0", "raise RuntimeError('no settings')", "def"])
def test_validation_names_a_module_that_raises_on_import(monkeypatch, tmp_path, source):
    (tmp_path / "raising_shop.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    says = r"rules: 'raising_shop\.Error' cannot be imported: "
    with pytest.raises(ValueError, match=says) as caught:
        from_config({"raising_shop.Error": True}, validate=True)
    assert caught.value.__cause__ is not None


def test_rules_that_are_not_a_mapping_are_rejected():
    with pytest.raises(TypeError, match="rules must map qualified names"):
        from_config(["builtins.OSError", 3])


STATUS = {"status": {"5xx": True, 429: True, "501": False}}


@pytest.mark.parametrize(
    ("status", "worth_it"),
    [(500, True), (503, True), (429, True), (501, False), (404, "other"), (302, "other")],
)
def test_exact_http_status_decides_before_its_class(status, worth_it):
    rules = from_config({"httpx.HTTPStatusError": STATUS}, default="other")
    assert rules.classify(http_error(status)) == worth_it


def test_status_condition_applies_also_without_a_match():
    rules = from_config(
        {"httpx.HTTPStatusError": STATUS, "httpx.HTTPError": "any"}, default="other"
    )
    assert rules.classify(http_error(404)) == "other"
    assert rules.classify(httpx.ReadTimeout("slow")) == "any"


def requests_error(status):
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(response=response)


def aiohttp_error(status):
    import aiohttp

    return aiohttp.ClientResponseError(None, (), status=status)


def urllib_error(status):
    headers = email.message.Message()
    return urllib.error.HTTPError("http://shop.test/", status, "no", headers, io.BytesIO())


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("httpx.HTTPStatusError", http_error),
        ("requests.HTTPError", requests_error),
        ("requests.exceptions.HTTPError", requests_error),
        ("aiohttp.ClientResponseError", aiohttp_error),
        ("urllib.error.HTTPError", urllib_error),
    ],
)
def test_status_of_each_library_is_found(name, error):
    rules = from_config({name: STATUS}, default="other")
    answers = [rules.classify(error(status)) for status in (503, 501, 404)]
    assert answers == [True, False, "other"]


def test_boolean_status_is_ignored():
    rules = from_config({"builtins.OSError": STATUS}, default="other")
    flagged = OSError()
    flagged.status, flagged.code = True, 503
    assert rules.classify(flagged) is True


def test_status_attribute_that_raises_is_skipped():
    class Strange(OSError):
        code = 503

        @property
        def status(self):
            raise KeyError("status")

    assert from_config({"builtins.OSError": STATUS}).classify(Strange()) is True


def test_error_without_a_status_gets_the_default():
    rules = from_config({"builtins.OSError": STATUS, "requests.HTTPError": STATUS}, default="other")
    strange = OSError()
    strange.status = "503"
    bodiless = urllib.error.HTTPError("http://shop.test/", 503, "no", email.message.Message(), None)
    assert rules.classify(OSError()) == rules.classify(strange) == "other"
    assert rules.classify(requests.HTTPError()) == "other"
    assert rules.classify(bodiless) is True


@pytest.mark.parametrize("key", ["6xx", "0xx", "99", 600, 5, "5x", "", "server", None, "٥٠٣"])
def test_unknown_status_is_rejected(key):
    with pytest.raises(ValueError, match=r"a status of 'httpx.HTTPStatusError' must be 100 to 599"):
        from_config({"httpx.HTTPStatusError": {"status": {key: True}}})


def test_every_valid_status_is_accepted():
    rules = from_config({"httpx.HTTPStatusError": {"status": {100: "first", "599": "last"}}})
    assert rules.classify(http_error(100)) == "first"
    assert rules.classify(http_error(599)) == "last"


@pytest.mark.parametrize("rule", [{}, {"code": {}}, {"status": 503}, {"status": {}, "x": 1}])
def test_condition_of_another_form_is_rejected(rule):
    with pytest.raises(ValueError, match=r"the condition of 'httpx\.HTTPStatusError' must be"):
        from_config({"httpx.HTTPStatusError": rule})


def test_given_configuration_is_not_changed():
    given = {"httpx.HTTPStatusError": {"status": {"5xx": True}}}
    from_config(given)
    assert given == {"httpx.HTTPStatusError": {"status": {"5xx": True}}}


def test_policies_accept_named_classifier():
    rules = from_config({"httpx.HTTPStatusError": STATUS, "builtins.OSError": True})
    for policy in (SimpleRetryPolicy(3, classifier=rules), PredicateRetryPolicy(rules.classify)):
        assert policy.allows(1, http_error(503))
        assert policy.allows(1, ConnectionError())
        assert not policy.allows(1, http_error(404))
        assert not policy.allows(1, ExceptionGroup("g", [OSError(), http_error(404)]))


def test_class_of_module_being_imported_may_be_defined_later(tmp_path, monkeypatch):
    classified = []
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_errors.py").write_text(
        "import sys\nsys.on_import(1)\nclass Slow(Exception): pass\n"
    )
    rules = from_config({"builtins.OSError": True, "slow_errors.Slow": True})
    monkeypatch.setattr(
        sys, "on_import", lambda _: classified.append(rules.classify(OSError())), raising=False
    )
    module = importlib.import_module("slow_errors")
    monkeypatch.delitem(sys.modules, "slow_errors")
    assert classified == [True]
    monkeypatch.setitem(sys.modules, "slow_errors", module)
    assert rules.classify(module.Slow()) is True

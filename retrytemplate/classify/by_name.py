"""Classes of exceptions by their names: what a configuration may say."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal import validation
from retrytemplate._internal.failure_text import summary
from retrytemplate.classify.exceptions import ExceptionClassifier, copy_mapping, is_exception_class
from retrytemplate.classify.http_status import StatusRule, http_status

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NamedClassifier", "copy_name_mapping", "nearest_rule"]


def copy_name_mapping(value: Any) -> dict[str, Any]:
    """A copy of a mapping whose keys are qualified names of exception classes."""
    named = copy_mapping(value, "rules must map qualified names of exception classes to values")
    for name, rule in named.items():
        if not _is_qualified(name):
            # In ASCII, here and below: a letter that looks like another is shown as what it is.
            raise ValueError(
                "rules must name exception classes with their module, like 'builtins.OSError', "
                f"got {name!a}"
            )
        if isinstance(rule, dict):
            named[name] = _status_rule(name, rule)
    return named


def _is_qualified(name: Any) -> bool:
    """Whether it is a text of two or more names with a dot between each."""
    parts = name.split(".") if isinstance(name, str) else ()
    return len(parts) > 1 and all(part.isidentifier() or part == "<locals>" for part in parts)


@frozen(eq=False, repr=False)
class NamedClassifier(ExceptionClassifier):
    """Rules for classes that are looked up by their names, among what is loaded by then.

    :param named: qualified names and their values, as ``from_config`` takes them.
    :param validate: look every name up now.
    """

    named: Mapping[str, Any] = field(
        default={}, converter=copy_name_mapping, hash=False, kw_only=True
    )
    validate: bool = field(
        default=False,
        validator=validation.instance_of(bool, "True or False"),
        kw_only=True,
        eq=False,
        repr=False,
    )

    def __attrs_post_init__(self) -> None:
        if self.validate:
            for name in self.named:
                _import_module_of(name)
                if _loaded_class(name) is None:
                    raise ValueError(f"rules: {name!a} is no exception class")

    def values(self) -> tuple[Any, ...]:
        named = tuple(
            value
            for rule in self.named.values()
            for value in (rule.values() if type(rule) is StatusRule else (rule,))
        )
        return (*self.rules.values(), *named, self.default)

    def _nearest(self, kind: type[BaseException]) -> tuple[type, Any] | None:
        return nearest_rule({**self.rules, **self.named}, kind)

    def _value(self, rule: Any, exc: BaseException) -> Any:
        if type(rule) is not StatusRule:
            return rule
        found, value = rule.match(http_status(exc))
        return value if found else self.default


def nearest_rule(
    rules: Mapping[Any, Any], kind: type[BaseException]
) -> tuple[type[BaseException], Any] | None:
    """The rule for the first base of a class that has one, by the class or by its name."""
    if not rules:
        return None
    known = {
        _loaded_class(key) or key if isinstance(key, str) else key: rule
        for key, rule in rules.items()
    }
    for base in kind.__mro__:
        for key in (base, f"{base.__module__}.{base.__qualname__}"):
            if key in known:
                return base, known[key]
    return None


def _import_module_of(name: str) -> None:
    """Import the longest prefix of the name that is a module."""
    from importlib import import_module

    package, *parts = name.split(".")[:-1]
    for end in range(len(parts) + 1):
        module = ".".join([package, *parts[:end]])
        try:
            import_module(module)
        except Exception as error:
            # From here on the name may go through classes.
            if isinstance(error, ImportError) and end and error.name == module:
                return
            raise ValueError(f"rules: {name!a} cannot be imported: {summary(error)}") from error


def _loaded_class(name: str) -> type | None:
    """The class of this name among the loaded modules; None while it is not there yet."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:end]))
        if module is not None:
            return _class_in(module, name, parts[end:])
    return None


def _class_in(module: Any, name: str, path: list[str]) -> type | None:
    found = module
    for depth, part in enumerate(path):
        # The dictionaries, not getattr: a module's __getattr__ may import.
        members = vars(found) if hasattr(found, "__dict__") else {}
        if part not in members:
            not_yet = "__getattr__" in members or (depth == 0 and len(path) > 1)
            if not_yet or "<locals>" in path or _is_being_imported(module):
                return None
            raise ValueError(f"rules: {name!a} is no exception class: there is no {part!a}")
        found = members[part]
    if not is_exception_class(found):
        raise ValueError(
            f"rules: {name!a} is no exception class but of type {type(found).__name__}"
        )
    return found


def _is_being_imported(module: Any) -> bool:
    """Whether another thread is still at it: its classes are yet to come."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _status_rule(name: str, rule: dict[Any, Any]) -> StatusRule:
    if set(rule) != {"status"} or not isinstance(rule["status"], dict):
        raise ValueError(
            f"rules: the condition of {name!r} must be {{'status': {{...}}}}, got {rule!r}"
        )
    return StatusRule.of(rule["status"], f"rules: a status of {name!r}")

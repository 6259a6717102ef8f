"""Rules on exception classes that a configuration names."""

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
            # In ASCII, here and below: a letter that looks like an ASCII letter is shown escaped.
            raise ValueError(
                "rules must name exception classes with their module, like 'builtins.OSError', "
                f"got {name!a}"
            )
        if isinstance(rule, dict):
            named[name] = _status_rule(name, rule)
    return named


def _is_qualified(name: Any) -> bool:
    """Whether it is a string of two or more identifiers separated by dots."""
    parts = name.split(".") if isinstance(name, str) else ()
    return len(parts) > 1 and all(part.isidentifier() or part == "<locals>" for part in parts)


@frozen(eq=False, repr=False)
class NamedClassifier(ExceptionClassifier):
    """Rules for classes given by name; names are looked up in the modules loaded so far.

    :param named: qualified names and their values, as for ``from_config``.
    :param validate: import the modules and look up every name now; default False.
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
    """The rule for the nearest base of a class, by the class or by its qualified name."""
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
            # The rest of the name may be classes.
            if isinstance(error, ImportError) and end and error.name == module:
                return
            raise ValueError(f"rules: {name!a} cannot be imported: {summary(error)}") from error


def _loaded_class(name: str) -> type | None:
    """The class of this name in the loaded modules; None while it is not defined yet."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:end]))
        if module is not None:
            return _class_in(module, name, parts[end:])
    return None


def _class_in(module: Any, name: str, path: list[str]) -> type | None:
    found = module
    for depth, part in enumerate(path):
        # Not getattr(): a module's __getattr__ may import.
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
    """Whether another thread is importing the module: its classes may be missing yet."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _status_rule(name: str, rule: dict[Any, Any]) -> StatusRule:
    if set(rule) != {"status"} or not isinstance(rule["status"], dict):
        raise ValueError(
            f"rules: the condition of {name!r} must be {{'status': {{...}}}}, got {rule!r}"
        )
    return StatusRule.of(rule["status"], f"rules: a status of {name!r}")

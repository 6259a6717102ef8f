"""Public names whose modules are loaded when they are first asked for (PEP 562)."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["lazily"]


def lazily(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package, whose ``dir()`` lists all that it gives.

    :param package: its ``__name__``.
    :param modules: module by module, the names that come from it.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def __getattr__(name: str) -> Any:  # it becomes the package's own
        module = home.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        there = vars(sys.modules[package])
        return sorted({*there, *there["__all__"]})

    vars(sys.modules[package])["__dir__"] = __dir__
    return __getattr__

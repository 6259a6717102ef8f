"""Public names that are imported on first use (PEP 562), and errors for missing extras."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.suggestions import nearest
from retrytemplate.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["extra", "is_library_module", "lazy_attributes"]


OWN = __name__.partition(".")[0] + "."
# The demo stands for a program of a user.
DEMO = f"{OWN}demo."

# Where users import from.
PUBLIC = (
    "retrytemplate",
    "retrytemplate.control",
    "retrytemplate.batch",
    "retrytemplate.config",
    "retrytemplate.workers",
    "retrytemplate.observe",
    "retrytemplate.testing",
    "retrytemplate.simulation",
)


def is_library_module(module: str | None) -> bool:
    """Whether a module, given by its name, is part of the library."""
    return f"{module}.".startswith(OWN) and not f"{module}.".startswith(DEMO)


def lazy_attributes(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    :param package: its ``__name__``.
    :param modules: the names that each module defines, separated by spaces, by module.
    """
    source = {name: module for module, names in modules.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        module = source.get(name)
        if module is None:
            raise _unknown(package, name)
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *source})

    return __getattr__, __dir__, sorted(source)


def _unknown(package: str, name: str) -> AttributeError | ImportError:
    """The error for a name that the package does not have; it names the right module.

    Python replaces the message of an ``AttributeError`` in ``from package import name``, but not
    that of an ``ImportError``.
    """
    if name.startswith("__"):  # Python and tools check these with ``hasattr``
        return AttributeError(f"module {package!r} has no attribute {name!r}")
    caller = sys._getframe(2)
    if caller.f_code.co_name == "_handle_fromlist":
        if find_spec(f"{package}.{name}") is not None:  # a module that is about to be imported
            return AttributeError(name)
        message = f"cannot import name {name!r} from {package!r}{_hint(package, name)}"
        return ImportError(message, name=package)
    return AttributeError(f"module {package!r} has no attribute {name!r}{_hint(package, name)}")


def _hint(package: str, name: str) -> str:
    """The module that has the name, or the most similar name; empty without either."""
    known = {each: module for module in PUBLIC for each in import_module(module).__all__}
    if name in known:
        return f"; {name} is in {known[name]}"
    known |= dict.fromkeys(sys.modules[package].__all__, package)
    found = nearest(name, known)
    if found is None:
        return ""
    place = "" if known[found] == package else f" of {known[found]}"
    return f"; did you mean {found!r}{place}?"


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Raise ``MissingExtraError`` if an import in the block fails.

    :param name: the extra that installs the packages.
    :param purpose: the feature that needs them, for the message.

    >>> with extra("cli", "the table"):
    ...     import absent
    Traceback (most recent call last):
        ...
    retrytemplate.errors.MissingExtraError: the table needs absent: install retrytemplate[cli]
    """
    try:
        yield
    except ImportError as error:
        missing = error.name or str(error)
        raise MissingExtraError(
            f"{purpose} needs {missing}: install retrytemplate[{name}]", name=error.name
        ) from error

"""The terms of the traces in Python: exceptions, their chains, and their notation."""

from __future__ import annotations

from typing import Any

from retrytemplate import RecordedFailure

JSON = Any
"""A value out of a line of the file."""


class UnknownFieldError(Exception):
    """The file has a field that the runner does not know."""


def check_known(where: str, spec: JSON, *fields: str) -> None:
    """Raise unless every field of an object is one of *fields*."""
    if not isinstance(spec, dict):
        raise UnknownFieldError(f"{where}: an object was expected, got {spec!r}")
    unknown = sorted(set(spec) - set(fields))
    if unknown:
        raise UnknownFieldError(f"{where}: unknown {', '.join(unknown)}")


class Base(Exception):
    pass


class Transient(Base):
    pass


class Deadlock(Transient):
    pass


class NetTimeout(Transient):
    pass


class Fatal(Base):
    pass


class Poison(Fatal):
    pass


class Other(Exception):
    pass


class Hard(BaseException):
    """An ``Error`` of Java: no default classifier covers it."""


class Interrupted(Exception):
    """The exception of the virtual clock for an interrupted sleep of the trace."""


RAISED: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (Base, Transient, Deadlock, NetTimeout, Fatal, Poison, Other, Hard)
}
CLASSES = RAISED | {"Exception": Exception, "Throwable": BaseException}
NAMES_OF_THE_ORIGINAL = {
    "ExhaustedRetryError": "ExhaustedRetryException",
    "TerminatedRetryError": "TerminatedRetryException",
    "BackoffInterruptedError": "BackOffInterruptedException",
    "RetryContextCacheFullError": "RetryCacheCapacityExceededException",
    "Interrupted": "InterruptedException",
}


def named(name: str) -> type[BaseException]:
    """The class with a name, as key of a map."""
    try:
        return CLASSES[name]
    except KeyError:
        raise UnknownFieldError(f"no exception is called {name!r}") from None


def raised(chain: JSON, identity: str) -> BaseException:
    """The exception of a chain of names, outermost first; each cause has its depth in its id."""
    if not isinstance(chain, list) or not chain or not set(chain) <= set(RAISED):
        raise UnknownFieldError(f"{chain!r} is no chain of exceptions")
    cause: BaseException | None = None
    for depth in reversed(range(len(chain))):
        error = RAISED[chain[depth]](f"{identity}/{depth}" if depth else identity)
        error.__cause__ = cause
        cause = error
    assert cause is not None
    return cause


def type_name(error: BaseException | None) -> str | None:
    """The name of an exception in the trace, for a live or a recorded exception."""
    if error is None:
        return None
    if isinstance(error, RecordedFailure):
        name = error.type_name.rpartition(".")[2]
    else:
        name = type(error).__name__
    return NAMES_OF_THE_ORIGINAL.get(name, name)


def described(error: BaseException | None) -> JSON:
    """The exception object of the trace: type, id (none for those of the library) and causes."""
    if error is None:
        return None
    name = type_name(error)
    entry = {"type": name}
    if name not in NAMES_OF_THE_ORIGINAL.values():
        entry["id"] = error.message if isinstance(error, RecordedFailure) else str(error)
    if error.__cause__ is not None:
        entry["cause"] = described(error.__cause__)
    return entry

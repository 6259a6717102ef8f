"""Classification by status codes, SQLSTATEs and error numbers; classifiers made from others."""

from __future__ import annotations

import errno as numbers
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.validation import instance_of
from retrytemplate.classify.by_name import NamedClassifier, copy_name_mapping, nearest_rule
from retrytemplate.classify.exceptions import ExceptionClassifier, copy_class_mapping, safe_getattr
from retrytemplate.classify.http_status import StatusRule, http_status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from retrytemplate.classify.exceptions import Answer


@frozen(eq=False, repr=False)
class DelegatingClassifier(ExceptionClassifier):
    """Changes the result of another classifier.

    :param of: the other classifier; it also selects the parts of an error that are classified.
    """

    of: ExceptionClassifier = field(
        kw_only=True, validator=instance_of(ExceptionClassifier, "an ExceptionClassifier")
    )

    def transform(self, value: Any, exc: BaseException | None) -> Any:
        """Return the changed value."""
        raise NotImplementedError

    def explicit(self, exc: BaseException | None) -> tuple[bool, Any]:
        found, value = self.of.explicit(exc)
        return found, self.transform(value, exc)

    def names(self, exc: BaseException) -> bool:
        return self.of.names(exc)

    def names_class(self, kind: type[BaseException]) -> bool:
        return self.of.names_class(kind)

    def parts(self, exc: BaseException) -> Iterator[BaseException]:
        return self.of.parts(exc)


CONNECTION_LOST = "08006"
"""The SQLSTATE of a failure that SQLAlchemy, without one from the driver, calls a disconnect."""
SQLITE_NAME = re.compile("SQLITE_[A-Z0-9_]+")
# Their numbers come from a resolver or from OpenSSL; the same ones mean something else in errno.
OWN_NUMBERS = ("gaierror", "herror", "SSLError")


def iter_wrapped_errors(exc: BaseException) -> Iterator[BaseException]:
    """The failure, and those that it stands for: ``orig``, ``reason``, exceptions in ``args``.

    So SQLAlchemy keeps its driver's, urllib the socket's, requests urllib3's.
    """
    waiting, seen = [exc], set[int]()
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            inner = (safe_getattr(each, "orig"), safe_getattr(each, "reason"), *_arguments(each))
            waiting += (other for other in inner if isinstance(other, BaseException))


def _arguments(exc: BaseException) -> tuple[Any, ...]:
    """The arguments of the exception; a class may define another ``args``."""
    arguments = safe_getattr(exc, "args")
    return arguments if isinstance(arguments, tuple) else ()


def sqlstate(exc: BaseException) -> str | None:
    """The SQLSTATE of a database driver's error: psycopg, asyncpg, psycopg2, pyodbc, MySQL's.

    >>> class Deadlock(Exception):
    ...     sqlstate = "40P01"
    >>> sqlstate(Deadlock()), sqlstate(ValueError("40P01"))
    ('40P01', None)
    """
    first = _arguments(exc)[:1] if _of_a_driver(exc) else ()
    for value in (safe_getattr(exc, "sqlstate"), safe_getattr(exc, "pgcode"), *first):
        if isinstance(value, str) and len(value) == 5 and _is_code(value):
            return value.upper()
    return None


def _is_code(text: str) -> bool:
    return text.isascii() and text.isalnum()


def vendor_codes(exc: BaseException) -> tuple[int | str, ...]:
    """The database's own code and its class; SQLite names its errors, MySQL numbers them.

    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:")
    >>> try:
    ...     _ = connection.executescript("CREATE TABLE t (a UNIQUE); "
    ...         "INSERT INTO t VALUES (1); INSERT INTO t VALUES (1)")
    ... except sqlite3.IntegrityError as error:
    ...     vendor_codes(error)
    ('SQLITE_CONSTRAINT_UNIQUE', 'SQLITE_CONSTRAINT')
    >>> connection.close()
    """
    name = safe_getattr(exc, "sqlite_errorname")
    if isinstance(name, str):
        return tuple(dict.fromkeys((name, "_".join(name.split("_")[:2]))))
    if _of_a_driver(exc):
        for value in (safe_getattr(exc, "errno"), *_arguments(exc)[:1]):
            if isinstance(value, int) and not isinstance(value, bool):
                return (value,)
    return ()


def os_error(exc: BaseException) -> int | None:
    """The errno of an ``OSError``; not the number of a resolver's error, or of OpenSSL's.

    >>> os_error(ConnectionResetError(104, "reset")), os_error(ValueError(104))
    (104, None)
    """
    if not isinstance(exc, OSError):
        return None
    if any(base.__name__.endswith(OWN_NUMBERS) for base in type(exc).__mro__):
        return None
    number = safe_getattr(exc, "errno")
    return number if isinstance(number, int) else None


def _of_a_driver(exc: BaseException) -> bool:
    """Whether it is an error of a database driver: of a class that PEP 249 defines."""
    names = {base.__name__ for base in type(exc).__mro__}
    return bool(names & {"DatabaseError", "InterfaceError"})


def _table(name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must map codes to values, got {value!r}")
    return dict(value)


def _by_status(value: Any) -> dict[int | str, Any]:
    return _table("status", value)


def _by_sqlstate(value: Any) -> dict[str, Any]:
    table = _table("sqlstate", value)
    for key in table:
        if not isinstance(key, str) or len(key) not in (2, 5) or not _is_code(key):
            raise ValueError(
                "keys of sqlstate must be codes of five characters, like '40001', or classes of "
                f"two, like '40', got {key!r}"
            )
    return {key.upper(): rule for key, rule in table.items()}


def _by_vendor(value: Any) -> dict[int | str, Any]:
    table = _table("vendor", value)
    for key in table:
        number = isinstance(key, int) and not isinstance(key, bool)
        if not number and not (isinstance(key, str) and SQLITE_NAME.fullmatch(key)):
            raise ValueError(
                f"keys of vendor must be numbers, or names like 'SQLITE_BUSY', got {key!r}"
            )
    return table


def _by_errno(value: Any) -> dict[int, Any]:
    return {_number(key): rule for key, rule in _table("errno", value).items()}


def _number(key: Any) -> int:
    number = getattr(numbers, key, None) if isinstance(key, str) else key
    if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
        raise ValueError(
            f"keys of errno must be numbers, or names like 'ECONNRESET' that the module errno "
            f"defines on this platform, got {key!r}"
        )
    return number


def _by_class(value: Any) -> dict[type[BaseException], Any]:
    return copy_class_mapping(value, "rules must map exception classes to values")


def _by_either(value: Any) -> dict[Any, Any]:
    table = _table("overrides", value)
    named = {key: rule for key, rule in table.items() if isinstance(key, str)}
    classes = {key: rule for key, rule in table.items() if not isinstance(key, str)}
    copy_class_mapping(classes, "overrides must map exception classes, or their names, to values")
    return {**classes, **copy_name_mapping(named)}


@frozen(eq=False, repr=False)
class CodeClassifier(NamedClassifier):
    """The value of the code that a failure carries, else of its nearest class.

    Codes are looked for on the failure itself and on the error it wraps (SQLAlchemy's ``orig``,
    urllib's ``reason``, exceptions in ``args``), with *traverse_causes* on its causes, too.  A
    vendor's code comes first, then the SQLSTATE, the HTTP status, the errno; a code that no rule
    has is passed over.

    :param rules: exception classes and their values, for failures without a code.
    :param default: the value where nothing matches.
    :param traverse_causes: look at the causes as well.
    :param named: the same as *rules* by qualified names, looked up when a failure is classified:
        of libraries that need not be there.
    :param validate: import what *named* says, and look the names up, now.
    :param overrides: classes, or their names, that come before every code and rule, with their
        subclasses.
    :param status: HTTP statuses, ``429`` or ``"5xx"``.
    :param sqlstate: codes like ``"40001"``, or classes of them like ``"40"``.
    :param vendor: numbers, as MySQL has them, or names, as SQLite does: ``"SQLITE_BUSY"`` stands
        for ``"SQLITE_BUSY_SNAPSHOT"`` as well.
    :param errno: numbers or names, ``"ECONNRESET"``.
    :raises ValueError: a code is not valid.
    :raises TypeError: a key is not an exception class.

    It goes wherever an ``ExceptionClassifier`` goes: into a policy, with policies as values into an
    ``ExceptionClassifierRetryPolicy``, into a circuit breaker, a fallback, the costs of a budget.

    >>> import errno
    >>> worth = CodeClassifier(status={429: True, "5xx": True}, errno={"ECONNRESET": True})
    >>> worth.classify(ConnectionResetError(errno.ECONNRESET, "reset"))
    True
    >>> worth.classify(FileNotFoundError(errno.ENOENT, "no such file"))
    False
    """

    rules: Mapping[type[BaseException], Any] = field(default={}, converter=_by_class, hash=False)
    default: Any = False
    traverse_causes: bool = field(default=False, validator=instance_of(bool, "True or False"))
    overrides: Mapping[Any, Any] = field(default={}, converter=_by_either, hash=False, kw_only=True)
    status: Mapping[Any, Any] = field(default={}, converter=_by_status, hash=False, kw_only=True)
    sqlstate: Mapping[str, Any] = field(
        default={}, converter=_by_sqlstate, hash=False, kw_only=True
    )
    vendor: Mapping[int | str, Any] = field(
        default={}, converter=_by_vendor, hash=False, kw_only=True
    )
    errno: Mapping[Any, Any] = field(default={}, converter=_by_errno, hash=False, kw_only=True)
    _status: StatusRule = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        object.__setattr__(self, "_status", StatusRule.of(self.status, "keys of status"))

    def values(self) -> tuple[Any, ...]:
        tables = (self.overrides, self.status, self.sqlstate, self.vendor, self.errno)
        coded = (value for table in tables for value in table.values())
        return (*coded, *super().values())

    def _nearest(self, kind: type[BaseException]) -> tuple[type, Any] | None:
        return nearest_rule(self.overrides, kind) or super()._nearest(kind)

    def _own(self, exc: BaseException) -> Answer:
        if nearest_rule(self.overrides, type(exc)) is None:
            found, value = self._by_code(list(iter_wrapped_errors(exc)))
            if found:
                return True, value
        return super()._own(exc)

    def _by_code(self, failures: list[BaseException]) -> Answer:
        for each in failures:
            for found, value in self._answers(each):
                if found:
                    return True, value
        if any(safe_getattr(each, "connection_invalidated") is True for each in failures):
            return _first(self.sqlstate, _with_class(CONNECTION_LOST))
        return False, None

    def _answers(self, exc: BaseException) -> Iterator[Answer]:
        yield _first(self.vendor, vendor_codes(exc))
        yield _first(self.sqlstate, _with_class(sqlstate(exc)))
        yield self._status.match(http_status(exc))
        yield _first(self.errno, (os_error(exc),))


@frozen(eq=False, repr=False)
class OptionalNames(NamedClassifier):
    """For names that this library gives: a module of that name may be another, or half loaded.

    What cannot be found there is no rule, where a name of the user's would be an error.
    """

    def _nearest(self, kind: type[BaseException]) -> tuple[type, Any] | None:
        try:
            return super()._nearest(kind)
        except ValueError:
            found = {name: value for name, value in self.named.items() if _is_found(name)}
            return nearest_rule({**self.rules, **found}, kind)


@frozen(eq=False, repr=False)
class OptionalNameClassifier(OptionalNames, CodeClassifier):
    """A ``CodeClassifier`` of this library's own."""


def _is_found(name: str) -> bool:
    try:
        nearest_rule({name: True}, BaseException)
    except ValueError:
        return False
    return True


def _with_class(state: str | None) -> tuple[str, ...]:
    return () if state is None else (state, state[:2])


def _first(table: Mapping[Any, Any], keys: Iterable[Any]) -> Answer:
    """The value of the first key that exists."""
    for key in keys:
        if key in table:
            return True, table[key]
    return False, None


def allowlist(retryable: Iterable[Any], never: Iterable[Any] = ()) -> CodeClassifier:
    """True for listed exceptions, False for all others; ``never`` is checked first.

    :param retryable: exception classes or their qualified names, or one of them.
    :param never: the same, never retried, nor are their subclasses; it wins over ``retryable``.
    :raises ValueError: ``retryable`` contains ``Exception`` or ``BaseException``.

    >>> worth = allowlist([TimeoutError, "httpx.TransportError"], never=[PermissionError])
    >>> [worth.classify(error) for error in (TimeoutError(), PermissionError(), KeyError())]
    [True, False, False]
    """
    listed, barred = _listed("retryable", retryable), _listed("never", never)
    for each in listed:
        if each in (Exception, BaseException, "builtins.Exception", "builtins.BaseException"):
            raise ValueError(
                f"retryable must not contain Exception or BaseException, got {each!r}: it would "
                "retry every error"
            )
    names = {each: True for each in listed if isinstance(each, str)}
    classes = {each: True for each in listed if not isinstance(each, str)}
    return CodeClassifier(classes, named=names, overrides=dict.fromkeys(barred, False))


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, type | str):
        return (value,)
    try:
        return tuple(value)
    except TypeError:
        raise TypeError(
            f"{name} must list exception classes or their names, got {value!r}"
        ) from None


@frozen(eq=False, repr=False)
class _Mapped(DelegatingClassifier):
    to: Mapping[Any, Any] = field(converter=dict, hash=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        for value in self.of.values():
            if value not in self.to:
                raise ValueError(f"to must map {value!r}, a classifier value, got {self.to!r}")

    def transform(self, value: Any, exc: BaseException | None) -> Any:
        return self.to[value]

    def values(self) -> tuple[Any, ...]:
        return tuple(self.to[value] for value in self.of.values())


def mapped(classifier: ExceptionClassifier, to: Mapping[Any, Any]) -> ExceptionClassifier:
    """A classifier that maps the values of another one to other values.

    :param classifier: whose values are mapped.
    :param to: the new value of each of its values.
    :raises ValueError: one of its values has no new value.

    >>> from retrytemplate import ExceptionClassifier
    >>> speed = ExceptionClassifier({TimeoutError: "slow", OSError: "fast"}, default="fast")
    >>> mapped(speed, {"slow": 60.0, "fast": 1.0}).classify(TimeoutError())
    60.0
    """
    if not isinstance(classifier, ExceptionClassifier):
        raise TypeError(f"classifier must be an ExceptionClassifier, got {classifier!r}")
    return _Mapped({}, of=classifier, to=to)

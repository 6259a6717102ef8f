"""Classification of exceptions by type, groups and causes included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal import validation
from retrytemplate._internal.values import Value
from retrytemplate.errors import KillSwitchActiveError, MisuseError, RetryError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from typing import TypeGuard

    # Whether a rule matched, and the value; and a generator that computes it from further steps.
    Answer = tuple[bool, Any]
    Steps = Generator["Steps", Answer, Answer]

__all__ = [
    "KNOWN_RETRYABLE_TYPES",
    "ExceptionClassifier",
    "copy_class_mapping",
    "copy_mapping",
    "is_control_flow",
    "is_exception_class",
    "is_never_retried",
    "iter_causes",
    "iter_leaf_exceptions",
    "safe_getattr",
]


def iter_causes(exc: BaseException | None) -> Iterator[BaseException]:
    """The exception, its ``__cause__``, the cause's cause ..., each of a cycle once.

    >>> [type(e).__name__ for e in iter_causes(ValueError())]
    ['ValueError']
    """
    seen = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        yield exc
        exc = exc.__cause__


def iter_leaf_exceptions(
    exc: BaseException, whole: Callable[[BaseExceptionGroup[Any]], bool] | None = None
) -> Iterator[BaseException]:
    """The leaves of an exception group, nested groups included; another exception is its own leaf.

    :param whole: takes a group, returns whether to yield it instead of its members.

    >>> nested = ExceptionGroup("all", [OSError(), ExceptionGroup("some", [ValueError()])])
    >>> [type(e).__name__ for e in iter_leaf_exceptions(nested)]
    ['OSError', 'ValueError']
    """
    waiting = [exc]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup) and not (whole and whole(each)):
            waiting.extend(reversed(each.exceptions))
        else:
            yield each


# By name, so that no other library is imported for its class.
CONTROL_FLOW_EXCEPTIONS = {
    ("concurrent.futures._base", "CancelledError"),
    ("langgraph.errors", "GraphBubbleUp"),
}


def is_control_flow(kind: type) -> bool:
    """Whether instances of this ``Exception`` are control flow, not failures.

    These are the cancellation of a future, and the interrupts and jumps of a LangGraph graph.

    >>> from concurrent.futures import CancelledError
    >>> is_control_flow(CancelledError), is_control_flow(OSError)
    (True, False)
    """
    return any(
        (safe_getattr(base, "__module__"), base.__name__) in CONTROL_FLOW_EXCEPTIONS
        for base in kind.__mro__
    )


def safe_getattr(holder: Any, name: str) -> Any:
    """The attribute, or None if it is missing or raises an ``Exception``.

    Attributes of other libraries' errors may raise: urllib's without a body raise ``KeyError``.
    """
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _run_steps(steps: Steps) -> Answer:
    """Run the generators on a list as stack: groups may be nested deeper than Python's stack."""
    stack = [steps]
    answer: Any = None
    while stack:
        try:
            deeper = stack[-1].send(answer)
        except StopIteration as end:
            stack.pop()
            answer = end.value
        else:
            stack.append(deeper)
            answer = None
    return answer  # type: ignore[no-any-return]  # of the first, so it is an Answer


def is_exception_class(value: Any) -> TypeGuard[type[BaseException]]:
    """Whether it is a class of exceptions."""
    return isinstance(value, type) and issubclass(value, BaseException)


def copy_class_mapping(value: Any, allowed: str) -> dict[type[BaseException], Any]:
    """A copy of a mapping whose keys are exception classes; *allowed* begins the error message."""
    copy = copy_mapping(value, allowed)
    for kind in copy:
        if not is_exception_class(kind):
            raise TypeError(f"{allowed}, got the key {kind!r}")
    return copy


def copy_mapping(value: Any, allowed: str) -> dict[Any, Any]:
    """A copy of a mapping; *allowed* begins the error message."""
    try:
        return dict(value)
    except (TypeError, ValueError):
        raise TypeError(f"{allowed}, got {value!r}") from None


def _exception_map(value: Any) -> dict[type[BaseException], Any]:
    return copy_class_mapping(value, "rules must map exception classes to values")


@frozen(eq=False, repr=False)
class ExceptionClassifier(Value):
    """Map an exception to the value of its nearest class: its own, else the first base with a rule.

    :param rules: exception classes and their values, of any type.
    :param default: the value if no rule matches, and for None; default False.
    :param traverse_causes: whether to look at the chain of ``__cause__`` if no rule matches the
        exception; default False.  The outermost match decides, also if its value is the default.
    :raises TypeError: if a key is not an exception class.

    An exception group without a rule for its own class gets the value of its members: the common
    one, else the first false one, else the default.

    Source: ``SubclassClassifier`` and ``BinaryExceptionClassifier`` of
    ``org.springframework.classify``.

    >>> worth = ExceptionClassifier({OSError: True, FileNotFoundError: False})
    >>> worth.classify(ConnectionError()), worth.classify(FileNotFoundError())
    (True, False)
    >>> worth.classify(ValueError()), worth.classify(None)
    (False, False)
    >>> worth.classify(ExceptionGroup("both", [ConnectionError(), FileNotFoundError()]))
    False
    """

    rules: Mapping[type[BaseException], Any] = field(converter=_exception_map, hash=False)
    default: Any = False
    traverse_causes: bool = field(
        default=False, validator=validation.instance_of(bool, "True or False")
    )

    @classmethod
    def from_config(
        cls,
        rules: Mapping[str, Any],
        default: Any = False,
        *,
        traverse_causes: bool = False,
        validate: bool = False,
    ) -> ExceptionClassifier:
        """Create a classifier from a configuration that names the classes.

        :param rules: qualified class names (``"builtins.OSError"``) and their values.  A value may
            be ``{"status": {429: True, "5xx": True}}``: then the HTTP status decides, an exact code
            before its class; if neither matches, the value is the default.
        :param default: the value if no rule matches; default False.
        :param traverse_causes: whether to look at the chain of ``__cause__`` if no rule matches.
        :param validate: whether to import the modules and look up every name now.  If False (the
            default), nothing is imported: a name is looked up in the modules that are loaded when a
            failure is classified.
        :raises ValueError: if a name is not an exception class, here or when classifying.

        >>> rules = {"builtins.OSError": True, "urllib.error.HTTPError": {"status": {"5xx": True}}}
        >>> worth = ExceptionClassifier.from_config(rules)
        >>> worth.classify(ConnectionError())
        True
        """
        from retrytemplate.classify.by_name import NamedClassifier

        return NamedClassifier({}, default, traverse_causes, named=rules, validate=validate)

    def classify(self, exc: BaseException | None) -> Any:
        """The value for this exception."""
        return self.explicit(exc)[1]

    def explicit(self, exc: BaseException | None) -> tuple[bool, Any]:
        """Whether a rule matched, and the value."""
        if self.traverse_causes or isinstance(exc, BaseExceptionGroup):
            return _run_steps(self._walk(exc, {}))
        return (False, self.default) if exc is None else self._own(exc)

    def values(self) -> tuple[Any, ...]:
        """Every value that ``classify`` may return, the default last.

        >>> ExceptionClassifier({OSError: 3, ValueError: 1}, default=0).values()
        (3, 1, 0)
        """
        return (*self.rules.values(), self.default)

    def names(self, exc: BaseException) -> bool:
        """Whether the rule that matches is for a class of this library's own errors, or a group."""
        if isinstance(exc, BaseExceptionGroup):
            return self._rules_group(exc)
        return self.names_class(type(exc))

    def names_class(self, kind: type[BaseException]) -> bool:
        """The same for a class; a rule for ``Rejected`` does not name a kill switch's error."""
        match = self._nearest(kind)
        own = KillSwitchActiveError if issubclass(kind, KillSwitchActiveError) else RetryError
        return match is not None and issubclass(match[0], own)

    def parts(self, exc: BaseException) -> Iterator[BaseException]:
        """The exceptions to classify: the exception, or the leaves of a group without a rule."""
        return iter_leaf_exceptions(exc, self._rules_group)

    def _rules_group(self, group: BaseExceptionGroup[Any]) -> bool:
        match = self._nearest(type(group))
        return match is not None and issubclass(match[0], BaseExceptionGroup)

    def _walk(self, exc: BaseException | None, groups: dict[int, Answer]) -> Steps:
        for link in iter_causes(exc):
            if isinstance(link, BaseExceptionGroup) and not self._rules_group(link):
                if id(link) not in groups:
                    # A group that is the cause of its own member is reached again.
                    groups[id(link)] = (False, self.default)
                    groups[id(link)] = yield self._members(link, groups)
                found, value = groups[id(link)]
            else:
                found, value = self._own(link)
            if found:
                return True, value
            if not self.traverse_causes:
                break
        return False, self.default

    def _own(self, exc: BaseException) -> Answer:
        """By the rule for the exception's class, without causes and members."""
        match = self._nearest(type(exc))
        return (False, self.default) if match is None else (True, self._value(match[1], exc))

    def _members(self, group: BaseExceptionGroup[Any], groups: dict[int, Answer]) -> Steps:
        answers = []
        for member in group.exceptions:
            answers.append((yield self._walk(member, groups)))
        if not any(found for found, _ in answers):
            return False, self.default
        return True, self._of_all([value for _, value in answers])

    def _of_all(self, values: list[Any]) -> Any:
        """The value of a group from the values of its members."""
        if all(value == values[0] for value in values):
            return values[0]
        return next((value for value in values if not value), self.default)

    def _nearest(self, kind: type[BaseException]) -> tuple[type, Any] | None:
        rules = self.rules
        for base in kind.__mro__:
            if base in rules:
                return base, rules[base]
        return None

    def _value(self, rule: Any, exc: BaseException) -> Any:
        return rule


# Classes of earlier failures that may be retried, are neither groups nor of a kill switch, and have
# a printable name: a cache, so that is_never_retried() checks each class once.
KNOWN_RETRYABLE_TYPES: set[type] = set()
MAX_KNOWN_TYPES = 1024


def is_never_retried(exception: BaseException) -> bool:
    """Whether the exception is re-raised at once: no retry, no count, no recovery.

    These are the exceptions that do not derive from ``Exception``, both kinds of
    ``CancelledError``, the control flow of a graph, groups with one of these, and ``MisuseError``.
    """
    if type(exception) in KNOWN_RETRYABLE_TYPES:
        return False
    if not isinstance(exception, Exception):
        return True
    if isinstance(exception, BaseExceptionGroup):
        return any(map(is_never_retried, iter_leaf_exceptions(exception)))
    if isinstance(exception, MisuseError) or is_control_flow(type(exception)):
        return True
    if isinstance(exception, KillSwitchActiveError):
        return False
    if len(KNOWN_RETRYABLE_TYPES) >= MAX_KNOWN_TYPES:
        KNOWN_RETRYABLE_TYPES.clear()
    if type(exception).__qualname__.isprintable():
        KNOWN_RETRYABLE_TYPES.add(type(exception))
    return False

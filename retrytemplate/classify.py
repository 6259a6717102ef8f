"""From an exception, or a text, to a value: the rules that policies and callers decide by."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate import _checks
from retrytemplate._values import Value
from retrytemplate.errors import KillSwitchActiveError, RetryError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from typing import TypeGuard

    # Whether a rule matched, and the value; and what it takes to know, further such steps maybe.
    Answer = tuple[bool, Any]
    Steps = Generator["Steps", Answer, Answer]

__all__ = [
    "ExceptionClassifier",
    "NamedClassifier",
    "PatternClassifier",
    "StatusRule",
    "attribute",
    "by_class",
    "by_name",
    "causes",
    "http_status",
    "is_exception_class",
    "is_signal",
    "leaves",
    "nearest",
]


def causes(exc: BaseException | None) -> Iterator[BaseException]:
    """The exception, its ``__cause__``, the cause's cause ...; a cycle ends where it closes.

    >>> [type(e).__name__ for e in causes(ValueError())]
    ['ValueError']
    """
    seen = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        yield exc
        exc = exc.__cause__


def leaves(
    exc: BaseException, whole: Callable[[BaseExceptionGroup[Any]], bool] | None = None
) -> Iterator[BaseException]:
    """The exceptions of a group and of the groups in it; an exception that is no group: itself.

    :param whole: says of which groups nothing is to be taken out.

    >>> nested = ExceptionGroup("all", [OSError(), ExceptionGroup("some", [ValueError()])])
    >>> [type(e).__name__ for e in leaves(nested)]
    ['OSError', 'ValueError']
    """
    waiting = [exc]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup) and not (whole and whole(each)):
            waiting.extend(reversed(each.exceptions))
        else:
            yield each


# By name: nobody else's library is loaded only to know its class.
SIGNALS = {("concurrent.futures._base", "CancelledError"), ("langgraph.errors", "GraphBubbleUp")}


def is_signal(kind: type) -> bool:
    """Whether instances of this ``Exception`` are no failures, but how somebody steers: a future's
    cancellation, or the interrupts and jumps of a LangGraph graph.

    >>> from concurrent.futures import CancelledError
    >>> is_signal(CancelledError), is_signal(OSError)
    (True, False)
    """
    return any((attribute(base, "__module__"), base.__name__) in SIGNALS for base in kind.__mro__)


def attribute(holder: Any, name: str) -> Any:
    """What the object has under this name, else None.

    Errors of other libraries may raise anything there: urllib's without a body a ``KeyError``.
    """
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _settled(steps: Steps) -> Answer:
    """What the steps come to.  The stack is our own: groups may be nested deeper than Python's."""
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


def by_class(value: Any, allowed: str) -> dict[type[BaseException], Any]:
    """A copy of a mapping whose keys are exception classes; *allowed* says what it must be."""
    copy = _mapping(value, allowed)
    for kind in copy:
        if not is_exception_class(kind):
            raise TypeError(f"{allowed}, got the key {kind!r}")
    return copy


def _mapping(value: Any, allowed: str) -> dict[Any, Any]:
    try:
        return dict(value)
    except (TypeError, ValueError):
        raise TypeError(f"{allowed}, got {value!r}") from None


def _exception_map(value: Any) -> dict[type[BaseException], Any]:
    return by_class(value, "rules must map exception classes to values")


@frozen(eq=False, repr=False)
class ExceptionClassifier(Value):
    """The value of the nearest class: an exception's own, else of the first base that has one.

    :param rules: exception classes and their values, which may be anything.
    :param default: the value where no rule matches, and for None.
    :param traverse_causes: look at the ``__cause__``, and at its cause, where no rule matches.  The
        first match from the outside in decides, also where its value equals the default.
    :raises TypeError: for a key that is no exception class.

    A group without a rule for its own class is judged by what it holds: the value that all agree
    on, else the first false one, else the default.

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
        default=False, validator=_checks.instance_of(bool, "True or False")
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
        """A classifier from a configuration that names the classes.

        :param rules: qualified class names (``"builtins.OSError"``) and their values.  A value may
            be ``{"status": {429: True, "5xx": True}}``: then the HTTP status decides, an exact code
            before its class, and no match gives the default.
        :param validate: import the modules and look every name up, now.  Otherwise nothing is ever
            imported: names are looked up when a failure is classified, in what is loaded then.
        :raises ValueError: for a name that is no exception class, here or when classifying.

        >>> rules = {"builtins.OSError": True, "urllib.error.HTTPError": {"status": {"5xx": True}}}
        >>> worth = ExceptionClassifier.from_config(rules)
        >>> worth.classify(ConnectionError())
        True
        """
        return NamedClassifier({}, default, traverse_causes, named=rules, validate=validate)

    def classify(self, exc: BaseException | None) -> Any:
        """The value for this exception."""
        return self.explicit(exc)[1]

    def explicit(self, exc: BaseException | None) -> tuple[bool, Any]:
        """Whether a rule matched, and the value."""
        if self.traverse_causes or isinstance(exc, BaseExceptionGroup):
            return _settled(self._walk(exc, {}))
        return (False, self.default) if exc is None else self._own(exc)

    def values(self) -> tuple[Any, ...]:
        """Every value that it may give, the default last.

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
        """The same, of a class; that of a kill switch has to be named itself."""
        match = self._nearest(kind)
        own = KillSwitchActiveError if issubclass(kind, KillSwitchActiveError) else RetryError
        return match is not None and issubclass(match[0], own)

    def parts(self, exc: BaseException) -> Iterator[BaseException]:
        """What is judged on its own: the exception, or of a group without a rule what it holds."""
        return leaves(exc, self._rules_group)

    def _rules_group(self, group: BaseExceptionGroup[Any]) -> bool:
        match = self._nearest(type(group))
        return match is not None and issubclass(match[0], BaseExceptionGroup)

    def _walk(self, exc: BaseException | None, groups: dict[int, Answer]) -> Steps:
        for link in causes(exc):
            if isinstance(link, BaseExceptionGroup) and not self._rules_group(link):
                if id(link) not in groups:
                    # A group that is the cause of its own member comes back here.
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
        """By the rule for the exception's own class."""
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
        """The value of a group by those of its members."""
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


def by_name(value: Any) -> dict[str, Any]:
    """A copy of a mapping whose keys are qualified names of exception classes."""
    named = _mapping(value, "rules must map qualified names of exception classes to values")
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

    named: Mapping[str, Any] = field(default={}, converter=by_name, hash=False, kw_only=True)
    validate: bool = field(
        default=False,
        validator=_checks.instance_of(bool, "True or False"),
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
        return nearest({**self.rules, **self.named}, kind)

    def _value(self, rule: Any, exc: BaseException) -> Any:
        if type(rule) is not StatusRule:
            return rule
        found, value = rule.match(http_status(exc))
        return value if found else self.default


def nearest(
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
        except ImportError as error:
            # From here on the name may go through classes.
            if end and error.name == module:
                return
            raise ValueError(f"rules: {name!a} cannot be imported: {error}") from error
        except Exception as error:  # the module's own, out of its import
            raise ValueError(f"rules: {name!a} cannot be imported: {error!r}") from error


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
            if not_yet or "<locals>" in path:
                return None
            raise ValueError(f"rules: {name!a} is no exception class: there is no {part!a}")
        found = members[part]
    if not is_exception_class(found):
        raise ValueError(
            f"rules: {name!a} is no exception class but of type {type(found).__name__}"
        )
    return found


def _status_rule(name: str, rule: dict[Any, Any]) -> StatusRule:
    if set(rule) != {"status"} or not isinstance(rule["status"], dict):
        raise ValueError(
            f"rules: the condition of {name!r} must be {{'status': {{...}}}}, got {rule!r}"
        )
    return StatusRule.of(rule["status"], f"rules: a status of {name!r}")


@frozen(eq=False, repr=False)
class StatusRule(Value):
    """A rule on an HTTP status: a code's own value, else that of its class."""

    codes: dict[int, Any] = field(hash=False)
    classes: dict[int, Any] = field(hash=False)

    @classmethod
    def of(cls, rules: Mapping[Any, Any], what: str) -> StatusRule:
        """The rule of a mapping like ``{429: True, "5xx": True}``; *what* is for the errors."""
        codes: dict[int, Any] = {}
        classes: dict[int, Any] = {}
        for key, value in rules.items():
            text = str(key).lower()
            if len(text) == 3 and text[0] in "12345" and text[1:] == "xx":
                classes[int(text[0])] = value
            elif text.isascii() and text.isdigit() and 100 <= int(text) <= 599:
                codes[int(text)] = value
            else:
                raise ValueError(f"{what} must be 100 to 599 or '1xx' to '5xx', got {key!r}")
        return cls(codes, classes)

    def match(self, status: int | None) -> tuple[bool, Any]:
        """Whether there is a value for this status, and the value."""
        if status in self.codes:
            return True, self.codes[status]
        if status is not None and status // 100 in self.classes:
            return True, self.classes[status // 100]
        return False, None

    def values(self) -> tuple[Any, ...]:
        """Every value that it may give."""
        return (*self.codes.values(), *self.classes.values())


def http_status(exc: BaseException) -> int | None:
    """The status in an error of httpx, requests (``response``), aiohttp or urllib."""
    # A response of requests is false when its status is an error.
    response = attribute(exc, "response")
    for holder, name in (
        (response, "status_code"),
        (response, "status"),
        (exc, "status_code"),
        (exc, "status"),
        (exc, "code"),
    ):
        status = attribute(holder, name)
        if isinstance(status, int) and not isinstance(status, bool):
            return int(status)
    return None


def _pattern_map(value: Any) -> dict[str, Any]:
    patterns = _mapping(value, "patterns must map texts to values")
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"patterns must map texts to values, got the key {pattern!r}")
    # In reverse order a longer pattern comes before the prefix of it, and letters before '*'.
    return {pattern: patterns[pattern] for pattern in sorted(patterns, reverse=True)}


@frozen(eq=False, repr=False)
class PatternClassifier(Value):
    """The value of the first pattern that matches a text, tried in reverse lexicographic order.

    ``*`` stands for any run of characters, ``?`` for exactly one, everything else for itself; the
    whole text must match, case matters.

    Source: ``org.springframework.classify.PatternMatchingClassifier``.

    >>> speed = PatternClassifier({"order-*": "fast", "*": "slow"})
    >>> speed.classify("order-17"), speed.classify("report")
    ('fast', 'slow')
    >>> PatternClassifier({"order-?": 1}).classify("order-17")
    Traceback (most recent call last):
    LookupError: no pattern matches 'order-17'; there are 'order-?'
    """

    patterns: Mapping[str, Any] = field(converter=_pattern_map, hash=False)

    def classify(self, text: str | None) -> Any:
        """The value for this text; ``LookupError`` where no pattern matches."""
        if text is not None:
            for pattern, value in self.patterns.items():
                if _matches(pattern, text):
                    return value
        known = ", ".join(map(repr, self.patterns)) or "none"
        raise LookupError(f"no pattern matches {text!r}; there are {known}")


def _matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches the whole text, in time that no pattern can blow up."""
    at = place = 0
    star = mark = -1
    while place < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, mark = at, place
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[place]):
            at += 1
            place += 1
        elif star >= 0:
            mark += 1
            at, place = star + 1, mark
        else:
            return False
    return not pattern[at:].strip("*")

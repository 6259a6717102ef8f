"""A number of attempts for retryable exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal import validation
from retrytemplate.classify.exceptions import (
    ExceptionClassifier,
    is_control_flow,
    is_exception_class,
)
from retrytemplate.policies.base import MaxAttemptsMixin
from retrytemplate.policies.exception_rules import ExceptionRules, is_count_only

if TYPE_CHECKING:
    from collections.abc import Callable

    Types = type[BaseException] | tuple[type[BaseException], ...]

__all__ = ["EVERY_EXCEPTION", "SimpleRetryPolicy", "check_retryable", "types_or_predicate"]

EVERY_EXCEPTION = (Exception,)


def types_or_predicate(value: Types | Callable[[BaseException], Any]) -> Any:
    """One class as a tuple; other values unchanged, for the validator."""
    return (value,) if isinstance(value, type) else value


def _exception_types(name: str, value: Any, *, others: str = "") -> None:
    if not isinstance(value, tuple) or not all(map(is_exception_class, value)):
        raise TypeError(
            f"{name} must be an exception class or a tuple of them{others}, got {value!r}"
        )


def check_retryable(name: str, value: Any) -> None:
    """Raise unless the value is retryable exception classes, or a predicate of the exception."""
    if callable(value):
        validation.check_function(name, value)
        return
    if isinstance(value, ExceptionClassifier):
        raise TypeError(
            f"{name} must be exception classes or a predicate, got a {type(value).__name__}: "
            "use SimpleRetryPolicy(classifier=...)"
        )
    _exception_types(name, value, others=", or a predicate of the exception")
    for kind in value:
        if not issubclass(kind, Exception) or is_control_flow(kind):
            raise ValueError(
                f"{name} must be subclasses of Exception other than cancellations, "
                f"got {kind.__name__}, which is never retried"
            )


def _rule(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, ExceptionClassifier):
        raise TypeError(f"{name} must be an ExceptionClassifier or None, got {value!r}")
    values = value.values()
    if all(values) and not all(isinstance(each, bool) for each in values):
        raise ValueError(
            f"{name} must have a false value for exceptions that are not retryable, "
            f"got the values {', '.join(map(repr, values))}"
        )


@frozen(eq=False, repr=False)
class SimpleRetryPolicy(MaxAttemptsMixin):
    """Allow a number of attempts, for exceptions that are retryable by their nearest class.

    :param max_attempts: attempts including the first, default 3, at least 1; or a callable that
        returns the number, called once per execution.
    :param retry_on: an exception class, a tuple of them, or a predicate of the exception; default
        ``Exception``.
    :param not_on: classes that are not retried.  If a class and its base are in ``retry_on`` and
        ``not_on``, the class nearer to the exception decides; a class in both is not retried.
    :param not_recoverable: classes, also of a cause, whose exceptions are raised without recovery
        when attempts are exhausted.
    :param traverse_causes: whether to look at the chain of ``__cause__`` if no rule matches the
        exception; default False.
    :param classifier: rules that replace ``retry_on`` and ``not_on``; a true value means retryable.
    :raises ValueError: if ``max_attempts`` is below 1; if a class is never retried
        (``KeyboardInterrupt``, cancellations); if a classifier has no false value; if settings
        exclude each other.

    For types and a predicate, combine two policies: ``SimpleRetryPolicy(3, OSError) &
    PredicateRetryPolicy(is_transient)``.

    Source: ``org.springframework.retry.policy.SimpleRetryPolicy``.

    >>> policy = SimpleRetryPolicy(3, retry_on=OSError, not_on=FileNotFoundError)
    >>> policy.allows(2, ConnectionError()), policy.allows(3, ConnectionError())
    (True, False)
    >>> policy.allows(1, FileNotFoundError()), policy.allows(1, ValueError())
    (False, False)
    """

    retry_on: tuple[type[BaseException], ...] | Callable[[BaseException], Any] = field(
        default=EVERY_EXCEPTION,
        converter=types_or_predicate,
        validator=validation.checked_by(check_retryable),
    )
    not_on: tuple[type[BaseException], ...] = field(
        default=(), converter=types_or_predicate, validator=validation.checked_by(_exception_types)
    )
    not_recoverable: tuple[type[BaseException], ...] = field(
        default=(), converter=types_or_predicate, validator=validation.checked_by(_exception_types)
    )
    traverse_causes: bool = field(
        default=False, validator=validation.instance_of(bool, "True or False")
    )
    classifier: ExceptionClassifier | None = field(
        default=None, validator=validation.checked_by(_rule)
    )
    _limit: int = field(init=False, eq=False, repr=False)
    _rules: ExceptionRules = field(init=False, eq=False, repr=False)
    _by_type: dict[type, bool] = field(init=False, eq=False, repr=False)
    _never_retryable: ExceptionClassifier = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        rules = self._make_rules()
        limit = 0 if callable(self._max_attempts) else self._max_attempts
        never_retryable = ExceptionClassifier(
            dict.fromkeys(self.not_recoverable, True), traverse_causes=True
        )
        object.__setattr__(self, "_limit", limit)
        object.__setattr__(self, "_rules", rules)
        object.__setattr__(self, "_by_type", rules.by_type)
        object.__setattr__(self, "_never_retryable", never_retryable)

    def _make_rules(self) -> ExceptionRules:
        fatal = dict.fromkeys(self.not_on, False)
        if self.classifier is not None:
            if fatal or self.traverse_causes or self.retry_on != EVERY_EXCEPTION:
                raise ValueError(
                    "classifier must be given without retry_on, not_on and traverse_causes: "
                    "set them on the classifier"
                )
            return ExceptionRules(self.classifier)
        if not isinstance(self.retry_on, tuple):
            if self.traverse_causes:
                raise ValueError(
                    "traverse_causes must be False with a predicate: it sees the whole exception"
                )
            return ExceptionRules(ExceptionClassifier(fatal), self.retry_on)
        rules = dict.fromkeys(self.retry_on, True) | fatal
        return ExceptionRules(ExceptionClassifier(rules, traverse_causes=self.traverse_causes))

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        if failures >= self._limit:
            # The limit is 0 if max_attempts is a callable: then it is called here.
            return not self._limit and self.resolved().allows(failures, failure)
        if failure is None:
            return True
        verdict = self._by_type.get(type(failure))
        return self._rules.is_retryable(failure) if verdict is None else verdict

    def forbids_recovery(self, failures: int, failure: BaseException) -> bool:
        if not self.not_recoverable:
            return False
        if is_count_only(failure) and not self._never_retryable.names(failure):
            return False
        return self._never_retryable.explicit(failure)[0]

    def matches_library_error(self, failure: BaseException) -> bool:
        return self._rules.classifier.names(failure)

"""So many attempts, for exceptions that are worth it."""

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

__all__ = ["SimpleRetryPolicy", "check_retryable", "types_or_predicate"]

EVERY_EXCEPTION = (Exception,)


def _types(value: Types) -> Any:
    return (value,) if isinstance(value, type) else value


def types_or_predicate(value: Types | Callable[[BaseException], Any]) -> Any:
    """One class as a tuple; the rest is left to the check."""
    return (value,) if isinstance(value, type) else value


def _exception_types(name: str, value: Any, *, others: str = "") -> None:
    if not isinstance(value, tuple) or not all(map(is_exception_class, value)):
        raise TypeError(
            f"{name} must be an exception class or a tuple of them{others}, got {value!r}"
        )


def check_retryable(name: str, value: Any) -> None:
    """Raise unless these are exceptions that can be worth another try, or a predicate of them."""
    if callable(value):
        validation.check_function(name, value)
        return
    if isinstance(value, ExceptionClassifier):
        raise TypeError(
            f"{name} must be exception classes or a predicate, got a {type(value).__name__}: "
            "a classifier is the classifier= of a SimpleRetryPolicy"
        )
    _exception_types(name, value, others=", or a predicate of the exception")
    for kind in value:
        if not issubclass(kind, Exception) or is_control_flow(kind):
            raise ValueError(
                f"{name} must hold subclasses of Exception that are no cancellation, "
                f"got {kind.__name__}: it is never retried"
            )


def _rule(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, ExceptionClassifier):
        raise TypeError(f"{name} must be an ExceptionClassifier or None, got {value!r}")
    values = value.values()
    if all(values) and not all(isinstance(each, bool) for each in values):
        raise ValueError(
            f"{name} must give something false for what is not worth a retry, "
            f"got one that gives {', '.join(map(repr, values))}"
        )


@frozen(eq=False, repr=False)
class SimpleRetryPolicy(MaxAttemptsMixin):
    """A number of attempts, for exceptions whose nearest class says that they are worth it.

    :param max_attempts: attempts in all, the first included; or a callable that gives the number,
        read once per execution.
    :param retry_on: an exception class, a tuple of them, or a predicate of the exception.
    :param not_on: classes that are not retried.  Where a class and its base are in both, the one
        nearer to the exception decides; a class that is in both is not retried.
    :param not_recoverable: classes (also of a cause) that no recovery may take: when attempts end
        with one of them the caller gets it.
    :param traverse_causes: where no rule matches the exception, look at its ``__cause__`` and on.
    :param classifier: rules of your own in the place of ``retry_on`` and ``not_on``, whose values
        are true for what is worth another attempt.
    :raises ValueError: for fewer than one attempt, classes that are never retried
        (``KeyboardInterrupt``, cancellations), a classifier whose values are names or kinds and
        never false, and settings that exclude each other.

    Types and a predicate together are two policies: ``SimpleRetryPolicy(3, OSError) &
    PredicateRetryPolicy(is_transient)``.

    Source: ``org.springframework.retry.policy.SimpleRetryPolicy``.

    >>> policy = SimpleRetryPolicy(3, retry_on=OSError, not_on=FileNotFoundError)
    >>> policy.allows(2, ConnectionError()), policy.allows(3, ConnectionError())
    (True, False)
    >>> policy.allows(1, FileNotFoundError()), policy.allows(1, ValueError())
    (False, False)
    """

    _max_attempts: int | Callable[[], int] = field(
        default=3,
        alias="max_attempts",
        validator=validation.NumberOrCallable(validation.check_at_least_one),
    )
    retry_on: tuple[type[BaseException], ...] | Callable[[BaseException], Any] = field(
        default=EVERY_EXCEPTION,
        converter=types_or_predicate,
        validator=validation.checked_by(check_retryable),
    )
    not_on: tuple[type[BaseException], ...] = field(
        default=(), converter=_types, validator=validation.checked_by(_exception_types)
    )
    not_recoverable: tuple[type[BaseException], ...] = field(
        default=(), converter=_types, validator=validation.checked_by(_exception_types)
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
                    "put them into the classifier"
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
            # A limit of 0 is one that is yet to be read.
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

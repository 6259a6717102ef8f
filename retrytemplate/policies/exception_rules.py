"""Whether a failure is retryable: rules on classes, then a predicate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.classify.exceptions import ExceptionClassifier
from retrytemplate.errors import (
    AttemptLostError,
    AttemptTimeoutError,
    CacheUnavailableError,
    RecordedFailure,
    RetryError,
    UnacceptableResultError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ExceptionRules", "is_count_only"]

COUNT_ONLY_ERRORS = (AttemptLostError, UnacceptableResultError, RecordedFailure)
"""Failures that count but are not classified, unless a rule names their class."""


class ExceptionRules:
    """Decide by the rules; if none matches, by the predicate, else by the rules' default.

    With a predicate the rules do not look at causes.  ``by_type`` has the decisions that depend on
    the class only: the fast path of nearly every failure.
    """

    __slots__ = ("_classes_only", "by_type", "classifier", "predicate")

    def __init__(
        self,
        classifier: ExceptionClassifier,
        predicate: Callable[[BaseException], Any] | None = None,
    ) -> None:
        self.classifier = classifier
        self.predicate = predicate
        self.by_type: dict[type, bool] = {}
        if type(classifier) is ExceptionClassifier:
            self.by_type = {kind: bool(value) for kind, value in classifier.rules.items()}
            for kind in COUNT_ONLY_ERRORS:
                if not classifier.names_class(kind):
                    self.by_type[kind] = True
        self._classes_only = bool(self.by_type) and not classifier.traverse_causes

    def is_retryable(self, failure: BaseException) -> bool:
        """Whether the failure is retryable; a group is if all its members are."""
        if isinstance(failure, BaseExceptionGroup):
            return self._group(failure)
        by_type = self.by_type
        for kind in type(failure).__mro__:
            if kind in by_type:
                return by_type[kind]
        if not self._classes_only:
            if is_count_only(failure) and not self.classifier.names(failure):
                return True
            return bool(self.classifier.classify(failure))
        return bool(self.predicate(failure) if self.predicate else self.classifier.default)

    def _group(self, group: BaseException) -> bool:
        found, value = self.classifier.explicit(group)
        parts = list(self.classifier.parts(group))
        if parts[0] is group:
            return bool(value)
        if found and not value:
            return False
        return not any(map(self._is_unlisted, parts)) and all(map(self.is_retryable, parts))

    def _is_unlisted(self, part: BaseException) -> bool:
        """Whether it is an error of the library that no rule names: not retried in a group."""
        return (
            isinstance(part, RetryError)
            and not isinstance(part, AttemptTimeoutError | CacheUnavailableError)
            and not self.classifier.names(part)
        )


def is_count_only(failure: BaseException) -> bool:
    """Whether the failure counts but is not classified."""
    return isinstance(failure, COUNT_ONLY_ERRORS)

"""Whether a failure is worth another attempt: rules on classes, then a predicate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

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

__all__ = ["COUNT_ONLY_ERRORS", "ExceptionRules", "is_count_only"]

COUNT_ONLY_ERRORS = (AttemptLostError, UnacceptableResultError, RecordedFailure)
"""Failures that only count: no rule is asked about them unless it names them."""


@frozen(eq=False, repr=False)
class ExceptionRules:
    """Rules first; where none matches the predicate, if there is one, else the rules' default.

    A predicate goes with rules on classes alone, which look at no causes.
    """

    classifier: ExceptionClassifier
    predicate: Callable[[BaseException], Any] | None = None
    by_type: dict[type, bool] = field(init=False, eq=False, repr=False)
    """Verdicts that need nothing but the class: the way that nearly every failure takes."""
    _classes_only: bool = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        by_type: dict[type, bool] = {}
        if type(self.classifier) is ExceptionClassifier:
            by_type = {kind: bool(value) for kind, value in self.classifier.rules.items()}
            for kind in COUNT_ONLY_ERRORS:
                if not self.classifier.names_class(kind):
                    by_type[kind] = True
        object.__setattr__(self, "by_type", by_type)
        object.__setattr__(
            self, "_classes_only", bool(by_type) and not self.classifier.traverse_causes
        )

    def is_retryable(self, failure: BaseException) -> bool:
        """The verdict; a group is worth it only if all it holds is."""
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
        """A refusal or an end inside a group: not retried unless a rule names it."""
        return (
            isinstance(part, RetryError)
            and not isinstance(part, AttemptTimeoutError | CacheUnavailableError)
            and not self.classifier.names(part)
        )


def is_count_only(failure: BaseException) -> bool:
    """Whether the failure counts but is not classified."""
    return isinstance(failure, COUNT_ONLY_ERRORS)

"""As many attempts as a predicate finds the exception worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate import _checks
from retrytemplate.classify.exceptions import ExceptionClassifier
from retrytemplate.policies._judge import Judge
from retrytemplate.policies.base import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PredicateRetryPolicy"]


@frozen(eq=False, repr=False)
class PredicateRetryPolicy(RetryPolicy):
    """Another attempt after every failure that the predicate says yes to.  It sets no limit.

    :param predicate: takes the exception.  It is asked about each leaf of a group, and all must get
        a yes; it is not asked about lost attempts and refused results, which are retried.  The
        ``classify`` of an ``ExceptionClassifier`` will do; its rules then count as such.

    Source: ``PredicateRetryPolicy`` and ``BinaryExceptionClassifierRetryPolicy`` of
    ``org.springframework.retry.policy``.

    >>> policy = PredicateRetryPolicy(lambda error: "deadlock" in str(error))
    >>> policy.allows(1, OSError("deadlock found")), policy.allows(1, OSError("disk full"))
    (True, False)
    """

    predicate: Callable[[BaseException], Any] = field(validator=_checks.checked_by(_checks.plain))
    _judge: Judge = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        classifier = getattr(self.predicate, "__self__", None)
        if isinstance(classifier, ExceptionClassifier) and self.predicate == classifier.classify:
            judge = Judge(classifier)
        else:
            judge = Judge(ExceptionClassifier({}), self.predicate)
        object.__setattr__(self, "_judge", judge)

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        return failure is None or self._judge.worth_it(failure)

    def names(self, failure: BaseException) -> bool:
        return self._judge.classifier.names(failure)

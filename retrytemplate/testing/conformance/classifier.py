"""The kit for classifiers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from retrytemplate.testing.conformance.base import (
    FrozenConformance,
    Probe,
    check_same,
)

__all__ = ["ClassifierConformance"]

MAX_CAUSE_READS = 10_000
"""Largest number of times that a classifier may read the cause of a cause."""


class Classifier(Protocol):
    """A classifier such as ``ExceptionClassifier``."""

    def classify(self, exc: BaseException | None) -> Any: ...


class OwnCause(Exception):
    """An exception that is its own cause; it limits the number of reads."""

    looks = 0

    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]  # counted, so that it ends
        self.looks += 1
        assert self.looks < MAX_CAUSE_READS, "the classifier follows a cycle of causes without end"
        return self


class Unspeakable(Exception):
    """An exception whose ``str()`` fails."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class ClassifierConformance(FrozenConformance):
    """Tests for a classifier: it returns the same value for the same exception, always.

    >>> from retrytemplate import ExceptionClassifier
    >>> class TestMine(ClassifierConformance):
    ...     def make(self):
    ...         return ExceptionClassifier({OSError: True})
    >>> TestMine().run_all()
    {}
    """

    @abstractmethod
    def make(self) -> Classifier:
        """A new classifier, equal to every other that this makes."""

    def failures(self) -> list[BaseException]:
        """All exceptions that are classified: ``failures_to_try``, and what builds on them."""
        tried = list(self.failures_to_try)
        chained = RuntimeError("at the end of a chain")
        chained.__cause__ = ConnectionError("the cause")
        unchecked = [each for each in tried if isinstance(each, Exception)]
        nested = ExceptionGroup("outer", [ExceptionGroup("inner", unchecked), Probe()])
        return [*tried, chained, Probe(), nested]

    def answers(self, classifier: Classifier) -> list[Any]:
        """The values of all failures, and of None."""
        return [classifier.classify(failure) for failure in (*self.failures(), None)]

    def test_the_same_failure_gets_the_same_value(self) -> None:
        classifier = self.make()
        first = self.answers(classifier)
        check_same(self.answers(classifier), first, "the same classifier, called again")
        check_same(self.answers(self.make()), first, "an equal classifier")

    def test_the_order_of_the_failures_does_not_matter(self) -> None:
        classifier = self.make()
        backwards = [classifier.classify(each) for each in (None, *reversed(self.failures()))]
        check_same(backwards[::-1], self.answers(self.make()), "one result depends on another")

    def test_circles_of_causes_end(self) -> None:
        try:
            self.make().classify(OwnCause())
        except RecursionError:
            raise AssertionError("the classifier follows a cycle of causes without end") from None

    def test_an_exception_without_text_is_classified(self) -> None:
        try:
            self.make().classify(Unspeakable())
        except ValueError:
            raise AssertionError("str() of an exception may raise") from None

    def test_failures_stay_as_they_are(self) -> None:
        failures = self.failures()
        before = [self._look(failure) for failure in failures]
        classifier = self.make()
        for failure in failures:
            classifier.classify(failure)
        assert [self._look(failure) for failure in failures] == before, "a failure was changed"

    def _look(self, failure: BaseException) -> tuple[Any, ...]:
        return failure.args, failure.__cause__, failure.__context__, dict(vars(failure))

    _results = answers

    def _use(self, classifier: Classifier, failure: BaseException) -> Any:
        return classifier.classify(failure)

"""From an exception, or a text, to a value: the rules that policies and callers decide by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.imports import lazy_attributes

if TYPE_CHECKING:
    from retrytemplate.classify.exceptions import ExceptionClassifier
    from retrytemplate.classify.patterns import PatternClassifier

__getattr__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.classify.exceptions": ("ExceptionClassifier",),
        "retrytemplate.classify.patterns": ("PatternClassifier",),
    },
)

__all__ = ["ExceptionClassifier", "PatternClassifier"]

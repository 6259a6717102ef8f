"""Classifiers: rules that map an exception, or a string, to a value."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.classify.exceptions": "ExceptionClassifier",
        "retrytemplate.classify.patterns": "PatternClassifier",
    },
)

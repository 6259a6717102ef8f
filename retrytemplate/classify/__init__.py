"""From an exception, or a text, to a value: the rules that policies and callers decide by."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.classify.exceptions": "ExceptionClassifier",
        "retrytemplate.classify.patterns": "PatternClassifier",
    },
)

"""Classification of strings by patterns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.values import Value
from retrytemplate.classify.exceptions import copy_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PatternClassifier"]


def _pattern_map(value: Any) -> dict[str, Any]:
    patterns = copy_mapping(value, "patterns must map strings to values")
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"patterns must map strings to values, got the key {pattern!r}")
    # In reverse order a longer pattern comes before the prefix of it, and letters before '*'.
    return {pattern: patterns[pattern] for pattern in sorted(patterns, reverse=True)}


@frozen(eq=False, repr=False)
class PatternClassifier(Value):
    """Map a string to the value of the first pattern that matches, in reverse lexicographic order.

    ``*`` matches any number of characters, ``?`` exactly one, everything else itself.  The whole
    string must match; case matters.

    :param patterns: patterns and their values.
    :raises TypeError: if a pattern is not a string.

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
        """The value for this string.

        :raises LookupError: if no pattern matches.
        """
        if isinstance(text, str):
            for pattern, value in self.patterns.items():
                if _matches(pattern, text):
                    return value
        known = ", ".join(map(repr, self.patterns)) or "none"
        raise LookupError(f"no pattern matches {text!r}; there are {known}")


def _matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches the whole string, in ``len(pattern) * len(text)`` steps."""
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

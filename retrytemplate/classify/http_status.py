"""The HTTP status of a failure, and rules on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.values import Value
from retrytemplate.classify.exceptions import safe_getattr

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["StatusRule", "http_status"]


@frozen(eq=False, repr=False)
class StatusRule(Value):
    """A rule on an HTTP status: a code's own value, else that of its class."""

    codes: dict[int, Any] = field(hash=False)
    classes: dict[int, Any] = field(hash=False)

    @classmethod
    def of(cls, rules: Mapping[Any, Any], what: str) -> StatusRule:
        """The rule of a mapping like ``{429: True, "5xx": True}``; *what* begins the error."""
        codes: dict[int, Any] = {}
        classes: dict[int, Any] = {}
        for key, value in rules.items():
            text = str(key).lower()
            if len(text) == 3 and text[0] in "12345" and text[1:] == "xx":
                classes[int(text[0])] = value
            elif text.isascii() and text.isdigit() and 100 <= int(text) <= 599:
                codes[int(text)] = value
            else:
                raise ValueError(f"{what} must be 100 to 599 or '1xx' to '5xx', got {key!r}")
        return cls(codes, classes)

    def match(self, status: int | None) -> tuple[bool, Any]:
        """Whether there is a value for this status, and the value."""
        if status in self.codes:
            return True, self.codes[status]
        if status is not None and status // 100 in self.classes:
            return True, self.classes[status // 100]
        return False, None

    def values(self) -> tuple[Any, ...]:
        """Every value that ``match`` may return."""
        return (*self.codes.values(), *self.classes.values())


def http_status(exc: BaseException) -> int | None:
    """The status in an error of httpx, requests (``response``), aiohttp or urllib."""
    # Not "if response": a response of requests is false when its status is an error.
    response = safe_getattr(exc, "response")
    for holder, name in (
        (response, "status_code"),
        (response, "status"),
        (exc, "status_code"),
        (exc, "status"),
        (exc, "code"),
    ):
        status = safe_getattr(holder, name)
        if isinstance(status, int) and not isinstance(status, bool):
            return int(status)
    return None

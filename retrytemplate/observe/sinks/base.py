"""The protocol of sinks, patterns of event types, and calls of optional methods."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.validation import check_methods

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.observe.event import Event


class Sink(Protocol):
    """Receives events, in the thread of the call that caused them; no lock is held.

    Optional members: ``emit_many(events)``; ``close(timeout)``, which returns False if events may
    be lost; ``blocking = True``, if it does I/O; ``needs_call = True``, if it reads the context of
    the call: ``install`` then gives it every event there.
    """

    def emit(self, event: Event) -> object:
        """Receive an event."""


def check_sink(name: str, value: Any) -> None:
    """Raise unless *value* is a sink."""
    check_methods(name, value, "emit")
    if is_async(value.emit):
        raise TypeError(f"{name}: emit must be synchronous, got {value!r}")


def check_detached_sink(value: Any) -> None:
    """Raise unless *value* is a sink that may be called in another thread or call."""
    check_sink("sink", value)
    if needs_call(value):
        raise ValueError(
            f"sink must be one that does without the context of the call, got {value!r}"
        )


def blocks(sink: Any) -> bool:
    """Whether the sink does I/O."""
    return bool(getattr(sink, "blocking", False))


def needs_call(sink: Any) -> bool:
    """Whether the sink reads the context of the call, such as its span."""
    return bool(getattr(sink, "needs_call", False))


def close_sink(sink: Any, timeout: float) -> bool:
    """Close the sink if it can be closed; False if events may be lost."""
    close = getattr(sink, "close", None)
    return close is None or close(timeout) is not False


def type_matcher(types: object, name: str = "types") -> Callable[[str], object]:
    """A function that is true for the types that match a pattern, in which ``*`` is any text.

    >>> matches = type_matcher(["*.rejected", "task.cancelled"])
    >>> bool(matches("call.rejected")), bool(matches("call.failed"))
    (True, False)
    """
    patterns: tuple[Any, ...] = ()
    if isinstance(types, Iterable) and not isinstance(types, str):
        patterns = tuple(types)
    if not patterns or not all(isinstance(each, str) and each for each in patterns):
        raise TypeError(f"{name} must be a list or tuple of event types, got {types!r}")
    return re.compile(
        "|".join(".*".join(map(re.escape, each.split("*"))) for each in patterns), re.DOTALL
    ).fullmatch

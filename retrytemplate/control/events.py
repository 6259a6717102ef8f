"""Events of the strategies, and their listeners."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.awaitables import close_unawaited, is_async, is_awaitable
from retrytemplate._internal.validation import check_methods

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CallRejected",
    "ControlEvent",
    "ControlListener",
    "as_listeners",
    "check_listeners",
    "notify_listeners",
]


LOG = logging.getLogger("retrytemplate.control")


@frozen(kw_only=True)
class ControlEvent:
    """Something happened in the control object of this name."""

    name: str


@frozen(kw_only=True)
class CallRejected(ControlEvent):
    """A call was not made.

    :param error: what its caller gets.
    """

    error: Exception


class ControlListener:
    """Told of all that happens in a control object, after it happened, in the calling thread.

    What it raises is logged, and the call goes on.  No lock is held meanwhile.

    >>> class Watch(ControlListener):
    ...     def on_event(self, event):
    ...         print(event.name, type(event).__name__)
    """

    def on_event(self, event: ControlEvent) -> Any:
        """Called with each event."""


def as_listeners(value: Any) -> Any:
    """Them as a tuple; what is no collection is left to the check."""
    return tuple(value) if isinstance(value, Iterable) else value


def check_listeners(name: str, value: Any) -> None:
    """Raise unless each one can be told in a thread."""
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a list or tuple of listeners, got {value!r}")
    for each in value:
        check_methods(f"{name}: each", each, "on_event")
        if is_async(each.on_event):
            raise TypeError(f"{name}: on_event must not have to be awaited, got {each!r}")


def notify_listeners(listeners: Sequence[Any], events: Iterable[ControlEvent]) -> None:
    """Tell each of them everything; what fails is logged."""
    for event in events:
        for listener in listeners:
            try:
                value = listener.on_event(event)
                if is_awaitable(value):
                    close_unawaited(value)
                    LOG.error("%r has to be awaited: nobody does", listener.on_event)
            except Exception:
                LOG.exception("%r failed; the call goes on", listener.on_event)

"""Events of the strategies, and their listeners."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.awaitables import close_unawaited, is_async, is_awaitable
from retrytemplate._internal.validation import check_methods

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from retrytemplate.errors import Rejected

__all__ = [
    "CallRejected",
    "ControlEvent",
    "ControlListener",
    "as_listeners",
    "call_listener",
    "check_listeners",
    "notify_listeners",
    "reject",
]


LOG = logging.getLogger("retrytemplate.control")
FAILED_LISTENER = "the listener %r raised an exception, which is ignored"


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
    """Listener for the events of a strategy, called after each event.

    It is called in the thread that caused the event: a caller's or a background poller's.  An
    exception of a listener is logged and does not affect the call.  No lock is held while a
    listener runs.

    >>> class Watch(ControlListener):
    ...     def on_event(self, event):
    ...         print(event.name, type(event).__name__)
    """

    def on_event(self, event: ControlEvent) -> Any:
        """Called with each event."""


def as_listeners(value: Any) -> Any:
    """The listeners as a tuple; the check rejects other values."""
    return tuple(value) if isinstance(value, Iterable) else value


def check_listeners(name: str, value: Any) -> None:
    """Raise unless each one is a synchronous listener."""
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a list or tuple of listeners, got {value!r}")
    for each in value:
        check_methods(f"{name}: each", each, "on_event")
        if is_async(each.on_event):
            raise TypeError(f"{name}: on_event must be synchronous, got {each!r}")


def notify_listeners(listeners: Sequence[Any], events: Iterable[ControlEvent]) -> None:
    """Call each listener with each event; log a listener that fails."""
    for event in events:
        for listener in listeners:
            call_listener(listener.on_event, event)


def call_listener(
    function: Callable[[Any], Any], argument: Any, message: str = FAILED_LISTENER, *details: object
) -> bool:
    """Call the function of a listener; log its failure, and return whether it succeeded.

    :param message: of the log record, formatted with the function and the *details*.
    """
    try:
        value = function(argument)
        if is_awaitable(value):
            close_unawaited(value)
            raise TypeError(f"{function!r} returned an awaitable; a listener must be synchronous")
    except Exception:
        LOG.exception(message, function, *details)
        return False
    return True


def reject(listeners: Sequence[Any], error: Rejected) -> NoReturn:
    """Notify the listeners of the rejection, and raise it."""
    notify_listeners(listeners, [CallRejected(name=error.name or "", error=error)])
    try:
        raise error
    finally:
        del error  # its traceback holds this frame

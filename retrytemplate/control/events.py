"""Events of the strategies, and their listeners."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.awaitables import close_unawaited, is_async, is_awaitable
from retrytemplate._internal.validation import check_index, check_methods
from retrytemplate.listeners.defaults import (
    follow,
    listener_type,
    settings_version,
    track,
    with_defaults,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    from retrytemplate.errors import Rejected


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


@listener_type
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


class Listeners:
    """The default listeners and an object's own; iterated in this order."""

    __slots__ = ("__weakref__", "_current", "own")

    _current: tuple[Any, ...]

    def __init__(self, own: Iterable[Any]) -> None:
        self.own = list(own)
        follow(self)
        self._on_settings_changed()

    def register(self, listener: Any, index: int | None) -> None:
        """Add a listener, at the end or before position *index* of the object's own."""
        self.own.insert(len(self.own) if index is None else index, listener)
        self._on_settings_changed()

    def _on_settings_changed(self) -> None:
        version, own = None, ()
        # Again, if another thread has changed one of both meanwhile.
        while version is not settings_version() or len(own) != len(self.own):
            version, own = settings_version(), tuple(self.own)
            self._current = tuple(with_defaults(own, ControlListener))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._current)

    def __len__(self) -> int:
        return len(self._current)

    def __repr__(self) -> str:
        return repr(tuple(self.own))


class Observable:
    """A component with listeners, which ``register_listener`` adds."""

    __slots__ = ()

    if TYPE_CHECKING:
        listeners: Any

    def register_listener(self, listener: Any, index: int | None = None) -> None:
        """Add a listener, at the end or before position *index* of the object's own.

        :param listener: an object with a synchronous ``on_event(event)``.
        :param index: its place in the order; None: the end.
        :raises TypeError: the listener has no such method, or the index is not an int.
        """
        check_index("index", index)
        check_listeners("listener", Listeners([listener]))
        self.listeners.register(listener, index)

    def _track(self) -> None:
        """Make it one of the live components, once it is complete."""
        track(self)


def as_listeners(value: Any) -> Any:
    """The listeners as ``Listeners`` of a new object; the check rejects other values."""
    if isinstance(value, Listeners):  # of an object that is copied
        return Listeners(value.own)
    return Listeners(value) if isinstance(value, Iterable) else value


def to_listeners(value: Any) -> Listeners:
    """The listeners of a new object, checked."""
    made: Listeners = as_listeners(value)
    check_listeners("listeners", made)
    return made


def check_listeners(name: str, value: Any) -> None:
    """Raise unless each one is a synchronous listener."""
    if not isinstance(value, Listeners):
        raise TypeError(f"{name} must be a list or tuple of listeners, got {value!r}")
    for each in value.own:
        check_methods(f"{name}: each", each, "on_event")
        if is_async(each.on_event):
            raise TypeError(f"{name}: on_event must be synchronous, got {each!r}")


def notify_listeners(listeners: Iterable[Any], events: Iterable[Any]) -> None:
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


def reject(listeners: Iterable[Any], error: Rejected) -> NoReturn:
    """Notify the listeners of the rejection, and raise it."""
    notify_listeners(listeners, [CallRejected(name=error.name or "", error=error)])
    try:
        raise error
    finally:
        del error  # its traceback holds this frame

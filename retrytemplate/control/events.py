"""What control objects tell their listeners, and how: nothing a listener does changes a call."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.awaitables import close_unawaited, is_async, is_awaitable
from retrytemplate._internal.validation import has_methods

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CallRejected",
    "CircuitChanged",
    "CircuitStoreBack",
    "CircuitStoreLost",
    "ControlEvent",
    "ControlListener",
    "LateResult",
    "NestedRetry",
    "check_listeners",
    "listeners_of",
    "tell",
]

LOG = logging.getLogger("retrytemplate.control")


@frozen(kw_only=True)
class ControlEvent:
    """Something happened in the control object of this name."""

    name: str


@frozen(kw_only=True)
class CircuitChanged(ControlEvent):
    """A circuit breaker went from one state to another.

    :param generation: the number of changes so far.
    :param by: who did it by hand, and ``reason``, why; None where calls or time did it.
    """

    before: str
    after: str
    generation: int
    by: str | None = None
    reason: str | None = None


@frozen(kw_only=True)
class CallRejected(ControlEvent):
    """A call was not made.

    :param error: what its caller gets.
    """

    error: Exception


@frozen(kw_only=True)
class LateResult(ControlEvent):
    """A call ended whose state of the circuit is over: it was not counted.

    :param verdict: what it would have been.
    """

    verdict: str


@frozen(kw_only=True)
class CircuitStoreLost(ControlEvent):
    """The store of a shared circuit is away, or what it holds cannot be used.

    :param error: why.
    """

    error: Exception


@frozen(kw_only=True)
class CircuitStoreBack(ControlEvent):
    """The store of a shared circuit is there again, and in use.

    :param lost_for: seconds since it was lost.
    """

    lost_for: float


@frozen(kw_only=True)
class NestedRetry(ControlEvent):
    """A retry was about to be made inside the retries of others, and is one too many.

    :param template: whose it is, by name.
    :param depth: how many templates around it may retry.
    :param retry: its number, from 1.
    :param suppressed: whether it was refused; False: it was only to be reported.
    """

    template: str | None
    depth: int
    retry: int
    suppressed: bool


class ControlListener:
    """Told of all that happens in a control object, after it happened, in the calling thread.

    What it raises is logged, and the call goes on.  No lock is held meanwhile.

    >>> class Watch(ControlListener):
    ...     def on_event(self, event):
    ...         print(event.name, type(event).__name__)
    """

    def on_event(self, event: ControlEvent) -> Any:
        """Called with each event."""


def listeners_of(value: Any) -> Any:
    """Them as a tuple; what is no collection is left to the check."""
    return tuple(value) if isinstance(value, Iterable) else value


def check_listeners(name: str, value: Any) -> None:
    """Raise unless each one can be told in a thread."""
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a list or tuple of listeners, got {value!r}")
    for each in value:
        has_methods(f"{name}: each", each, "on_event")
        if is_async(each.on_event):
            raise TypeError(f"{name}: on_event must not have to be awaited, got {each!r}")


def tell(listeners: Sequence[Any], events: Iterable[ControlEvent]) -> None:
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

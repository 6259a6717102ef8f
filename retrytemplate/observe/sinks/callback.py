"""Events as calls of a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.validation import check_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.observe.event import Event


class CallbackSink:
    """Calls a function with each event: e-mail, chat, pager.

    :param function: a plain function of the event.  It is taken to do I/O.

    >>> from retrytemplate.observe import CallbackSink, FilteredSink
    >>> FilteredSink(CallbackSink(print), types=("alert.*",)).blocking
    True
    """

    blocking = True

    def __init__(self, function: Callable[[Event], object]) -> None:
        check_function("function", function)
        self.function = function

    def emit(self, event: Event) -> None:
        """Call the function with the event."""
        self.function(event)

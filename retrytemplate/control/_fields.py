"""Settings that the strategies share."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from retrytemplate._internal.validation import checked_by
from retrytemplate.clock import SystemClock, check_clock
from retrytemplate.control.events import Listeners, Observable, as_listeners, check_listeners


def _own(listeners: Listeners) -> tuple[Any, ...]:
    return tuple(listeners.own)


@frozen(eq=False)
class HasListeners(Observable):
    """Adds the setting ``listeners``."""

    listeners: Any = field(
        default=(),
        kw_only=True,
        converter=as_listeners,
        validator=checked_by(check_listeners),
        repr=False,
        eq=_own,
    )


@frozen(eq=False)
class Observed(HasListeners):
    """Adds the settings ``listeners`` and ``clock``."""

    clock: Any = field(
        factory=SystemClock, kw_only=True, validator=checked_by(check_clock), repr=False
    )

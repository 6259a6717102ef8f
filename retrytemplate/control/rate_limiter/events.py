"""Events of rate limiters and their stores."""

from __future__ import annotations

from attrs import frozen

from retrytemplate.control.events import ControlEvent


@frozen(kw_only=True)
class CallDelayed(ControlEvent):
    """A call waited for its permits, and is made now.

    :param wait: the seconds that it waited.
    """

    wait: float


@frozen(kw_only=True)
class RateLimitStoreLost(ControlEvent):
    """The store of a shared rate limiter is unavailable, or its record cannot be used.

    :param error: why.
    """

    error: Exception


@frozen(kw_only=True)
class RateLimitStoreRecovered(ControlEvent):
    """The store of a shared rate limiter is available again, and in use.

    :param outage: seconds since it was lost.
    """

    outage: float

"""Events of a kill switch for the listeners of its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from retrytemplate.control.events import ControlEvent

if TYPE_CHECKING:
    from retrytemplate.control.switch.model import AuditRecord


@frozen(kw_only=True)
class SwitchChanged(ControlEvent):
    """A scope was stopped, resumed or changed by time, in this process or another.

    :param record: who, what and why.
    """

    record: AuditRecord


@frozen(kw_only=True)
class SwitchStoreLost(ControlEvent):
    """The store is unavailable or unreadable; the last known state holds.

    :param age: seconds since the store was last read; None: it never was.
    :param error: the error of the store.
    """

    age: float | None
    error: Exception


@frozen(kw_only=True)
class SwitchStoreRecovered(ControlEvent):
    """The store is available again.

    :param outage: seconds since it was found lost.
    """

    outage: float

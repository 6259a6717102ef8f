"""Events: one frozen object for each decision of an execution, a component or an operator."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from retrytemplate._internal.values import JSON

SPECIFICATION = "1.0"  # of CloudEvents
_ids: tuple[str, count[int]]  # the random digits of this process, and the numbers


def new_id() -> str:
    """32 hexadecimal digits: 16 random ones of this process, and 16 that count."""
    drawn, numbers = _ids
    return f"{drawn}{next(numbers):016x}"


def check_data(data: Any) -> None:
    """Raise unless *data* can be written as JSON: one event would fail a batch of a sink."""
    allowed = "data must be a mapping of str to JSON values"
    if not isinstance(data, Mapping) or not all(isinstance(each, str) for each in data):
        raise TypeError(f"{allowed}, got {data!r}")
    try:
        json.dumps(dict(data), default=str)
    except Exception as error:
        raise TypeError(f"{allowed}: {error}") from error


def _draw() -> None:
    global _ids
    _ids = os.urandom(8).hex(), count()


_draw()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_draw)


@frozen(kw_only=True, slots=False)  # with slots it takes twice the time to make one
class Event:
    """One decision: a retry, a rejection, a change of state, a failure.

    :param type: as in the table of event types, ``EVENT_TYPES``, or one of your own.
    :param subject: name of the template, component or step; without a name the function.
    :param severity: a level of ``logging``.
    :param data: the values of this type, JSON; for a type of the table its keys.
    :param time: seconds since the epoch.
    :param id: 32 hexadecimal digits, unique among processes.
    :param execution_id: equal for all events of an execution, and for all deliveries of a key.
    :param root_id: that of the outermost execution around it.
    :param traceparent: the W3C trace context, if OpenTelemetry is loaded.
    :param correlation: request id, user and the like.

    >>> event = Event(type="shop.refund", subject="order-17", severity=20, time=0.0)
    >>> event.to_cloudevent("/shop")["type"]
    'retrytemplate.shop.refund'
    """

    type: str
    subject: str
    severity: int
    data: Mapping[str, JSON] = field(factory=dict)
    time: float
    id: str = field(factory=new_id)
    execution_id: str | None = None
    root_id: str | None = None
    traceparent: str | None = None
    correlation: Mapping[str, str] = field(factory=dict)

    def to_cloudevent(self, source: str) -> dict[str, Any]:
        """The event in the JSON format of CloudEvents 1.0, as a dict.

        Extension attributes: ``severitynumber`` and ``severitytext`` (as in OpenTelemetry),
        ``executionid``, ``rootid`` and ``traceparent``.  A correlation is in ``data``.

        :param source: a URI that identifies the program.
        """
        made = {
            "specversion": SPECIFICATION,
            "id": self.id,
            "source": source,
            "type": f"retrytemplate.{self.type}",
            "subject": self.subject,
            "time": _rfc3339(self.time),
            "datacontenttype": "application/json",
            "severitynumber": min(24, max(1, round(self.severity * 0.4 + 1))),
            "severitytext": _level_name(self.severity),
            "executionid": self.execution_id,
            "rootid": self.root_id,
            "traceparent": self.traceparent,
        }
        data = dict(self.data)
        if self.correlation:
            data["correlation"] = dict(self.correlation)
        return {name: value for name, value in made.items() if value is not None} | {"data": data}

    @classmethod
    def from_cloudevent(cls, made: Mapping[str, Any]) -> Event:
        """The event of a dict that ``to_cloudevent`` has returned.

        :raises ValueError: the dict is no such event.

        >>> event = Event(type="shop.refund", subject="order-17", severity=20, time=17.5)
        >>> Event.from_cloudevent(event.to_cloudevent("/shop")) == event
        True
        """
        try:
            data = dict(made["data"])
            return cls(
                type=made["type"].removeprefix("retrytemplate."),
                subject=made["subject"],
                severity=_level_number(made["severitytext"]),
                time=datetime.fromisoformat(made["time"]).timestamp(),
                id=made["id"],
                execution_id=made.get("executionid"),
                root_id=made.get("rootid"),
                traceparent=made.get("traceparent"),
                correlation=data.pop("correlation", {}),
                data=data,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"made must be a CloudEvent of this library, got {made!r}") from error


def _rfc3339(seconds: float) -> str | None:
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # no year that a calendar has
        return None
    return f"{when.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _level_number(name: str) -> int:
    import logging

    number = logging.getLevelNamesMapping().get(name)
    return int(name.removeprefix("Level ")) if number is None else number


def _level_name(severity: int) -> str:
    import logging

    return logging.getLevelName(severity)

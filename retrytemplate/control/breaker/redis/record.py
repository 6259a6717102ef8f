"""Record of a circuit in Redis: strict decoding, and conversion to a state machine."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen
from attrs.validators import ge, in_

from retrytemplate.control.breaker.backend import GAUGES
from retrytemplate.control.breaker.state_machine import (
    REJECTING,
    CircuitStateMachine,
    ManualOverride,
)
from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    from retrytemplate.control.breaker.state_machine import CircuitConfig, State

FORCED_STATES = ("forced_open", "disabled", "metrics_only")
FIELDS = 16
MICROSECONDS = 1_000_000


def _seconds(text: str) -> float:
    return int(text) / MICROSECONDS


def _seconds_or_none(text: str) -> float | None:
    return _seconds(text) if text else None


def _flag(text: str) -> bool:
    return int(text) == 1


@frozen
class CircuitRecord:
    """A circuit as the store had it at a moment; its fields are the texts of a reply, in order.

    :param now: that moment; ``since`` and *until*: when the state began, and when it ends; all on
        the store's clock, in seconds.
    :param epoch: text that differs after each change: ``created`` and ``generation``.
    :param probes: held permits; *granted*: whether the requested one is among them.
    :param late: whether the reported call was of another era.
    :param expired: permits that were found to be over.
    :param by: who put it into the state, where calls or time did not, and why.
    """

    now: float = field(converter=_seconds)
    created: str
    generation: int = field(converter=int)
    state: State = field(validator=in_(GAUGES))
    since: float = field(converter=_seconds)
    until: float | None = field(converter=_seconds_or_none)
    opened: int = field(converter=int, validator=ge(0))
    successes: int = field(converter=int)
    calls: int = field(converter=int)
    failures: int = field(converter=int)
    slow: int = field(converter=int)
    probes: int = field(converter=int)
    granted: bool = field(converter=_flag)
    late: bool = field(converter=_flag)
    expired: int = field(converter=int)
    by: str | None
    reason: str | None

    @property
    def epoch(self) -> str:
        return f"{self.created}.{self.generation}"

    @property
    def gauge(self) -> int:
        """The state as a number."""
        return GAUGES[self.state]

    @property
    def remaining(self) -> float | None:
        """Seconds until the state ends; None: until an operator ends it."""
        return None if self.until is None else max(0.0, self.until - self.now)

    @property
    def retry_after(self) -> float | None:
        """Seconds until a call may be admitted; None: unknown."""
        return self.remaining if self.state in REJECTING else None

    @property
    def allows_fast_path(self) -> bool:
        """Whether a success in time changes nothing but the number of calls."""
        return not (self.failures or self.slow)

    @property
    def manual(self) -> ManualOverride | None:
        """The operator and the reason of a forced state; else None."""
        if self.by is None and self.reason is None and self.state not in FORCED_STATES:
            return None
        return ManualOverride(self.by, self.reason)


@define
class _StoredCounts:
    """Counts of the store, read as a window."""

    calls: int
    failures: int
    slow: int
    fast_path_until: float = -inf


def to_state_machine(rules: CircuitConfig, record: CircuitRecord) -> CircuitStateMachine:
    """The state machine of a record, to apply the rules to."""
    circuit = CircuitStateMachine(
        rules,
        state=record.state,
        generation=record.generation,
        until=inf if record.until is None else record.until,
        consecutive_opens=record.opened,
        successes=record.successes,
        half_open_permits=dict.fromkeys(range(record.probes), inf),  # the store has their names
        manual=record.manual,
    )
    stored: Any = _StoredCounts(record.calls, record.failures, record.slow)
    circuit.counter = stored
    circuit.closed = None
    return circuit


def decode_record(name: str, reply: Any) -> CircuitRecord:
    """Decode a reply of the store.

    :raises CircuitStoreError: the reply is not a circuit.
    """
    try:
        *texts, note = reply.decode().split("\n", FIELDS - 1)
        fields: list[Any] = [*texts, *_decode_note(note)]
        return CircuitRecord(*fields)
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise CircuitStoreError(
            f"the record of the circuit {name!r} is not a circuit, or has another version"
        ) from None


def encode_note(by: str | None, reason: str | None) -> str:
    """The operator and the reason as stored."""
    import json

    return "" if by is None and reason is None else json.dumps([by, reason])


def _decode_note(text: str) -> tuple[str | None, str | None]:
    if not text:
        return None, None
    import json

    by, reason = json.loads(text)
    for each in (by, reason):
        if not isinstance(each, str | None):
            raise TypeError(each)
    return by, reason

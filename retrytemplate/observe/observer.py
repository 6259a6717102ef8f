"""The listener that turns the hooks of all objects into events."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from retrytemplate._engine.context import current_context
from retrytemplate._internal.cancel_reason import CancelReason
from retrytemplate._internal.formatting import key_text
from retrytemplate._internal.validation import (
    check_at_least_one,
    check_choice,
    check_flag,
    check_function,
    check_int,
    check_text,
    read_seconds,
    to_tuple,
)
from retrytemplate.batch.events import Event as StepEvent
from retrytemplate.batch.events import StepListener
from retrytemplate.clock import given_or_system
from retrytemplate.control.events import ControlListener
from retrytemplate.listeners.base import RetryListener
from retrytemplate.listeners.logging import (
    end_event,
    overrun_event,
    retry_event,
    store_error_event,
)
from retrytemplate.observe.component_events import (
    cancellation_level,
    convert,
    convert_step_event,
)
from retrytemplate.observe.event import Event, check_data, new_id
from retrytemplate.observe.event_types import EVENT_TYPES
from retrytemplate.observe.failure_log import FailureLog
from retrytemplate.observe.instruments.base import MAX_LABEL_VALUES
from retrytemplate.observe.measured_components import measure_event, measure_step_event
from retrytemplate.observe.measured_executions import (
    measure_attempt,
    measure_deadline,
    measure_end,
    measure_failure,
    measure_retry,
)
from retrytemplate.observe.measurements import Measurements
from retrytemplate.observe.redaction import REDACT, redact_text
from retrytemplate.observe.sinks.base import check_sink, close_sink
from retrytemplate.observe.sinks.delivery import Delivery, report_losses
from retrytemplate.observe.tasks import TaskReports, deadline_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from retrytemplate._engine.context import RetryContext
    from retrytemplate._engine.deadline import Deadline
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.errors import AttemptLostError
    from retrytemplate.observe.instruments.base import Metrics
    from retrytemplate.observe.sinks.base import Sink

LOG = logging.getLogger("retrytemplate.observe")
ID = "retrytemplate.id"
HASH_KEY = "RETRYTEMPLATE_HASH_KEY"
RANDOM_KEY = os.urandom(32)
"""The key of a process and of the children that it forks."""
LEVELS: dict[str, int] = {
    name: logging.getLevelNamesMapping()[each.severity]
    for name, each in EVENT_TYPES.items()
    if "/" not in each.severity
}
"""The severities that the type decides alone."""
UNCORRELATED = "correlation raised an exception (%d so far); the event has none"


class Observer(RetryListener, ControlListener, StepListener, TaskReports):
    """Turns the hooks of templates, control objects, steps and workers into events for sinks.

    It is a listener of one object, or of all as a default listener: ``install`` makes it one.

    :param sinks: receive the events, in the thread of the call.
    :param metrics: receive the measurements of ``INSTRUMENTS``, in the thread of the call.
    :param max_label_values: different values of one label of one metric, at least 1; default 200.
        For metrics without a limit of their own.
    :param deadlines: whether the metrics get the time that is left in the deadline at the start of
        each attempt; default False.
    :param correlation: returns the request id, user and the like of the present call; its
        exceptions are logged, and the event has none.
    :param redact: changes the texts of errors and reasons before they leave the process; None: they
        are left as they are.
    :param keys: ``"plain"``: events have the keys; ``"hash"``: an HMAC of them, with the key of the
        environment variable ``RETRYTEMPLATE_HASH_KEY`` or a random one of the process;
        ``"omit"``: None.
    :param clock: gives the time of events; None: the system's.
    :raises TypeError: an argument has another type.
    :raises ValueError: ``keys`` is another text, or ``max_label_values`` is below 1.

    Without ``metrics`` a success at first attempt causes no call.  An exception in a sink or in
    metrics is logged at most once per minute, and changes no call.

    >>> from retrytemplate import RetryTemplate
    >>> from retrytemplate.observe import MemorySink, Observer
    >>> kept = MemorySink()
    >>> template = RetryTemplate(name="parse", listeners=[Observer(sinks=[kept])])
    >>> template.outcome(int, "x").ok
    False
    >>> [event.type for event in kept.events]
    ['retry.scheduled', 'retry.scheduled', 'call.failed']
    """

    name = "observer"
    needs_start_time = False

    def __init__(
        self,
        *,
        sinks: Iterable[Sink] = (),
        metrics: Iterable[Metrics] = (),
        correlation: Callable[[], Mapping[str, str]] | None = None,
        redact: Callable[[str], str] | None = REDACT,
        keys: Literal["plain", "hash", "omit"] = "plain",
        max_label_values: int = MAX_LABEL_VALUES,
        deadlines: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.sinks = to_tuple("sinks", sinks)
        for sink in self.sinks:
            check_sink("sinks: each", sink)
        for name, function in (("correlation", correlation), ("redact", redact)):
            if function is not None:
                check_function(name, function)
        check_choice("keys", keys, "plain", "hash", "omit")
        self._deliveries = tuple(map(Delivery, self.sinks))
        check_at_least_one("max_label_values", max_label_values)
        check_flag("deadlines", deadlines)
        self._measurements = Measurements(metrics, max_label_values)
        self.metrics = self._measurements.metrics
        if self._measurements:
            # Hooks of this object alone: without metrics a success costs nothing.
            vars(self).update(
                needs_start_time=True, on_first_success=self._measurements.on_first_success
            )
            for delivery in self._deliveries:
                report_losses(delivery, self._count_loss)
            if deadlines:
                vars(self)["before_attempt"] = partial(measure_deadline, self._measurements)
        self._correlation = correlation
        self._uncorrelated = FailureLog(UNCORRELATED)
        self._redact = redact
        self._keys = keys
        self._hash_key = os.environ.get(HASH_KEY, "").encode() or RANDOM_KEY
        self._clock = given_or_system(clock)
        self._is_used = bool(self._deliveries or self._measurements)
        self.writes_log = any(getattr(_innermost(each), "writes_log", False) for each in self.sinks)

    def emit(
        self,
        type: str,
        subject: str,
        *,
        severity: int = logging.INFO,
        data: Mapping[str, Any] = {},  # it is not changed
    ) -> None:
        """Give an event of your own to the sinks.

        :param type: such as ``"shop.refund"``.
        :param subject: of the event, such as an order.
        :param severity: a level of ``logging``.
        :param data: JSON values; they are not redacted.
        :raises TypeError: an argument has another type.
        """
        check_text("type", type)
        check_text("subject", subject)
        check_int("severity", severity, 0)
        check_data(data)
        self._send(type, subject, dict(data), severity, current_context())

    def shutdown(self, timeout: Seconds = 5.0) -> bool:
        """Close the sinks, which write their rest; False if events may be lost.

        :param timeout: seconds, or a ``timedelta``, to wait for the sinks, for all of them; at
            least 0; default 5.
        """
        until = self._clock.monotonic() + read_seconds("timeout", timeout)
        is_complete = True
        for sink in self.sinks:
            is_complete &= self._closed(sink, max(0.0, until - self._clock.monotonic()))
        return is_complete

    def _closed(self, sink: Sink, timeout: float) -> bool:
        try:
            return close_sink(sink, timeout)
        except Exception:
            LOG.exception("the sink %r could not be closed", sink)
            return False

    def _count_loss(self, metric: str, sink: str, number: int) -> None:
        self._measurements.add(metric, sink, amount=number)

    # Hooks of executions.

    def on_attempt_lost(self, context: RetryContext, error: AttemptLostError) -> None:
        data = {"key": key_text(context.key), "attempt": context.attempt, "worker": error.worker}
        measure_attempt(self._measurements, "attempt.lost", context)
        self._report("attempt.lost", {"operation": context.operation, **data}, context)

    def on_overrun(self, context: RetryContext, limit: float, elapsed: float) -> None:
        measure_attempt(self._measurements, "attempt.overruns", context)
        self._report(*overrun_event(context, limit, elapsed), context)

    def on_error(self, context: RetryContext, exception: BaseException) -> None:
        if self._measurements:
            measure_failure(self._measurements, context, exception)
        # The last hook before the record of a key is written for the next delivery.
        if self._deliveries and context.key is not None:
            _id_of(context)

    def on_backoff(self, context: RetryContext, delay: float) -> None:
        event = retry_event(context, delay) if self._is_used else None
        if event is not None:
            measure_retry(self._measurements, context, event[0], delay)
            self._report(*event, context)

    def on_store_error(self, context: RetryContext, exception: BaseException) -> None:
        self._report(*store_error_event(context, exception), context)

    def on_end(self, context: RetryContext, exception: BaseException | None) -> None:
        if not self._is_used:
            return
        event = end_event(context, exception)
        measure_end(self._measurements, context, exception, event)
        if event is None:
            return
        kind, data = event
        if kind == "call.cancelled":
            reason = _cancel_reason(exception)
            made = {**data, "reason": reason}
            self._report(kind, made, context, cancellation_level(reason))
        else:
            self._report(kind, data, context)

    # Hooks of control objects, workers and steps.

    def on_event(self, event: Any) -> None:
        """Called with each event of a control object, a worker or a step."""
        is_of_step = isinstance(event, StepEvent)
        if self._measurements:
            (measure_step_event if is_of_step else measure_event)(self._measurements, event)
        if not self._deliveries:
            return
        made = convert_step_event(event) if is_of_step else convert(event)
        if made is None:
            return
        kind, severity, data = made
        if data.get("reason"):  # written by an operator, or the text of an error
            data["reason"] = redact_text(str(data["reason"]), self._redact)
        subject = event.step if is_of_step else event.name or data.get("operation")
        context = current_context()
        subject = subject or kind.partition(".")[0]
        deadline = getattr(event, "deadline", None)
        self._report(kind, data, context, severity, subject, deadline)

    # Events.

    def _report(
        self,
        kind: str,
        data: Mapping[str, Any],
        context: RetryContext | None,
        severity: int | None = None,
        subject: str | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Give an event of the table to the sinks."""
        if not self._deliveries:
            return
        shown = dict(data)
        if shown.get("key") is not None:
            shown["key"] = self._shown_key(str(shown["key"]))
        if shown.get("error_message"):
            shown["error_message"] = redact_text(shown["error_message"], self._redact)
        if shown.get("problems"):
            shown["problems"] = [redact_text(each, self._redact) for each in shown["problems"]]
        if "remaining" in EVENT_TYPES[kind].keys:
            shown |= deadline_data(deadline, self._clock.time())
        if subject is None and context is not None:
            subject = context.name or context.operation
        self._send(
            kind, str(subject), shown, LEVELS[kind] if severity is None else severity, context
        )

    def _send(
        self,
        kind: str,
        subject: str,
        data: Mapping[str, Any],
        severity: int,
        context: RetryContext | None,
    ) -> None:
        if self._deliveries:
            self._deliver(self._event(kind, subject, data, severity, context))

    def _event(
        self,
        kind: str,
        subject: str,
        data: Mapping[str, Any],
        severity: int,
        context: RetryContext | None,
    ) -> Event:
        return Event(
            type=kind,
            subject=subject,
            severity=severity,
            data=data,
            time=self._clock.time(),
            execution_id=None if context is None else _id_of(context),
            root_id=None if context is None else _id_of(_outermost(context)),
            traceparent=_traceparent(),
            correlation=self._correlated(),
        )

    def _deliver(self, event: Event) -> None:
        for delivery in self._deliveries:
            delivery.emit(event)

    def _shown_key(self, key: str) -> str | None:
        if self._keys == "omit":
            return None
        if self._keys == "plain":
            return key
        return hmac.new(self._hash_key, key.encode(errors="replace"), hashlib.sha256).hexdigest()

    def _correlated(self) -> Mapping[str, str]:
        if self._correlation is None:
            return {}
        try:
            return {str(name): value for name, value in self._correlation().items()}
        except Exception:
            self._uncorrelated.add()
            return {}

    def __repr__(self) -> str:
        return f"<Observer sinks={list(self.sinks)!r}>"


def _id_of(context: RetryContext) -> str:
    """The id of an execution, which is kept with its key."""
    made: str = context.attributes.get(ID) or context.attributes.setdefault(ID, new_id())
    return made


def _outermost(context: RetryContext) -> RetryContext:
    outer = context.parent
    while outer is not None:
        context, outer = outer, outer.parent
    return context


def _innermost(sink: Any) -> Any:
    """The sink that others pass their events to."""
    while hasattr(sink, "sink"):
        sink = sink.sink
    return sink


def _cancel_reason(error: BaseException | None) -> str:
    """The reason of a cancellation, if the workers package or a time limit knows it."""
    workers = sys.modules.get("retrytemplate.workers.supervisor.cancellation")
    reason = None if workers is None else workers.known_reason()
    arguments = getattr(error, "args", ())
    if reason is None and arguments and isinstance(arguments[0], CancelReason):
        reason = arguments[0]
    return str(reason or CancelReason.MANUAL)


def _traceparent() -> str | None:
    """The W3C trace context of the present span, if the program uses OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"

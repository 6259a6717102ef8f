"""Events as span events of OpenTelemetry, and attributes of the span."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import printable
from retrytemplate._internal.imports import extra
from retrytemplate.observe.event_types import OUTCOMES

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from retrytemplate.observe.event import Event

PREFIX = "retrytemplate."
STOP_REASON = f"{PREFIX}stop_reason"


class SpanSink:
    """Adds each event to the current span of OpenTelemetry, if that span is recorded.

    The span event is ``retrytemplate.<type>``.  Its attributes are the data of the event, such as
    ``retrytemplate.attempt`` and ``error.type``, and ``retrytemplate.subject``, ``.execution_id``
    and ``.root_id``.  At its end an execution sets attributes of the span:
    ``retrytemplate.template``, ``.attempts``, ``.outcome`` and ``.stop_reason``; of nested
    executions the outermost.  A success at first attempt has no event and sets none.

    The sink must be called in the thread or task of the call: it cannot be in a ``BufferedSink``.

    :raises MissingExtraError: ``opentelemetry-api`` is not installed: the extra ``otel`` has it.

    >>> from opentelemetry.sdk.trace import TracerProvider
    >>> from retrytemplate import RetryTemplate
    >>> from retrytemplate.observe import Observer, SpanSink
    >>> template = RetryTemplate(name="parse", listeners=[Observer(sinks=[SpanSink()])])
    >>> with TracerProvider().get_tracer("shop").start_as_current_span("order") as span:
    ...     outcome = template.outcome(int, "x")
    >>> [event.name for event in span.events][-1], span.attributes["retrytemplate.outcome"]
    ('retrytemplate.call.failed', 'failed')
    """

    needs_call = True

    def __init__(self) -> None:
        with extra("otel", "a SpanSink"):
            from opentelemetry.trace import get_current_span
        self._current_span = get_current_span

    def emit(self, event: Event) -> None:
        """Add the event to the current span."""
        span = self._current_span()
        if not span.is_recording():
            return
        span.add_event(f"{PREFIX}{event.type}", _attributes(event))
        if event.type in OUTCOMES and event.execution_id == event.root_id:
            ended = _end_attributes(event)
            if STOP_REASON in (getattr(span, "attributes", None) or ()):
                ended.setdefault(STOP_REASON, "")  # that of an earlier execution in the span
            span.set_attributes(ended)


def _attributes(event: Event) -> dict[str, AttributeValue]:
    values: dict[str, Any] = {
        "subject": event.subject,
        "execution_id": event.execution_id,
        "root_id": event.root_id,
        **event.data,
    }
    return {
        "error.type" if name == "error_type" else f"{PREFIX}{name}": _attribute_value(value)
        for name, value in values.items()
        if value is not None
    }


def _attribute_value(value: Any) -> AttributeValue:
    """A number as it is, a text that can be exported, everything else as JSON."""
    if isinstance(value, str):
        return printable(value)
    return value if isinstance(value, bool | int | float) else json.dumps(value, default=str)


def _end_attributes(event: Event) -> dict[str, AttributeValue]:
    data: Any = event.data
    ended: dict[str, AttributeValue] = {
        f"{PREFIX}template": printable(event.subject),
        f"{PREFIX}attempts": data.get("attempts", data.get("attempt", 0)),  # 0: rejected
        f"{PREFIX}outcome": OUTCOMES[event.type],
    }
    # The reason of a cancellation is no stop reason.
    if data.get("reason") is not None and event.type != "call.cancelled":
        ended[STOP_REASON] = data["reason"]
    return ended

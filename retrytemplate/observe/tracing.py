"""Spans of attempts, and links between the spans of the deliveries of a key."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.context import current_context
from retrytemplate._internal.failure_text import message_of, type_name
from retrytemplate._internal.formatting import operation_of, printable
from retrytemplate._internal.imports import extra
from retrytemplate._internal.validation import check_flag, check_methods
from retrytemplate.control._strategy import StrategyBase, apply, apply_async, returns_result
from retrytemplate.listeners.base import RetryListener
from retrytemplate.observe.redaction import REDACT, redact_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import ParamSpec, TypeVar

    from opentelemetry.trace import Tracer, TracerProvider

    from retrytemplate._engine.context import RetryContext

    P = ParamSpec("P")
    T = TypeVar("T")

TRACEPARENT = "retrytemplate.traceparent"


class Tracing(RetryListener):
    """Links the spans of the deliveries of a key, and makes a span of each attempt.

    As a listener of a stateful template it links the current span of a delivery to that of the
    previous one, which may have run in another process.  The record of the key has the trace
    context, as the attribute ``retrytemplate.traceparent``.

    ``tracing.attempt`` is a strategy for the innermost place of a pipeline: a span
    ``<template> attempt`` around each call of the function; without a name of the template the
    function's.

    :param tracer_provider: of OpenTelemetry, for the spans of attempts; None: the global one.
    :param links: whether deliveries are linked; default True.
    :raises TypeError: ``tracer_provider`` has no method ``get_tracer``, or ``links`` is no bool.
    :raises MissingExtraError: ``opentelemetry-api`` is not installed: the extra ``otel`` has it.

    >>> from opentelemetry.sdk.trace import TracerProvider
    >>> from retrytemplate import RetryTemplate
    >>> from retrytemplate.control import Pipeline
    >>> from retrytemplate.observe import Tracing
    >>> tracing = Tracing(TracerProvider())
    >>> charge = Pipeline(RetryTemplate(name="charge"), tracing.attempt)
    >>> charge.call(int, "17")
    17
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, links: bool = True) -> None:
        if tracer_provider is not None:
            check_methods("tracer_provider", tracer_provider, "get_tracer")
        with extra("otel", "Tracing"):
            from opentelemetry.trace import get_current_span, get_tracer
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        check_flag("links", links)
        self.links = links
        self.attempt = AttemptSpans(get_tracer("retrytemplate", tracer_provider=tracer_provider))
        self._current_span = get_current_span
        self._propagator = TraceContextTextMapPropagator()

    def open(self, context: RetryContext) -> None:
        if not self.links or context.key is None:
            return
        stored = context.attributes.get(TRACEPARENT)
        if not isinstance(stored, str):
            return
        span = self._current_span()
        carried = self._propagator.extract({"traceparent": stored})
        previous = self._current_span(carried).get_span_context()
        # Deliveries in one span have nothing to link.
        if previous.span_id != span.get_span_context().span_id:
            span.add_link(previous)

    def on_error(self, context: RetryContext, exception: BaseException) -> None:
        if not self.links or context.key is None:
            return
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        if carrier:  # without a span the earlier one stays
            context.attributes[TRACEPARENT] = carrier["traceparent"]

    def __repr__(self) -> str:
        return f"<Tracing links={self.links}>"


class AttemptSpans(StrategyBase):
    """A strategy that makes a span of each call: ``Tracing.attempt``."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in a span."""
        with self._span(fn):
            return apply(fn, *args, **kwargs)

    @returns_result
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, in a span, and await it."""
        with self._span(fn):
            return await apply_async(fn, *args, **kwargs)

    def describe(self) -> str:
        """The effect of the strategy on a call."""
        return "each call has a span of OpenTelemetry"

    @contextmanager
    def _span(self, fn: Callable[..., Any]) -> Iterator[None]:
        context = current_context()
        name = (None if context is None else context.name) or operation_of(fn)
        with self._tracer.start_as_current_span(
            f"{printable(name)} attempt",
            attributes=None if context is None else {"retrytemplate.attempt": context.attempt},
            record_exception=False,  # with the stack trace, whose messages are not redacted
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as exc:
                span.set_attribute("error.type", printable(type_name(exc)))
                if isinstance(exc, Exception):  # a cancellation is no error of the attempt
                    self._set_failed(span, exc)
                raise

    def _set_failed(self, span: Any, error: Exception) -> None:
        from opentelemetry.trace import Status, StatusCode

        text = printable(redact_text(message_of(error), REDACT))
        span.set_status(Status(StatusCode.ERROR, text))

    def __repr__(self) -> str:
        return "<Tracing.attempt>"

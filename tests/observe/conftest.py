"""Spans of OpenTelemetry, kept in memory."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """A provider of spans, and those that have ended."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def span(self, name="request"):
        """A span around a block."""
        return self.provider.get_tracer("shop").start_as_current_span(name)

    def named(self, name):
        """The spans with a name that have ended, in order."""
        return [each for each in self.exporter.get_finished_spans() if each.name == name]


@pytest.fixture
def spans():
    made = Spans()
    yield made
    made.provider.shutdown()

"""Events as entries of structlog."""

import subprocess
import sys

import pytest
import structlog

from retrytemplate.observe import StructlogSink
from tests.observe.events import event

REFUND = {"amount": 5, "note": None}


@pytest.fixture
def entries():
    with structlog.testing.capture_logs() as kept:
        yield kept


def test_entry_has_the_line_as_event_and_the_fields_as_keys(entries):
    StructlogSink().emit(event("shop.refund", "order-17", data=REFUND, execution_id="e"))
    assert entries == [
        {
            "event": "shop order-17: refund; amount: 5",
            "type": "shop.refund",
            "subject": "order-17",
            "execution_id": "e",
            "amount": 5,
            "log_level": "warning",
        }
    ]


@pytest.mark.parametrize(
    ("severity", "name"),
    [(5, "debug"), (10, "debug"), (20, "info"), (35, "warning"), (40, "error"), (50, "critical")],
)
def test_level_of_an_entry_is_the_next_lower_one_of_structlog(entries, severity, name):
    StructlogSink().emit(event("x.y", severity=severity))
    assert [each["log_level"] for each in entries] == [name]


def test_levels_by_type_and_component_rejections_are_as_in_log_sinks(entries):
    sink = StructlogSink(levels={"x.*": None, "call.failed": "ERROR"})
    sink.emit(event("x.y"))
    sink.emit(event("bulkhead.rejected", execution_id="e"))
    assert entries == []


def test_entry_goes_to_the_given_logger():
    kept = []

    def keep(logger, method, entry):
        kept.append(entry)
        raise structlog.DropEvent

    StructlogSink(structlog.wrap_logger(None, [keep])).emit(event("x.y"))
    assert [each["type"] for each in kept] == ["x.y"]


def test_missing_structlog_names_the_extra():
    code = (
        "import sys; sys.modules['structlog'] = None\n"
        "from retrytemplate.observe import StructlogSink\n"
        "StructlogSink()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(
        "MissingExtraError: a StructlogSink needs structlog: install retrytemplate[structlog]"
    )


def test_logging_sink_does_not_import_structlog():
    code = (
        "import sys, retrytemplate.observe as o; o.LogSink(); assert 'structlog' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

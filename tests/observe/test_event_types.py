"""The table of event types: in code, in the docs, and for log lines."""

import logging
import re
from pathlib import Path

import pytest

from retrytemplate.listeners.log_records import LINES
from retrytemplate.observe import EVENT_TYPES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "events.md"


def table():
    """The rows of the table on the page of events, as the code has them."""
    rows = []
    for name, kind in EVENT_TYPES.items():
        severity, keys = kind.severity.replace("/", ", "), ", ".join(kind.keys)
        rows.append(f"| `{name}` | {severity} | {keys} | {kind.source} |")
    return rows


@pytest.mark.documentation
def test_page_of_events_has_a_row_for_every_type():
    text = PAGE.read_text(encoding="utf-8")
    [rows] = re.findall(r"<!-- event types -->\n\|.*\n\|[-|]+\n((?:\|.*\n)+)", text)
    assert rows.splitlines() == table()


def test_names_of_types_are_lower_case_words():
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", name) for name in EVENT_TYPES)


def test_severities_are_levels_of_logging():
    levels = {level for kind in EVENT_TYPES.values() for level in kind.severity.split("/")}
    assert levels <= logging.getLevelNamesMapping().keys()


def test_keys_of_a_type_are_unique_and_no_fields_of_the_event():
    for kind in EVENT_TYPES.values():
        assert len(set(kind.keys)) == len(kind.keys)
        assert {"type", "subject", "severity", "time", "id", "count"}.isdisjoint(kind.keys)


def test_every_own_log_line_belongs_to_a_type():
    assert LINES.keys() <= EVENT_TYPES.keys()


@pytest.mark.parametrize("name", ["circuit_breaker.rejected", "retry_budget.rejected"])
def test_rejections_by_components_are_reported_by_the_call_too(name):
    assert EVENT_TYPES[name].in_call
    assert not EVENT_TYPES["call.rejected"].in_call

"""The table of metrics."""

import re

import pytest

from retrytemplate.observe import INSTRUMENTS

ROWS = list(INSTRUMENTS.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_instrument_name_follows_the_conventions(row):
    assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", row.name)
    assert not re.search(r"(total|count|seconds)$", row.name)
    assert (row.unit == "1") == row.name.endswith("_ratio")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_instrument_unit_is_an_annotation_seconds_or_a_ratio(row):
    assert row.unit in ("s", "1", "") or re.fullmatch(r"\{[a-z]+\}", row.unit)
    assert (row.unit == "") == (row.name in ("circuit_breaker.state", "store.up"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_instrument_is_a_histogram_of_seconds_if_it_has_buckets(row):
    assert (row.kind == "histogram") == bool(row.buckets)
    assert row.kind != "histogram" or row.unit == "s"
    assert row.buckets == tuple(sorted(row.buckets))


def test_instrument_names_in_prometheus_have_unit_and_kind():
    assert INSTRUMENTS["backoff.time"].prometheus_name == "retrytemplate_backoff_time_seconds_total"
    assert INSTRUMENTS["call.duration"].prometheus_name == "retrytemplate_call_duration_seconds"
    assert INSTRUMENTS["retries"].prometheus_labels == ("template", "error_type")

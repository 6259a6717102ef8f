"""Measurements for tests of exporters."""

from retrytemplate.observe import INSTRUMENTS


def labels_of(row):
    """A value for each label of a metric."""
    return {label: f"{label} of {row.name}" for label in row.labels}


def feed(metrics):
    """Record in each counter and histogram once, in one gauge, and one first success."""
    for row in INSTRUMENTS.values():
        if row.kind == "histogram":
            metrics.record(row.name, labels_of(row), 0.3)
        elif row.kind == "counter" or row.name == "task.active":
            metrics.add(row.name, labels_of(row), 2)
    metrics.first_success("billing", 0.02)

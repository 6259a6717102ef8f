"""The wrappers through which a processor and a writer are called."""

import pytest

from retrytemplate._internal.formatting import operation_of
from retrytemplate.batch.runner.failure_capture import (
    AsyncFailureCapture,
    FailureCapture,
    first_attempt_record,
)
from retrytemplate.history import AttemptRecord


def charge(item):
    """A processor."""


@pytest.mark.parametrize("kind", [FailureCapture, AsyncFailureCapture])
def test_watched_function_is_named_like_the_function(kind):
    assert operation_of(kind(charge)) == f"{__name__}.charge"


def test_first_attempt_has_number_one_and_no_times():
    record = first_attempt_record(KeyError("no price"), None)
    assert record == AttemptRecord(1, None, None, "KeyError", "'no price'")

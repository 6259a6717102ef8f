"""The wrappers through which a processor and a writer are called."""

import pytest

from retrytemplate._internal.formatting import operation_of
from retrytemplate.batch.runner.failure_capture import AsyncFailureCapture, FailureCapture


def charge(item):
    """A processor."""


@pytest.mark.parametrize("kind", [FailureCapture, AsyncFailureCapture])
def test_watched_function_is_named_like_the_function(kind):
    assert operation_of(kind(charge)) == f"{__name__}.charge"

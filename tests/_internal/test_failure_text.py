"""Exceptions as text."""

import pytest

from retrytemplate import RecordedFailure
from retrytemplate._internal.failure_text import summary


class Mute(Exception):
    """An exception whose ``__str__`` raises."""

    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("exception", "text"),
    [
        (StopIteration(), "StopIteration"),
        (ValueError("no such order\nsee the log"), "ValueError: no such order"),
        (RecordedFailure("shop.errors.Busy", "later"), "Busy: later"),
        (Mute(), "Mute: <no text: str() failed>"),
    ],
)
def test_summary_has_class_name_and_first_line_of_message(exception, text):
    assert summary(exception) == text

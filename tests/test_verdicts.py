"""What may only be passed on; and how much the library remembers of what it has seen."""

import asyncio
import concurrent.futures

import pytest

from retrytemplate import CircuitOpenError, MisuseError
from retrytemplate.verdicts import MOST_ORDINARY, ORDINARY, is_hard

CANCELLED = concurrent.futures.CancelledError


@pytest.mark.parametrize(
    ("exception", "hard"),
    [
        (ValueError(), False),
        (CircuitOpenError(), False),
        (ExceptionGroup("several", [ValueError(), OSError()]), False),
        (KeyboardInterrupt(), True),
        (asyncio.CancelledError(), True),
        (CANCELLED(), True),
        (MisuseError(), True),
        (ExceptionGroup("several", [ValueError(), MisuseError()]), True),
        (ExceptionGroup("several", [ValueError(), ExceptionGroup("in", [CANCELLED()])]), True),
        (BaseExceptionGroup("several", [ValueError(), KeyboardInterrupt()]), True),
    ],
    ids=repr,
)
def test_signals_cancellations_and_misuse_are_hard_alone_and_in_a_group(exception, hard):
    for _ in range(2):
        assert is_hard(exception) is hard


def test_of_classes_that_a_program_makes_as_it_goes_not_all_are_remembered():
    for number in range(2 * MOST_ORDINARY):
        assert not is_hard(type(f"Made{number}", (Exception,), {})())
        assert len(ORDINARY) <= MOST_ORDINARY
    assert ORDINARY

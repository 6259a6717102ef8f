"""Exceptions that are never retried; and the bound of the remembered types."""

import asyncio
import concurrent.futures
import subprocess
import sys

import pytest

from retrytemplate import (
    CircuitOpenError,
    DeadlineExceededError,
    ExceptionClassifierRetryPolicy,
    MaxAttemptsRetryPolicy,
    MisuseError,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from retrytemplate.classify.exceptions import (
    KNOWN_RETRYABLE_TYPES,
    MAX_KNOWN_TYPES,
    is_never_retried,
)
from tests.support.runners import Script, every_driver, made

CANCELLED = concurrent.futures.CancelledError
# As LangGraph has it; the real class is tested in tests/control/langgraph/test_langgraph.py.
BUBBLE = type("GraphBubbleUp", (Exception,), {"__module__": "langgraph.errors"})
INTERRUPT = type("GraphInterrupt", (BUBBLE,), {})


@pytest.mark.parametrize(
    ("exception", "hard"),
    [
        (ValueError(), False),
        (CircuitOpenError(), False),
        (ExceptionGroup("several", [ValueError(), OSError()]), False),
        (KeyboardInterrupt(), True),
        (asyncio.CancelledError(), True),
        (CANCELLED(), True),
        (INTERRUPT(), True),
        (ExceptionGroup("several", [ValueError(), INTERRUPT()]), True),
        (MisuseError(), True),
        (ExceptionGroup("several", [ValueError(), MisuseError()]), True),
        (ExceptionGroup("several", [ValueError(), ExceptionGroup("in", [CANCELLED()])]), True),
        (BaseExceptionGroup("several", [ValueError(), KeyboardInterrupt()]), True),
    ],
    ids=repr,
)
def test_signals_cancellations_and_misuse_are_hard_alone_and_in_a_group(exception, hard):
    for _ in range(2):
        assert is_never_retried(exception) is hard


def test_program_without_futures_does_not_import_them():
    script = """
import sys
from retrytemplate import RetryTemplate

def fetch():
    if answers:
        raise answers.pop()
    return "value"

answers = [OSError(), OSError()]
assert RetryTemplate().call(fetch) == "value"
assert "concurrent.futures" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    "policy",
    [
        MaxAttemptsRetryPolicy(3),
        SimpleRetryPolicy(3),
        TimeoutRetryPolicy(60) & MaxAttemptsRetryPolicy(3),
        MaxAttemptsRetryPolicy(3) | SimpleRetryPolicy(2, KeyError),
        ExceptionClassifierRetryPolicy({Exception: MaxAttemptsRetryPolicy(3)}),
    ],
)
@pytest.mark.parametrize("inner", [DeadlineExceededError("over"), CircuitOpenError("open")])
@every_driver
def test_group_that_holds_a_non_retryable_error_is_not_retried(driver, inner, policy):
    callback = Script(ExceptionGroup("of a task group", [OSError(), inner]))
    with pytest.raises(ExceptionGroup):
        driver(made(policy=policy), callback)
    assert callback.calls == 1


@every_driver
def test_group_is_retried_where_a_rule_names_its_members_or_the_group(driver):
    group = ExceptionGroup("of a task group", [OSError(), CircuitOpenError("open")])
    for kinds in ((OSError, CircuitOpenError), (ExceptionGroup,)):
        callback = Script(group)
        with pytest.raises(ExceptionGroup):
            driver(made(policy=SimpleRetryPolicy(3, kinds) & MaxAttemptsRetryPolicy(3)), callback)
        assert callback.calls == 3


def test_known_exception_types_are_bounded():
    for number in range(2 * MAX_KNOWN_TYPES):
        assert not is_never_retried(type(f"Made{number}", (Exception,), {})())
        assert len(KNOWN_RETRYABLE_TYPES) <= MAX_KNOWN_TYPES
    assert KNOWN_RETRYABLE_TYPES

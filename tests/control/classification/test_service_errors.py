"""The errors of a service for its timeouts, chosen by kind in one place."""

import asyncio

import httpx
import pytest

from retrytemplate import (
    AttemptTimeoutError,
    Deadline,
    DeadlineExceededError,
    MisuseError,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import ServiceErrors, Strategy, Timeout
from retrytemplate.testing import VirtualClock


class PartnerIsSlow(Exception):
    status = 503


class TooLate(Exception):
    status = 504


class Busy(Exception):
    status = 503

    @classmethod
    def of(cls, timeout):
        return cls(timeout.kind)


ERRORS = ServiceErrors(
    {
        "partner read": (PartnerIsSlow, True),
        "lock acquire": (lambda timeout: Busy.of(timeout), True),
        "request": (TooLate, False),
        "attempt": (PartnerIsSlow, True),
    }
)


def raising(error):
    def fails():
        raise error

    return fails


async def raise_later(error):
    await asyncio.sleep(0)
    raise error


@pytest.mark.statement("S1-131")
@pytest.mark.parametrize(
    ("timeout", "expected", "retryable"),
    [
        (DeadlineExceededError("slow", kind="partner read"), PartnerIsSlow, True),
        (httpx.ReadTimeout("slow"), PartnerIsSlow, True),
        (AttemptTimeoutError("slow"), PartnerIsSlow, True),
        (DeadlineExceededError("slow", kind="lock acquire"), Busy, True),
        (DeadlineExceededError("slow", kind="request"), TooLate, False),
    ],
    ids=["read", "httpx", "attempt", "lock", "request"],
)
def test_timeout_kind_has_its_service_error(timeout, expected, retryable):
    with pytest.raises(expected) as raised:
        ERRORS.call(raising(timeout))
    assert raised.value.__cause__ is timeout
    assert str(raised.value) in ("slow", "lock acquire")
    assert ERRORS.is_retryable(timeout) is retryable
    assert ERRORS.is_retryable(raised.value) is retryable
    with pytest.raises(expected):
        asyncio.run(ERRORS.call_async(raise_later, timeout))


@pytest.mark.statement("S1-131")
def test_policy_retries_the_retryable_kinds():
    template = RetryTemplate(SimpleRetryPolicy(3, retry_on=ERRORS.is_retryable))
    slow = DeadlineExceededError("slow", kind="partner read")
    late = DeadlineExceededError("late", kind="request")
    assert template.outcome(ERRORS.call, raising(slow)).attempts == 3
    assert template.outcome(ERRORS.call, raising(late)).attempts == 1


def test_kind_without_rule_has_the_default_or_passes():
    other = DeadlineExceededError("slow", kind="shutdown cleanup")
    with pytest.raises(DeadlineExceededError), ERRORS:
        raise other
    assert not ERRORS.is_retryable(other)
    with pytest.raises(TooLate), ServiceErrors({}, default=(TooLate, False)):
        raise other


def test_other_exceptions_pass():
    anything = ServiceErrors({}, default=(TooLate, True))
    with pytest.raises(OSError, match="reset"):
        anything.call(raising(OSError("reset")))
    assert not anything.is_retryable(OSError("reset"))
    assert anything.call(int, "17") == 17
    assert asyncio.run(anything.call_async(int, "17")) == 17
    with pytest.raises(KeyboardInterrupt):
        anything.call(raising(KeyboardInterrupt()))


@pytest.mark.statement("S1-41")
def test_request_without_remaining_time_raises_the_service_error():
    clock, called = VirtualClock(), []
    template = RetryTemplate(SimpleRetryPolicy(3), clock=clock)

    @ERRORS.wrap
    def answer():
        return Timeout(9.0, clock=clock).call(template.wrap(lambda: called.append(1)))

    with pytest.raises(TooLate) as raised, Deadline(0, kind="request", clock=clock):
        answer()
    assert type(raised.value.__cause__) is DeadlineExceededError
    assert (raised.value.__cause__.kind, called) == ("request", [])


def test_timeout_without_a_text_becomes_a_service_error():
    class Silent(TimeoutError):
        def __str__(self):
            raise ZeroDivisionError

    with pytest.raises(TooLate), ServiceErrors({}, default=(TooLate, False)):
        raise Silent


def test_service_errors_are_a_strategy():
    assert isinstance(ERRORS, Strategy)

    async def up():
        """Not awaited."""

    with pytest.raises(MisuseError, match=r"use call_async\(\)"):
        ERRORS.call(lambda: up())


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"request": TooLate}, "rules: 'request' must be a tuple of an exception"),
        ({"request": (TooLate, "yes")}, "rules: 'request' must be a tuple of an exception"),
        ({"request": ("TooLate", True)}, "the exception must be callable"),
        ({"request": (KeyboardInterrupt, True)}, "must be a subclass of Exception"),
        ({"": (TooLate, True)}, "must map kinds of limits"),
        ({17: (TooLate, True)}, "must map kinds of limits"),
    ],
)
def test_wrong_rules_are_rejected(rules, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        ServiceErrors(rules)
    default = next(iter(rules.values()))
    if next(iter(rules)) == "request":
        with pytest.raises((TypeError, ValueError), match="default"):
            ServiceErrors({}, default=default)


@pytest.mark.parametrize("rules", [17, "request", [TooLate]])
def test_wrong_type_of_mapping_is_rejected(rules):
    with pytest.raises(TypeError, match="rules must map kinds of limits to rules, got"):
        ServiceErrors(rules)

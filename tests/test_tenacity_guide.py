"""The ports that ``docs/migrate/tenacity.md`` recommends make the calls that tenacity makes."""

import pytest

from retrytemplate import (
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    PredicateRetryPolicy,
    ResultRetryPolicy,
    RetryListener,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    UnacceptableResultError,
)
from retrytemplate.testing import VirtualClock


class Wanted(Exception):
    """The exception that the ported decorator retries."""


class Other(Exception):
    """An exception that it does not retry."""


class Program:
    """A function that raises or returns the same each time, and its calls."""

    def __init__(self, result):
        self.result = result
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def run(program, **settings):
    return RetryTemplate(clock=VirtualClock(), **settings).call(program)


RESULT_ONLY = ResultRetryPolicy(lambda value: value is None, SimpleRetryPolicy(3, retry_on=()))


def test_retry_if_result_port_retries_a_result():
    program = Program(None)
    with pytest.raises(UnacceptableResultError):
        run(program, policy=RESULT_ONLY)
    assert program.calls == 3


def test_retry_if_result_port_retries_no_exception():
    program = Program(Other())
    with pytest.raises(Other):
        run(program, policy=RESULT_ONLY)
    assert program.calls == 1


BOTH_STOPS = (MaxAttemptsRetryPolicy(4) | TimeoutRetryPolicy(60)) & PredicateRetryPolicy(
    lambda error: isinstance(error, Wanted)
)


@pytest.mark.parametrize(("error", "calls"), [(Wanted(), 7), (Other(), 1)])
def test_stop_and_stop_port_retries_the_named_class_only(error, calls):
    program = Program(error)
    with pytest.raises(type(error)):
        run(program, policy=BOTH_STOPS, backoff=FixedBackoff(10))
    assert program.calls == calls


def test_stop_after_delay_port_may_sleep_and_make_no_attempt():
    program, clock = Program(Wanted()), VirtualClock()
    with pytest.raises(Wanted):
        RetryTemplate(TimeoutRetryPolicy(60), FixedBackoff(50), clock=clock).call(program)
    assert (program.calls, clock.monotonic()) == (2, 100)


@pytest.mark.parametrize(("error", "calls"), [(Wanted(), 3), (Other(), 1)])
def test_retry_error_callback_port_is_called_for_each_end(error, calls):
    seen, program = [], Program(error)
    policy = SimpleRetryPolicy(3, retry_on=Wanted)
    run(program, policy=policy, recovery=lambda context: seen.append(context.last_exception))
    assert (seen, program.calls) == ([error], calls)


def test_recovery_that_raises_the_last_failure_leaves_it_to_the_caller():
    def recover(context):
        raise context.last_exception

    error = Other()
    with pytest.raises(Other) as caught:
        run(Program(error), policy=SimpleRetryPolicy(3, retry_on=Wanted), recovery=recover)
    assert caught.value is error


def test_wait_exponential_port_with_a_minimum_makes_the_same_waits():
    class Waits(RetryListener):
        def on_backoff(self, context, delay):
            waits.append(delay)

    waits = []
    backoff = FixedBackoff(lambda failures, error: min(max(2.0 ** (failures - 1), 4), 10))
    with pytest.raises(Wanted):
        run(Program(Wanted()), policy=SimpleRetryPolicy(7), backoff=backoff, listeners=[Waits()])
    assert waits == [4, 4, 4, 8, 10, 10]

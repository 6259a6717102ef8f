"""The ports that ``docs/migrate/tenacity.md`` recommends make the calls that tenacity makes."""

import re
from pathlib import Path

import pytest

import retrytemplate
from retrytemplate import (
    FixedBackoff,
    MisuseError,
    RetryListener,
    RetryTemplate,
    SimpleRetryPolicy,
    UnacceptableResultError,
)
from retrytemplate.testing import VirtualClock

pytestmark = pytest.mark.documentation

PAGE = Path(__file__).resolve().parent.parent / "docs" / "migrate" / "tenacity.md"
ROWS = {
    cells[0]: " ".join(cells[1:])
    for cells in (
        re.split(r" (?<!\\)\| ", line.strip("| \n"))
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("| ")
    )
}
"""The table of the page: what replaces a name of tenacity, and the difference."""
PUBLIC = {name: getattr(retrytemplate, name) for name in retrytemplate.__all__}


def ported(name, start, **names):
    """The value of the code that begins so in the row of this name; *given* is its "..."."""
    [code] = [each for each in re.findall("`(.*?)`", ROWS[name]) if each.startswith(start)]
    code = code.replace("\\|", "|").replace("...", "given")
    return eval(code, PUBLIC | names)  # noqa: S307  # the code of the page is the subject


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


RESULT_ONLY = ported(
    "`retry_if_result(predicate)`, `retry_if_not_result(...)`",
    "ResultRetryPolicy",
    predicate=lambda value: value is None,
)


def test_retry_if_result_port_retries_a_result():
    program = Program(None)
    with pytest.raises(UnacceptableResultError):
        run(program, policy=RESULT_ONLY)
    assert program.calls == 4


def test_retry_if_result_port_retries_no_exception():
    program = Program(Other())
    with pytest.raises(Other):
        run(program, policy=RESULT_ONLY)
    assert program.calls == 1


BOTH_STOPS = ported("`stop_a & stop_b`", "(MaxAttemptsRetryPolicy", E=Wanted)


@pytest.mark.parametrize(("error", "calls"), [(Wanted(), 7), (Other(), 1)])
def test_stop_and_stop_port_retries_the_named_class_only(error, calls):
    program = Program(error)
    with pytest.raises(type(error)):
        run(program, policy=BOTH_STOPS, backoff=FixedBackoff(10))
    assert program.calls == calls


def test_stop_after_delay_port_may_sleep_and_make_no_attempt():
    program, clock = Program(Wanted()), VirtualClock()
    policy = ported("`stop_after_delay(60)`", "TimeoutRetryPolicy(")
    with pytest.raises(Wanted):
        RetryTemplate(policy, FixedBackoff(50), clock=clock).call(program)
    assert (program.calls, clock.monotonic()) == (2, 100)
    assert "so the template may make one attempt fewer" in ROWS["`stop_after_delay(60)`"]


def test_retry_with_port_makes_the_calls_of_the_given_policy():
    program = Program(Wanted())
    fn = RetryTemplate(SimpleRetryPolicy(5), clock=VirtualClock()).wrap(program)
    given = SimpleRetryPolicy(2)
    with pytest.raises(Wanted):
        ported("`fn.retry_with(stop=...)`", "fn.retry_with(", fn=fn, given=given)()
    assert program.calls == 2


def test_second_decorator_port_nests_the_retries():
    program = Program(Wanted())
    template = RetryTemplate(SimpleRetryPolicy(2), clock=VirtualClock())
    fn = template.wrap(program)
    with pytest.raises(MisuseError):
        template.wrap(fn)
    row = "`retry(...)(fn)` of a decorated `fn`"
    with pytest.raises(Wanted):
        ported(row, "template.wrap(", template=template, fn=fn)()
    assert program.calls == 4


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

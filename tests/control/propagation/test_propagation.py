"""Attempts, depth and remaining time in headers, from one process to another."""

import asyncio
import http.client
import subprocess
import sys
from contextlib import ExitStack
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    Deadline,
    DeadlineExceededError,
    FixedBackoff,
    MisuseError,
    NoBackoff,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
)
from retrytemplate.control import NestedRetries, Nesting, Propagation
from retrytemplate.testing import VirtualClock, run, run_trio
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT

ROOT = Path(__file__).resolve().parents[3]
PROPAGATION = Propagation()


class Down(Exception):
    """The error of the backend."""


def template(*guards, attempts=3, **settings):
    return RetryTemplate(SimpleRetryPolicy(attempts), NoBackoff(), guards=guards, **settings)


def sent(made, propagation=PROPAGATION):
    """The headers of each attempt of a call that fails."""
    headers = []

    def backend():
        headers.append(propagation.outgoing())
        raise Down

    made.outcome(backend)
    return headers


@pytest.fixture
def clock():
    return VirtualClock()


# -- out -------------------------------------------------------------------------------------------


def test_no_header_is_sent_without_values():
    assert PROPAGATION.outgoing() == {}
    with Deadline(float("inf")):
        assert PROPAGATION.outgoing() == {}
    assert template(attempts=1).call(PROPAGATION.outgoing) == {}


@pytest.mark.statement("S4-103")
def test_each_attempt_sends_its_number_depth_and_remaining_time(clock):
    made = RetryTemplate(SimpleRetryPolicy(3), FixedBackoff(0.5), clock=clock)
    with Deadline(2.0, clock=clock):
        assert sent(made) == [
            {"X-Retry-Attempt": "1", "X-Retry-Depth": "1", "X-Request-Timeout-Ms": "2000"},
            {"X-Retry-Attempt": "2", "X-Retry-Depth": "1", "X-Request-Timeout-Ms": "1500"},
            {"X-Retry-Attempt": "3", "X-Retry-Depth": "1", "X-Request-Timeout-Ms": "1000"},
        ]


def test_attempt_timeout_is_sent_when_it_is_nearer(clock):
    made = template(attempt_timeout=0.25, clock=clock)
    with Deadline(2.0, clock=clock):
        assert made.call(PROPAGATION.outgoing)["X-Request-Timeout-Ms"] == "250"


def test_expired_deadline_is_sent_as_zero(clock):
    with Deadline(2.0, clock=clock):
        clock.advance(5)
        assert PROPAGATION.outgoing() == {"X-Request-Timeout-Ms": "0"}


def test_caller_can_forbid_the_retries_of_others():
    assert PROPAGATION.outgoing(no_retry=True) == {"X-No-Retry": "1"}


@pytest.mark.statement("S4-103")
def test_header_names_are_settings_and_grpc_names_set_the_format(clock):
    envoy = Propagation(
        attempt="x-envoy-attempt-count", deadline="x-envoy-expected-rq-timeout-ms", depth=None
    )
    grpc = Propagation(attempt="grpc-previous-rpc-attempts", deadline="grpc-timeout", depth="depth")
    made = template(attempts=2, clock=clock)
    with Deadline(2.0, clock=clock):
        assert sent(made, envoy)[1] == {
            "x-envoy-attempt-count": "2",
            "x-envoy-expected-rq-timeout-ms": "2000",
        }
        first, second = sent(made, grpc)
    assert first == {"depth": "1", "grpc-timeout": "2000m"}
    assert second == first | {"grpc-previous-rpc-attempts": "1"}
    for propagation, headers in ((envoy, {"X-Envoy-Attempt-Count": "2"}), (grpc, second)):
        with propagation.incoming(headers):
            assert Nesting.current().attempt == 2


def test_disabled_header_is_neither_sent_nor_read(clock):
    silent = Propagation(attempt=None, depth=None, no_retry=None, deadline=None)
    with Deadline(2.0, clock=clock):
        assert sent(template(clock=clock), silent)[1] == {}
    with silent.incoming({"X-Retry-Depth": "3", "X-Request-Timeout-Ms": "5", "": "7"}) as nesting:
        assert (nesting, Deadline.current()) == (Nesting(), None)


# -- in --------------------------------------------------------------------------------------------


@pytest.mark.statement("S4-103")
def test_incoming_headers_are_in_force_and_passed_on(clock):
    propagation = Propagation(clock=clock)
    headers = {"x-retry-attempt": "2", "x-retry-depth": "1", "x-request-timeout-ms": "2000"}
    with propagation.incoming(headers) as nesting:
        assert nesting == Nesting.current() == Nesting(depth=1, attempt=2)
        assert (Deadline.current().remaining(), Deadline.current().kind) == (2.0, "caller")
        assert current_context() is None
        clock.advance(0.5)
        assert propagation.outgoing() == {
            "X-Retry-Attempt": "2",
            "X-Retry-Depth": "1",
            "X-Request-Timeout-Ms": "1500",
        }
        assert template().call(propagation.outgoing)["X-Retry-Depth"] == "2"
    assert (Nesting.current(), Deadline.current()) == (Nesting(), None)
    with propagation.incoming({"X-No-Retry": "true"}):
        assert propagation.outgoing() == {"X-No-Retry": "1"}


def test_template_inside_incoming_values_leaves_retries_to_the_caller():
    made = template(NestedRetries())
    with PROPAGATION.incoming({"X-Retry-Depth": "1"}):
        assert len(sent(made)) == 1
    with PROPAGATION.incoming({}):
        assert len(sent(made)) == 3


def test_no_retry_of_the_caller_is_respected():
    made = template(NestedRetries(retries_by_depth=[2]))
    with PROPAGATION.incoming({"X-No-Retry": "1"}):
        assert len(sent(made)) == 1
    assert len(sent(made)) == 3


def test_template_inside_respects_the_deadline_of_the_caller(clock):
    made = RetryTemplate(SimpleRetryPolicy(9), FixedBackoff(1.0), clock=clock)
    with Propagation(clock=clock).incoming({"X-Request-Timeout-Ms": "2500"}):
        assert len(sent(made)) == 3
    assert clock.monotonic() == 2.0


@pytest.mark.parametrize(
    "value", ["", "-1", "nan", "inf", "1e3", "1.5", "two", "0x10", "\u0663", "1;2", "1500m"]
)
def test_garbage_is_as_if_it_were_not_there(value):
    names = ("X-Retry-Attempt", "X-Retry-Depth", "X-No-Retry", "X-Request-Timeout-Ms")
    with PROPAGATION.incoming(dict.fromkeys(names, value)) as nesting:
        assert (nesting, Deadline.current()) == (Nesting(), None)


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Retry-Depth", "2"), ("x-retry-depth", "5"), ("X-Retry-Depth", "-9")],
        {"X-Retry-Depth": "2, 5"},
    ],
    ids=["twice", "joined"],
)
def test_strictest_value_of_a_repeated_header_is_used(headers, clock):
    with Propagation(clock=clock).incoming(headers) as nesting:
        assert nesting.depth == 5
    times = [(b"x-request-timeout-ms", b"700"), (b"x-request-timeout-ms", b"300")]
    with Propagation(clock=clock).incoming(times):
        assert Deadline.current().remaining() == 0.3


def test_remaining_time_is_at_most_the_maximum(clock):
    bounded = Propagation(max_depth=4, max_timeout=timedelta(seconds=30), clock=clock)
    huge = "9" * 5000
    headers = {"X-Retry-Depth": huge, "X-Retry-Attempt": huge, "X-Request-Timeout-Ms": huge}
    with bounded.incoming(headers) as nesting:
        assert (nesting.depth, nesting.attempt) == (4, 1000)
        assert Deadline.current().remaining() == 30
        assert template().call(bounded.outgoing)["X-Retry-Depth"] == "4"
    for headers in ({}, {"X-Request-Timeout-Ms": "nan"}):
        with bounded.incoming(headers):
            assert Deadline.current().remaining() == 30


VALUES = st.one_of(st.integers().map(str), st.text(max_size=8), st.binary(max_size=8))
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [*("X-Retry-Attempt", "x-retry-depth", "X-No-Retry", b"x-request-timeout-ms", "Accept")]
        ),
        VALUES,
    )
)


@given(headers=HEADERS, no_retry=st.booleans(), depth=st.integers(0, 20))
def test_incoming_values_only_reduce_limits(headers, no_retry, depth):
    clock = VirtualClock()
    propagation = Propagation(max_depth=8, clock=clock)
    outside = {"X-Retry-Depth": str(depth)} | ({"X-No-Retry": "1"} if no_retry else {})
    with Deadline(5.0, clock=clock), Propagation(max_depth=20).incoming(outside) as around:
        with propagation.incoming(headers) as nesting:
            assert around.depth <= nesting.depth <= max(8, around.depth)
            assert 1 <= nesting.attempt <= 1000
            assert nesting.no_retry >= no_retry
            assert 0.0 <= Deadline.current().remaining() <= 5.0
        assert Nesting.current() == around
        assert Deadline.current().remaining() == 5.0


def test_layer_in_one_process_is_counted_once():
    def handler(headers):
        with PROPAGATION.incoming(headers):
            return template(NestedRetries()).call(PROPAGATION.outgoing)

    outer = template()
    assert outer.call(lambda: handler(PROPAGATION.outgoing()))["X-Retry-Depth"] == "2"
    assert outer.call(lambda: handler({}))["X-Retry-Depth"] == "2"


@pytest.fixture
def first_of_its_kind(monkeypatch):
    """Reset the state to that of a process that has not used a deadline."""
    monkeypatch.setattr("retrytemplate._engine.frames.any_deadline_entered", False)


first_of_all = pytest.mark.usefixtures("first_of_its_kind")


@first_of_all
def test_incoming_values_apply_between_the_iterations_of_a_loop():
    made = template()
    for attempt in made.attempts():
        with PROPAGATION.incoming({"X-Retry-Depth": "3"}), attempt:
            assert Nesting.current().depth == 4
    assert Nesting.current() == Nesting()


@first_of_all
def test_incoming_values_may_outlive_their_attempt():
    with ExitStack() as stack:
        for attempt in template().attempts():
            with attempt:
                stack.enter_context(PROPAGATION.incoming({"X-Retry-Depth": "3"}))
        assert Nesting.current().depth == 3
    assert Nesting.current() == Nesting()


def test_task_that_outlives_the_request_is_not_nested():
    with PROPAGATION.incoming({"X-Retry-Depth": "3", "X-No-Retry": "1"}):
        task = copy_context()
        assert task.run(Nesting.current) == Nesting(3, 1, True)
    assert task.run(Nesting.current) == Nesting()


def test_blocks_may_be_left_in_any_order(clock):
    first, second = ExitStack(), ExitStack()
    propagation = Propagation(clock=clock)
    first.enter_context(propagation.incoming({"X-Retry-Depth": "1", "X-Request-Timeout-Ms": "900"}))
    second.enter_context(propagation.incoming({"X-Retry-Depth": "2"}))
    first.close()
    assert Nesting.current().depth == 2
    second.close()
    assert (Nesting.current(), Deadline.current()) == (Nesting(), None)


def test_incoming_block_can_be_entered_once():
    incoming = PROPAGATION.incoming({})
    with incoming:
        pass
    with pytest.raises(MisuseError, match="incoming\\(\\) must be entered once"):
        incoming.__enter__()


def in_asyncio(main, clock):
    return run(main(), clock=clock)


def in_trio(main, clock):
    return run_trio(main, clock=clock)


runs = pytest.mark.parametrize("runs", [in_asyncio, in_trio], ids=["asyncio", "trio"])


@runs
def test_async_with_cuts_the_block_at_the_callers_time(runs, clock):
    propagation = Propagation(clock=clock)

    async def main():
        with pytest.raises(DeadlineExceededError) as raised:
            async with propagation.incoming({"X-Request-Timeout-Ms": "1500"}):
                await clock.sleep_async(60)
        assert raised.value.kind == "caller"
        assert (Nesting.current(), Deadline.current()) == (Nesting(), None)
        async with propagation.incoming({"X-Retry-Depth": "1"}) as nesting:
            await clock.sleep_async(60)
            assert nesting.depth == 1
        async with propagation.incoming({"X-Request-Timeout-Ms": "1500"}):
            await clock.sleep_async(1)
        with pytest.raises(Down):
            async with propagation.incoming({"X-Request-Timeout-Ms": "1500"}):
                raise Down

    runs(main, clock)
    assert clock.monotonic() == 62.5


@runs
def test_incoming_expired_deadline_prevents_every_attempt(runs, clock):
    propagation = Propagation(clock=clock)
    called = []

    async def main():
        with propagation.incoming({"X-Request-Timeout-Ms": "0"}):
            ended = await template(clock=clock).outcome_async(called.append, 1)
        assert type(ended.exception) is DeadlineExceededError
        with pytest.raises(DeadlineExceededError):
            async with propagation.incoming({"X-Request-Timeout-Ms": "0"}):
                await clock.sleep_async(60)

    runs(main, clock)
    assert (called, clock.monotonic()) == ([], 0.0)


def test_cancellation_passes_and_leaves_no_values():
    async def handler():
        async with PROPAGATION.incoming({"X-Retry-Depth": "1", "X-Request-Timeout-Ms": "60000"}):
            await asyncio.Event().wait()

    async def main():
        task = asyncio.ensure_future(handler())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        handled = handler()
        assert handled.send(None) is not None
        handled.close()
        assert Nesting.current() == Nesting()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"attempt": ""}, "attempt must be the name of a header or None, got ''"),
        ({"depth": "X Depth"}, "depth must be the name of a header or None, got 'X Depth'"),
        ({"no_retry": "X-No\r\nX-Yes"}, "no_retry must be the name of a header"),
        ({"deadline": 5}, "deadline must be the name of a header"),
        ({"depth": "x-retry-attempt"}, "header names must differ, got 'x-retry-attempt' twice"),
        ({"max_depth": 0}, "max_depth must be an int >= 1"),
        ({"max_timeout": 0}, "max_timeout must be"),
        ({"max_timeout": "30"}, "max_timeout must be"),
        ({"clock": object()}, "clock must be an object with the methods"),
    ],
)
def test_propagation_with_wrong_settings_is_rejected(given, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        Propagation(**given)


# -- three processes -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def services():
    """Three services, each a process: the last is down. Their ports, the outermost first."""
    ports, processes = [], []
    try:
        for _ in range(3):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.http_hop", *ports[:1]],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            ports.insert(0, process.stdout.readline().strip())
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.wait(JOIN_TIMEOUT)
            process.stdout.close()


def ask(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=JOIN_TIMEOUT)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def calls_of_the_last(services):
    """The reported attempts, each in a line."""
    return ask(services[-1], "/calls")[1].splitlines()


@pytest.mark.statement("S3-25")
@pytest.mark.statement("S4-102")
def test_three_layers_in_three_processes_make_3_calls(services):
    before = len(calls_of_the_last(services))
    assert ask(services[0], "/plain")[0] == 503
    assert len(calls_of_the_last(services)) - before == 27
    before = len(calls_of_the_last(services))
    assert ask(services[0], "/guarded")[0] == 503
    assert calls_of_the_last(services)[before:] == ["1", "2", "3"]


def test_client_library_sends_the_headers_unchanged(services):
    with httpx.Client(trust_env=False, timeout=JOIN_TIMEOUT) as client:
        before = len(calls_of_the_last(services))
        url = f"http://127.0.0.1:{services[0]}/guarded"
        made = template(NestedRetries())

        def fetch():
            client.get(url, headers=PROPAGATION.outgoing()).raise_for_status()

        assert made.outcome(fetch).attempts == 3
        assert calls_of_the_last(services)[before:] == ["1", "2", "3"]

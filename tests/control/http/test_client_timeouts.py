"""The remaining time of a deadline as timeouts of real clients, with a silent server."""

import asyncio
import math
import socket
import urllib.request
from datetime import timedelta

import aiohttp
import httpx
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    Deadline,
    DeadlineExceededError,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import (
    Timeout,
    aiohttp_timeout,
    httpx_timeout,
    requests_timeout,
    time_left,
    timeout_kind,
)
from retrytemplate.testing import VirtualClock

HELPERS = {
    "time_left": (time_left, {"seconds": 9.0}),
    "httpx": (httpx_timeout, {}),
    "requests": (requests_timeout, {}),
    "aiohttp": (aiohttp_timeout, {}),
}
helpers = pytest.mark.parametrize(("helper", "own"), HELPERS.values(), ids=HELPERS)


@pytest.fixture
def clock():
    return VirtualClock()


def phases(timeout):
    """The limits that a helper returned, by name."""
    if isinstance(timeout, httpx.Timeout):
        return timeout.as_dict()
    if isinstance(timeout, aiohttp.ClientTimeout):
        names = ("total", "connect", "sock_connect", "sock_read")
        return {name: getattr(timeout, name) for name in names}
    if isinstance(timeout, tuple):
        return dict(zip(("connect", "read"), timeout, strict=True))
    return {"seconds": timeout}


@pytest.mark.statement("S4-12")
def test_each_phase_has_its_own_limit():
    five_thirty = {"connect": 5.0, "read": 30.0}
    assert phases(httpx_timeout()) == {**five_thirty, "write": 5.0, "pool": 10.0}
    assert phases(requests_timeout()) == five_thirty
    assert phases(aiohttp_timeout()) == {
        "total": None,
        "connect": 10.0,
        "sock_connect": 5.0,
        "sock_read": 30.0,
    }
    assert phases(httpx_timeout(connect=1, read=timedelta(seconds=2), write=3, pool=None)) == {
        "connect": 1,
        "read": 2,
        "write": 3,
        "pool": None,
    }


@pytest.mark.statement("S1-35")
@pytest.mark.statement("S1-42")
def test_each_phase_is_limited_by_the_remaining_time(clock):
    with Deadline(7.0, clock=clock):
        clock.advance(0.5)
        assert phases(httpx_timeout()) == {"connect": 5.0, "read": 6.5, "write": 5.0, "pool": 6.5}
        assert phases(requests_timeout(connect=9.0)) == {"connect": 6.5, "read": 6.5}
        assert phases(aiohttp_timeout(sock_connect=None)) == {
            "total": 6.5,
            "connect": 6.5,
            "sock_connect": 6.5,
            "sock_read": 6.5,
        }
        assert (time_left(1.0), time_left(9.0), time_left()) == (1.0, 6.5, 6.5)
    assert (time_left(9.0), time_left()) == (9.0, None)


times = st.none() | st.floats(min_value=0.001, max_value=1e6)


@pytest.mark.statement("S1-32")
@given(own=times, outer=times, inner=times)
def test_no_limit_exceeds_its_own_or_the_remaining_time(own, outer, inner):
    clock, endless = VirtualClock(), math.inf
    with (
        Deadline(endless if outer is None else outer, clock=clock),
        Deadline(endless if inner is None else inner, clock=clock),
    ):
        expected = min((each for each in (own, outer, inner) if each is not None), default=None)
        assert time_left(own, minimum=0) == expected


@pytest.mark.statement("S1-34")
@helpers
def test_deadline_argument_precedes_the_current_deadline(helper, own, clock):
    given_one = Deadline.after(3.0, clock=clock)
    with Deadline(1.0, clock=clock), Deadline(2.0, clock=clock):
        assert max(phases(helper(**own)).values()) == 1.0, "the nearest"
        assert max(phases(helper(**own, deadline=given_one)).values()) == 3.0
    assert max(phases(helper(**own, deadline=given_one)).values()) == 3.0


@pytest.mark.statement("S1-33")
@helpers
def test_call_without_enough_time_is_not_made(helper, own, clock):
    with Deadline(1.0, kind="request", clock=clock):
        clock.advance(0.97)
        with pytest.raises(DeadlineExceededError, match=r"0\.03 seconds are left") as raised:
            helper(**own)
        assert (raised.value.kind, raised.value.outcome_unknown) == ("request", False)
        assert min(phases(helper(**own, minimum=0.02)).values()) == pytest.approx(0.03)


@helpers
def test_time_passing_meanwhile_never_makes_a_limit_of_0(helper, own):
    class Goes(VirtualClock):
        def monotonic(self):
            self.advance(0.5)
            return super().monotonic()

    for seconds in (0.75, 1.25, 1.75):
        try:
            limits = helper(**own, deadline=Deadline.after(seconds, clock=Goes()), minimum=0)
        except DeadlineExceededError:
            continue
        assert min(phases(limits).values()) > 0


@helpers
@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"minimum": -1}, "minimum must be"),
        ({"deadline": 2.0}, "deadline must be a Deadline or None, got 2.0"),
    ],
)
def test_wrong_arguments_are_rejected(helper, own, wrong, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        helper(**own, **wrong)


@pytest.mark.parametrize("seconds", [0, -1, "5", math.nan])
def test_wrong_own_limit_is_rejected(seconds):
    for helper, name in (
        *((httpx_timeout, each) for each in ("connect", "read", "write", "pool")),
        *((aiohttp_timeout, each) for each in ("total", "connect", "sock_connect", "sock_read")),
        *((requests_timeout, each) for each in ("connect", "read")),
        (time_left, "seconds"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
            helper(**{name: seconds})


# -- a server that never answers -------------------------------------------------------------------


@pytest.fixture(scope="module")
def silent():
    """An address whose connections are accepted by the system and never read."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"


def by_httpx(url):
    with httpx.Client(trust_env=False, verify=False) as client:
        client.get(url, timeout=httpx_timeout(minimum=0))


def by_requests(url):
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=requests_timeout(minimum=0))


def by_urllib(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(url, timeout=time_left(30.0, minimum=0))


async def by_aiohttp(url):
    async with aiohttp.ClientSession() as session:
        await session.get(url, timeout=aiohttp_timeout(minimum=0))


async def by_httpx_async(url):
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        await client.get(url, timeout=httpx_timeout(minimum=0))


CLIENTS = [by_httpx, by_requests, by_urllib, by_aiohttp, by_httpx_async]
clients = pytest.mark.parametrize("client", CLIENTS, ids=[each.__name__ for each in CLIENTS])


def called(around, client, url):
    """Call through a strategy, in a loop if the call is asynchronous."""
    if asyncio.iscoroutinefunction(client):
        return asyncio.run(around.call_async(client, url))
    return around.call(client, url)


@clients
@pytest.mark.statement("S1-35")
def test_unanswered_call_ends_with_the_deadline(client, silent):
    with pytest.raises(DeadlineExceededError) as raised:
        called(Timeout(0.03, kind="partner read"), client, silent)
    assert (raised.value.kind, raised.value.limit) == ("partner read", 0.03)


@clients
def test_deadline_ends_the_retries_of_a_template(client, silent):
    template = RetryTemplate(SimpleRetryPolicy(99))
    with pytest.raises(DeadlineExceededError) as raised:
        called(Timeout(0.03, kind="request"), template.wrap(client), silent)
    assert raised.value.kind == "request"


@pytest.mark.statement("S1-22")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda url: httpx.get(url, verify=False, timeout=httpx_timeout(read=0.02)),
            httpx.ReadTimeout,
        ),
        (
            lambda url: requests.get(url, timeout=requests_timeout(read=0.02)),
            requests.ReadTimeout,
        ),
    ],
    ids=["httpx", "requests"],
)
def test_client_limit_that_expires_first_keeps_its_kind(call, error, silent):
    with pytest.raises(error) as raised:
        Timeout(60.0, kind="request").call(call, silent)
    assert timeout_kind(raised.value) == "partner read"

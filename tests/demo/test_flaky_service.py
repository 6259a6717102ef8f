"""The pricing service, over real sockets: its faults, and its count of them."""

import http.client
import itertools
import json
import os
import select
import socket
import struct
import threading
import time
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.demo.client import PricingClient, PricingError, ServiceUnavailable
from retrytemplate.demo.flaky_service import CATALOGUE, MAX_FAULTS, PricingService, faults
from retrytemplate.demo.orders import Order

SEED = 7
PATIENCE = 30.0
ORDER = Order("O-1", date(2026, 11, 20), "Sato Ltd", "SKU-0042", 3)
KEYS = [f"line-{number}" for number in range(2, 3000)]


def fate(key, seed=SEED):
    """The faults of the first requests for an item; more than MAX_FAULTS: it always fails."""
    return list(itertools.islice(faults(seed, key), MAX_FAULTS + 2))


def key_that_meets(*kinds):
    return next(key for key in KEYS if [fault.kind for fault in fate(key)] == list(kinds))


POISONED = next(key for key in KEYS if len(fate(key)) > MAX_FAULTS)


@pytest.fixture
def service():
    with PricingService(seed=SEED) as service:
        yield service


@pytest.fixture
def client(service):
    client = PricingClient(service.host, service.port, timeout=PATIENCE)
    yield client
    client.close()


def post(service, body, **headers):
    connection = http.client.HTTPConnection(service.host, service.port, timeout=PATIENCE)
    try:
        connection.request("POST", "/prices", body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def plug(service, key):
    """A raw connection that has sent a request."""
    body = json.dumps({"sku": "SKU-0042", "quantity": 3})
    plug = socket.create_connection((service.host, service.port), timeout=PATIENCE)
    plug.sendall(
        f"POST /prices HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return plug


def test_service_prices_products_of_the_catalogue(service, client):
    assert client.price(ORDER, key_that_meets()) == 3 * CATALOGUE["SKU-0042"]
    service.close()
    assert service.sent == {"priced": 1}


def test_service_rejects_an_unknown_product(client):
    unknown = Order("O-1", date(2026, 11, 20), "Sato Ltd", "SKU-9999", 3)
    with pytest.raises(PricingError, match="404: no product SKU-9999") as caught:
        client.price(unknown, key_that_meets())
    assert not isinstance(caught.value, ServiceUnavailable)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"sku": "SKU-0042", "quantity": "two"}', b"x" * 100_000]
)
def test_service_rejects_an_invalid_request(service, body):
    status, _, answer = post(service, body, **{"Idempotency-Key": "line-2"})
    assert (status, b"error" in answer) == (400, True)
    service.close()
    assert service.sent == {"rejected": 1}


def test_service_rejects_a_request_without_key(service):
    assert post(service, b'{"sku": "SKU-0042", "quantity": 3}')[0] == 400


def test_response_503_has_retry_after(service, client):
    key = key_that_meets("unavailable")
    with pytest.raises(ServiceUnavailable) as caught:
        client.price(ORDER, key)
    assert caught.value.headers["Retry-After"] == str(fate(key)[0].retry_after)
    assert client.price(ORDER, key) > 0
    service.close()
    assert service.sent == {"unavailable": 1, "priced": 1}


def test_response_503_may_have_a_date(client):
    key = next(k for k in KEYS if [(f.kind, f.dated) for f in fate(k)] == [("unavailable", True)])
    with pytest.raises(ServiceUnavailable) as caught:
        client.price(ORDER, key)
    assert caught.value.headers["Retry-After"].endswith("GMT")


def test_reset_reaches_the_client_as_connection_reset(service):
    with plug(service, key_that_meets("reset")) as connection, pytest.raises(ConnectionResetError):
        connection.recv(1)
    service.close()
    assert service.sent == {"reset": 1}


def test_slow_response_waits_until_the_client_disconnects(service):
    key = key_that_meets("slow")
    hasty = PricingClient(service.host, service.port, timeout=0.05)
    with pytest.raises(TimeoutError):
        hasty.price(ORDER, key)
    until = time.monotonic() + PATIENCE
    while not service.sent and time.monotonic() < until:  # closed now, it might never look at it
        os.sched_yield()
    service.close()
    assert service.sent == {"slow": 1}


def test_unread_response_counts_as_slow(service):
    with plug(service, key_that_meets()) as connection:
        assert select.select([connection], [], [], PATIENCE)[0]
    threads_have_seen_it(service)
    assert {kind: many for kind, many in service.sent.items() if many} == {"slow": 1}


def test_response_to_a_disconnected_client_counts_as_slow(service):
    connection = plug(service, key_that_meets())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    threads_have_seen_it(service)
    assert {kind for kind, many in service.sent.items() if many} <= {"slow"}


def threads_have_seen_it(service):
    """Wait for the handlers of connections that the clients have closed."""
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            while thread.ident is None:  # listed already, not yet begun
                os.sched_yield()
            thread.join(PATIENCE)
    service.close()


def test_poison_item_is_never_priced(service, client):
    failures = []
    for _ in range(6):
        with pytest.raises((ServiceUnavailable, ConnectionResetError)) as caught:
            client.price(ORDER, POISONED)
        failures.append(caught.type)
    assert set(failures) == {ServiceUnavailable, ConnectionResetError}
    service.close()
    assert service.sent == {"unavailable": 3, "reset": 3}


@given(st.integers(), st.text(max_size=20))
def test_item_has_at_most_max_faults_or_endless_ones(seed, key):
    met = fate(key, seed)
    assert met == fate(key, seed)
    assert len(met) in (*range(MAX_FAULTS + 1), MAX_FAULTS + 2)


def test_other_seeds_give_other_faults():
    assert len({tuple(len(fate(key, seed)) for key in KEYS[:200]) for seed in range(20)}) == 20


def test_port_in_use_raises_os_error(service):
    with pytest.raises(OSError, match="in use"):
        PricingService(port=service.port)


def test_close_disconnects_idle_connections():
    before = set(threading.enumerate())
    with PricingService(seed=SEED) as service:
        idle = plug(service, key_that_meets())
        assert idle.recv(65_536).startswith(b"HTTP/1.1 200")
    with idle:
        assert idle.recv(1) == b""
    assert set(threading.enumerate()) <= before


def test_service_that_never_served_can_be_closed():
    service = PricingService()
    service.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((service.host, service.port), timeout=PATIENCE)

"""A user of the server with the documented minimal rights."""

import re
from pathlib import Path

import pytest
from sqlalchemy import make_url

from retrytemplate import CircuitStoreError
from retrytemplate.control import Calls, Consecutive, Seconds
from tests.control.breaker.redis.shared import failing, fine

PAGE = Path(__file__).resolve().parents[4] / "docs" / "control" / "circuit-breaker.md"
NEEDED = re.compile(r"`~retry:circuit:\* ([^`]+)`")


@pytest.fixture
def limited(sharing):
    """The URL of a user with the rights of the page, and a name for rights to be added."""
    name = f"u_{sharing.prefix}"
    rights = NEEDED.search(PAGE.read_text(encoding="utf-8"))[1].split()
    client = sharing.client
    client.execute_command(
        *("ACL", "SETUSER", name, "on", ">secret", "resetkeys"),
        *(f"~{sharing.prefix}:circuit:*", "-@all", *rights),
    )
    url = make_url(sharing.url).set(username=name, password="secret")
    yield url.render_as_string(hide_password=False), name
    client.acl_deluser(name)


@pytest.mark.parametrize("window", [Calls(5), Seconds(10), Consecutive(3)], ids=str)
def test_documented_rights_are_enough(sharing, limited, window):
    store = sharing.store(url=limited[0], on_store_error="raise")
    rates = {} if isinstance(window, Consecutive) else {"minimum_calls": 3}
    breaker = sharing.breaker(store=store, window=window, **rates)
    for function in [fine] * 2 + [failing] + [fine] * 6 + [failing] * 5:
        breaker.outcome(function)
    assert breaker.state == "open"
    sharing.advance(30)
    for _ in range(3):
        assert breaker.outcome(fine).exception is None
    breaker.force_open(by="kim", reason="they asked us to")
    breaker.reset()
    assert store.fetch("billing").state == "closed"


def test_names_of_all_circuits_need_the_scan_right(sharing, limited):
    url, name = limited
    store = sharing.store(url=url)
    with pytest.raises(CircuitStoreError, match="scan failed in the store of the circuit breaker"):
        store.names()
    sharing.client.execute_command("ACL", "SETUSER", name, "+scan")
    assert store.names() == []

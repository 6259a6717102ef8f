"""Users with the minimal rights for a kill switch's store, and users who may only read."""

import pytest
from sqlalchemy import make_url, text

from retrytemplate.control import KillSwitch, RedisSwitchStore, SQLSwitchStore
from retrytemplate.errors import SwitchStoreError
from retrytemplate.testing import VirtualClock
from tests.control.switch.shared import Recorded, stopped

LOOKS = "eval evalsha hget hlen hmget llen lrange zcard zrangebyscore"
COMMANDS = f"{LOOKS} hdel hset lindex rpush time zadd zrange zrem"
LEASE = 60.0


def use(store):
    """Run every step."""
    version = store.load(None)[0]
    assert store.commit(version, "stopped", ["who stopped it"])
    assert [each.number for each in store.claim_pending_notifications("one", LEASE, 1)] == [1]
    store.mark_notified([1], "one")
    assert [each.notified for each in store.records()] == [True]


@pytest.fixture
def user(valkey):
    """How to get the URL of a user who may run these commands on the keys of a switch."""
    name, url = f"worker-{valkey.prefix}", make_url(valkey.url)

    def make(commands):
        valkey.client.acl_setuser(
            name,
            enabled=True,
            passwords=["+secret"],
            keys=[f"{valkey.name}*"],
            categories=["-@all", "+@connection"],
            commands=[f"+{each}" for each in commands.split()],
        )
        return url.set(username=name, password="secret").render_as_string(hide_password=False)

    yield make
    valkey.client.acl_deluser(name)


def test_valkey_user_with_few_commands_can_use_stores(user, valkey):
    store = RedisSwitchStore(user(COMMANDS), valkey.prefix)
    use(store)
    store.close()


def test_valkey_user_with_read_rights_changes_nothing(user, valkey):
    use(valkey.open())
    store = RedisSwitchStore(user(LOOKS), valkey.prefix)
    assert store.load(None) == (1, "stopped")
    assert len(store.records()) == 1
    with pytest.raises(SwitchStoreError, match=r"(?i)permission|ACL"):
        store.commit(1, "changed", ["who changed it"])
    assert valkey.open().load(None) == (1, "stopped")
    store.close()


def test_wrong_password_is_not_shown_in_errors(user, valkey):
    store = RedisSwitchStore(user(LOOKS).replace("secret", "swordfish"), valkey.prefix)
    with pytest.raises(SwitchStoreError, match="invalid username-password pair") as caught:
        store.load(None)
    assert "swordfish" not in f"{caught.value!r} {caught.value.__cause__!r} {store!r}"
    store.close()


@pytest.fixture
def role(postgresql):
    """How to get the URL of a role that may do this with the tables, and nothing else."""
    postgresql.open().load(None)
    name, url = f"worker_{postgresql.prefix}", make_url(postgresql.url)
    tables = "{0}_switch, {0}_switch_audit, {0}_meta"
    postgresql.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")

    def make(rights):
        postgresql.sql(f"GRANT {rights} ON {tables} TO {name}")
        return url.set(username=name, password="secret").render_as_string(hide_password=False)

    yield make
    with postgresql.engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {name}"))
        connection.execute(text(f"DROP ROLE {name}"))


def test_role_with_read_and_write_rights_can_use_stores(role, postgresql):
    store = SQLSwitchStore(role("SELECT, INSERT, UPDATE"), postgresql.prefix)
    use(store)
    store.close()


def test_read_only_role_logs_once_that_it_cannot_lift_stops(role, postgresql, caplog):
    clock = VirtualClock()
    with KillSwitch(postgresql.open(), clock=clock) as switch:
        stopped(switch)
    clock.advance(3600)
    store = SQLSwitchStore(role("SELECT"), postgresql.prefix)
    with KillSwitch(store, clock=clock, listeners=[Recorded()]) as looking:
        for _ in range(3):
            looking.refresh()
        assert looking.check(segment="billing")
        assert not looking.report().lines
    assert caplog.messages == ["kill switch switch: expired stops cannot be updated in the store"]
    store.close()


def test_read_only_role_changes_nothing(role, postgresql):
    use(postgresql.open())
    store = SQLSwitchStore(role("SELECT"), postgresql.prefix)
    assert store.load(None) == (1, "stopped")
    assert len(store.records()) == 1
    with pytest.raises(SwitchStoreError, match="permission denied for table"):
        store.commit(1, "changed", ["who changed it"])
    store.close()

"""A user of a Valkey server with the minimal rights for a cache."""

from urllib.parse import urlsplit

import pytest

from retrytemplate import CacheUnavailableError, RetryState, RetryTemplate
from tests.support.cache_kinds import blocking

COMMANDS = "del eval evalsha hdel hexists hget hmget hset pexpireat scan time"


@pytest.fixture
def url(valkey):
    """The URL of a user who may run these commands on the keys of one prefix, and nothing else."""
    name = f"worker-{valkey.prefix}"
    valkey.client.acl_setuser(
        name,
        enabled=True,
        passwords=["+secret"],
        keys=[f"{valkey.prefix}:*"],
        categories=["-@all", "+@connection"],
        commands=[f"+{each}" for each in COMMANDS.split()],
    )
    server = urlsplit(valkey.url)
    yield server._replace(netloc=f"{name}:secret@{server.hostname}:{server.port}").geturl()
    valkey.client.acl_deluser(name)


def test_valkey_user_with_few_commands_can_use_caches(url, valkey):
    with blocking(url, prefix=valkey.prefix) as cache:
        template = RetryTemplate(cache=cache, name="work")
        with pytest.raises(ZeroDivisionError):
            template.execute(lambda context: 1 / 0, state=RetryState("m1"))
        assert list(cache) == cache.keys() == ["work/s:m1"]
        state = RetryState("m1", remember=60)
        assert template.execute(lambda context: context.attempt, state=state) == 2
        claim = cache.begin("other", worker="one")
        cache.renew(claim)
        assert cache.holds(claim)
        cache.release(claim)
        cache.forget("work/s:m1")
    assert valkey.keys() == []


def test_user_without_access_to_the_keys_gets_an_error(url, valkey):
    with (
        blocking(url, prefix=f"{valkey.prefix}-other") as cache,
        pytest.raises(CacheUnavailableError, match=r"(?i)no permissions to access"),
    ):
        cache.begin("any", worker="one")


def test_wrong_password_is_not_shown_in_errors(url, valkey):
    with (
        blocking(url.replace("secret", "swordfish"), prefix=valkey.prefix) as cache,
        pytest.raises(CacheUnavailableError, match="invalid username-password pair") as caught,
    ):
        cache.begin("any", worker="one")
    assert "swordfish" not in f"{caught.value!r} {caught.value.__cause__!r} {cache!r}"

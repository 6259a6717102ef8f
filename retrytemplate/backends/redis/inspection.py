"""Entries of a cache on Redis or Valkey, read without a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._storage.column_keys import from_column_key, to_column_key
from retrytemplate._storage.redis_script import send_idempotent
from retrytemplate.backends.inspection import ContextInspector, Entry, entry
from retrytemplate.backends.redis import scripts
from retrytemplate.backends.redis.cache import RedisRetryContextCache
from retrytemplate.backends.redis.operations import Steps, moment, readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._storage.operation_runner import Operation


class _LookingSteps(Steps):
    """Operations that read all fields."""

    def listing(self, prefix: str, after: str, limit: int) -> Operation[list[Entry]]:
        keys = yield from self._first(limit, after, scripts.LIST_ALL, to_column_key(prefix))
        entries = []
        for key in keys:
            found = yield from self.search(from_column_key(key))
            if found is not None:  # not deleted meanwhile
                entries.append(found)
        return entries

    def search(self, key: str) -> Operation[Entry | None]:
        answer = yield from self._run(send_idempotent, scripts.LOOK, key)
        now, text, phase, fence, worker, lease, expires = answer
        if phase is None:
            return None
        return entry(
            from_column_key(to_column_key(key)),
            text,
            phase=readable(phase),
            fence=_as(int, fence),
            worker=_as(readable, worker),
            lease_until=_as(moment, lease),
            expires=_as(moment, expires),
            now=moment(now),
        )


def _as(kind: Callable[[bytes], Any], text: bytes | None) -> Any:
    """The value of a field, or its text if it is of another kind."""
    try:
        return None if text is None else kind(text)
    except (ValueError, OverflowError):
        return readable(text or b"")


class RedisEntries(ContextInspector):
    """The entries of a context cache on Redis or Valkey.

    :param url: of the server, as ``RedisRetryContextCache`` takes it.
    :param prefix: of the keys.
    """

    def __init__(self, url: str, prefix: str = "retry") -> None:
        cache = RedisRetryContextCache(url, prefix=prefix)
        super().__init__(cache, _LookingSteps(prefix, cache.lease, cache.ttl))

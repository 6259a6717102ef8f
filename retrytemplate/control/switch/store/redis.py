"""A kill switch's store in Redis or Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._storage.column_keys import KEY_PREFIXES
from retrytemplate._storage.redis_connection import Connections
from retrytemplate._storage.redis_script import eval_script, send_idempotent, send_once
from retrytemplate.backends.redis.operations import MOST
from retrytemplate.control.switch.store import lua
from retrytemplate.control.switch.store.base import (
    KILL_SWITCH,
    DurableSwitchStore,
    to_stored_record,
    unreadable_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate._storage.redis_script import Script, Send
    from retrytemplate.control.switch.store.base import StoredRecord

__all__ = ["RedisSwitchStore"]


class RedisSwitchStore(DurableSwitchStore):
    """Store of a kill switch in Redis or Valkey, shared by processes.

    :param url: of the server (``redis://``, ``rediss://``, ``unix://``, as redis-py has them, or
        ``valkey://``, ``valkeys://``), or a ``redis.Redis``, whose connections and waits are used;
        it keeps those it has taken until it is closed.
    :param prefix: of the keys: ``{prefix}:switch`` and three that begin so, all in one slot of a
        cluster.  None of them has an end: the server must not evict them.
    :param timeout: seconds to wait for a connection, and for an answer.

    A change and its records are one script.  Safe for threads, and across a fork.  It needs the
    extra ``redis``, and Redis 6.2 or Valkey, or a later version.

    Making one connects to nothing yet:

    >>> RedisSwitchStore("redis://:secret@localhost")
    <RedisSwitchStore localhost:6379/0 prefix='retry'>
    """

    _prefixes = KEY_PREFIXES

    def __init__(self, url: str | Redis, prefix: str = "retry", *, timeout: Seconds = 5.0) -> None:
        super().__init__(prefix, timeout)
        self._operations = _RedisOperations(self.prefix)
        self._store = Connections(url, self.timeout, KILL_SWITCH)


class _RedisOperations:
    """The steps of a store on the keys of one prefix."""

    def __init__(self, prefix: str) -> None:
        # In braces, what decides about the slot of a cluster.
        switch = f"{{{prefix}}}:switch"
        self._names = (4, switch, f"{switch}:audit", f"{switch}:pending", f"{switch}:claims")

    def load(self, known: int | None) -> Operation[tuple[int, str] | None]:
        found = yield from self._run(send_idempotent, lua.LOAD, "" if known is None else known)
        if found is None:
            return None
        try:
            version, document = found
            return int(version), document.decode()
        except (ValueError, AttributeError):
            raise unreadable_error("the state") from None

    def commit(
        self, expected: int, document: str, records: Sequence[str], again: bool
    ) -> Operation[bool]:
        texts = [text.encode() for text in (document, *records)]
        answer = yield from self._run(
            send_once, lua.COMMIT, expected, expected + 1, int(again), *texts
        )
        return answer is not None

    def records(self, before: int | None, limit: int) -> Operation[list[StoredRecord]]:
        below = "" if before is None else before
        lowest, found, numbers = yield from self._run(send_idempotent, lua.RECORDS, below, limit)
        pending = set(map(int, numbers))
        records = [
            _record(number, text, number not in pending)
            for number, text in enumerate(found, lowest)
        ]
        return records[::-1]

    def claim_pending_notifications(
        self, worker: str, lease: float, limit: int
    ) -> Operation[list[StoredRecord]]:
        arguments = (worker.encode(), min(lease, MOST), limit)
        found = yield from self._run(send_idempotent, lua.CLAIM, *arguments)
        return [_record(int(number), text, False) for number, text in found]

    def mark_notified(self, numbers: Sequence[int], worker: str) -> Operation[None]:
        yield from self._run(send_once, lua.MARK_NOTIFIED, worker.encode(), *numbers)

    def _run(self, send: Send, script: Script, *arguments: Any) -> Operation[Any]:
        return (yield from eval_script(send, script, None, *self._names, *arguments))


def _record(number: int, entry: bytes | None, notified: bool) -> StoredRecord:
    try:
        _, text = (entry or b"").decode().split("\n", 1)
    except ValueError:
        text = None
    return to_stored_record(number, text, notified)

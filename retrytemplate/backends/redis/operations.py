"""Operations of the Redis caches as generators of commands, one on the usual path.

An operation yields a key and a command about it, and receives the answer, undecoded.
"""

from __future__ import annotations

import os
import re
from itertools import count
from typing import TYPE_CHECKING, Any

from retrytemplate._storage.column_keys import from_column_key, to_column_key
from retrytemplate._storage.process_liveness import process_fingerprint
from retrytemplate._storage.redis_script import eval_script, send_idempotent, send_once
from retrytemplate.backends.leases import LeasedClaim
from retrytemplate.backends.redis import scripts
from retrytemplate.backends.stored_rows import parsed
from retrytemplate.caches.base import completed, in_progress, lost
from retrytemplate.caches.record import Record, to_text
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate._storage.redis_script import Script, Send

AT_ONCE = 1000
MOST = 6e9
"""Seconds, 190 years: the upper limit of each duration."""
# Special characters in the pattern of a scan.
SPECIAL = re.compile(r"[*?\[\]\\]")
ESCAPED = r"\\\g<0>"
END = "0"
"""The cursor of a scan, before and after it."""


class Steps:
    """The operations of a cache on the keys of one prefix.

    :param lease: seconds; default of a claim.
    :param ttl: seconds after the last write when a key is deleted.
    """

    def __init__(self, prefix: str, lease: float, ttl: float) -> None:
        self._opening = f"{prefix}:{{"
        self._lease = min(lease, MOST)
        self._ttl = min(ttl, MOST)
        self._calls = count(1)
        self._origin = os.urandom(6).hex()

    def begin(
        self, key: str, worker: str, lease: float | None, fresh: bool, takeover: str | None
    ) -> Operation[LeasedClaim]:
        """Take the key, or raise the reason."""
        seconds = self._lease if lease is None else min(lease, MOST)
        process = process_fingerprint() or ""
        arguments: tuple[Any, ...] = worker, self._token(), seconds, self._ttl, int(fresh), process
        if takeover is not None:
            arguments += (takeover,)
        reply = yield from self._run(send_idempotent, scripts.BEGIN, key, *arguments)
        if reply is None:
            raise completed(key)
        if isinstance(reply, list):
            holder, ends, process = map(readable, reply)
            raise in_progress(key, holder, moment(ends), process)
        fence, ends, size, rest = reply.split(b"\n", 3)
        lost_by, text = rest[: int(size)], rest[int(size) :]
        claim = LeasedClaim(key, worker, None, int(fence), moment(ends))
        claim.lease = seconds
        if fresh:
            return claim
        claim.lost = readable(lost_by) or None
        if text:
            try:
                claim.read(parsed(key, text))
            except CacheUnavailableError:  # no attempt has begun
                yield from self.release(claim)
                raise
        return claim

    def renew(self, claim: LeasedClaim) -> Operation[None]:
        """Extend the lease by its first duration."""
        ends = yield from self._write_claim(scripts.RENEW, claim, claim.lease, self._ttl)
        claim.lease_until = moment(ends)

    def fail(self, claim: LeasedClaim, record: Record, connection: None) -> Operation[None]:
        """Write the record; keep the key if the record has a worker."""
        held = record.worker is not None
        times = (claim.lease, self._ttl, int(held))
        ends = yield from self._write_claim(scripts.FAIL, claim, *times, *_columns(record))
        claim.lease_until = moment(ends) if held else None
        claim.version = record.version

    def succeed(
        self,
        claim: LeasedClaim,
        remember: float | None,
        connection: None,
        record: Record | None,
    ) -> Operation[None]:
        """Delete all but the fence, or leave a completion marker."""
        if remember is None:
            yield from self._write_claim(scripts.FINISH, claim)
        else:
            kept = () if record is None else _columns(record)[:2]
            yield from self._write_claim(scripts.REMEMBER, claim, min(remember, MOST), *kept)

    def release(self, claim: LeasedClaim) -> Operation[None]:
        """End the claim; restore the key."""
        yield from self._run_for_claim(scripts.GIVE_BACK, claim, self._ttl)

    def holds(self, claim: LeasedClaim) -> Operation[bool]:
        """Whether the key names the claim, and its lease has not ended."""
        return bool((yield from self._run_for_claim(scripts.HOLDS, claim)))

    def forget(self, key: str) -> Operation[None]:
        """Delete all but the fence, whether the key is held or not."""
        yield from self._run(send_once, scripts.FORGET, key)

    def peek(self, key: str) -> Operation[Record | None]:
        """The record, or None."""
        text = yield from send_idempotent(key, ("HGET", self._name(key), "record"))
        return None if text is None else parsed(key, text)

    def swap(self, key: str, record: Record, version: int) -> Operation[bool]:
        """Write the record if the stored version is *version*."""
        arguments = (version, self._ttl, *_columns(record))
        return bool((yield from self._run(send_once, scripts.SWAP, key, *arguments)))

    def page(
        self, cursor: str, script: Script = scripts.LIST, beginning: str = ""
    ) -> Operation[tuple[str, list[str]]]:
        """A page of the keys that have a record, and the cursor of the next page."""
        arguments = (cursor, f"{self._opening}{SPECIAL.sub(ESCAPED, beginning)}*", AT_ONCE)
        following, names = yield from eval_script(send_idempotent, script, None, 0, *arguments)
        return following.decode(), [name.decode()[len(self._opening) : -1] for name in names]

    def keys(self, after: str, limit: int) -> Operation[list[str]]:
        """The keys that have a record, in order, beginning after *after*."""
        found = yield from self._first(limit, after, scripts.LIST)
        return [from_column_key(key) for key in found]

    def _first(
        self, limit: int, after: str, script: Script, beginning: str = ""
    ) -> Operation[list[str]]:
        """The first *limit* keys in order: all are read, since the server has no order."""
        behind, found, cursor = to_column_key(after), set[str](), END
        while True:
            cursor, page = yield from self.page(cursor, script, beginning)
            found.update(key for key in page if key > behind)
            found = set(sorted(found)[:limit])
            if cursor == END:
                return sorted(found)

    def purge(self) -> Operation[int]:
        """Do nothing: the server deletes expired keys."""
        yield from ()
        return 0

    # -- commands --------------------------------------------------------------------------------

    def _write_claim(self, script: Script, claim: LeasedClaim, *arguments: Any) -> Operation[Any]:
        """The answer to a write of the claim.

        :raises LeaseLostError: another claim holds the key.
        """
        answer = yield from self._run_for_claim(script, claim, *arguments)
        if answer is None:
            raise lost(claim)
        return answer

    def _run_for_claim(self, script: Script, claim: LeasedClaim, *arguments: Any) -> Operation[Any]:
        mine = (claim.worker, claim.fence, self._token())
        return (yield from self._run(send_idempotent, script, claim.key, *mine, *arguments))

    def _run(self, send: Send, script: Script, key: str, *arguments: Any) -> Operation[Any]:
        return (yield from eval_script(send, script, key, 1, self._name(key), *arguments))

    def _name(self, key: str) -> bytes:
        return f"{self._opening}{to_column_key(key)}}}".encode()

    def _token(self) -> str:
        return f"{self._origin}.{next(self._calls)}"


def scan(opening: str, rest: str, kind: str) -> Operation[set[bytes]]:
    """The keys of a type that begin with *opening* and continue as the pattern *rest* says."""
    pattern, found, cursor = SPECIAL.sub(ESCAPED, opening) + rest, set[bytes](), END
    while True:
        command = ("SCAN", cursor, "MATCH", pattern, "COUNT", AT_ONCE, "TYPE", kind)
        following, keys = yield from send_idempotent(None, command)
        found.update(keys)
        cursor = following.decode()
        if cursor == END:
            return found


def moment(text: bytes | str) -> float:
    """Microseconds as seconds."""
    return int(text) / 1e6


def readable(text: bytes) -> str:
    """A name as text, also if it is not UTF-8."""
    return text.decode(errors="replace")


def _columns(record: Record) -> tuple[Any, ...]:
    return to_text(record), record.version, record.phase

"""A source of messages: a stream in Redis or Valkey, read by a consumer group."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from attrs import define

from retrytemplate._internal.cancel_scope import wait_shielded
from retrytemplate._internal.validation import (
    check_at_least_one,
    check_flag,
    check_text,
    check_text_or_none,
    check_wait,
)
from retrytemplate._storage.cancellation import run_to_completion
from retrytemplate._storage.operation_runner import perform_async, translate_errors
from retrytemplate._storage.process_liveness import is_process_gone, process_fingerprint
from retrytemplate._storage.redis_connection import AsyncConnections
from retrytemplate._storage.redis_script import Script, eval_script, send_idempotent, send_once
from retrytemplate._storage.store_role import StoreRole
from retrytemplate.backends.redis.cache import AsyncRedisRetryContextCache
from retrytemplate.caches.worker_id import next_number, worker_name
from retrytemplate.errors import MisuseError
from retrytemplate.workers.errors import SourceUnavailableError
from retrytemplate.workers.message import DamagedMessage, DeadLetter, Message
from retrytemplate.workers.sources import redis_scripts as scripts

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from redis.asyncio import Redis

    from retrytemplate._internal.validation import Seconds

    # Id, names and values of the fields, deliveries.
    Entry = tuple[bytes, list[bytes], int]
    # acknowledging: also while the answer to an acknowledgement is unknown.
    State = Literal["owned", "acknowledging", "settled", "lost"]

OWNER = StoreRole("message queue", extra="redis")
TIMEOUT = 5.0
"""Seconds to wait for a connection, and for an answer."""
LOOK_EVERY = 0.5
"""Seconds between two looks for abandoned messages, and of one wait for new ones."""
RELEASED = 2_000_000_000
"""Milliseconds, above any visibility timeout: an entry that is idle for longer is released."""
UNUSED = 3_600_000
"""Milliseconds after which a consumer without messages is deleted."""
START = b"0-0"


@define(eq=False)
class _Receipt:
    """A delivery: its entry, and until when it is visible here only (monotonic)."""

    entry: bytes
    until: float
    state: State = "owned"


class RedisStreamSource:
    """The entries of a stream in Redis or Valkey as messages, shared by a consumer group.

    :param url: of the server, or a ``redis.asyncio.Redis``, as for ``AsyncRedisRetryContextCache``.
    :param stream: the key of the stream; ``open`` creates stream and group if they are missing.
    :param group: the consumer group; each group gets every message.
    :param consumer: how the consumer's name begins, which ends with its process; default None: with
        the host.
    :param visibility_timeout: seconds, or a ``timedelta``, after which a message of another worker
        is received here, unless that renews it; 0.01 to 1,000,000, default 60.
    :param dead_letters: a stream for the dead letters; default None: they are deleted.
    :param maxlen: about how many entries ``dead_letters`` keeps; at least 1, default None: all.
    :param delete_acknowledged: whether an acknowledged entry is deleted from the stream; default
        True, which needs that the stream has one group.

    An entry has the field ``body``, and if set ``id``, the publisher's message id, and ``headers``,
    a JSON object of strings.  Messages of a process that has ended on this host are received at
    once.  Each settlement compares the owner, so that a former one changes nothing.

    It needs the extra ``redis``, and Redis 6.2 or Valkey, or a later version.  The constructor does
    not connect; each method raises ``SourceUnavailableError`` if the server does not answer.

    >>> print(RedisStreamSource("redis://:secret@localhost", "orders", group="billing"))
    localhost:6379/0 orders/billing
    """

    supports_delay = False
    transactional = False

    def __init__(
        self,
        url: str | Redis,
        stream: str,
        *,
        group: str,
        consumer: str | None = None,
        visibility_timeout: Seconds = 60.0,
        dead_letters: str | None = None,
        maxlen: int | None = None,
        delete_acknowledged: bool = True,
    ) -> None:
        check_text("stream", stream)
        check_text("group", group)
        check_text_or_none("consumer", consumer)
        check_text_or_none("dead_letters", dead_letters)
        if maxlen is not None:
            check_at_least_one("maxlen", maxlen)
        check_flag("delete_acknowledged", delete_acknowledged)
        self.name = stream
        self.group = group
        self.dead_letters = dead_letters
        self._visibility = check_wait("visibility_timeout", visibility_timeout)
        self.visibility_timeout: float | None = self._visibility
        self._url = url
        self._begins_with = consumer
        self._number = next_number()
        self._maxlen = maxlen
        self._deletes = delete_acknowledged
        self._connections = AsyncConnections(url, TIMEOUT, OWNER)
        self._consumer = ""
        self._here: WeakValueDictionary[bytes, _Receipt] = WeakValueDictionary()
        self._cursor = START
        self._look_at = 0.0
        self._looks_next = True
        self._has_more = False

    def __repr__(self) -> str:
        return f"<RedisStreamSource {self}>"

    def __str__(self) -> str:
        """The server without a password, the stream and the group."""
        return f"{self._connections} {self.name}/{self.group}"

    # -- open and close --------------------------------------------------------------------------

    async def open(self) -> None:
        """Create the stream and the group if they are missing.

        :raises MisuseError: if entries would be deleted that another group has not processed, or
            the key has another type.
        """
        begins_with = self._begins_with
        name = worker_name(self._number) if begins_with is None else f"{begins_with}-{self._number}"
        self._consumer = " ".join(filter(None, (name, process_fingerprint())))
        await self._create()
        if not self._deletes:
            return
        groups = await self._ask("open", "XINFO", "GROUPS", self.name)
        names = sorted(_pairs(each)[b"name"].decode(errors="replace") for each in groups)
        if len(names) > 1:
            raise MisuseError(
                f"delete_acknowledged must be False, because the stream {self.name!r} has the "
                f"groups {', '.join(names)}: each would delete entries that the others need"
            )

    async def _create(self) -> None:
        try:
            await self._ask("open", "XGROUP", "CREATE", self.name, self.group, "0", "MKSTREAM")
        except SourceUnavailableError as exc:
            answer = str(exc.__cause__)
            if answer.startswith("WRONGTYPE"):
                raise MisuseError(f"the key {self.name!r} must be a stream: {answer}") from exc
            if not answer.startswith("BUSYGROUP"):
                raise

    async def close(self) -> None:
        """Delete the consumer, unless messages are not settled; close the connections."""
        if self._consumer:
            with suppress(SourceUnavailableError):  # another worker deletes it later
                await self._run("close", scripts.DELETE_CONSUMER)
            self._consumer = ""
        await self._connections.close()

    def default_cache(self) -> AsyncRedisRetryContextCache:
        """A context cache on the same server, whose concurrent commands are sent together.

        Its lease is 30 seconds, or the visibility timeout if that is shorter.
        """
        return AsyncRedisRetryContextCache(self._url, min(30.0, self._visibility), pipeline=True)

    # -- receive ---------------------------------------------------------------------------------

    async def receive(self, max_messages: int, wait: float) -> list[Message]:
        """Take new and abandoned entries, in turn; see ``Source.receive``.

        A cancellation is raised after at most half a second.
        """
        until, has_looked = time.monotonic() + wait, False
        while True:
            if self._looks_next:
                messages = await self._take(self._receive_abandoned(max_messages))
                if messages:
                    return messages
                has_looked = True
            rest = until - time.monotonic()
            block = min(rest, LOOK_EVERY) if has_looked else 0.0
            messages = await self._take(self._receive_new(max_messages, block))
            if messages or (has_looked and rest <= 0):
                return messages
            self._looks_next = True

    async def _take(self, receiving: Coroutine[Any, Any, list[Message]]) -> list[Message]:
        """Receive; release the messages if the task is cancelled meanwhile."""
        task = asyncio.ensure_future(receiving)
        try:
            await wait_shielded([task])
        except asyncio.CancelledError:
            with suppress(SourceUnavailableError):  # received again after the visibility timeout
                await run_to_completion(self.release(task.result()))
            raise
        try:
            return task.result()
        except SourceUnavailableError as exc:
            if str(exc.__cause__).startswith("NOGROUP"):  # the server has lost its data
                await self._create()
            raise

    async def _receive_new(self, limit: int, wait: float) -> list[Message]:
        block = ("BLOCK", int(wait * 1000)) if wait >= 0.001 else ()  # 0 waits without a limit
        command = "XREADGROUP", "GROUP", self.group, self._consumer, "COUNT", limit, *block
        asked = time.monotonic()
        reply = await self._ask("receive", *command, "STREAMS", self.name, ">", again=False)
        now = time.monotonic()
        self._looks_next = self._has_more or now >= self._look_at
        entries = reply[0][1] if reply else ()
        return [self._message((*entry, 1), asked) for entry in entries]

    async def _receive_abandoned(self, limit: int) -> list[Message]:
        """Take entries of ended processes of this host, or those whose visibility has ended."""
        asked = time.monotonic()
        entries: list[Entry] = []
        if asked >= self._look_at:
            self._look_at = asked + LOOK_EVERY
            entries = await self._take_from_ended(limit)
        if not entries:
            idle = max(1, int(self._visibility * 1000))
            self._cursor, entries = await self._run(
                "receive", scripts.CLAIM, idle, self._cursor, limit, again=False
            )
        self._has_more = bool(entries) or self._cursor != START
        self._looks_next = False  # a read comes first
        # An entry that is being processed here was claimed from this consumer itself.
        return [self._message(entry, asked) for entry in entries if not self._is_here(entry, asked)]

    def _is_here(self, entry: Entry, now: float) -> bool:
        receipt = self._here.get(entry[0])
        if receipt is not None and receipt.until <= now:  # the runtime has not extended it
            receipt.state = "lost"
        return receipt is not None and receipt.state == "owned"

    async def _take_from_ended(self, limit: int) -> list[Entry]:
        """Take entries of consumers whose process has ended on this host; delete the consumers."""
        for each in await self._ask("receive", "XINFO", "CONSUMERS", self.name, self.group):
            about = _pairs(each)
            name = about[b"name"]
            process = _process_of(name)
            is_unused = not about[b"pending"] and about[b"idle"] > UNUSED
            if process is None or not (is_unused or is_process_gone(process)):
                continue
            has_more, entries = await self._run("receive", scripts.TAKE, name, limit, again=False)
            if entries or has_more:
                self._look_at = 0.0  # there may be more
                return list(entries)
        return []

    def _message(self, entry: Entry, asked: float) -> Message:
        number, fields, count = entry
        receipt = _Receipt(number, asked + self._visibility)
        self._here[number] = receipt
        made = _pairs(fields)
        known: dict[str, Any] = {
            "id": number.decode(),
            "queue": self.name,
            "delivery_count": count,
            "redelivered": count > 1,
            "enqueued_at": int(number.partition(b"-")[0]) / 1000,
            "receipt": receipt,
        }
        try:
            known["id"] = made.get(b"id", number).decode()
            headers = _headers(made.get(b"headers"))
            return Message(**known, body=made[b"body"], headers=headers)
        except (KeyError, ValueError) as exc:
            body = made.get(b"body", repr(made).encode())
            reason = "the field body is missing" if isinstance(exc, KeyError) else str(exc)
            return DamagedMessage(**known, body=body, damage=f"entry {number.decode()}: {reason}")

    # -- settle ----------------------------------------------------------------------------------

    async def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Acknowledge the entries, and delete them; return those of other owners."""
        mine = [each for each in messages if each.receipt.state in ("owned", "acknowledging")]
        rejected: set[bytes] = set()
        if mine:
            self._mark(mine, (), "acknowledging")  # not extended: it may be settled already
            ids = [each.receipt.entry for each in mine]
            deletes = int(self._deletes)
            rejected = {*await self._run("acknowledge", scripts.ACKNOWLEDGE, deletes, *ids)}
        self._mark(mine, rejected, "settled")
        return [each for each in messages if each.receipt.state == "lost"]

    async def requeue(self, message: Message, delay: float, reason: str) -> None:
        """Not supported: the runtime keeps the message until its next attempt.

        :raises MisuseError: always.
        """
        raise MisuseError("a stream cannot delay a message: supports_delay is False")

    async def dead_letter(self, message: Message, letter: DeadLetter) -> None:
        """Write the letter and remove the message in one step, unless it has another owner."""
        if message.receipt.state != "owned":
            return
        keys = (self.name,) if self.dead_letters is None else (self.name, self.dead_letters)
        limit = () if self._maxlen is None else (self._maxlen,)
        text = json.dumps(letter.as_json())
        details = int(self._deletes), message.receipt.entry, letter.id, text, *limit
        await self._run("dead_letter", scripts.DEAD_LETTER, *details, keys=keys)
        self._mark([message], (), "settled")

    async def release(self, messages: Sequence[Message]) -> None:
        """Let any worker take the messages at once; this delivery is not counted."""
        mine = [each for each in messages if each.receipt.state == "owned"]
        if mine:
            ids = [each.receipt.entry for each in mine]
            await self._run("release", scripts.RELEASE, RELEASED, *ids)
            self._mark(mine, (), "lost")
            self._looks_next = True

    async def extend(self, messages: Sequence[Message]) -> list[Message]:
        """Restart the visibility timeout of messages; return those that are not owned here."""
        mine = [each for each in messages if each.receipt.state == "owned"]
        if mine:
            asked = time.monotonic()
            ids = [each.receipt.entry for each in mine]
            lost = {*await self._run("extend", scripts.EXTEND, *ids)}
            for each in mine:
                each.receipt.until = asked + self._visibility
            # One that was settled meanwhile is not lost.
            self._mark([each for each in mine if each.receipt.state == "owned"], lost, "owned")
        return [each for each in messages if each.receipt.state == "lost"]

    def _mark(self, messages: Iterable[Message], lost: Iterable[bytes], state: State) -> None:
        """Note the state of deliveries; those of *lost* have another owner."""
        for message in messages:
            receipt: _Receipt = message.receipt
            receipt.state = "lost" if receipt.entry in lost else state
            if receipt.state != "owned" and self._here.get(receipt.entry) is receipt:
                del self._here[receipt.entry]

    # -- commands --------------------------------------------------------------------------------

    async def _ask(self, step: str, *command: Any, again: bool = True) -> Any:
        send = send_idempotent if again else send_once
        return await self._perform(step, send(self.name, command))

    async def _run(
        self, step: str, script: Script, *arguments: Any, keys: Any = None, again: bool = True
    ) -> Any:
        """Run a script for this consumer."""
        keys = keys or (self.name,)
        rest = len(keys), *keys, self.group, self._consumer, *arguments
        send = send_idempotent if again else send_once
        return await self._perform(step, eval_script(send, script, self.name, *rest))

    async def _perform(self, step: str, operation: Any) -> Any:
        with translate_errors(SourceUnavailableError):
            return await perform_async(
                operation, lambda order, _: self._connections.ask(order, step)
            )


def _pairs(reply: Sequence[Any]) -> dict[bytes, Any]:
    """Names and values of a reply in which they alternate."""
    return dict(zip(reply[::2], reply[1::2], strict=False))


def _process_of(consumer: bytes) -> str | None:
    """The process in the name of a consumer; None: it is no name of this library."""
    process = consumer.decode(errors="replace").split(" ")[-4:]
    return " ".join(process) if len(process) == 4 and process[0].startswith("pid:") else None


def _headers(text: bytes | None) -> dict[str, str]:
    """The headers of an entry.

    :raises ValueError: if it is no JSON object of strings.
    """
    made = {} if text is None else json.loads(text)
    if not isinstance(made, dict) or not all(isinstance(each, str) for each in made.values()):
        raise ValueError(f"the field headers must be a JSON object of strings, got {text!r}"[:200])
    return made

"""Where a circuit is kept that several processes share: Redis or Valkey."""

from __future__ import annotations

from hashlib import sha256
from math import inf
from sys import float_info
from typing import TYPE_CHECKING, Any, Literal, get_args

from attrs import astuple, frozen

from retrytemplate._internal.validation import check_choice, check_seconds, check_wait
from retrytemplate._storage.column_keys import KEY_PREFIXES, from_column_key, to_column_key
from retrytemplate._storage.operation_runner import perform, translate_errors
from retrytemplate._storage.redis_connection import Connections
from retrytemplate._storage.redis_script import eval_script, send_idempotent, send_once
from retrytemplate._storage.store_role import StoreRole
from retrytemplate.backends.redis.operations import MOST, scan
from retrytemplate.control.breaker.redis import lua
from retrytemplate.control.breaker.redis.record import decode_record, encode_note
from retrytemplate.control.breaker.window import STEPS, Calls, Seconds
from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

    from retrytemplate._internal.validation import Seconds as Duration
    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate._storage.redis_script import Script
    from retrytemplate.control.breaker.redis.record import CircuitRecord
    from retrytemplate.control.breaker.state_machine import CircuitConfig, State

Mode = Literal["strict", "cached"]
OnStoreError = Literal["local", "raise"]
OWNER = StoreRole("circuit breaker")
WEEK = 7 * 86400
"""Seconds after which an unused circuit is deleted, unless its state was forced."""
THOUSAND, MILLION = 1000, 1_000_000
LARGEST = float_info.max
REPLY_ERRORS = {
    "format": "of another version of this library, or of something else",
    "rules": "in use by breakers with other rules",
}


@frozen
class CircuitKey:
    """Where a circuit is, and by which rules: what every script about it begins with."""

    name: str
    keys: tuple[bytes, ...]
    argument: str


@frozen
class TransitionCommand:
    """Into another state.

    :param length: seconds that it lasts; None: until an operator ends it.
    :param opened: number of consecutive opens.
    :param limited: whether each call needs a permit.
    :param clears: whether the window is cleared.
    :param by: who does it by hand, and *reason*: why.
    """

    state: State
    length: float | None
    opened: int
    limited: bool
    clears: bool
    by: str | None
    reason: str | None

    def arguments(self, by_hand: bool) -> tuple[Any, ...]:
        length = None if self.length is None else min(self.length, MOST)
        kept = WEEK + (length or 0.0)
        return (
            self.state,
            "" if length is None else length,
            self.opened,
            int(self.limited),
            int(self.clears),
            0 if by_hand and length is None and self.state != "closed" else int(kept * THOUSAND),
            encode_note(self.by, self.reason),
        )


class RedisCircuitStore:
    """Lets the breakers of several processes share their circuits, in Redis or Valkey.

    :param url: of the server (``redis://``, ``rediss://``, ``unix://``, as redis-py has them, or
        ``valkey://``, ``valkeys://``), or a ``redis.Redis``, whose connections and waits are used.
    :param mode: "strict": the store is queried before each call; or "cached": it is polled, and
        queried only where a permit is needed.
    :param stale_after: seconds by which what a cached breaker goes by may be old; half of it is how
        often a store that was lost is tried.
    :param prefix: of the keys: a circuit is three, which begin with ``prefix:circuit:{name}`` and
        have one slot in a cluster.
    :param timeout: seconds to wait for a connection, and for an answer.
    :param on_store_error: where the store is away: "local": each process judges for itself until
        it is back; or "raise": ``CircuitStoreError`` instead of the call.
    :raises ValueError: for what the parameters do not allow.

    Breakers of one name are one circuit.  One store serves any number of them.  Safe for threads,
    and across a fork.  It needs the extra ``redis``, and Redis 6.2 or Valkey, or a later version.

    Making one connects to nothing yet:

    >>> RedisCircuitStore("redis://:secret@localhost", mode="cached")
    <RedisCircuitStore localhost:6379/0 prefix='retry' mode='cached'>
    """

    def __init__(
        self,
        url: str | Redis,
        *,
        mode: Mode = "strict",
        stale_after: Duration = 1.0,
        prefix: str = "retry",
        timeout: Duration = 1.0,
        on_store_error: OnStoreError = "local",
    ) -> None:
        check_choice("mode", mode, *get_args(Mode))
        check_choice("on_store_error", on_store_error, *get_args(OnStoreError))
        self.mode: Mode = mode
        self.stale_after: float = check_seconds("stale_after", stale_after)
        self.prefix: str = KEY_PREFIXES.checked(prefix)
        self.timeout: float = check_wait("timeout", timeout)
        self.on_store_error: OnStoreError = on_store_error
        self._opening = f"{prefix}:circuit:{{"
        self._connections = Connections(url, self.timeout, OWNER)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self._connections} prefix={self.prefix!r} mode={self.mode!r}>"
        )

    def close(self) -> None:
        """Close the store's own connections; later use opens new ones."""
        self._connections.close()

    def names(self) -> list[str]:
        """The names of all stored circuits, in order."""
        with translate_errors(CircuitStoreError):
            found = perform(scan(self._opening, "*}", "hash"), self._connections.ask)
        return sorted(self._name(key) for key in found if _is_text(key))

    def fetch(self, name: str) -> CircuitRecord | None:
        """The record of a circuit, whatever its rules; None: there is no such circuit."""
        reply = self._run(False, lua.INSPECT, CircuitKey(name, self._keys(name), ""))
        return None if reply is None else self._decode_reply(name, reply)

    # -- commands of a breaker -------------------------------------------------------------------

    def circuit_key(self, name: str, rules: CircuitConfig, slow_call: float | None) -> CircuitKey:
        """The key of the circuit of a breaker with these rules."""
        kind, size = _window(rules)
        # As numbers of one kind: 1 and 1.0 are the same rule.
        numbers = [*astuple(rules)[1:], inf if slow_call is None else slow_call]
        rounded = [float(min(each, LARGEST)) for each in numbers]
        digest = sha256(repr(rounded).encode()).hexdigest()[:16]
        lease = round(min(rules.permit_timeout, MOST) * MILLION)
        always = f"{kind} {size} {digest};{rules.half_open_calls};{lease};{WEEK * THOUSAND}"
        return CircuitKey(name, self._keys(name), always)

    def call(
        self,
        key: CircuitKey,
        *,
        wanted: str = "",
        epoch: str = "",
        returned: str = "",
        good: bool = False,
        counted: Iterable[tuple[int, int]] = (),
        again: bool = True,
    ) -> CircuitRecord:
        """Report the results of calls of an epoch, release a permit, and request another.

        :param wanted: the name of the permit to acquire, if the circuit limits calls; "": none.
        :param returned: the name of the permit to release; *good*: whether its call succeeded.
        :param counted: pairs of a number of successes and the code of the next result (-1: none).
        :param again: whether the command may be repeated if its reply is lost.
        """
        pairs = [each for pair in counted for each in pair]
        reply = self._run(again, lua.CALL, key, wanted, epoch, returned, int(good), *pairs)
        return self._decode_reply(key.name, reply)

    def move(
        self, key: CircuitKey, move: TransitionCommand, *, epoch: str = "*", wanted: str = ""
    ) -> CircuitRecord:
        """Change the state if the circuit is still in this epoch; ``"*"``: in any epoch."""
        arguments = move.arguments(by_hand=epoch == "*")
        reply = self._run(True, lua.MOVE, key, wanted, epoch, *arguments)
        return self._decode_reply(key.name, reply)

    def _run(self, again: bool, script: Script, key: CircuitKey, *rest: Any) -> Any:
        with translate_errors(CircuitStoreError):
            return perform(call(again, script, key, *rest), self._connections.ask)

    def _decode_reply(self, name: str, reply: Any) -> CircuitRecord:
        why = REPLY_ERRORS.get(reply.decode(errors="replace")) if isinstance(reply, bytes) else None
        if why is not None:
            raise CircuitStoreError(f"the circuit {name!r} in the store is {why}")
        return decode_record(name, reply)

    def _name(self, key: bytes) -> str:
        return from_column_key(key.decode()[len(self._opening) : -1])

    def _keys(self, name: str) -> tuple[bytes, ...]:
        circuit = f"{self._opening}{to_column_key(name)}}}"
        return circuit.encode(), f"{circuit}:window".encode(), f"{circuit}:permits".encode()


def _is_text(key: bytes) -> bool:
    """Whether the key is text; other keys are not from this library."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _window(rules: CircuitConfig) -> tuple[str, int]:
    window = rules.window
    if isinstance(window, Calls):
        return "calls", window.number
    if isinstance(window, Seconds):
        return "seconds", max(1, round(min(window.seconds, MOST) * MILLION / STEPS))
    return "consecutive", window.number


def call(again: bool, script: Script, key: CircuitKey, *rest: Any) -> Operation[Any]:
    """Run a script about a circuit; its name is in the messages."""
    send = send_idempotent if again else send_once
    arguments = len(key.keys), *key.keys, key.argument, *rest
    return (yield from eval_script(send, script, key.name, *arguments))

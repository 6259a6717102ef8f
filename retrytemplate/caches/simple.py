"""Contexts in a cache that somebody has already: get, put, remove, contains."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from attrs import evolve

from retrytemplate._checks import close_unawaited
from retrytemplate.caches.claims import ClaimsInProcess
from retrytemplate.caches.record import Record, from_json, to_text
from retrytemplate.caches.sizes import RECORD_LIMIT, check_record_limit
from retrytemplate.clock import given_or_system
from retrytemplate.errors import CacheUnavailableError, MisuseError, RetryError
from retrytemplate.history import summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.caches.base import Claim
    from retrytemplate.clock import Clock

__all__ = ["SimpleCache", "SimpleCacheAdapter"]

METHODS = "get, put, remove, and contains or __contains__"


class SimpleCache(Protocol):
    """What the adapter needs of a cache, beside ``contains(key)`` or ``__contains__(key)``.

    Keys and values are texts.  ``get`` of an unknown key gives None, or raises ``KeyError``, as
    ``remove`` may.
    """

    def get(self, key: str, /) -> Any: ...

    def put(self, key: str, value: str, /) -> Any: ...

    def remove(self, key: str, /) -> Any: ...


class SimpleCacheAdapter(ClaimsInProcess):
    """A context cache made of any cache with ``get``, ``put``, ``remove`` and ``contains``.

    The contexts are kept as JSON text under the key of the template.  They outlive the process
    where the cache does; the claims do not, and no other process sees them.  So this adapter
    **guarantees nothing between processes**:

    - Two of them may run the same key at once; ``AttemptInProgressError`` is raised only for a
      key that this adapter has in flight.  The last to write wins, and the other's failure is not
      counted.
    - An attempt whose process died is not seen, and so not counted: a message that kills its
      worker is tried again for ever.
    - A compare-and-set (``swap``, a claim's writes) is as atomic as the lock of this adapter: not
      at all where a second adapter, in this process or another, uses the same cache.
    - ``context.fence`` grows here while a record is kept; after a success, another process may
      give the same number again.
    - There is no lease, no ``context.complete_in()``, no time to live.  What the cache evicts is
      forgotten, counts and remembered successes alike; what it does not evict stays, the mark of
      a remembered success too when its time is over.

    One worker process, or several that never get the same key at once, can rely on it.

    The cache is called by one thread at a time, under the adapter's lock, so it need not be safe
    for threads.  What it raises becomes ``CacheUnavailableError``.

    :param cache: the cache; ``__contains__`` will do in place of ``contains``.
    :param blocking: whether a call may wait, for a network or a disk: asynchronous executions
        refuse the cache then.  Say False of a cache that answers from memory.
    :param clock: dates how long a success is remembered; None: the system's clock.
    :param redact: applied to the traceback texts and messages that are kept.
    :param record_limit: bytes of a record; of one with more the past is given up bit by bit.
    :raises TypeError: a method is missing.

    >>> class Texts(dict):
    ...     put = dict.__setitem__
    ...     remove = dict.__delitem__
    >>> cache = SimpleCacheAdapter(Texts())
    >>> "charge/s:order-17" in cache
    False

    Source: the four methods are those of ``org.springframework.retry.policy.RetryContextCache``.
    """

    durable = True

    def __init__(
        self,
        cache: SimpleCache,
        *,
        blocking: bool = True,
        clock: Clock | None = None,
        redact: Callable[[str], str] | None = None,
        record_limit: int = RECORD_LIMIT,
    ) -> None:
        super().__init__(redact)
        self._contains = _checked(cache)
        if not isinstance(blocking, bool):
            raise TypeError(f"blocking must be True or False, got {blocking!r}")
        check_record_limit(record_limit)
        self.cache = cache
        self.blocking = blocking
        self.record_limit = record_limit
        self._time = given_or_system(clock).time
        self._left: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    def end_later(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Note a step that ends a claim, for the next ``begin`` to make.

        For an execution that the garbage collector closes.  It takes no lock and calls no cache.
        """
        self._left.append((function, arguments))

    def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim:
        """Load or create the record, count the attempt and take the key, in one step."""
        while self._left:
            with suppress(IndexError, RetryError):  # another thread was faster; the claim is over
                function, arguments = self._left.popleft()
                function(*arguments)
        return super().begin(key, worker=worker, lease=lease, fresh=fresh)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        with self._lock:
            return bool(self._ask(self._contains, key)) and self.peek(key) is not None

    def _load(self, key: str) -> Record | None:
        text = self._ask(self.cache.get, key)
        if text is None:
            return None
        record = _record(key, text)
        # On from the fence of whoever wrote it: another process, or an earlier one.
        self._fences = count(max(next(self._fences), record.fence + 1))
        return None if _is_over(record, self._time()) else record

    def _store(self, key: str, record: Record) -> None:
        self._ask(self.cache.put, key, to_text(record), unknown=())

    def _drop(self, key: str) -> None:
        self._ask(self.cache.remove, key)

    def _mark(self, claim: Claim, remember: float, record: Record | None) -> None:
        # The next attempt may begin when the success is not remembered any more.
        until = self._time() + remember
        mark = record or Record("done", version=claim.version + 1, fence=claim.fence)
        self._store(claim.key, evolve(mark, not_before=until))

    @staticmethod
    def _ask(
        method: Callable[..., Any],
        *arguments: str,
        unknown: tuple[type[Exception], ...] = (KeyError,),
    ) -> Any:
        """Call the cache; None where it raises what says that it does not know the key."""
        try:
            answer = method(*arguments)
        except unknown:
            return None
        except Exception as exc:
            raise CacheUnavailableError(f"{_name(method)} raised {summary(exc)}") from exc
        if hasattr(type(answer), "__await__"):
            close_unawaited(answer)
            raise MisuseError(f"{_name(method)} returned an awaitable: the cache must not")
        return answer


def _checked(cache: Any) -> Callable[[str], Any]:
    """How to ask whether the cache contains a key."""
    contains: Any = getattr(cache, "contains", None) or getattr(cache, "__contains__", None)
    methods = [getattr(cache, name, None) for name in ("get", "put", "remove")]
    if isinstance(cache, type) or not all(map(callable, (contains, *methods))):
        raise TypeError(f"cache must be an object with the methods {METHODS}, got {cache!r}")
    asked: Callable[[str], Any] = contains
    return asked


def _record(key: str, text: Any) -> Record:
    held = f"what the cache holds under {key!r}"
    from retrytemplate.caches.fields import loads

    try:
        data = loads(text)
    except (TypeError, ValueError, RecursionError) as exc:
        raise CacheUnavailableError(f"{held} is no JSON text: {exc}") from exc
    try:
        return from_json(data)
    except CacheUnavailableError as exc:
        raise CacheUnavailableError(f"{held} cannot be read: {exc}") from exc


def _is_over(record: Record, now: float) -> bool:
    """Whether it is a remembered success whose time is over."""
    return record.phase == "done" and record.not_before is not None and record.not_before <= now


def _name(method: Any) -> str:
    return getattr(method, "__qualname__", None) or repr(method)

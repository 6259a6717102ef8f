"""The backend of a circuit in Redis that caches its record for a bounded time."""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate.control.breaker.redis.strict import StrictRedisBackend
from retrytemplate.control.breaker.state_machine import OPEN_TO_ALL, code_of
from retrytemplate.control.breaker.window import Counter
from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    from retrytemplate.control.breaker.backend import Admission, CircuitSnapshot
    from retrytemplate.control.breaker.redis.record import CircuitRecord
    from retrytemplate.control.breaker.state_machine import State, Verdict


@define
class _SuccessCounter(Counter):
    """Counts the successes of a closed circuit, while its record is not stale.

    It is to a wrapped function what the window of a circuit of one process is.
    """

    generation: Any  # the record
    fresh: float = field(default=-inf, init=False)
    _taken: int = field(default=0, init=False)

    def take_successes(self) -> int:
        """The number of successes since the last call of this method."""
        before, self._taken = self._taken, self.total
        return self._taken - before


class CachedRedisBackend(StrictRedisBackend):
    """The record is valid for ``stale_after`` seconds; a thread refreshes it, and reports.

    The store is called if a permit is needed, or if the record is stale.
    """

    _view: _SuccessCounter | None
    _unwatched = False

    def _begin(self) -> None:
        self._view = None
        self._reporting = threading.RLock()
        super()._begin()

    @property
    def closed(self) -> Any:
        """The counter of the successes of a wrapped function, while the circuit is closed."""
        view = self._view
        return view if view is not None and self._monotonic.now() < view.fresh else None

    def admit_without_io(self, now: float) -> Admission | None:
        """Decide by the cached record, if it is fresh and no permit is needed."""
        found = super().admit_without_io(now)
        if found is not None:
            return found
        record, seen_at = self._monitor.read(self._known)
        age = now - seen_at
        if record is not None and age < self._store.stale_after:
            rest = None if record.until is None else record.until - record.now - age
            if rest is None or rest > 0:
                if record.state in OPEN_TO_ALL:
                    return "", record, record.state, None
                if record.state != "half_open":
                    self._monitor.post(self._reject)
                    return None, record, record.state, rest
        self._poller.ensure_running()
        return None

    def _known(self) -> tuple[CircuitRecord | None, float]:
        return self._record, self._record_read_at

    def _defer_report(self, ticket: CircuitRecord, verdict: Verdict, slow: bool) -> bool | None:
        """Leave the report to the thread, which sends failures and slow calls at once."""
        bad = code_of(verdict, slow)
        if bad and self._unwatched:
            return None
        kept = self._monitor.post(self._enqueue_result, ticket, bad) is not False
        if kept and bad:
            self._poller.wake()
        return kept

    def _flush_and_fetch(self, wanted: str = "") -> CircuitRecord:
        """Serialize the reports, in the order of the calls; fetches run concurrently."""
        if wanted:
            return self._call_store(wanted=wanted)
        with self._reporting:
            return super()._flush_and_fetch()

    def _take_successes(self) -> int:
        view = self._view
        return super()._take_successes() + (0 if view is None else view.take_successes())

    def _note(self, before: State, record: CircuitRecord, requested: float) -> None:
        super()._note(before, record, requested)
        view = self._view
        if view is not None and view.generation.epoch != record.epoch:
            view.fast_path_until = -inf  # the result of a call in progress is late from now on
            self._view = view = None
        if record.state == "closed":
            if view is None:
                self._view = view = _SuccessCounter(record)
            view.fresh = requested + self._store.stale_after

    def _on_store_lost(self, error: CircuitStoreError) -> None:
        view = self._view
        if view is not None:
            view.fresh = -inf
        super()._on_store_lost(error)

    def poll(self) -> bool:
        """Report, and look how the circuit stands."""
        try:
            self._advance(self._flush_and_fetch())
        except CircuitStoreError as exc:
            self._on_store_lost(exc)
        self._notify()
        if self._unreported_failures:
            self._poller.wake()
        return True

    def snapshot(self, name: str, now: float) -> CircuitSnapshot:
        """The same; a caller that waited for another's query does not query again."""
        with self._reporting:
            return super().snapshot(name, now)

    def close(self) -> None:
        """Stop the poller, and send the unreported results."""
        self._unwatched = True
        super().close()

"""A circuit in a store that a process looks at now and then."""

from __future__ import annotations

import threading
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any

from retrytemplate.control.breaker.redis.strict import Shared
from retrytemplate.control.breaker.state_machine import OPEN_TO_ALL, code_of
from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    from retrytemplate.control.breaker.backend import Admission, CircuitSnapshot
    from retrytemplate.control.breaker.redis.record import Seen
    from retrytemplate.control.breaker.state_machine import State, Verdict

__all__ = ["Cached"]


class _View:
    """A closed circuit, as long as what is known of it is not stale: counts what goes well.

    It is to a wrapped function what the window of a circuit of one process is.
    """

    __slots__ = ("_looks", "_told", "fresh", "generation", "quiet", "ticks")

    def __init__(self, seen: Seen) -> None:
        self.generation = seen
        self.fresh = -inf
        self.quiet = inf
        self.ticks = count()
        self._looks = self._told = 0

    def taken(self) -> int:
        """How many went well since this was asked last."""
        total = next(self.ticks) - self._looks
        self._looks += 1
        new, self._told = total - self._told, total
        return new


class Cached(Shared):
    """What is known is good for so many seconds; a thread refreshes it, and reports.

    Where a permit is needed the store is asked, as it is where what is known is stale.
    """

    _view: _View | None
    _unwatched = False

    def _begin(self) -> None:
        self._view = None
        self._reporting = threading.RLock()
        super()._begin()

    @property
    def closed(self) -> Any:
        """What a wrapped function counts its successes in, while the circuit is closed."""
        view = self._view
        return view if view is not None and self._ticks.now() < view.fresh else None

    def admit_at_once(self, now: float) -> Admission | None:
        """By what is known, if that is fresh and no permit is needed."""
        found = super().admit_at_once(now)
        if found is not None:
            return found
        seen, seen_at = self._monitor.read(self._known)
        age = now - seen_at
        if seen is not None and age < self._store.stale_after:
            rest = None if seen.until is None else seen.until - seen.now - age
            if rest is None or rest > 0:
                if seen.state in OPEN_TO_ALL:
                    return "", seen, seen.state, None
                if seen.state != "half_open":
                    self._monitor.post(self._reject)
                    return None, seen, seen.state, rest
        self._watcher.ensure()
        return None

    def _known(self) -> tuple[Seen | None, float]:
        return self._seen, self._seen_at

    def _kept(self, ticket: Seen, verdict: Verdict, slow: bool) -> bool | None:
        """Leave it to the thread; what did not go well it shall report now."""
        bad = code_of(verdict, slow)
        if bad and self._unwatched:
            return None
        kept = self._monitor.post(self._keep, ticket, bad) is not False
        if kept and bad:
            self._watcher.wake()
        return kept

    def _say_all(self, wanted: str = "") -> Seen:
        """Reports come one after the other, in the order of what happened; questions do not."""
        if wanted:
            return self._ask(wanted=wanted)
        with self._reporting:
            return super()._say_all()

    def _went_well(self) -> int:
        view = self._view
        return super()._went_well() + (0 if view is None else view.taken())

    def _note(self, before: State, seen: Seen, asked: float) -> None:
        super()._note(before, seen, asked)
        view = self._view
        if view is not None and view.generation.era != seen.era:
            view.quiet = -inf  # a call that is under way is late from now on
            self._view = view = None
        if seen.state == "closed":
            if view is None:
                self._view = view = _View(seen)
            view.fresh = asked + self._store.stale_after

    def _lose(self, error: CircuitStoreError) -> None:
        view = self._view
        if view is not None:
            view.fresh = -inf
        super()._lose(error)

    def watch(self) -> bool:
        """Report, and look how the circuit stands."""
        try:
            self._moved(self._say_all())
        except CircuitStoreError as exc:
            self._lose(exc)
        self._tell()
        if self._waiting:
            self._watcher.wake()
        return True

    def snapshot(self, name: str, now: float) -> CircuitSnapshot:
        """The same: who has waited for another's question need not wait for the answer again."""
        with self._reporting:
            return super().snapshot(name, now)

    def close(self) -> None:
        """Leave nothing to the thread from now on, end it, and report what was kept back."""
        self._unwatched = True
        super().close()

"""A circuit in a store: what one process knows of it, and how it asks and reports."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate._storage.fork_safety import follow
from retrytemplate.control._poller import Watcher
from retrytemplate.control.breaker.backend import CircuitSnapshot, Local, drawn_anew
from retrytemplate.control.breaker.events import CircuitStoreLost, CircuitStoreRecovered
from retrytemplate.control.breaker.redis.record import BY_HAND, change, restored
from retrytemplate.control.breaker.redis.store import Move
from retrytemplate.control.breaker.state_machine import OPEN_TO_ALL, Manual, code_of
from retrytemplate.control.breaker.window import FAILED, SLOW
from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.control.breaker.backend import Admission, Watched
    from retrytemplate.control.breaker.redis.record import Seen
    from retrytemplate.control.breaker.redis.store import Place, RedisCircuitStore
    from retrytemplate.control.breaker.state_machine import Circuit, Rules, State, Verdict
    from retrytemplate.control.breaker.window import Counter

__all__ = ["Shared"]

LOG = logging.getLogger("retrytemplate.control")
AT_ONCE = 1000  # calls that did not go well, in one report


class Shared:
    """The strict one: the store is asked before each call.

    A success that nothing depends on is not reported by itself: it goes with the next question.
    """

    waits = True

    def __init__(
        self,
        store: RedisCircuitStore,
        place: Place,
        rules: Rules,
        draw: Callable[[], float],
        ticks: Any,
        tell: Callable[[], None],
    ) -> None:
        self._store = store
        self._place = place
        self._name = place.name
        self._rules = rules
        self._draw = draw
        self._ticks = ticks
        self._tell = tell
        self._watcher = Watcher(self.watch, store.stale_after / 2, name="retrytemplate-circuit")
        self._begin()
        follow(self)

    def _begin(self) -> None:
        self.happened: list[Any] = []
        self._monitor = Monitor()
        self._origin = os.urandom(8).hex()
        self._numbers = count(1)
        self._seen: Seen | None = None
        self._waiting: list[tuple[int, int]] = []  # what has ended, and was not reported yet
        self._well = 0  # after it, so many went well
        self._seen_at = 0.0
        self._lost_at: float | None = None
        self._local = Local(self._rules, self._draw, self.happened)
        self._rejected = self._late = self._expired = 0

    def _forked(self) -> None:
        """In a child process: what the parent has in hand it reports itself."""
        self._begin()
        self._watcher.forked()

    @property
    def closed(self) -> Counter | None:
        """None: no success is counted without a question."""
        return None

    @property
    def watched(self) -> Watched:
        """Itself: a field would be a cycle."""
        return self

    # -- before the call -------------------------------------------------------------------------

    def admit_at_once(self, now: float) -> Admission | None:
        """Where the store is lost, and this process judges for itself."""
        if not self._alone():
            return None
        self._watcher.ensure()
        return self._local.admit(now)

    def admit(self, now: float) -> Admission:
        """A permit, or none: what the store says."""
        found = self.admit_at_once(now)
        if found is not None:
            return found
        try:
            return self._admitted()
        except CircuitStoreError as exc:
            self._lose(exc)
            if not self._alone():
                raise
            return self._local.admit(now)

    def _admitted(self) -> Admission:
        wanted = f"{self._origin}.{next(self._numbers)}"
        seen = self._moved(self._say_all(wanted), wanted)
        if seen.state in OPEN_TO_ALL:
            return "", seen, seen.state, None
        if seen.granted:
            return wanted, seen, seen.state, None
        self._monitor.post(self._reject)
        return None, seen, seen.state, seen.retry_after

    def _reject(self) -> None:
        self._rejected += 1

    def _moved(self, seen: Seen, wanted: str = "") -> Seen:
        """The circuit after what time, and what others have reported, change by themselves."""
        while seen.left == 0.0 or (seen.state == "closed" and not seen.quiet):
            circuit = restored(self._rules, seen, 1.0)
            circuit.look(seen.now)
            if not circuit.changes:
                self._judge(circuit, "success", False, seen)
            if not circuit.changes:
                break
            seen = self._move(seen, circuit, wanted)
        return seen

    # -- after it --------------------------------------------------------------------------------

    def report_at_once(
        self, generation: Any, permit: Any, verdict: Verdict, slow: bool, now: float
    ) -> bool | None:
        """What need not be said to the store now; False: too late to count."""
        if isinstance(generation, int):  # of the circuit that this process judged alone
            if self._alone():
                return self._local.report(generation, permit, verdict, slow, now)
            return self._came_late()
        if permit:
            return None
        if generation.state == "disabled" or verdict not in ("success", "failure"):
            return True
        if self._alone():
            self._local.count(verdict, slow, now)
            return True
        return self._kept(generation, verdict, slow)

    def _kept(self, ticket: Seen, verdict: Verdict, slow: bool) -> bool | None:
        """Keep a success back until something else is said."""
        if slow or verdict == "failure" or not ticket.quiet:
            return None
        return self._monitor.post(self._keep, ticket, 0) is not False

    def _keep(self, ticket: Seen, bad: int) -> bool:
        """Queue the result of a call for the next report, unless its era is over."""
        if self._seen is None or self._seen.era != ticket.era:
            self._late += 1
            return False
        if bad:
            self._waiting.append((self._went_well(), bad))
        else:
            self._well += 1
        return True

    def report(
        self, generation: Any, permit: Any, verdict: Verdict, slow: bool, now: float
    ) -> bool:
        """How an admitted call ended; False: too late to count."""
        found = self.report_at_once(generation, permit, verdict, slow, now)
        if found is not None:
            return found
        try:
            return self._reported(generation, permit, verdict, slow)
        except CircuitStoreError as exc:  # the call was made: nothing is raised in its place
            self._lose(exc)
            self._count(verdict, slow, now)
            return True

    def _reported(self, ticket: Seen, permit: str, verdict: Verdict, slow: bool) -> bool:
        if permit:
            good = verdict == "success" and not slow
            # Recognised by its name: given back, it cannot be given back again.
            seen = self._ask(era=ticket.era, returned=permit, good=good, again=False)
        else:
            _, before = self._to_report(ticket.era)
            counted = [*before, (0, code_of(verdict, slow))]
            seen = self._ask(era=ticket.era, counted=counted, again=False)
        if seen.late:
            return self._came_late()
        self._settle(seen, verdict, slow)
        return True

    def _came_late(self) -> bool:
        self._monitor.post(self._count_late)
        return False

    def _count_late(self) -> None:
        self._late += 1

    def _settle(self, seen: Seen, verdict: Verdict, slow: bool) -> None:
        """Let follow what follows from what has been counted."""
        circuit = restored(self._rules, seen, 1.0)
        self._judge(circuit, verdict, slow, seen)
        if circuit.changes:
            self._move(seen, circuit, "")

    def _judge(self, circuit: Circuit, verdict: Verdict, slow: bool, seen: Seen) -> None:
        circuit.stretch = drawn_anew(self._draw, circuit.stretch)
        circuit.judge(verdict, slow, seen.now)

    # -- with the store --------------------------------------------------------------------------

    def _to_report(self, era: str | None = None) -> tuple[str, list[tuple[int, int]]]:
        """What was kept back, and of which era it is; of another than the given one nothing."""
        try:
            return self._monitor.run(self._taken_out, era)
        except Reentered:  # the next report takes it
            return "", []

    def _taken_out(self, era: str | None) -> tuple[str, list[tuple[int, int]]]:
        if self._seen is None or era not in (None, self._seen.era):
            return "", []
        counted, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
        if not self._waiting and (well := self._went_well()):
            counted.append((well, -1))
        return self._seen.era if counted else "", counted

    def _went_well(self) -> int:
        """How many calls went well since this was asked last."""
        well, self._well = self._well, 0
        return well

    def _say_all(self, wanted: str = "") -> Seen:
        """Report what was kept back, and ask how the circuit stands."""
        era, counted = self._to_report()
        again = all(code < 0 for _, code in counted)  # a success more is nothing, a failure is
        try:
            return self._ask(wanted=wanted, era=era, counted=counted, again=again)
        except CircuitStoreError as exc:
            self._lose(exc)
            for _, code in counted:
                if code > 0:
                    verdict: Verdict = "failure" if code & FAILED else "success"
                    self._count(verdict, bool(code & SLOW), self._ticks.now())
            raise

    def _ask(self, **question: Any) -> Seen:
        knew, asked = self._seen, self._ticks.now()
        return self._take_in(self._store.call(self._place, **question), knew, asked)

    def _move(self, seen: Seen, circuit: Circuit, wanted: str) -> Seen:
        knew, asked = self._seen, self._ticks.now()
        length = None
        if circuit.state == "open":
            length = circuit.until - seen.now
        move = Move(
            circuit.state,
            length,
            circuit.opened,
            limited=circuit.state == "half_open",
            clears=circuit.state not in ("open", "half_open"),
            by=None,
            reason=None,
        )
        moved = self._store.move(self._place, move, era=seen.era, wanted=wanted)
        return self._take_in(moved, knew, asked)

    def _take_in(self, seen: Seen, knew: Seen | None, asked: float) -> Seen:
        """Note what the store says, asked at that moment knowing that, and what happened since."""
        self._monitor.post(self._take, seen, knew, asked, self._ticks.now())
        return seen

    def _take(self, seen: Seen, knew: Seen | None, asked: float, now: float) -> None:
        state = self._state if self._lost_at is None else self._back(now - self._lost_at)
        self._expired += seen.expired
        if self._is_news(seen, knew):
            self._note(state, seen, asked)

    def _back(self, outage: float) -> State:
        """The store answers again; the state that this process has gone by meanwhile."""
        self._lost_at = None
        self.happened.append(CircuitStoreRecovered(name=self._name, outage=outage))
        circuit = self._local.circuit
        self._rejected, self._late, self._expired = circuit.rejected, circuit.late, circuit.expired
        return circuit.state

    def _is_news(self, seen: Seen, knew: Seen | None) -> bool:
        known = self._seen
        if known is None or (known.born == seen.born and seen.generation >= known.generation):
            return True
        # Known before it was asked: the server has lost the circuit, or its latest changes.
        return knew is not None and knew.era == known.era

    def _note(self, before: State, seen: Seen, asked: float) -> None:
        known, self._seen, self._seen_at = self._seen, seen, asked
        changed = known is None or known.era != seen.era
        if changed:
            self._waiting, self._well = [], 0
        if before != seen.state or (changed and known is not None and seen.manual is not None):
            self.happened.append(change(before, seen))

    @property
    def _state(self) -> State:
        return "closed" if self._seen is None else self._seen.state

    # -- without it ------------------------------------------------------------------------------

    def _alone(self) -> bool:
        """Whether this process judges for itself."""
        return self._lost_at is not None and self._store.on_store_error == "local"

    def _count(self, verdict: Verdict, slow: bool, now: float) -> None:
        """Count a call that the store has admitted."""
        if self._alone():
            self._local.count(verdict, slow, now)

    def _lose(self, error: CircuitStoreError) -> None:
        """Judge by what this process sees, from what was known last on."""
        now, local = self._ticks.now(), Local(self._rules, self._draw, self.happened)
        if self._monitor.post(self._go_alone, error, local, now) is not False:
            LOG.warning("the circuit %r has lost its store: %s", self._name, error)
            self._watcher.ensure()

    def _go_alone(self, error: CircuitStoreError, local: Local, now: float) -> bool:
        if self._lost_at is not None:
            return False
        self._lost_at = now
        self.happened.append(CircuitStoreLost(name=self._name, error=error))
        self._resume(local.circuit)
        self._local = local
        return True

    def _resume(self, circuit: Circuit) -> None:
        """Let it begin where the shared one was seen last."""
        circuit.generation = circuit.counter.generation = self._local.circuit.generation + 1
        circuit.rejected, circuit.late, circuit.expired = self._rejected, self._late, self._expired
        seen = self._seen
        if seen is not None:
            until = None if seen.until is None else seen.until - seen.now + self._seen_at
            circuit.state, circuit.until, circuit.opened = seen.state, until or 0.0, seen.opened
            if seen.state != "closed":
                circuit.closed = None
            if seen.state in BY_HAND:
                circuit.manual = Manual(seen.by, seen.reason, until)

    def watch(self) -> bool:
        """Look whether a store that was lost is back; False: nothing is left to look for."""
        if self._lost_at is None:
            return False
        try:
            self._ask()
        except CircuitStoreError:
            return True
        self._tell()
        return False

    # -- looking, and by hand --------------------------------------------------------------------

    def taken(self) -> list[Any]:
        """What has happened since this was asked last."""
        return self._local.taken()

    def snapshot(self, name: str, now: float) -> CircuitSnapshot:
        """All that can be known of it at this moment: where the store is lost, of this process."""
        if self._alone():
            return self._local.snapshot(name, now)
        try:
            return self._snapshot(name)
        except CircuitStoreError as exc:
            self._lose(exc)
            if not self._alone():
                raise
            return self._local.snapshot(name, now)

    def _snapshot(self, name: str) -> CircuitSnapshot:
        seen = self._moved(self._say_all())
        return CircuitSnapshot(
            name=name,
            state=seen.state,
            generation=seen.generation,
            calls=seen.calls,
            failures=seen.failures,
            slow=seen.slow,
            retry_after=seen.retry_after,
            probes=seen.probes,
            successes=seen.successes,
            rejected=self._rejected,
            late=self._late,
            expired=self._expired,
            by=seen.by,
            reason=seen.reason,
        )

    def put(
        self, state: State, by: str | None, reason: str | None, seconds: float | None, now: float
    ) -> None:
        """Put it into a state by hand, in all processes."""
        knew, asked = self._seen, self._ticks.now()
        move = Move(state, seconds, 0, limited=False, clears=True, by=by, reason=reason)
        self._take_in(self._store.move(self._place, move), knew, asked)

    def close(self) -> None:
        """Report what was kept back, and watch no more."""
        self._watcher.close()
        if self._seen is not None and self._lost_at is None:
            with suppress(CircuitStoreError):  # which was told
                self._say_all()
                while self._waiting:
                    self._say_all()

"""A circuit in a store: what one process knows of it, and how it asks and reports."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate._storage.fork_safety import register
from retrytemplate.control._poller import BackgroundPoller
from retrytemplate.control.breaker.backend import CircuitSnapshot, LocalBackend, next_jitter
from retrytemplate.control.breaker.events import CircuitStoreLost, CircuitStoreRecovered
from retrytemplate.control.breaker.redis.record import (
    FORCED_STATES,
    to_state_machine,
    transition_to_record,
)
from retrytemplate.control.breaker.redis.store import TransitionCommand
from retrytemplate.control.breaker.state_machine import OPEN_TO_ALL, code_of
from retrytemplate.control.breaker.window import FAILED, SLOW
from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.control.breaker.backend import Admission, FastPath
    from retrytemplate.control.breaker.redis.record import CircuitRecord
    from retrytemplate.control.breaker.redis.store import CircuitKey, RedisCircuitStore
    from retrytemplate.control.breaker.state_machine import (
        CircuitConfig,
        CircuitStateMachine,
        State,
        Verdict,
    )
    from retrytemplate.control.breaker.window import Counter

__all__ = ["StrictRedisBackend"]

LOG = logging.getLogger("retrytemplate.control")
REPORT_BATCH = 1000  # failures and slow calls in one report


class StrictRedisBackend:
    """The strict one: the store is asked before each call.

    A success that nothing depends on is not reported by itself: it goes with the next question.
    """

    does_io = True

    def __init__(
        self,
        store: RedisCircuitStore,
        key: CircuitKey,
        rules: CircuitConfig,
        jitter: Callable[[], float],
        monotonic: Any,
        notify: Callable[[], None],
    ) -> None:
        self._store = store
        self._key = key
        self._name = key.name
        self._rules = rules
        self._jitter = jitter
        self._monotonic = monotonic
        self._notify = notify
        self._poller = BackgroundPoller(
            self.poll, store.stale_after / 2, name="retrytemplate-circuit"
        )
        self._begin()
        register(self)

    def _begin(self) -> None:
        self.pending_events: list[Any] = []
        self._monitor = Monitor()
        self._origin = os.urandom(8).hex()
        self._numbers = count(1)
        self._record: CircuitRecord | None = None
        self._unreported_failures: list[
            tuple[int, int]
        ] = []  # what has ended, and was not reported yet
        self._unreported_successes = 0  # successes after the last of them
        self._record_read_at = 0.0
        self._unavailable_since: float | None = None
        self._local = LocalBackend(self._rules, self._jitter, self.pending_events)
        self._rejected = self._late = self._expired = 0

    def _forked(self) -> None:
        """In a child process: the parent reports its own results."""
        self._begin()
        self._poller.forked()

    @property
    def closed(self) -> Counter | None:
        """None: no success is counted without a question."""
        return None

    @property
    def fast_path(self) -> FastPath:
        """Itself: a field would be a cycle."""
        return self

    # -- before the call -------------------------------------------------------------------------

    def admit_without_io(self, now: float) -> Admission | None:
        """Where the store is lost, and this process judges for itself."""
        if not self._is_degraded():
            return None
        self._poller.ensure_running()
        return self._local.admit(now)

    def admit(self, now: float) -> Admission:
        """A permit, or none: what the store says."""
        found = self.admit_without_io(now)
        if found is not None:
            return found
        try:
            return self._admitted()
        except CircuitStoreError as exc:
            self._on_store_lost(exc)
            if not self._is_degraded():
                raise
            return self._local.admit(now)

    def _admitted(self) -> Admission:
        wanted = f"{self._origin}.{next(self._numbers)}"
        record = self._advance(self._flush_and_fetch(wanted), wanted)
        if record.state in OPEN_TO_ALL:
            return "", record, record.state, None
        if record.granted:
            return wanted, record, record.state, None
        self._monitor.post(self._reject)
        return None, record, record.state, record.retry_after

    def _reject(self) -> None:
        self._rejected += 1

    def _advance(self, record: CircuitRecord, wanted: str = "") -> CircuitRecord:
        """The circuit after what time, and what others have reported, change by themselves."""
        while record.remaining == 0.0 or (record.state == "closed" and not record.allows_fast_path):
            circuit = to_state_machine(self._rules, record, 1.0)
            circuit.expire(record.now)
            if not circuit.changes:
                self._evaluate(circuit, "success", False, record)
            if not circuit.changes:
                break
            record = self._move(record, circuit, wanted)
        return record

    # -- after it --------------------------------------------------------------------------------

    def report_without_io(
        self, generation: Any, permit: Any, verdict: Verdict, slow: bool, now: float
    ) -> bool | None:
        """What need not be said to the store now; False: too late to count."""
        if isinstance(generation, int):  # of the circuit that this process judged alone
            if self._is_degraded():
                return self._local.report(generation, permit, verdict, slow, now)
            return self._count_late_result()
        if permit:
            return None
        if generation.state == "disabled" or verdict not in ("success", "failure"):
            return True
        if self._is_degraded():
            self._local.count(verdict, slow, now)
            return True
        return self._defer_report(generation, verdict, slow)

    def _defer_report(self, ticket: CircuitRecord, verdict: Verdict, slow: bool) -> bool | None:
        """Keep a success back until something else is said."""
        if slow or verdict == "failure" or not ticket.allows_fast_path:
            return None
        return self._monitor.post(self._enqueue_result, ticket, 0) is not False

    def _enqueue_result(self, ticket: CircuitRecord, bad: int) -> bool:
        """Queue the result of a call for the next report, unless its era is over."""
        if self._record is None or self._record.epoch != ticket.epoch:
            self._late += 1
            return False
        if bad:
            self._unreported_failures.append((self._take_successes(), bad))
        else:
            self._unreported_successes += 1
        return True

    def report(
        self, generation: Any, permit: Any, verdict: Verdict, slow: bool, now: float
    ) -> bool:
        """How an admitted call ended; False: too late to count."""
        found = self.report_without_io(generation, permit, verdict, slow, now)
        if found is not None:
            return found
        try:
            return self._report_to_store(generation, permit, verdict, slow)
        except CircuitStoreError as exc:  # the call was made: nothing is raised in its place
            self._on_store_lost(exc)
            self._count(verdict, slow, now)
            return True

    def _report_to_store(
        self, ticket: CircuitRecord, permit: str, verdict: Verdict, slow: bool
    ) -> bool:
        if permit:
            good = verdict == "success" and not slow
            # Recognised by its name: once released, it cannot be released again.
            record = self._call_store(epoch=ticket.epoch, returned=permit, good=good, again=False)
        else:
            _, before = self._to_report(ticket.epoch)
            counted = [*before, (0, code_of(verdict, slow))]
            record = self._call_store(epoch=ticket.epoch, counted=counted, again=False)
        if record.late:
            return self._count_late_result()
        self._apply_thresholds(record, verdict, slow)
        return True

    def _count_late_result(self) -> bool:
        self._monitor.post(self._increment_late)
        return False

    def _increment_late(self) -> None:
        self._late += 1

    def _apply_thresholds(self, record: CircuitRecord, verdict: Verdict, slow: bool) -> None:
        """Let follow what follows from what has been counted."""
        circuit = to_state_machine(self._rules, record, 1.0)
        self._evaluate(circuit, verdict, slow, record)
        if circuit.changes:
            self._move(record, circuit, "")

    def _evaluate(
        self, circuit: CircuitStateMachine, verdict: Verdict, slow: bool, record: CircuitRecord
    ) -> None:
        circuit.jitter_factor = next_jitter(self._jitter, circuit.jitter_factor)
        circuit.evaluate_thresholds(verdict, slow, record.now)

    # -- with the store --------------------------------------------------------------------------

    def _to_report(self, epoch: str | None = None) -> tuple[str, list[tuple[int, int]]]:
        """What was kept back, and of which era it is; of another than the given one nothing."""
        try:
            return self._monitor.run(self._take_unreported, epoch)
        except Reentered:  # the next report takes it
            return "", []

    def _take_unreported(self, epoch: str | None) -> tuple[str, list[tuple[int, int]]]:
        if self._record is None or epoch not in (None, self._record.epoch):
            return "", []
        counted, self._unreported_failures = (
            self._unreported_failures[:REPORT_BATCH],
            self._unreported_failures[REPORT_BATCH:],
        )
        if not self._unreported_failures and (well := self._take_successes()):
            counted.append((well, -1))
        return self._record.epoch if counted else "", counted

    def _take_successes(self) -> int:
        """How many calls went well since this was asked last."""
        well, self._unreported_successes = self._unreported_successes, 0
        return well

    def _flush_and_fetch(self, wanted: str = "") -> CircuitRecord:
        """Report what was kept back, and ask how the circuit stands."""
        epoch, counted = self._to_report()
        again = all(code < 0 for _, code in counted)  # a success more is nothing, a failure is
        try:
            return self._call_store(wanted=wanted, epoch=epoch, counted=counted, again=again)
        except CircuitStoreError as exc:
            self._on_store_lost(exc)
            for _, code in counted:
                if code > 0:
                    verdict: Verdict = "failure" if code & FAILED else "success"
                    self._count(verdict, bool(code & SLOW), self._monotonic.now())
            raise

    def _call_store(self, **question: Any) -> CircuitRecord:
        knew, asked = self._record, self._monotonic.now()
        return self._apply_record(self._store.call(self._key, **question), knew, asked)

    def _move(
        self, record: CircuitRecord, circuit: CircuitStateMachine, wanted: str
    ) -> CircuitRecord:
        knew, asked = self._record, self._monotonic.now()
        length = None
        if circuit.state == "open":
            length = circuit.until - record.now
        move = TransitionCommand(
            circuit.state,
            length,
            circuit.consecutive_opens,
            limited=circuit.state == "half_open",
            clears=circuit.state not in ("open", "half_open"),
            by=None,
            reason=None,
        )
        moved = self._store.move(self._key, move, epoch=record.epoch, wanted=wanted)
        return self._apply_record(moved, knew, asked)

    def _apply_record(
        self, record: CircuitRecord, knew: CircuitRecord | None, asked: float
    ) -> CircuitRecord:
        """Note what the store says, asked at that moment knowing that, and what happened since."""
        self._monitor.post(self._store_record, record, knew, asked, self._monotonic.now())
        return record

    def _store_record(
        self, record: CircuitRecord, knew: CircuitRecord | None, asked: float, now: float
    ) -> None:
        state = (
            self._state
            if self._unavailable_since is None
            else self._on_store_recovered(now - self._unavailable_since)
        )
        self._expired += record.expired
        if self._is_newer(record, knew):
            self._note(state, record, asked)

    def _on_store_recovered(self, outage: float) -> State:
        """The store answers again; the state that this process has gone by meanwhile."""
        self._unavailable_since = None
        self.pending_events.append(CircuitStoreRecovered(name=self._name, outage=outage))
        circuit = self._local.circuit
        self._rejected, self._late, self._expired = (
            circuit.rejected,
            circuit.late_results,
            circuit.expired,
        )
        return circuit.state

    def _is_newer(self, record: CircuitRecord, knew: CircuitRecord | None) -> bool:
        known = self._record
        if known is None or (
            known.created == record.created and record.generation >= known.generation
        ):
            return True
        # Known before it was asked: the server has lost the circuit, or its latest changes.
        return knew is not None and knew.epoch == known.epoch

    def _note(self, before: State, record: CircuitRecord, asked: float) -> None:
        known, self._record, self._record_read_at = self._record, record, asked
        changed = known is None or known.epoch != record.epoch
        if changed:
            self._unreported_failures, self._unreported_successes = [], 0
        if before != record.state or (changed and known is not None and record.manual is not None):
            self.pending_events.append(transition_to_record(before, record))

    @property
    def _state(self) -> State:
        return "closed" if self._record is None else self._record.state

    # -- without it ------------------------------------------------------------------------------

    def _is_degraded(self) -> bool:
        """Whether this process judges for itself."""
        return self._unavailable_since is not None and self._store.on_store_error == "local"

    def _count(self, verdict: Verdict, slow: bool, now: float) -> None:
        """Count a call that the store has admitted."""
        if self._is_degraded():
            self._local.count(verdict, slow, now)

    def _on_store_lost(self, error: CircuitStoreError) -> None:
        """Judge by what this process sees, from what was known last on."""
        now, local = (
            self._monotonic.now(),
            LocalBackend(self._rules, self._jitter, self.pending_events),
        )
        if self._monitor.post(self._degrade, error, local, now) is not False:
            LOG.warning("the circuit %r has lost its store: %s", self._name, error)
            self._poller.ensure_running()

    def _degrade(self, error: CircuitStoreError, local: LocalBackend, now: float) -> bool:
        if self._unavailable_since is not None:
            return False
        self._unavailable_since = now
        self.pending_events.append(CircuitStoreLost(name=self._name, error=error))
        self._resume(local.circuit)
        self._local = local
        return True

    def _resume(self, circuit: CircuitStateMachine) -> None:
        """Let it begin where the shared one was seen last."""
        circuit.generation = circuit.counter.generation = self._local.circuit.generation + 1
        circuit.rejected, circuit.late_results, circuit.expired = (
            self._rejected,
            self._late,
            self._expired,
        )
        record = self._record
        if record is not None:
            circuit.state, circuit.consecutive_opens = record.state, record.opened
            if record.until is not None:
                circuit.until = record.until - record.now + self._record_read_at
            if record.state != "closed":
                circuit.closed = None
            if record.state in FORCED_STATES:
                circuit.manual = record.manual

    def poll(self) -> bool:
        """Look whether a store that was lost is back; False: nothing is left to look for."""
        if self._unavailable_since is None:
            return False
        try:
            self._call_store()
        except CircuitStoreError:
            return True
        self._notify()
        return False

    # -- looking, and by hand --------------------------------------------------------------------

    def drain_events(self) -> list[Any]:
        """What has happened since this was asked last."""
        return self._local.drain_events()

    def snapshot(self, name: str, now: float) -> CircuitSnapshot:
        """All that can be known of it at this moment: where the store is lost, of this process."""
        if self._is_degraded():
            return self._local.snapshot(name, now)
        try:
            return self._snapshot(name)
        except CircuitStoreError as exc:
            self._on_store_lost(exc)
            if not self._is_degraded():
                raise
            return self._local.snapshot(name, now)

    def _snapshot(self, name: str) -> CircuitSnapshot:
        record = self._advance(self._flush_and_fetch())
        return CircuitSnapshot(
            name=name,
            state=record.state,
            generation=record.generation,
            calls=record.calls,
            failures=record.failures,
            slow=record.slow,
            retry_after=record.retry_after,
            probes=record.probes,
            successes=record.successes,
            rejected=self._rejected,
            late=self._late,
            expired=self._expired,
            by=record.by,
            reason=record.reason,
        )

    def force_state(
        self, state: State, by: str | None, reason: str | None, seconds: float | None, now: float
    ) -> None:
        """Put it into a state by hand, in all processes."""
        knew, asked = self._record, self._monotonic.now()
        move = TransitionCommand(
            state, seconds, 0, limited=False, clears=True, by=by, reason=reason
        )
        self._apply_record(self._store.move(self._key, move), knew, asked)

    def close(self) -> None:
        """Report what was kept back, and watch no more."""
        self._poller.close()
        if self._record is not None and self._unavailable_since is None:
            with suppress(CircuitStoreError):  # the listeners were notified
                self._flush_and_fetch()
                while self._unreported_failures:
                    self._flush_and_fetch()

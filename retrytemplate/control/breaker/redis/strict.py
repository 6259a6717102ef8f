"""The backend of a circuit in Redis that calls the store before each call."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from attrs import define

from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate._storage.fork_safety import register
from retrytemplate.control._poller import BackgroundPoller
from retrytemplate.control.breaker.backend import LocalBackend, circuit_snapshot
from retrytemplate.control.breaker.events import CircuitStoreLost, CircuitStoreRecovered
from retrytemplate.control.breaker.redis.record import (
    FORCED_STATES,
    to_state_machine,
)
from retrytemplate.control.breaker.redis.store import TransitionCommand
from retrytemplate.control.breaker.state_machine import OPEN_TO_ALL, StateTransition, code_of
from retrytemplate.control.breaker.window import FAILED, SLOW
from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from retrytemplate.control.breaker.backend import Admission, CircuitSnapshot
    from retrytemplate.control.breaker.redis.record import CircuitRecord
    from retrytemplate.control.breaker.redis.store import CircuitKey, RedisCircuitStore
    from retrytemplate.control.breaker.state_machine import (
        CircuitConfig,
        CircuitStateMachine,
        State,
        Verdict,
    )
    from retrytemplate.control.breaker.window import Counter

LOG = logging.getLogger("retrytemplate.control")
REPORT_BATCH = 1000  # failures and slow calls in one report


@define(eq=False, repr=False, slots=False)
class StrictRedisBackend:
    """The strict one: the store is queried before each call.

    A success that nothing depends on is not reported by itself: it goes with the next query.

    :param jitter: from the previous factor of the open time, the next.
    :param monotonic: its ``now()`` measures in this process.
    :param notify: notifies the listeners of the breaker outside of its calls.
    """

    does_io = True

    _store: RedisCircuitStore
    _key: CircuitKey
    _rules: CircuitConfig
    _jitter: Callable[[float | None], float]
    _monotonic: Any
    _notify: Callable[[], None]

    def __attrs_post_init__(self) -> None:
        self._name = self._key.name
        self._poller = BackgroundPoller(
            self.poll, self._store.stale_after / 2, name="retrytemplate-circuit"
        )
        self._begin()
        register(self)

    def _begin(self) -> None:
        self.pending_events: list[Any] = []
        self._monitor = Monitor()
        self._origin = os.urandom(8).hex()
        self._numbers = count(1)
        self._record: CircuitRecord | None = None
        self._unreported_failures: list[tuple[int, int]] = []
        self._unreported_successes = 0  # successes after the last of them
        self._record_read_at = 0.0
        self._unavailable_since: float | None = None
        self._local = LocalBackend(self._rules, self._jitter, self.pending_events)

    def _forked(self) -> None:
        """In a child process: the parent reports its own results."""
        self._begin()
        self._poller.forked()

    @property
    def closed(self) -> Counter | None:
        """None: there is no local counter; each success is reported to the store."""
        return None

    @property
    def fast_path(self) -> Self:
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
        """Request a permit from the store."""
        found = self.admit_without_io(now)
        if found is not None:
            return found
        try:
            return self._admitted()
        except CircuitStoreError as exc:
            self._on_store_lost(exc)
            if self._store.on_store_error != "local":
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
        self._local.circuit.reject()

    def _advance(self, record: CircuitRecord, wanted: str = "") -> CircuitRecord:
        """The record after the transitions due by time or by reports of other processes."""
        while record.remaining == 0.0 or (record.state == "closed" and not record.allows_fast_path):
            circuit = to_state_machine(self._rules, record)
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
        """Report without the store, if possible; None: not possible, False: too late to count."""
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
        """Report a success with the next message to the store."""
        if slow or verdict == "failure" or not ticket.allows_fast_path:
            return None
        return self._monitor.post(self._enqueue_result, ticket, 0) is not False

    def _enqueue_result(self, ticket: CircuitRecord, bad: int) -> bool:
        """Queue the result of a call for the next report, unless its epoch has ended."""
        if self._record is None or self._record.epoch != ticket.epoch:
            self._local.circuit.late_results += 1
            return False
        if bad:
            self._unreported_failures.append((self._take_successes(), bad))
        else:
            self._unreported_successes += 1
        return True

    def report(
        self, generation: Any, permit: Any, verdict: Verdict, slow: bool, now: float
    ) -> bool:
        """Report the result of an admitted call; False: it is too late to count."""
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
        self._local.circuit.late_results += 1

    def _apply_thresholds(self, record: CircuitRecord, verdict: Verdict, slow: bool) -> None:
        """Apply the transition that follows from the counted calls."""
        circuit = to_state_machine(self._rules, record)
        self._evaluate(circuit, verdict, slow, record)
        if circuit.changes:
            self._move(record, circuit, "")

    def _evaluate(
        self, circuit: CircuitStateMachine, verdict: Verdict, slow: bool, record: CircuitRecord
    ) -> None:
        circuit.jitter_factor = self._jitter(circuit.jitter_factor)
        circuit.evaluate_thresholds(verdict, slow, record.now)

    # -- with the store --------------------------------------------------------------------------

    def _to_report(self, epoch: str | None = None) -> tuple[str, list[tuple[int, int]]]:
        """The unreported results and their epoch; empty for another epoch."""
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
        """The number of successes since the last call of this method."""
        well, self._unreported_successes = self._unreported_successes, 0
        return well

    def _flush_and_fetch(self, wanted: str = "") -> CircuitRecord:
        """Send the unreported results, and fetch the record."""
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

    def _call_store(self, **request: Any) -> CircuitRecord:
        return self._send(self._store.call, **request)

    def _send(
        self, command: Callable[..., CircuitRecord], *args: Any, **request: Any
    ) -> CircuitRecord:
        """Send a command to the store, and apply the record that it returns."""
        knew, requested = self._record, self._monotonic.now()
        record = command(self._key, *args, **request)
        self._monitor.post(self._store_record, record, knew, requested, self._monotonic.now())
        return record

    def _move(
        self, record: CircuitRecord, circuit: CircuitStateMachine, wanted: str
    ) -> CircuitRecord:
        length = circuit.until - record.now if circuit.state == "open" else None
        move = TransitionCommand(
            circuit.state,
            length,
            circuit.consecutive_opens,
            limited=circuit.state == "half_open",
            clears=circuit.state not in ("open", "half_open"),
            by=None,
            reason=None,
        )
        return self._send(self._store.move, move, epoch=record.epoch, wanted=wanted)

    def _store_record(
        self, record: CircuitRecord, knew: CircuitRecord | None, requested: float, now: float
    ) -> None:
        """Apply a record that was requested at that moment, when *knew* was the known record."""
        state = (
            self._state
            if self._unavailable_since is None
            else self._on_store_recovered(now - self._unavailable_since)
        )
        self._local.circuit.expired += record.expired
        if self._is_newer(record, knew):
            self._note(state, record, requested)

    def _on_store_recovered(self, outage: float) -> State:
        """The store is available again; return the state used during the outage."""
        self._unavailable_since = None
        self.pending_events.append(CircuitStoreRecovered(name=self._name, outage=outage))
        return self._local.circuit.state

    def _is_newer(self, record: CircuitRecord, knew: CircuitRecord | None) -> bool:
        known = self._record
        if known is None or (
            known.created == record.created and record.generation >= known.generation
        ):
            return True
        # Known before the query: the server has lost the circuit, or its latest changes.
        return knew is not None and knew.epoch == known.epoch

    def _note(self, before: State, record: CircuitRecord, requested: float) -> None:
        known, self._record, self._record_read_at = self._record, record, requested
        changed = known is None or known.epoch != record.epoch
        if changed:
            self._unreported_failures, self._unreported_successes = [], 0
        if before != record.state or (changed and known is not None and record.manual is not None):
            self.pending_events.append(
                StateTransition(before, record.state, record.generation, record.manual)
            )

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
        """Continue with a local circuit, from the last known state."""
        now = self._monotonic.now()
        local = LocalBackend(self._rules, self._jitter, self.pending_events)
        if self._monitor.post(self._degrade, error, local, now) is not False:
            LOG.warning(
                "circuit %r: the store is unavailable; this process decides from its own calls: %s",
                self._name,
                error,
            )
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
        """Start the local circuit in the last known state of the shared one."""
        circuit.generation = circuit.counter.generation = self._local.circuit.generation + 1
        self._copy_totals(circuit)
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
        """Check whether a lost store is available again; False: no further check is needed."""
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
        """The events since the last call of this method."""
        return self._local.drain_events()

    def snapshot(self, name: str, now: float) -> CircuitSnapshot:
        """The present state and counts; while the store is lost, of this process."""
        if self._is_degraded():
            return self._local.snapshot(name, now)
        try:
            return self._snapshot(name)
        except CircuitStoreError as exc:
            self._on_store_lost(exc)
            if self._store.on_store_error != "local":
                raise
            return self._local.snapshot(name, now)

    def _snapshot(self, name: str) -> CircuitSnapshot:
        record = self._advance(self._flush_and_fetch())
        circuit = to_state_machine(self._rules, record)
        self._copy_totals(circuit)
        return circuit_snapshot(name, circuit, record.now, record.calls)

    def _copy_totals(self, circuit: CircuitStateMachine) -> None:
        """Copy the totals of this process, which the local circuit counts in any mode."""
        local = self._local.circuit
        circuit.rejected, circuit.late_results = local.rejected, local.late_results
        circuit.expired = local.expired

    def force_state(
        self, state: State, by: str | None, reason: str | None, seconds: float | None, now: float
    ) -> None:
        """Force a state in all processes."""
        move = TransitionCommand(
            state, seconds, 0, limited=False, clears=True, by=by, reason=reason
        )
        self._send(self._store.move, move)

    def close(self) -> None:
        """Stop the poller, and send the unreported results."""
        self._poller.close()
        if self._record is not None and self._unavailable_since is None:
            with suppress(CircuitStoreError):  # the listeners were notified
                self._flush_and_fetch()
                while self._unreported_failures:
                    self._flush_and_fetch()

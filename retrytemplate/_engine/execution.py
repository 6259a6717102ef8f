"""The rules of one execution: the order of events, counting, rethrow or stay, exhaustion, closing.

``Execution.run`` is a generator of effects.  An effect is ``(function, arguments)``: a driver calls
it, awaits an awaitable result and sends back ``(value, exception)``, one of them None.  Nothing
here reads a clock of its own, draws a number, sleeps or awaits; the same generator serves the
synchronous driver, the asynchronous one and the block form.

Outcomes travel as values, so an exception of the callback never passes through these frames: its
traceback stays short, and no frame of ours keeps it alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._engine.backoff_phase import (
    release_reservations,
    run_backoff,
    wait_remaining_delay,
)
from retrytemplate._engine.deadline import log_failed_hook
from retrytemplate._engine.execution_state import ExecutionState, Torn
from retrytemplate._engine.failure_rules import (
    decide_retry,
    explain_callback_error,
    explain_signature_error,
    guard_reason,
    is_passthrough,
    is_unlisted_library_error,
    passthrough_reason,
    stop_reason,
)
from retrytemplate._engine.final_error import (
    COMPLETED,
    EXHAUSTED,
    NOT_STARTED,
    RELEASED,
    RETAINED,
    final_exception,
    finalize_error,
    recording_error,
    safe_repr,
    unusable_state_error,
    with_cause,
    with_context,
)
from retrytemplate._engine.key_claim import (
    finish_claim,
    load,
    mark_recovering,
    notify_store_error,
    reacquire_claim,
    release_after_error,
    save,
    update_shared_record,
)
from retrytemplate._engine.plan import admit_hook
from retrytemplate._internal.failure_text import message_of, summary
from retrytemplate._internal.formatting import one_line, with_text
from retrytemplate.caches.worker_id import is_exclusive
from retrytemplate.classify.exceptions import (
    KNOWN_RETRYABLE_TYPES,
    is_control_flow,
    is_never_retried,
)
from retrytemplate.errors import (
    AttemptLostError,
    MisuseError,
    RetryLater,
    TerminatedRetryError,
    UnacceptableResultError,
    Veto,
)
from retrytemplate.guards import excluding
from retrytemplate.history import RESTORED
from retrytemplate.listeners.defaults import INFO

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from retrytemplate._engine.context import RetryContext
    from retrytemplate._engine.execution_state import Effect, Reply, Steps
    from retrytemplate.caches.base import Claim

__all__ = ["Execution"]

VETOED = "a listener vetoed the execution"


class Execution(ExecutionState):
    """One execution of a callback: the rules of its order."""

    __slots__ = ()

    def run(
        self, failure: BaseException | None = None
    ) -> Generator[Effect, Reply, tuple[Any, BaseException | None]]:
        """Run to the end; return the value and the exception, one of them None.

        :param failure: how an inline first attempt failed; None: nothing has happened yet.
        """
        plan, context = self.plan, self.context
        try:
            if failure is not None:
                context.attempt = 1
            elif self.disposition is None and not context._is_opened:
                yield from self._begin()
            while self.disposition is None:
                if failure is None:
                    limited = self.inherited_guards or self.deadline is not None
                    if plan.has_pre_attempt_checks or self.is_failure_saved or limited:
                        if not (yield from self._prepare_attempt()):
                            break
                        self.has_reservation = False
                    elif not context._retry_allowed or context.gave_up:
                        self.disposition = EXHAUSTED
                        break
                    try:
                        ended = yield from self._attempt()
                        # None: the garbage collector has closed the generator of the attempt.
                        failure = Torn() if ended is None else ended[0]
                    except Torn as exc:
                        failure = exc
                    if failure is None:
                        self.disposition, self.last_failure = COMPLETED, None
                        break
                yield from self._handle_failure(failure)
                failure = None
            if self.has_reservation:
                yield from release_reservations(self)
            if self.disposition == EXHAUSTED:
                yield from self._exhaust()
        except BaseException as exc:  # out of the rules themselves: a policy, a backoff, a signal
            if self.is_abandoned(exc):
                raise
            self.error = exc
            self.disposition = RELEASED if self.last_failure is None else RETAINED
        try:
            if self.has_reservation:
                yield from release_reservations(self)
            yield from self._end()
        except BaseException as exc:  # a signal: the rest of the end is done
            if self.is_abandoned(exc):
                raise
            self.error = exc
            yield from self._end()
        return self._outcome()

    def recover(self) -> Generator[Effect, Reply, tuple[Any, BaseException | None]]:
        """The rest of a short execution whose attempts are exhausted: its recovery."""
        yield from self._exhaust()
        self.publish_stop_reason()
        self.context.closed = True
        return self._outcome()

    def finish_success(
        self,
        value: Any,
        first: BaseException | None,
        pending_hooks: Iterable[Callable[..., Any]],
    ) -> Generator[Effect, Reply, tuple[Any, BaseException | None]]:
        """The rest of an inline success whose hooks at the end failed.

        :param first: the error of a hook.
        :param pending_hooks: the hooks of a first success and of the end that were not called yet.
        """
        self.disposition, self.value = COMPLETED, value
        self.pending_end_hooks, self.pending_close_hooks = (), pending_hooks
        yield from self._close(first)
        return self._outcome()

    def _outcome(self) -> tuple[Any, BaseException | None]:
        """The value or error of the execution; it drops its references, which form cycles."""
        value, error, context = self.value, self.error, self.context
        # Without a key there is no redelivery; an exception that stops the program is unchanged.
        for_good = self.disposition == COMPLETED or (
            error is not None and context._state is None and not is_never_retried(error)
        )
        finalize_error(context, error, for_good=for_good)
        self.value = self.error = self.last_failure = self.rejection = self.result_error = (
            self.internal_error
        ) = None
        return value, error

    # -- beginning -------------------------------------------------------------------------------

    def _begin(self) -> Steps:
        """Prepare the first attempt: the key, the listeners, and the state from the record."""
        plan, context = self.plan, self.context
        if plan.dynamic:
            try:
                self.policy = context._policy = plan.policy.resolved()
                self.backoff = plan.backoff.resolved()
            except Exception as exc:
                self.disposition, self.error = NOT_STARTED, exc
                return
        if context._state is not None or plan.needs_state:
            yield from load(self)
        if self.disposition is not None:
            return
        for hook in plan.open:
            verdict, error = yield hook, (context,)
            if error is not None or verdict is False:
                self.reject_by_listener(error)
                return
        context._is_opened = True
        if self.store_error is not None:
            yield from notify_store_error(self, self.store_error)
        claim = context._claim
        if claim is not None and (claim.record is not None or claim.lost is not None):
            yield from self._resume(claim)
        elif context._not_before is not None:  # in a shared record, which has no claim
            yield from wait_remaining_delay(self, context._not_before - plan.clock.time())
        elif plan.policy_may_deny_first_attempt:
            self._check_first_attempt()

    def _check_first_attempt(self) -> None:
        """Query a policy that may reject the first attempt."""
        try:
            self.context._retry_allowed = bool(self.policy.allows(0, None))
        except Exception as exc:
            error = TerminatedRetryError(f"the policy could not be queried: {summary(exc)}")
            self.disposition, self.error = RELEASED, with_cause(error, exc)

    def publish_stop_reason(self) -> None:
        """Write the reason why no further attempt follows to the context."""
        error = self.error
        if (
            self.reason is None
            and isinstance(error, Exception)
            and error is not self.last_failure
            and self.disposition != NOT_STARTED
            and not isinstance(error, RetryLater)
            and not is_control_flow(type(error))
        ):
            self.reason = "terminated"
        self.context._stop_reason = self.reason

    def reject_by_listener(self, error: BaseException | None) -> None:
        """A listener's ``open`` rejected the execution, or raised."""
        if error is None:
            error = TerminatedRetryError(VETOED)
        elif isinstance(error, Veto):
            error = with_cause(
                TerminatedRetryError(with_text(VETOED, one_line(message_of(error)))), error
            )
        self.disposition, self.error = RELEASED, error

    def reject_by_guard(self, error: BaseException) -> None:
        """A guard rejected an attempt, or raised."""
        self.reason = guard_reason(error)
        self.disposition, self.error = RELEASED, with_cause(error, self.context.last_exception)

    def _resume(self, claim: Claim) -> Steps:
        """Continue from the record: a lost attempt, a recovery, or a wait."""
        context = self.context
        context.attempt = context.retry_count
        if claim.record is not None and claim.record.phase == "recovering":
            self.disposition = EXHAUSTED
        elif claim.lost is not None:
            lost = AttemptLostError(
                f"the attempt of {claim.lost} was lost",
                worker=claim.lost,
                exclusive=is_exclusive(claim.lost),
            )
            context.attempt += 1
            yield from self._record_failure(lost)
            if self.disposition is None:
                yield from save(self)
            before = dict(context._attributes or {})
            raised = yield from self.call_hooks(self.plan.on_attempt_lost, context, lost)
            if raised is not None:
                self.disposition, self.error = RETAINED, with_context(lost, raised)
            elif self.disposition is None and before != (context._attributes or {}):
                yield from save(self)  # the attempt may crash, too
        elif context._not_before is not None:
            yield from wait_remaining_delay(self, context._not_before - self.plan.clock.time())

    # -- an attempt ------------------------------------------------------------------------------

    def _prepare_attempt(self) -> Steps:
        """Check policy, deadline and guards, and count the attempt under the claim."""
        if not (yield from self._may_attempt()):
            self.disposition = EXHAUSTED
            return False
        if self.plan.admit or self.inherited_guards or self.deadline is not None:
            yield from self._admit()
        if self.disposition is not None:
            return False
        if self.is_failure_saved and self.context._claim is not None:
            yield from reacquire_claim(self)
        return self.disposition is None

    def _attempt(self) -> Generator[Effect, Reply, tuple[BaseException | None] | None]:
        """Count and make one attempt, with its hooks; return a tuple of its failure.

        A generator that was closed returns None, which must not look like a success.
        """
        plan, context = self.plan, self.context
        context.attempt += 1
        timed = plan.measured or context._state is not None or self.deadline is not None
        if timed or context._started_at is not None:
            self.started = now = plan.monotonic_source.now()
            if context._started_at is None:
                context._started_at = now
        if self.deadline is not None and self.last_failure is not None:
            self.deadline.count_retry()
        failure: BaseException | None = None
        if plan.before_attempt:
            failure = yield from self.call_hooks(plan.before_attempt, context)
        if failure is None:
            self.value, failure = yield self._attempt_effect()
        if failure is None and self.overrun is not None:
            failure = yield from self._report_overrun(*self.overrun)
        if failure is None and plan.result_rules:
            failure = self._check_result(self.value)
        if failure is None and plan.on_success:
            failure = yield from self.call_hooks(plan.on_success, context, self.value)
        return (failure,)

    def _attempt_effect(self) -> Effect:
        """The callback's call, limited by the attempt timeout and the deadline."""
        effect = self.function, self.arguments
        if self.plan.attempt_timeout is None and self.deadline is None:
            return effect
        return self.driver.limit_attempt(self, effect)

    def _may_attempt(self) -> Steps:
        """Whether another attempt may be made: by the policy, and nothing has given up."""
        context = self.context
        allowed = context._retry_allowed
        if self.plan.needs_state:
            if self.plan.keeps_context and self.cache is not None:
                decided = yield from update_shared_record(self, self._ask_policy)
            else:
                decided = self._ask_policy()
            allowed = allowed and decided
        return allowed and not context.gave_up

    def _ask_policy(self) -> bool:
        context, policy = self.context, self.policy
        allowed: bool
        now = self.plan.monotonic_source.now()
        try:
            allowed, context._policy_state = policy.decide(context._policy_state, now)
            self.publish_policy_state()
        except Exception as exc:
            if not self.is_state_restored:
                raise
            raise unusable_state_error(context, exc) from exc
        context.no_recovery = (
            not allowed
            and context.last_exception is not None
            and policy.recovery_forbidden(context._policy_state)
        )
        return allowed

    def _admit(self) -> Steps:
        """Check the deadline, then the guards, before an attempt."""
        context = self.context
        deadline = self.deadline
        if deadline is not None and not deadline.fits():
            left = deadline.remaining()
            when = f"is in {left:.3g} seconds" if left else "is over"
            error = with_cause(
                deadline.error(f"the deadline {when}: no attempt is begun"),
                context.last_exception,
            )
            if self.last_failure is not None:
                self.stop_retrying(error, "deadline")
            if self.disposition is None:
                self.reason = "deadline"
                self.disposition, self.error = RELEASED, error
            return
        error = yield from self.call_hooks(self._admission_hooks(), context)
        if error is not None:
            self.reject_by_guard(error)

    def _admission_hooks(self) -> Iterable[Callable[..., Any]]:
        """The hooks before an attempt: of guards of enclosing templates, then of its own."""
        awaits, plan = self.driver.awaits, self.plan
        own_hooks = plan.admit_async if awaits else plan.admit
        if not self.inherited_guards:
            return own_hooks
        inherited = excluding(self.inherited_guards, plan.inheritable_guards)
        return (*(admit_hook(each) if awaits else each.admit for each in inherited), *own_hooks)

    def _report_overrun(self, limit: float, elapsed: float) -> Steps:
        """Report an attempt that returned after its limit; only a cancellation ends it."""
        self.overrun = None
        for hook in self.plan.on_overrun:
            _, error = yield hook, (self.context, limit, elapsed)
            if error is None:
                continue
            if is_never_retried(error) and not isinstance(error, MisuseError):
                return error
            yield log_failed_hook, (hook, error)
        return None

    def _check_result(self, value: Any) -> BaseException | None:
        for rule in self.plan.result_rules:
            try:
                is_rejected = bool(rule.retry_if(value))
            except Exception as exc:
                return exc
            if is_rejected:
                failure = UnacceptableResultError(
                    f"the result is not acceptable: {safe_repr(value)}", value
                )
                self.result_error = failure
                return failure
        return None

    # -- after a failure -------------------------------------------------------------------------

    def _handle_failure(self, failure: BaseException) -> Steps:
        """The rules after a failure: count, save, notify, decide, wait; then rethrow or retry."""
        plan, context = self.plan, self.context
        self.last_failure = failure
        failure = explain_callback_error(self.function, context, self.arguments, failure)
        if type(failure) not in KNOWN_RETRYABLE_TYPES and is_passthrough(self.policy, failure):
            self.reason = passthrough_reason(failure)
            self.disposition, self.error = RELEASED, failure
            return
        yield from self._record_failure(failure)
        if context._claim is not None and self.disposition is None:
            yield from save(self)
        raised = yield from self.call_hooks(plan.on_error, context, failure)
        if raised is not None:
            self.disposition, self.error = RETAINED, with_context(failure, raised)
        if self.disposition is not None:
            return
        allowed = yield from self._may_attempt()
        state = context._state
        rethrown = context.rethrows(failure)
        if allowed and not (yield from self._discard_result(failure)):
            return
        if allowed and (plan.has_backoff or plan.observes_backoff):
            yield from run_backoff(self, failure, rethrown)
        elif allowed and plan.log.is_enabled(INFO):
            yield from self.call_hooks(plan.logged_on_backoff, context, 0.0)
        if state is None or self.disposition is not None:
            return
        if rethrown:
            self.disposition, self.error = RETAINED, failure
            self.has_reservation = False  # the retry comes with the redelivery
            self.reason = None
            if not (allowed and context._retry_allowed):
                self.reason = stop_reason(self.policy, context)
                context._recovery = self.recovery  # for the record of what the next delivery does
        elif plan.keeps_context:
            self.disposition = EXHAUSTED
        elif self.rejection is not None:
            self.disposition, self.error = RETAINED, self.rejection

    def _record_failure(self, failure: BaseException) -> Steps:
        """Count the failure and let the policy record it."""
        plan, context = self.plan, self.context
        context._count_failure(failure, self.started, plan.monotonic_source.now())
        try:
            if not plan.needs_state:
                context._retry_allowed = decide_retry(
                    self.policy, context, failure, self.result_error
                )
            elif plan.keeps_context and self.cache is not None:
                yield from update_shared_record(self, lambda: self._record(failure))
            else:
                self._record(failure)
        except Exception as exc:
            self.disposition, self.error = RETAINED, recording_error(exc, failure)

    def _record(self, failure: BaseException) -> None:
        context = self.context
        context._policy_state = self.policy.record(
            context._policy_state, failure, self.plan.monotonic_source.now()
        )
        if is_unlisted_library_error(self.policy, failure, self.result_error):
            context._retry_allowed = False
        self.publish_policy_state()

    # -- the end ---------------------------------------------------------------------------------

    def _exhaust(self) -> Steps:
        """No attempt is left: recover, or end with the final exception."""
        context = self.context
        context.exhausted = True
        self.disposition = COMPLETED
        if self.reason is None:
            self.reason = stop_reason(self.policy, context)
        context._stop_reason = self.reason
        recovery = None if context.no_recovery else self.recovery
        for_call = getattr(type(recovery), "for_call", None)
        if for_call is not None:  # which one, and whether any, depends on the call and its failure
            recovery = for_call(recovery, context._last_failure, self.function, self.arguments)
        if recovery is not None:
            if (yield from self._discard_result(self.last_failure)):
                yield from self._recover(recovery)
        else:
            result_error = self.result_error
            if (
                result_error is not None
                and result_error is context._last_failure
                and any(rule.when_exhausted == "return" for rule in self.plan.result_rules)
            ):
                self.value = result_error.result
            else:
                self.error = final_exception(context, self.rejection)

    def _discard_result(self, failure: BaseException | None) -> Generator[Effect, Reply, bool]:
        """Let the function release a result that is not used; False if that fails."""
        discard = getattr(type(self.function), "discard_result", None)
        if discard is not None:
            _, raised = yield discard, (self.function,)
            if raised is not None:
                self.disposition, self.error = RETAINED, with_context(failure, raised)
                return False
        return True

    def _recover(self, recovery: Callable[[RetryContext], Any]) -> Steps:
        """Call the recovery under the claim; raising, it is recovery's turn again next time."""
        plan, context = self.plan, self.context
        context._is_exposed = True
        if context._claim is not None:
            yield from mark_recovering(self)
        value, error = yield recovery, (context,)
        if type(error) is TypeError:
            error = explain_signature_error(recovery, error, "that a recovery gets")
        if isinstance(error, Exception):
            self.reason = "recovery_failed"
        if error is None:
            context.recovered = True
            error = yield from self.call_hooks(plan.on_recovery, context, value)
            if isinstance(error, Exception):
                self.reason = "terminated"
            self.value = value if error is None else None
            self.phase = "idle"
        if error is not None:
            self.error = with_context(context._last_failure, error)

    def _end(self) -> Steps:
        """End the claim as the disposition requires, and notify the listeners."""
        if (
            self.disposition == NOT_STARTED
            and self.pending_claim is None
            and self.context._claim is None
        ):
            yield from self._close()
            return
        if self.error is not None:
            self.value = None
            if self.last_failure is not None:
                with_context(self.last_failure, self.error)
        self.context.closed = self.context._state is None or self.disposition != RETAINED
        if self.cache is not None:
            try:
                yield from finish_claim(self)
            except BaseException as exc:  # what would be written down cannot be; a signal
                if self.is_abandoned(exc):
                    raise
                yield from release_after_error(self, exc)
            self.cache = None
            cut, self.cancellation = self.cancellation, None
            if cut is not None and (self.error is None or not is_never_retried(self.error)):
                self.value, self.error = None, with_context(self.error, cut)
        self.publish_stop_reason()
        yield from self._close()

    def _close(self, first: BaseException | None = None) -> Steps:
        """Notify every listener; the first error among them is raised at the end.

        :param first: the error of an earlier hook.
        """
        if self.pending_end_hooks is None:
            hooks = self._end_hooks()
            self.pending_end_hooks = hooks and iter(hooks)
        if self.pending_end_hooks:
            first = yield from self.call_all_hooks(
                self.pending_end_hooks, self.context, self.error, first=first
            )
        if self.pending_close_hooks and self.disposition != NOT_STARTED:
            first = yield from self.call_all_hooks(
                self.pending_close_hooks, self.context, self.last_failure, first=first
            )
        if first is not None:
            self.value, self.error = None, with_context(self.error, first)
            self.publish_stop_reason()

    def _end_hooks(self) -> tuple[Callable[..., Any], ...]:
        """The hooks of this end: ``on_first_success``, or ``on_end``."""
        context, plan = self.context, self.plan
        if self.error is not None or context.attempt != 1:
            return plan.end_hooks()
        if context._last_failure is not None and not (
            plan.keeps_context and context._last_stamp is RESTORED  # of another execution
        ):
            return plan.end_hooks()
        return plan.first_success_hooks

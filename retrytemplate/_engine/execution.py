"""The rules of one execution: the order of events, counting, rethrow or stay, exhaustion, closing.

``Execution.run`` is a generator of effects.  An effect is ``(function, arguments)``: a driver calls
it (and awaits what is awaitable) and sends back ``(value, exception)``, one of them None.  Nothing
here reads a clock of its own, draws a number, sleeps or awaits; the same generator serves the
synchronous driver, the asynchronous one and the block form.

Outcomes travel as values, so an exception of the callback never passes through these frames: its
traceback stays short, and no frame of ours keeps it alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from retrytemplate._engine.attempt_timeout import log_failed_hook
from retrytemplate._engine.backoff_phase import give_back, pause, wait_rest
from retrytemplate._engine.failure_rules import (
    guard_reason,
    is_barred,
    judge,
    leaves_as_it_is,
    named,
    reason_to_pass,
    stop_reason,
    unfit,
)
from retrytemplate._engine.final_error import (
    ABSENT,
    DONE,
    EXHAUSTED,
    KEPT,
    UNTOUCHED,
    conclusion,
    from_cause,
    instead_of,
    leave,
    shown,
    terminated,
    unusable,
)
from retrytemplate._engine.key_claim import (
    begin_again,
    let_go,
    load,
    mark_recovering,
    save,
    settle,
    share,
    tell_of,
)
from retrytemplate._engine.plan import awaited_admit
from retrytemplate._internal.formatting import one_line, with_text
from retrytemplate.classify.exceptions import ORDINARY, is_hard, is_signal
from retrytemplate.errors import (
    AttemptLostError,
    MisuseError,
    RetryLater,
    TerminatedRetryError,
    UnacceptableResultError,
    Veto,
)
from retrytemplate.guards import others
from retrytemplate.history import message_of, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from retrytemplate._engine.context import RetryContext
    from retrytemplate._engine.deadline import Deadline
    from retrytemplate._engine.plan import Plan
    from retrytemplate.caches.base import Claim
    from retrytemplate.caches.record import Phase
    from retrytemplate.history import StopReason

    Effect = tuple[Callable[..., Any], tuple[Any, ...]]
    Reply = tuple[Any, BaseException | None]
    Steps = Generator[Effect, Reply, Any]

__all__ = ["Execution", "Ways"]

VETOED = "a listener vetoed the execution"


class Ways(Protocol):
    """What the engine needs of a driver: to wait, to bound an attempt, to shield a step.

    A shielded step ends however often its task is cancelled; the waiter's ``cut`` is then set.
    """

    awaits: bool

    def sleep(self, plan: Plan) -> Callable[[float], Any]: ...

    def bound(self, execution: Execution, effect: Effect) -> Effect: ...

    def shielded(self, effect: Effect, waiter: Any, cache: Any) -> Effect: ...


class Execution:
    """One execution of a callback: its parts, and how it stands."""

    __slots__ = (
        "arguments",
        "backoff",
        "cache",
        "context",
        "cut",
        "deadline",
        "end",
        "error",
        "function",
        "last",
        "lent",
        "marks",
        "overrun",
        "own",
        "phase",
        "plan",
        "policy",
        "raised",
        "reason",
        "recovery",
        "refusal",
        "resumed",
        "saved",
        "started",
        "stops",
        "taking",
        "trouble",
        "untold",
        "value",
        "ways",
    )

    def __init__(
        self,
        plan: Plan,
        context: RetryContext,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        recovery: Callable[[RetryContext], Any] | None,
        ways: Ways,
    ) -> None:
        self.plan = plan
        self.policy: Any = plan.policy  # deciding or stateful: plan.needs_state tells
        self.context = context
        self.function = function
        self.arguments = arguments
        self.recovery = recovery
        self.ways = ways
        self.deadline: Deadline | None = None
        self.stops: tuple[Any, ...] = ()  # guards of the templates around this one
        self.cache: Any = None  # where the key of a stateful execution is
        self.cut: BaseException | None = None  # a cancellation during a shielded step
        self.end: str | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.last: BaseException | None = None  # of this execution, what close is told
        self.refusal: BaseException | None = None  # what ended the attempts, if not the policy
        self.raised: BaseException | None = None  # by a rule
        self.reason: StopReason | None = None  # what ended it, if not the policy
        self.own: UnacceptableResultError | None = None  # an unacceptable result, made here
        self.taking: Effect | None = None  # the key, and not known yet whether it was taken
        self.marks: Any = None  # as they lie in a shared record
        self.started: float | None = None  # the attempt under way
        self.overrun: tuple[float, float] | None = None  # set by a driver: limit and elapsed
        self.resumed = False  # the states of policy and backoff come from a record
        self.saved = False  # a failure of this execution is in the cache
        self.lent = False  # guards have granted a wait, and no attempt has come of it yet
        self.trouble: BaseException | None = None  # of the store, which the listeners hear of once
        self.untold: Any = iter(plan.close)
        self.phase: Phase = "idle"  # of the record that stays
        self.backoff = plan.backoff

    def run(
        self, failure: BaseException | None = None
    ) -> Generator[Effect, Reply, tuple[Any, BaseException | None]]:
        """Run to the end; return the value and the exception, one of them None.

        :param failure: how an inline first attempt failed; None: nothing has happened yet.
        """
        plan, context = self.plan, self.context
        timed = plan.measured or context._state is not None or self.deadline is not None
        try:
            if failure is not None:
                context.attempt = 1
            elif self.end is None and not context._opened:
                yield from self._begin()
            while self.end is None:
                if failure is None:
                    if plan.careful or self.saved or self.stops or self.deadline is not None:
                        if not (yield from self._make_ready()):
                            break
                        self.lent = False
                    elif not context._retry_allowed or context.gave_up:
                        self.end = EXHAUSTED
                        break
                    context.attempt += 1
                    if timed or context._started is not None:
                        self.started = now = plan.monotonic()
                        if context._started is None:
                            context._started = now
                    for hook in plan.before_attempt:
                        _, failure = yield hook, (context,)
                        if failure is not None:
                            break
                    else:
                        self.value, failure = yield self._effect()
                        if failure is None and self.overrun is not None:
                            failure = yield from self._report_overrun(*self.overrun)
                        if failure is None and plan.result_rules:
                            failure = self._unacceptable(self.value)
                        if failure is None:
                            for hook in plan.on_success:
                                _, failure = yield hook, (context, self.value)
                                if failure is not None:
                                    break
                    if failure is None:
                        self.end, self.last = DONE, None
                        break
                yield from self._after(failure)
                failure = None
            if self.lent:
                yield from give_back(self)
            if self.end == EXHAUSTED:
                yield from self._exhaust()
        except BaseException as exc:  # out of the rules themselves: a policy, a backoff, a signal
            if self.is_dropped(exc):
                raise
            self.error = exc
            self.end = UNTOUCHED if self.last is None else KEPT
        try:
            if self.lent:
                yield from give_back(self)
            yield from self._end()
        except BaseException as exc:  # a signal: what is still to be done is done
            if self.is_dropped(exc):
                raise
            self.error = exc
            yield from self._end()
        return self._outcome()

    def recover(self) -> Generator[Effect, Reply, tuple[Any, BaseException | None]]:
        """The rest of a short execution whose attempts have run out: the recovery's turn."""
        yield from self._exhaust()
        self.explain()
        self.context.closed = True
        return self._outcome()

    def end_with(
        self, value: Any, first: BaseException | None, untold: Iterable[Callable[..., Any]]
    ) -> Generator[Effect, Reply, tuple[Any, BaseException | None]]:
        """The rest of an inline success whose closing did not go well.

        :param first: what a listener raised; the *untold* are still to be told.
        """
        self.end, self.value, self.untold = DONE, value, untold
        yield from self._close(first)
        return self._outcome()

    def raising(self, error: BaseException) -> BaseException:
        """The error, for a rule to raise it."""
        self.raised = error
        return error

    def is_dropped(self, exc: BaseException) -> bool:
        """Whether nobody drives this generator any more; a rule may raise a ``GeneratorExit``."""
        return isinstance(exc, GeneratorExit) and exc is not self.raised

    def _outcome(self) -> tuple[Any, BaseException | None]:
        """What leaves; nothing of it stays here, where a traceback may lead back to."""
        value, error, context = self.value, self.error, self.context
        if context._error is not None:
            context._error = None
        # Without a key nothing is to come again; what stops the program is passed on as it is.
        for_good = self.end == DONE or (
            error is not None and context._state is None and not is_hard(error)
        )
        leave(context, error, for_good=for_good)
        self.value = self.error = self.last = self.refusal = self.own = self.raised = None
        return value, error

    # -- beginning -------------------------------------------------------------------------------

    def _begin(self) -> Steps:
        """What comes before the first attempt: the key, the listeners' consent, what was left."""
        plan, context = self.plan, self.context
        if plan.dynamic:
            try:
                self.policy = context._policy = plan.policy.resolved()
                self.backoff = plan.backoff.resolved()
            except Exception as exc:
                self.end, self.error = ABSENT, exc
                return
        if context._state is not None or plan.needs_state:
            yield from load(self)
        if self.end is not None:
            return
        for hook in plan.open:
            verdict, error = yield hook, (context,)
            if error is not None or verdict is False:
                self.veto(error)
                return
        context._opened = True
        if self.trouble is not None:
            yield from tell_of(self, self.trouble)
        claim = context._claim
        if claim is not None and (claim.record is not None or claim.lost is not None):
            yield from self._resume(claim)
        elif context._not_before is not None:  # in a shared record, which nobody claims
            yield from wait_rest(self, context._not_before - plan.clock.time())
        elif plan.asks_first:
            self._ask_first()

    def _ask_first(self) -> None:
        """Ask a deciding policy that may allow no attempt at all."""
        try:
            self.context._retry_allowed = bool(self.policy.allows(0, None))
        except Exception as exc:
            error = TerminatedRetryError(f"the policy could not be asked: {summary(exc)}")
            self.end, self.error = UNTOUCHED, from_cause(error, exc)

    def explain(self) -> None:
        """Let the context show why no further attempt follows."""
        error = self.error
        if (
            self.reason is None
            and isinstance(error, Exception)
            and error is not self.last
            and not isinstance(error, RetryLater)
            and not is_signal(type(error))
        ):
            self.reason = "terminated"
        self.context._stop = self.reason

    def veto(self, error: BaseException | None) -> None:
        """A listener's ``open`` refused the execution, or raised."""
        if error is None:
            error = TerminatedRetryError(VETOED)
        elif isinstance(error, Veto):
            error = from_cause(
                TerminatedRetryError(with_text(VETOED, one_line(message_of(error)))), error
            )
        self.end, self.error = UNTOUCHED, error

    def refused(self, error: BaseException) -> None:
        """A guard refused an attempt, or raised."""
        self.reason = guard_reason(error)
        self.end, self.error = UNTOUCHED, from_cause(error, self.context.last_exception)

    def start_policy(self) -> None:
        self.context._policy_state = self.policy.start(self.plan.monotonic())
        self.show()

    def show(self) -> None:
        """Let the context show what a policy's own state says of counts and attributes."""
        context = self.context
        failures = self.policy.failures(context._policy_state)
        if failures is not None:
            context.retry_count = failures
        for name, value in self.policy.attributes(context._policy_state).items():
            context.attributes[name] = value

    def _resume(self, claim: Claim) -> Steps:
        """Go on where the key was left: a lost attempt, a recovery, a wait that is not over."""
        context = self.context
        context.attempt = context.retry_count
        if claim.record is not None and claim.record.phase == "recovering":
            self.end = EXHAUSTED
        elif claim.lost is not None:
            lost = AttemptLostError(f"the attempt of {claim.lost} was lost", worker=claim.lost)
            context.attempt += 1
            yield from self._register(lost)
            if self.end is None:
                yield from save(self)
        elif context._not_before is not None:
            yield from wait_rest(self, context._not_before - self.plan.clock.time())

    # -- an attempt ------------------------------------------------------------------------------

    def _make_ready(self) -> Steps:
        """Ask who may refuse an attempt, and count it where it is the next one in place."""
        if not (yield from self._allowed()):
            self.end = EXHAUSTED
            return False
        if self.plan.admit or self.stops or self.deadline is not None:
            yield from self._admit()
        if self.end is not None:
            return False
        if self.saved and self.context._claim is not None:
            yield from begin_again(self)
        return self.end is None

    def _effect(self) -> Effect:
        """The callback's call, bounded in time where somebody says so."""
        effect = self.function, self.arguments
        if self.plan.attempt_timeout is None and self.deadline is None:
            return effect
        return self.ways.bound(self, effect)

    def _allowed(self) -> Steps:
        """Whether another attempt may be made: the policy first, then who gave up."""
        context = self.context
        allowed = context._retry_allowed
        if self.plan.needs_state:
            if self.plan.keeps_context and self.cache is not None:
                decided = yield from share(self, self._decide)
            else:
                decided = self._decide()
            allowed = allowed and decided
        return allowed and not context.gave_up

    def _decide(self) -> bool:
        context, policy = self.context, self.policy
        allowed: bool
        now = self.plan.monotonic()
        try:
            allowed, context._policy_state = policy.decide(context._policy_state, now)
            self.show()
        except Exception as exc:
            if not self.resumed:
                raise
            raise unusable(context, exc) from exc
        context.no_recovery = (
            not allowed
            and context.last_exception is not None
            and policy.recovery_forbidden(context._policy_state)
        )
        return allowed

    def _admit(self) -> Steps:
        """Ask the deadline and the guards, in this order, before an attempt."""
        context = self.context
        deadline = self.deadline
        if deadline is not None and not deadline.fits():
            left = deadline.remaining()
            when = f"is in {left:.3g} seconds" if left else "is over"
            error = from_cause(
                deadline.error(f"the deadline {when}: no attempt is begun"),
                context.last_exception,
            )
            if self.last is not None:
                self.refuse(error, "deadline")
            if self.end is None:
                self.reason = "deadline"
                self.end, self.error = UNTOUCHED, error
            return
        error = yield from self.tell(self._guards(), context)
        if error is not None:
            self.refused(error)

    def _guards(self) -> Iterable[Callable[..., Any]]:
        """Who is asked before an attempt: the guards of the templates around, and then ours."""
        awaits, plan = self.ways.awaits, self.plan
        ours = plan.admit_async if awaits else plan.admit
        if not self.stops:
            return ours
        around = others(self.stops, plan.inherited)
        return (*(awaited_admit(each) if awaits else each.admit for each in around), *ours)

    def _report_overrun(self, limit: float, elapsed: float) -> Steps:
        """Report an attempt that returned after its limit; only a cancellation ends it."""
        self.overrun = None
        for hook in self.plan.on_overrun:
            _, error = yield hook, (self.context, limit, elapsed)
            if error is None:
                continue
            if is_hard(error) and not isinstance(error, MisuseError):
                return error
            yield log_failed_hook, (hook, error)
        return None

    def _unacceptable(self, value: Any) -> BaseException | None:
        for rule in self.plan.result_rules:
            try:
                refused = bool(rule.retry_if(value))
            except Exception as exc:
                return exc
            if refused:
                failure = UnacceptableResultError(
                    f"the result is not acceptable: {shown(value)}", value
                )
                self.own = failure
                return failure
        return None

    def tell(self, hooks: Iterable[Callable[..., Any]], *arguments: Any) -> Steps:
        """Call the hooks in order; return what one raised, the others are not told."""
        for hook in hooks:
            _, error = yield hook, arguments
            if error is not None:
                return error
        return None

    def tell_all(
        self,
        hooks: Iterable[Callable[..., Any]],
        *arguments: Any,
        first: BaseException | None = None,
    ) -> Steps:
        """Call all the hooks, whatever one of them raises; return the first error among them.

        What nothing may hold up goes before any other.

        :param first: what one that was told before has raised.
        """
        for hook in hooks:
            _, error = yield hook, arguments
            if error is None:
                continue
            if first is None:
                first = error
            elif is_hard(error) and not is_hard(first):
                first = instead_of(first, error)
        return first

    # -- after a failure -------------------------------------------------------------------------

    def _after(self, failure: BaseException) -> Steps:
        """The rules after a failure: count, keep, tell, ask, wait; then rethrow or stay."""
        plan, context = self.plan, self.context
        self.last = failure
        failure = named(self.function, context, self.arguments, failure)
        if type(failure) not in ORDINARY and leaves_as_it_is(self.policy, failure):
            self.reason = reason_to_pass(failure)
            self.end, self.error = UNTOUCHED, failure
            return
        yield from self._register(failure)
        if context._claim is not None and self.end is None:
            yield from save(self)
        raised = yield from self.tell(plan.on_error, context, failure)
        if raised is not None:
            self.end, self.error = KEPT, instead_of(failure, raised)
        if self.end is not None:
            return
        allowed = yield from self._allowed()
        state = context._state
        rethrown = context.rethrows(failure)
        if allowed and not (yield from self._discard_result(failure)):
            return
        if allowed and (plan.waits or plan.pausing):
            yield from pause(self, failure, rethrown)
        if state is None or self.end is not None:
            return
        if rethrown:
            self.end, self.error = KEPT, failure
            self.lent = False  # the retry comes with the redelivery
            self.reason = None
            if not (allowed and context._retry_allowed):
                self.reason = stop_reason(self.policy, context, plan.monotonic)
                context._recovery = self.recovery  # for the record of what the next delivery does
        elif plan.keeps_context:
            self.end = EXHAUSTED
        elif self.refusal is not None:
            self.end, self.error = KEPT, self.refusal

    def _register(self, failure: BaseException) -> Steps:
        """Count the failure and let the policy record it."""
        plan, context = self.plan, self.context
        context._fail(failure, self.started, plan.monotonic())
        try:
            if not plan.needs_state:
                context._retry_allowed = judge(self.policy, context, failure, self.own)
            elif plan.keeps_context and self.cache is not None:
                yield from share(self, lambda: self._record(failure))
            else:
                self._record(failure)
        except Exception as exc:
            self.end, self.error = KEPT, terminated(exc, failure)

    def _record(self, failure: BaseException) -> None:
        context = self.context
        context._policy_state = self.policy.record(
            context._policy_state, failure, self.plan.monotonic()
        )
        if is_barred(self.policy, failure, self.own):
            context._retry_allowed = False
        self.show()

    def refuse(self, refusal: BaseException, reason: StopReason | None) -> None:
        """No retry here and now: the attempts have run out, or the key waits for its redelivery."""
        self.refusal, self.reason = refusal, reason
        if self.context._state is None:
            self.end = EXHAUSTED

    # -- the end ---------------------------------------------------------------------------------

    def _exhaust(self) -> Steps:
        """No attempt is left: recover, or say so."""
        context = self.context
        context.exhausted = True
        self.end = DONE
        if self.reason is None:
            self.reason = stop_reason(self.policy, context, self.plan.monotonic)
        context._stop = self.reason
        recovery = None if context.no_recovery else self.recovery
        of_call = getattr(type(recovery), "of_call", None)
        if of_call is not None:  # which one, and whether any, depends on the call and its failure
            recovery = of_call(recovery, context._last, self.function, self.arguments)
        if recovery is not None:
            if (yield from self._discard_result(self.last)):
                yield from self._recover(recovery)
        else:
            own = self.own
            if own is not None and own is context._last and self._returns_result():
                self.value = own.result
            else:
                self.error = conclusion(context, self.refusal)

    def _discard_result(self, failure: BaseException | None) -> Generator[Effect, Reply, bool]:
        """Let the function release a result that is not used; False if that fails."""
        discard = getattr(type(self.function), "discard_result", None)
        if discard is not None:
            _, raised = yield discard, (self.function,)
            if raised is not None:
                self.end, self.error = KEPT, instead_of(failure, raised)
                return False
        return True

    def _returns_result(self) -> bool:
        return any(rule.when_exhausted == "return" for rule in self.plan.result_rules)

    def _recover(self, recovery: Callable[[RetryContext], Any]) -> Steps:
        """Call the recovery under the claim; raising, it is recovery's turn again next time."""
        plan, context = self.plan, self.context
        context._is_exposed = True
        if context._claim is not None:
            yield from mark_recovering(self)
        value, error = yield recovery, (context,)
        if type(error) is TypeError:
            error = unfit(recovery, error, "that a recovery gets")
        if isinstance(error, Exception):
            self.reason = "recovery_failed"
        if error is None:
            context.recovered = True
            error = yield from self.tell(plan.on_recovery, context, value)
            if isinstance(error, Exception):
                self.reason = "terminated"
            self.value = value if error is None else None
            self.phase = "idle"
        if error is not None:
            self.error = instead_of(context._last, error)

    def _end(self) -> Steps:
        """Leave the key as the end wants it, and tell the listeners."""
        if self.end == ABSENT and self.taking is None and self.context._claim is None:
            return
        if self.error is not None:
            self.value = None
            if self.last is not None:
                instead_of(self.last, self.error)
        self.context.closed = self.context._state is None or self.end != KEPT
        if self.cache is not None:
            try:
                yield from settle(self)
            except BaseException as exc:  # what would be written down cannot be; a signal
                if self.is_dropped(exc):
                    raise
                yield from let_go(self, exc)
            self.cache = None
            cut, self.cut = self.cut, None
            if cut is not None and (self.error is None or not is_hard(self.error)):
                self.value, self.error = None, instead_of(self.error, cut)
        self.explain()
        if self.end != ABSENT:
            yield from self._close()

    def _close(self, first: BaseException | None = None) -> Steps:
        """Tell every listener; the first error among them is raised at the end.

        :param first: what one that was told before has raised.
        """
        if self.error is not None and self.plan.close:
            self.context._error = self.error
        first = yield from self.tell_all(self.untold, self.context, self.last, first=first)
        if first is not None:
            self.value, self.error = None, instead_of(self.error, first)
            self.explain()

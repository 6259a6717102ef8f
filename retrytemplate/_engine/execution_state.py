"""The state of one execution, shared by its phases, and the calls of its hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._engine.final_error import EXHAUSTED, with_context
from retrytemplate.classify.exceptions import is_never_retried

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from typing import Protocol

    from retrytemplate._engine.context import RetryContext
    from retrytemplate._engine.deadline import Deadline
    from retrytemplate._engine.plan import ExecutionPlan
    from retrytemplate.caches.record import Phase
    from retrytemplate.errors import UnacceptableResultError
    from retrytemplate.history import StopReason

    Effect = tuple[Callable[..., Any], tuple[Any, ...]]
    Reply = tuple[Any, BaseException | None]
    Steps = Generator[Effect, Reply, Any]

    class Driver(Protocol):
        """Makes the effects that drivers differ in: a wait, a limited attempt, a shielded step.

        A shielded step ends however often its task is cancelled; it then sets the waiter's
        ``cancellation``.
        """

        awaits: bool

        def sleep(self, plan: ExecutionPlan) -> Callable[[float], Any]: ...

        def limit_attempt(self, execution: ExecutionState, effect: Effect) -> Effect: ...

        def shielded(self, effect: Effect, waiter: Any, cache: Any) -> Effect: ...


__all__ = ["ExecutionState", "Torn"]


class Torn(GeneratorExit):
    """Ends an abandoned execution whose inner generator was garbage-collected first."""


class ExecutionState:
    """The state of one execution of a callback."""

    __slots__ = (
        "arguments",
        "backoff",
        "cache",
        "cancellation",
        "context",
        "deadline",
        "disposition",
        "driver",
        "error",
        "function",
        "has_reservation",
        "inherited_guards",
        "internal_error",
        "is_failure_saved",
        "is_state_restored",
        "last_failure",
        "overrun",
        "pending_claim",
        "pending_close_hooks",
        "pending_end_hooks",
        "phase",
        "plan",
        "policy",
        "reason",
        "recovery",
        "rejection",
        "result_error",
        "shared_snapshot",
        "started",
        "store_error",
        "value",
    )

    def __init__(
        self,
        plan: ExecutionPlan,
        context: RetryContext,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        recovery: Callable[[RetryContext], Any] | None,
        driver: Driver,
    ) -> None:
        self.plan = plan
        self.policy: Any = plan.policy  # stateful if plan.needs_state
        self.context = context
        self.function = function
        self.arguments = arguments
        self.recovery = context._owner.recovery if recovery is None else recovery
        self.driver = driver
        self.deadline: Deadline | None = None
        self.inherited_guards: tuple[Any, ...] = ()  # of enclosing templates
        self.cache: Any = None  # of a stateful execution
        self.cancellation: BaseException | None = None  # a cancellation during a shielded step
        self.disposition: str | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.last_failure: BaseException | None = None  # the argument of the close hooks
        self.rejection: BaseException | None = (
            None  # the error that ended the attempts, unless the policy did
        )
        self.internal_error: BaseException | None = None  # raised by the engine, not by an effect
        self.reason: StopReason | None = None  # why no attempt follows
        # Of an unacceptable result in this execution.
        self.result_error: UnacceptableResultError | None = None
        self.pending_claim: Effect | None = None  # sent, without a result yet
        self.shared_snapshot: Any = None  # the policy's and backoff's states in a shared record
        self.started: float | None = None  # of the current attempt
        self.overrun: tuple[float, float] | None = None  # set by a driver: limit and elapsed
        self.is_state_restored = False  # the states of policy and backoff come from a record
        self.is_failure_saved = False  # a failure of this execution is in the cache
        self.has_reservation = False  # guards have granted a wait that no attempt has used yet
        self.store_error: BaseException | None = None  # reported to the listeners once
        # Iterators, so that a second end calls the rest; () if there are none.
        self.pending_close_hooks: Any = plan.close and iter(plan.close)
        self.pending_end_hooks: Any = None  # chosen by the end: of a first success, or of another
        self.phase: Phase = "idle"  # of the stored record
        self.backoff = plan.backoff
        inner = getattr(function, "func", function)  # of a partial
        if getattr(inner, "calls_argument", False):  # of a pipeline
            context._function = (*getattr(function, "args", ()), *arguments)[0]

    def mark_internal(self, error: BaseException) -> BaseException:
        """Record an error of the engine itself, and return it to be raised."""
        self.internal_error = error
        return error

    def is_abandoned(self, exc: BaseException) -> bool:
        """Whether the engine's generator was closed; it may raise a ``GeneratorExit`` itself."""
        return isinstance(exc, GeneratorExit) and not (
            exc is self.internal_error or isinstance(exc, Torn)
        )

    def start_policy_state(self) -> None:
        self.context._policy_state = self.policy.start(self.plan.monotonic_source.now())
        self.publish_policy_state()

    def publish_policy_state(self) -> None:
        """Copy the failures and attributes in the policy's state to the context."""
        context = self.context
        failures = self.policy.failures(context._policy_state)
        if failures is not None:
            context.retry_count = failures
        for name, value in self.policy.attributes(context._policy_state).items():
            context.attributes[name] = value

    def call_hooks(self, hooks: Iterable[Callable[..., Any]], *arguments: Any) -> Steps:
        """Call the hooks in order; stop at an exception and return it."""
        for hook in hooks:
            _, error = yield hook, arguments
            if error is not None:
                return error
        return None

    def call_all_hooks(
        self,
        hooks: Iterable[Callable[..., Any]],
        *arguments: Any,
        first: BaseException | None = None,
    ) -> Steps:
        """Call all the hooks, whatever one of them raises; return the first error among them.

        An error that is never retried takes precedence over the others.

        :param first: the error of an earlier hook.
        """
        for hook in hooks:
            _, error = yield hook, arguments
            if error is None:
                continue
            if first is None:
                first = error
            elif is_never_retried(error) and not is_never_retried(first):
                first = with_context(first, error)
        return first

    def stop_retrying(self, rejection: BaseException, reason: StopReason | None) -> None:
        """End the attempts; a stateless execution is exhausted, a key waits for its redelivery."""
        self.rejection, self.reason = rejection, reason
        if self.context._state is None:
            self.disposition = EXHAUSTED

"""Nested retries: their depth, and the rule that only one layer retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._engine.frames import CONTEXT, CURRENT, OUTER, OWNER, PLAN
from retrytemplate._engine.plan import ExecutionPlan
from retrytemplate._internal.validation import check_choice, check_int, check_text, checked_by
from retrytemplate.control._fields import HasListeners
from retrytemplate.control.events import ControlEvent, notify_listeners
from retrytemplate.errors import NestedRetryError
from retrytemplate.guards import Guard

if TYPE_CHECKING:
    from retrytemplate._engine.context import RetryContext
    from retrytemplate._engine.frames import ExecutionFrame


@frozen
class Nesting:
    """Depth and number of retries around a call, in this process and its callers.

    :param depth: the templates around it that may retry; 0: none.
    :param attempt: which attempt this is: one more than the retries that those have made so far.
    :param no_retry: whether a caller wants no retry at all.

    >>> from retrytemplate import RetryTemplate
    >>> RetryTemplate().call(Nesting.current)
    Nesting(depth=1, attempt=1, no_retry=False)
    """

    depth: int = 0
    attempt: int = 1
    no_retry: bool = False

    @classmethod
    def current(cls) -> Nesting:
        """The nesting of the calling code."""
        return current_nesting(CURRENT.get())

    def merge(self, other: Nesting) -> Nesting:
        """Both are true: of each the stricter."""
        return Nesting(
            max(self.depth, other.depth),
            max(self.attempt, other.attempt),
            self.no_retry or other.no_retry,
        )


def current_nesting(frame: ExecutionFrame | None) -> Nesting:
    """The retries around this frame, up to the incoming request."""
    depth = retries = 0
    while frame is not None:
        context, owner, began_with = frame[CONTEXT], frame[OWNER], frame[PLAN]
        if isinstance(began_with, Nesting):  # came in: it knows of all that is outside
            incoming = began_with
            return Nesting(incoming.depth + depth, incoming.attempt + retries, incoming.no_retry)
        if context is not None:
            if not (context.closed or context.exhausted):
                depth += _may_retry(context)
                retries += max(0, context.attempt - 1)
            frame = context._outer
        else:
            # A first attempt has no context until it is requested.
            if owner is not None and isinstance(began_with, ExecutionPlan):
                depth += began_with.policy.attempt_limit != 1
            frame = frame[OUTER]
    return Nesting(depth, 1 + retries)


def _may_retry(context: RetryContext) -> bool:
    policy = context._policy or context._plan.policy
    return not context.gave_up and policy.attempt_limit != 1


def _retries(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not value:
        raise TypeError(f"{name} must be a sequence with a number for each depth, got {value!r}")
    for each in value:
        if each is not None:
            check_int(f"{name}: each but None", each, 0)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@frozen(eq=False)
class NestedRetries(HasListeners, Guard):
    """Lets the outermost of nested templates retry, and no other: 3 calls instead of 27.

    A guard, for each template: in ``RetryTemplate(guards=[NestedRetries()])``.  If it rejects a
    retry, the attempts have run out: the recovery answers, or the failure itself leaves, for the
    template outside to judge.

    :param on_nested: ``"suppress"`` rejects a retry beyond the limit, ``"report"`` allows it;
        either way the listeners are notified.
    :param retries_by_depth: how many retries of one call are allowed at depth 0, 1 and so on; None:
        as many as the policy allows.  The last one holds for all that is deeper.
    :param name: in errors and events.
    :param listeners: receive a ``NestedRetry``.

    Depth counts the templates around this one in the process, and in the processes before it where
    ``Propagation`` says so.

    >>> from retrytemplate import RetryTemplate
    >>> template = RetryTemplate(guards=[NestedRetries()])
    >>> calls = []
    >>> @template.wrap
    ... def inner():
    ...     calls.append("inner")
    ...     raise ConnectionError("reset")
    >>> template.outcome(template.wrap(inner, nested=True)).exception, len(calls)
    (ConnectionError('reset'), 3)
    """

    on_nested: str = field(
        default="suppress", validator=checked_by(check_choice, "suppress", "report")
    )
    retries_by_depth: tuple[int | None, ...] = field(
        default=(None, 0), converter=_tuple, validator=checked_by(_retries)
    )
    name: str = field(default="nesting", kw_only=True, validator=checked_by(check_text))

    def reserve(self, context: RetryContext, delay: float) -> None:
        """Reject a retry that is one too many at this depth.

        :raises NestedRetryError: it is, and is not only to be reported.
        """
        here = current_nesting(context._outer)
        allowed = self.allowed(here)
        retry = context.retry_count
        if allowed is None or retry <= allowed:
            return
        suppressed = self.on_nested == "suppress"
        event = NestedRetry(
            name=self.name,
            template=context.name,
            depth=here.depth,
            retry=retry,
            suppressed=suppressed,
        )
        notify_listeners(self.listeners, [event])
        if suppressed:
            why = "the caller forbids retries" if here.no_retry else f"at most {allowed} allowed"
            raise NestedRetryError(
                f"retry {retry} rejected at depth {here.depth}: {why}", name=self.name
            )

    def allowed(self, here: Nesting) -> int | None:
        """Maximum number of retries of one call; None: as many as the policy allows."""
        if here.no_retry:
            return 0
        return self.retries_by_depth[min(here.depth, len(self.retries_by_depth) - 1)]


@frozen(kw_only=True)
class NestedRetry(ControlEvent):
    """A retry inside other retries exceeded the limit of its depth.

    :param template: whose it is, by name.
    :param depth: how many templates around it may retry.
    :param retry: its number, from 1.
    :param suppressed: whether it was rejected; False: it was only reported.
    """

    template: str | None
    depth: int
    retry: int
    suppressed: bool

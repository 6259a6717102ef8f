"""The retry budget: how many retries all calls together may make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate._internal.validation import (
    check_at_least,
    check_number,
    check_span,
    check_text,
    checked_by,
    read_seconds,
)
from retrytemplate.classify.exceptions import ExceptionClassifier
from retrytemplate.clock import given_or_system
from retrytemplate.control._strategy import immutable
from retrytemplate.control.budget.accounting import RatioBudget, TokenBucket
from retrytemplate.control.events import (
    Listeners,
    Observable,
    reject,
    to_listeners,
)
from retrytemplate.errors import RetryBudgetExhaustedError
from retrytemplate.guards import Guard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate._engine.context import RetryContext
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.control.budget.accounting import BudgetAccounting

# Budgets that have counted an enclosing call: calls inside are part of that call.
COUNTED: ContextVar[frozenset[RetryBudget]] = ContextVar(
    "retrytemplate.budgets", default=frozenset()
)


@frozen(kw_only=True)
class BudgetSnapshot:
    """The state of a budget.

    :param available: the rest, in retries or in tokens.
    :param granted: retries so far, and ``rejected``: those that were not granted.
    """

    name: str
    available: float
    granted: int
    rejected: int


def _check_parent(name: str, value: Any) -> None:
    if not isinstance(value, RetryBudget | None):
        raise TypeError(f"{name} must be a RetryBudget or None, got {value!r}")


@immutable()
@frozen(eq=False, init=False)
class RetryBudget(Observable, Guard):
    """Grants retries as a share of the calls, so that a service in trouble is not drowned in them.

    A guard, shared by all templates that call one thing: in ``RetryTemplate(guards=[budget])``.  A
    retry that it does not grant is not made, and not waited for: the attempts have run out.

    :param ratio: retries for each call, over the last *ttl* seconds.
    :param min_per_second: retries a second that are granted in any case, for services that are
        called rarely.
    :param ttl: seconds.
    :param parent: another budget, of the process say, which has to grant each retry, too.
    :param name: in errors and events.
    :param listeners: notified of rejections.
    :param clock: measures.
    :raises ValueError: a number is out of its range.

    A granted retry is refunded when the wait is cancelled, or when no attempt follows it.

    Source: the retry budgets of Finagle and Linkerd.

    >>> from retrytemplate import NoBackoff, RetryTemplate, SimpleRetryPolicy
    >>> budget = RetryBudget(ratio=0.5, min_per_second=0)
    >>> template = RetryTemplate(SimpleRetryPolicy(3), NoBackoff(), guards=[budget])
    >>> [template.outcome(int, "x").attempts for _ in range(4)]
    [1, 2, 1, 2]
    """

    name: str = field(validator=checked_by(check_text))
    parent: RetryBudget | None = field(validator=checked_by(_check_parent))
    _accounting: BudgetAccounting
    _cost: Any
    _refund: float
    listeners: Listeners = field(converter=to_listeners)
    _clock: Clock = field(converter=given_or_system)
    _monitor: Monitor = field(init=False, factory=Monitor)
    _counts: Counter[str] = field(init=False, factory=Counter)

    def __init__(
        self,
        ratio: float = 0.2,
        min_per_second: float = 10,
        ttl: Seconds = 10.0,
        parent: RetryBudget | None = None,
        *,
        name: str = "retries",
        listeners: Iterable[Any] = (),
        clock: Clock | None = None,
    ) -> None:
        check_at_least("ratio", ratio, 0.0, finite=True)
        check_at_least("min_per_second", min_per_second, 0.0, finite=True)
        length: float = read_seconds("ttl", ttl, check_span)
        if not ratio and not min_per_second:
            raise ValueError("ratio and min_per_second must not both be 0: no retry is granted")
        accounting = RatioBudget(ratio, min_per_second * length, length)
        self.__attrs_init__(  # pyright: ignore[reportAttributeAccessIssue]  # attrs adds it
            name, parent, accounting, 1.0, 0.0, listeners, clock
        )

    @classmethod
    def tokens(
        cls,
        capacity: float = 500,
        refill_per_second: float = 0.0,
        cost: float | Mapping[type[BaseException], float] | ExceptionClassifier = 5,
        refund: float = 1,
        parent: RetryBudget | None = None,
        *,
        name: str = "retries",
        listeners: Iterable[Any] = (),
        clock: Clock | None = None,
    ) -> RetryBudget:
        """A budget in the form of a bucket, full at first: each retry costs some tokens.

        :param capacity: of the bucket.
        :param refill_per_second: tokens that time brings.
        :param cost: tokens of a retry; or exception classes with the cost of a retry after each,
            of which the nearest counts, and ``Exception`` has to be one.
        :param refund: tokens refunded by a success at the first attempt; a successful retry
            refunds its own cost.

        Source: the retry quota of the AWS SDKs.

        >>> budget = RetryBudget.tokens(capacity=10, cost={TimeoutError: 10, Exception: 5})
        >>> budget.snapshot().available
        10.0
        """
        check_at_least("capacity", capacity, 0.0, finite=True)
        check_at_least("refill_per_second", refill_per_second, 0.0, finite=True)
        check_at_least("refund", refund, 0.0, finite=True)
        made = cls.__new__(cls)
        accounting = TokenBucket(float(capacity), float(refill_per_second))
        made.__attrs_init__(  # pyright: ignore[reportAttributeAccessIssue]  # attrs adds it
            name, parent, accounting, _costs(cost, capacity), float(refund), listeners, clock
        )
        return made

    def __attrs_post_init__(self) -> None:
        self._track()

    def _cost_of(self, failure: BaseException | None) -> float:
        if isinstance(self._cost, ExceptionClassifier):
            return float(self._cost.classify(failure))
        return float(self._cost)

    # The methods of a guard.

    def admit(self, context: RetryContext) -> None:
        """A call's first attempt adds to what retries are paid from."""
        if context.retry_count == 0:
            self._deposit()
            if self.parent is not None:
                self.parent.admit(context)

    def reserve(self, context: RetryContext, delay: float) -> None:
        """Pay for the retry that follows.

        :raises RetryBudgetExhaustedError: there is not enough.
        """
        self.withdraw(context.last_exception)

    def release(self, context: RetryContext) -> None:
        """No attempt came of it."""
        self.refund(context.last_exception)

    def on_success(self, context: RetryContext, result: Any) -> None:
        """A success brings something back."""
        retried = context.retry_count > 0
        self._credit_success(
            self._cost_of(context.last_exception) if retried else self._refund, retried
        )
        if self.parent is not None:
            self.parent.on_success(context, result)

    # For a call outside of a template, such as a hedge.

    def withdraw(self, failure: BaseException | None = None) -> None:
        """Withdraw the cost of an additional call.

        :param failure: the failure before the retry, or None: the cost may depend on it.
        :raises RetryBudgetExhaustedError: there is not enough.

        >>> budget = RetryBudget.tokens(capacity=10, cost=5)
        >>> budget.withdraw()
        >>> budget.snapshot().available
        5.0
        """
        cost, now = self._cost_of(failure), self._clock.monotonic()
        try:
            granted, why, retry_after = self._monitor.run(self._withdraw, cost, now)
        except Reentered:
            granted, why, retry_after = False, "this thread was interrupted inside of it", None
            self._monitor.post(self._count_rejection)
        if not granted:
            message = f"the budget {self.name!r} grants no retry: {why}"
            reject(self.listeners, self._rejection(message, retry_after))
        if self.parent is not None:
            try:
                self.parent.withdraw(failure)
            except BaseException:
                self._undo_withdrawal(cost)
                raise

    def _rejection(self, message: str, retry_after: float | None) -> RetryBudgetExhaustedError:
        made = RetryBudgetExhaustedError(message, name=self.name, retry_after=retry_after)
        made.available = self._accounting.left
        return made

    def refund(self, failure: BaseException | None = None) -> None:
        """Refund the cost of a call that was not made."""
        self._undo_withdrawal(self._cost_of(failure))
        if self.parent is not None:
            self.parent.refund(failure)

    def restore_state_from(self, other: RetryBudget) -> None:
        """Continue the state of another budget, such as one that this replaces.

        Taken over are the counted calls, and the share of the allowance that is in use: of a budget
        that is exhausted, no retry is granted here either, whatever its settings.

        :param other: a budget of the same form; neither it nor its parent is changed.
        :raises TypeError: it is not a ``RetryBudget``, or one of both is made by ``tokens``.

        >>> old, new = (RetryBudget.tokens(capacity=each) for each in (10, 100))
        >>> old.withdraw()
        >>> new.restore_state_from(old)
        >>> new.snapshot().available
        50.0
        """
        if not isinstance(other, RetryBudget):
            raise TypeError(f"other must be a RetryBudget, got {other!r}")
        ours: Any = self._accounting
        theirs: Any = other._accounting
        if type(ours) is not type(theirs):
            raise TypeError(f"other must be a budget of the same form, got {other!r}")
        saved = other._monitor.run(theirs.saved, other._clock.monotonic())
        self._monitor.post(ours.restore, saved, self._clock.monotonic())

    # Accounts.

    def _withdraw(self, cost: float, now: float) -> tuple[bool, str, float | None]:
        """Whether the cost was withdrawn; if not, the reason and the time until it can be."""
        if self._accounting.withdraw(cost, now):
            self._counts["granted"] += 1
            return True, "", None
        self._count_rejection()
        why = f"{cost:g} is needed, {self._accounting.available(now):.3g} is left"
        return False, why, self._accounting.wait_for(cost, now)

    def _count_rejection(self) -> None:
        self._counts["rejected"] += 1

    def _deposit(self) -> None:
        if self not in COUNTED.get():
            self._monitor.defer(self._accounting.call, self._clock.monotonic())

    def _credit_success(self, amount: float, retried: bool = False) -> None:
        if self._refund and (retried or self not in COUNTED.get()):
            self._monitor.defer(self._accounting.refund, amount, self._clock.monotonic())

    def _undo_withdrawal(self, amount: float) -> None:
        self._monitor.post(self._deduct_refund, amount, self._clock.monotonic())

    def _deduct_refund(self, amount: float, now: float) -> None:
        self._accounting.refund(amount, now)
        self._counts["granted"] -= 1

    # Looking.

    def snapshot(self) -> BudgetSnapshot:
        """The present balance and counts."""
        try:
            return self._monitor.run(self._refreshed_snapshot, self._clock.monotonic())
        except Reentered:
            return self._snapshot_now()

    def _refreshed_snapshot(self, now: float) -> BudgetSnapshot:
        self._accounting.available(now)
        return self._snapshot_now()

    def _snapshot_now(self) -> BudgetSnapshot:
        return BudgetSnapshot(
            name=self.name,
            available=self._accounting.left,
            granted=self._counts["granted"],
            rejected=self._counts["rejected"],
        )


def _costs(cost: Any, capacity: float) -> Any:
    if isinstance(cost, Mapping):
        if Exception not in cost:
            raise ValueError(f"cost must have an entry for Exception, got {dict(cost)!r}")
        cost = ExceptionClassifier(cost, default=cost[Exception])
    values = [cost]
    if isinstance(cost, ExceptionClassifier):
        values = list(cost.values())
    allowed = (
        f"above 0 and at most the capacity of {capacity:g}: a number, or a mapping or an "
        "ExceptionClassifier that gives numbers"
    )
    for each in values:
        check_number("cost", each, allowed, lambda number: 0 < number <= capacity)
    return cost

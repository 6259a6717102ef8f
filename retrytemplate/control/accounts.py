"""What one hedged call has to do with a budget: it is a call, and its hedges are paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

from retrytemplate._engine.context import current_context
from retrytemplate.control.budget import COUNTED, RetryBudget

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Account"]


@define(eq=False)
class Account:
    """Of one call, with a budget and those above it; without one everything is free."""

    budget: RetryBudget | None
    _all: frozenset[RetryBudget] = field(init=False)
    _counted: frozenset[RetryBudget] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._all = frozenset(_with_parents(self.budget))
        self._counted = (
            self._all - COUNTED.get() - frozenset(_of_templates()) if self._all else self._all
        )
        for each in self._counted:
            each._earn()

    def cover(self) -> None:
        """In the context of one of the calls: a template in it does not count it once more."""
        if self._all:
            COUNTED.set(COUNTED.get() | self._all)

    def take(self, failure: BaseException | None) -> None:
        """Pay for a hedge.

        :raises RetryBudgetExhaustedError: there is not enough.
        """
        if self.budget is not None:
            self.budget.take(failure)

    def put_back(self, failure: BaseException | None) -> None:
        """The hedge was not made."""
        if self.budget is not None:
            self.budget.put_back(failure)

    def succeeded(self) -> None:
        """The call did: that brings something back, once."""
        for each in self._counted:
            each._reward(each._refund)


def _with_parents(budget: RetryBudget | None) -> Iterator[RetryBudget]:
    while budget is not None:
        yield budget
        budget = budget.parent


def _of_templates() -> Iterator[RetryBudget]:
    """The budgets of the templates around: they have counted the call."""
    context = current_context()
    while context is not None:
        for admit in context._plan.admit:
            guard = getattr(admit, "__self__", None)
            if isinstance(guard, RetryBudget):
                yield from _with_parents(guard)
        context = context.parent

"""The kit for guards."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from retrytemplate.errors import Rejected
from retrytemplate.guards import Guard
from retrytemplate.testing.clock import VirtualClock
from retrytemplate.testing.conformance.base import Conformance, in_threads

if TYPE_CHECKING:
    from retrytemplate._engine.context import RetryContext

__all__ = ["GuardConformance"]

REPETITIONS = 300


class Broken(Exception):
    """The failure of the guarded calls of these tests."""


class GuardConformance(Conformance):
    """Tests for a ``Guard``: it grants or raises ``Rejected``, and takes reservations back.

    Methods may be coroutine functions.

    >>> from retrytemplate import Guard
    >>> class TestMine(GuardConformance):
    ...     def make(self):
    ...         return Guard()
    >>> TestMine().run_all()
    {}
    """

    @abstractmethod
    def make(self) -> Guard:
        """A new guard, in a state in which it admits a call."""

    def test_it_is_a_guard(self) -> None:
        guard = self.make()
        assert isinstance(guard, Guard), f"{guard!r} does not derive from Guard"

    def test_a_first_call_is_admitted(self) -> None:
        assert _call(self.make(), fails=False) is None, "the guard of make() must admit a call"

    def test_repeated_failures_raise_rejections_only(self) -> None:
        guard = self.make()
        for _ in range(REPETITIONS):
            error = _call(guard, fails=True)
            assert isinstance(error, Broken | Rejected), f"the guard raised {error!r}"

    def test_a_rejection_has_a_valid_retry_after_or_none(self) -> None:
        for rejection in self._rejections():
            assert rejection.name is None or isinstance(rejection.name, str)
            after = rejection.retry_after
            assert after is None or (math.isfinite(after) and after >= 0), f"got {after!r}"

    def test_every_rejection_is_an_object_of_its_own(self) -> None:
        rejections = self._rejections()
        assert len({id(each) for each in rejections}) == len(rejections), (
            "one exception object raised twice mixes the tracebacks of its callers"
        )

    def _rejections(self) -> list[Rejected]:
        """The rejections of one guard, by any of its methods."""
        guard = self.make()
        context = _some_context()
        errors = [
            error
            for _ in range(REPETITIONS)
            for error in (_error_of(guard.admit, context), _error_of(guard.reserve, context, 1.0))
        ]
        assert all(error is None or isinstance(error, Rejected) for error in errors)
        return [error for error in errors if isinstance(error, Rejected)]

    def test_a_released_reservation_can_be_reserved_again(self) -> None:
        guard = self.make()
        context = _some_context()
        assert _error_of(guard.admit, context) is None
        if _error_of(guard.reserve, context, 1.0) is not None:
            return
        for _ in range(REPETITIONS):
            assert _error_of(guard.release, context) is None
            rejection = _error_of(guard.reserve, context, 1.0)
            assert rejection is None, f"a released reservation is used up: {rejection!r}"

    def test_a_rejection_reserves_nothing(self) -> None:
        guard = self.make()
        context = _some_context()
        granted = _reserved(guard, context)
        for _ in range(granted):
            _error_of(guard.release, context)
        again = _reserved(guard, context)
        # A guard may reject everything for a while after a rejection.
        assert not 0 < again < granted, (
            f"{granted} waits were granted and released, then {again}: the rejection took one"
        )

    def test_an_interrupted_wait_is_released(self) -> None:
        guard = self.make()
        granted = _call(guard, fails=True, clock=VirtualClock(interrupt_at=1))
        for _ in range(REPETITIONS):
            again = _call(guard, fails=True, clock=VirtualClock(interrupt_at=1))
            assert type(again) is type(granted), "an interrupted wait keeps its reservation"

    def test_threads_share_it(self) -> None:
        guard = self.make()

        def work(thread: int) -> list[BaseException | None]:
            return [_call(guard, fails=turn % 2 == 0) for turn in range(20)]

        for errors in in_threads(work):
            for error in errors:
                assert error is None or isinstance(error, Broken | Rejected), f"got {error!r}"


def _call(guard: Guard, *, fails: bool, clock: VirtualClock | None = None) -> BaseException | None:
    """One call under the guard with at most three attempts; the exception that it raises."""
    from retrytemplate.backoff import FixedBackoff
    from retrytemplate.template import RetryTemplate

    def work() -> None:
        if fails:
            raise Broken("again")

    template = RetryTemplate(
        backoff=FixedBackoff(1.0), guards=[guard], clock=clock or VirtualClock()
    )
    return asyncio.run(template.outcome_async(work)).exception


def _some_context() -> RetryContext:
    from retrytemplate.template import RetryTemplate

    return RetryTemplate(clock=VirtualClock()).execute(lambda context: context)


def _reserved(guard: Guard, context: RetryContext) -> int:
    """The number of waits that are granted before a rejection."""
    for granted in range(REPETITIONS):
        if _error_of(guard.reserve, context, 1.0) is not None:
            return granted
    return REPETITIONS


def _error_of(method: Any, *arguments: Any) -> BaseException | None:
    """Call a method of a guard, await an awaitable result; the exception that it raises."""

    async def settle(answer: Any) -> None:
        await answer

    try:
        answer = method(*arguments)
        if isawaitable(answer):
            asyncio.run(settle(answer))
    except Exception as error:
        return error
    return None

"""The kit for listeners."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from retrytemplate.caches.memory import MemoryRetryContextCache
from retrytemplate.errors import CacheUnavailableError, Veto
from retrytemplate.listeners.base import HOOKS, RetryListener
from retrytemplate.testing.clock import VirtualClock
from retrytemplate.testing.conformance.base import Conformance, check_releases_exception, in_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import RetryContext
    from retrytemplate.caches.base import Claim
    from retrytemplate.template import RetryTemplate

    Scenario = Callable[[RetryTemplate], Any]

__all__ = ["ListenerConformance"]


class Broken(Exception):
    """The failure of the calls of these tests."""


class RejectingListener(RetryListener):
    """Vetoes every execution."""

    def open(self, context: RetryContext) -> Any:
        raise Veto("not now")


class Cancelled(BaseException):
    """A cancellation."""


class ListenerConformance(Conformance):
    """Tests for a ``RetryListener`` that only listens: every call ends as it does without it.

    Hooks may be coroutine functions.  A listener that changes results on purpose, or keeps
    exceptions, disables the tests that reject this.

    >>> from retrytemplate import RetryListener
    >>> class Counting(RetryListener):
    ...     failed = 0
    ...     def on_error(self, context, exception):
    ...         self.failed += 1
    >>> class TestCounting(ListenerConformance):
    ...     def make(self):
    ...         return Counting()
    >>> TestCounting().run_all()
    {}
    """

    @abstractmethod
    def make(self) -> RetryListener:
        """A new listener."""

    def test_it_is_a_listener(self) -> None:
        listener = self.make()
        assert isinstance(listener, RetryListener), f"{listener!r} does not derive from it"

    def test_calls_end_as_they_do_without_it(self) -> None:
        for name, scenario in SCENARIOS.items():
            self._same_end(name, scenario)

    def test_executions_with_a_state_end_as_they_do_without_it(self) -> None:
        for name, scenario in STATEFUL.items():
            self._same_end(name, scenario)

    def test_an_execution_vetoed_by_another_listener_ends_as_without_it(self) -> None:
        for before in (True, False):
            self._same_end("vetoed", _succeeds, veto_first=before)

    def test_a_cancelled_call_ends_as_without_it(self) -> None:
        for name, scenario in CANCELLED.items():
            self._same_end(name, scenario)

    def _same_end(self, name: str, scenario: Scenario, *, veto_first: bool | None = None) -> None:
        vetoing: list[RetryListener] = [] if veto_first is None else [RejectingListener()]
        expected = _end(scenario, _template(vetoing))
        mine = self.make()
        listeners = [*vetoing, mine] if veto_first else [mine, *vetoing]
        for number in range(2):
            found = _end(scenario, _template(listeners))
            assert found == expected, f"{name}, call {number + 1}: {found} instead of {expected}"

    def test_each_execution_calls_one_of_two_end_hooks(self) -> None:
        listener: Any = self.make()
        result = listener.on_first_success("conformance", 0.5)  # an exception would only be logged
        assert result is None, f"on_first_success returned {result!r}"
        for name, scenario in (SCENARIOS | STATEFUL | CANCELLED).items():
            ends = _Ends()
            _end(scenario, _template([self.make(), ends]))
            assert ends.numbers == [1] * len(ends.numbers), f"{name}: {ends.numbers} end hooks"

    def test_one_object_serves_nested_executions(self) -> None:
        self._same_end("one execution inside another", _nested)

    def test_threads_share_it(self) -> None:
        template = _template([self.make()])
        expected = {name: _end(scenario, _template([])) for name, scenario in SCENARIOS.items()}

        def work(thread: int) -> list[dict[str, Any]]:
            return [
                {name: _end(scenario, template) for name, scenario in SCENARIOS.items()}
                for _ in range(10)
            ]

        for ends in in_threads(work):
            assert ends == [expected] * 10, "calls end differently in several threads"

    def test_it_lets_go_of_failures(self) -> None:
        listener = self.make()
        template = _template([listener])

        def use(failure: BaseException) -> None:
            def raises(context: RetryContext) -> None:
                raise failure

            try:
                _execute(template, raises)
            except Exception as error:
                error.__traceback__ = None

        check_releases_exception(use, type(listener).__name__)


class _Ends(RetryListener):
    """Counts the end hooks of each execution; ``close`` is the last hook of each."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._calls = 0

    def on_first_success(self, name: str, elapsed: float) -> None:
        self._calls += 1

    def on_end(self, context: RetryContext, exception: BaseException | None) -> None:
        self._calls += 1

    def close(self, context: RetryContext, exception: BaseException | None) -> None:
        self.numbers.append(self._calls)
        self._calls = 0


def _template(listeners: list[RetryListener]) -> RetryTemplate:
    from retrytemplate.backoff import FixedBackoff
    from retrytemplate.template import RetryTemplate

    clock = VirtualClock()
    return RetryTemplate(
        backoff=FixedBackoff(1.0), name="conformance", listeners=listeners, clock=clock
    )


def _execute(template: RetryTemplate, callback: Callable[..., Any], **options: Any) -> Any:
    """Execute synchronously, or asynchronously if a hook is a coroutine function."""
    if _needs_async(template):
        return asyncio.run(template.execute_async(callback, **options))
    return template.execute(callback, **options)


def _needs_async(template: RetryTemplate) -> bool:
    hooks = [getattr(each, hook) for each in template.listeners for hook in HOOKS]
    return any(map(iscoroutinefunction, hooks))


def _end(scenario: Scenario, template: RetryTemplate) -> Any:
    """The value of a scenario, or the type and text of its exception."""
    try:
        return scenario(template)
    except (Exception, Cancelled) as error:
        return f"{type(error).__name__}: {error}"


def _failing(times: int) -> Callable[[RetryContext], str]:
    def work(context: RetryContext) -> str:
        if context.attempt <= times:
            raise Broken(f"attempt {context.attempt}")
        return f"worked at {context.attempt}"

    return work


def _succeeds(template: RetryTemplate) -> Any:
    return _execute(template, _failing(0))


def _fails(template: RetryTemplate, **options: Any) -> Any:
    return _execute(template, _failing(99), **options)


def _overruns(template: RetryTemplate) -> Any:
    clock = VirtualClock()

    def late(context: RetryContext) -> str:
        clock.advance(2.0)
        return "late"

    return _execute(template.with_(attempt_timeout=1.0, clock=clock), late)


def _gives_up(template: RetryTemplate) -> Any:
    def work(context: RetryContext) -> None:
        context.give_up()
        raise Broken("no use")

    return _execute(template, work)


def _nested(template: RetryTemplate) -> Any:
    def breaks() -> None:
        raise Broken("inside")

    async def outer_async(context: RetryContext) -> str:
        return repr(await template.outcome_async(breaks))

    def outer(context: RetryContext) -> str:
        return repr(template.outcome(breaks))

    return _execute(template, outer_async if _needs_async(template) else outer)


def _redelivered(template: RetryTemplate, **options: Any) -> list[Any]:
    from retrytemplate.state import RetryState

    deliver = partial(_fails, state=RetryState("order-17"), **options)
    return [_end(deliver, template) for _ in range(5)]


class StoreGone(MemoryRetryContextCache):
    """A cache that cannot write a success."""

    def succeed(self, claim: Claim, **options: Any) -> None:
        raise CacheUnavailableError("gone")


def _store_fails(template: RetryTemplate) -> Any:
    from retrytemplate.state import RetryState

    return _execute(template.with_(cache=StoreGone()), _failing(0), state=RetryState("order-17"))


def _cancel(context: RetryContext) -> None:
    raise Cancelled("from outside")


def _cancel_while_waiting(template: RetryTemplate) -> Any:
    clock = VirtualClock(interrupt_at=2, interrupt_with=Cancelled)
    return _fails(template.with_(clock=clock))


SCENARIOS: dict[str, Scenario] = {
    "a success": _succeeds,
    "a success at the third attempt": lambda template: _execute(template, _failing(2)),
    "three failures": _fails,
    "a success after the limit of the attempt": _overruns,
    "a recovery": partial(_fails, recovery=lambda context: "recovered"),
    "a recovery that fails": partial(_fails, recovery=lambda context: [][0]),
    "giving up": _gives_up,
}
STATEFUL: dict[str, Scenario] = {
    "redeliveries to the end": _redelivered,
    "redeliveries and a recovery": partial(_redelivered, recovery=lambda context: "recovered"),
    "a store that fails": _store_fails,
}
CANCELLED: dict[str, Scenario] = {
    "cancelled in an attempt": lambda template: _execute(template, _cancel),
    "cancelled in a wait": _cancel_while_waiting,
}

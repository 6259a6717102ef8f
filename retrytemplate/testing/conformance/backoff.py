"""The kit for backoffs."""

from __future__ import annotations

import math
import random as global_random
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from retrytemplate.backoff.base import Backoff
from retrytemplate.testing.conformance.base import (
    FrozenConformance,
    as_json,
    check_same,
    json_round_trip,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Delay = float | None

__all__ = ["BackoffConformance"]

LARGEST_DRAW = 1 - 2**-53
"""The largest number of a random source."""
DRAWS = (0.5, 0.0, LARGEST_DRAW, 0.25, 0.75)
LONG_RUN = 2000
"""Steps after which a power of two overflows a float."""


class CyclingRandom:
    """A random source with ``random()`` only."""

    __slots__ = ("_draws", "_turn")

    def __init__(self, draws: Sequence[float] = DRAWS) -> None:
        self._draws = draws
        self._turn = 0

    def random(self) -> float:
        self._turn += 1
        return self._draws[(self._turn - 1) % len(self._draws)]


def delays(
    backoff: Backoff,
    failures: Sequence[BaseException],
    number: int = 12,
    random: Any = None,
    travel: Callable[[Any], Any] = lambda state: state,
) -> Iterator[Delay]:
    """The first delays of one execution that repeats the failures in order."""
    random = CyclingRandom() if random is None else random
    state = travel(backoff.start())
    for turn in range(number):
        delay, state = backoff.next(state, failures[turn % len(failures)], random)
        state = travel(state)
        yield delay


class BackoffConformance(FrozenConformance):
    """Tests for a ``Backoff``: delays are valid, state is portable JSON.

    >>> from retrytemplate import Backoff
    >>> class Linear(Backoff):
    ...     def start(self):
    ...         return 0
    ...     def next(self, state, failure, random):
    ...         return state + random.random(), state + 1
    >>> class TestLinear(BackoffConformance):
    ...     def make(self):
    ...         return Linear()
    >>> TestLinear().run_all()
    {}
    """

    @abstractmethod
    def make(self) -> Backoff:
        """A new backoff, equal to every other that this makes."""

    def courses(self) -> list[list[BaseException]]:
        """The failures of the executions: one kind repeated, and all in order."""
        return [[failure] for failure in self.failures_to_try] + [list(self.failures_to_try)]

    def all_delays(self, backoff: Backoff, **options: Any) -> list[list[Delay]]:
        """The delays of every course."""
        return [list(delays(backoff, course, **options)) for course in self.courses()]

    def test_it_is_a_backoff(self) -> None:
        backoff = self.make()
        assert isinstance(backoff, Backoff), f"{backoff!r} does not derive from Backoff"

    def test_a_delay_is_a_finite_number_of_seconds_from_zero(self) -> None:
        for draws in ((0.0,), (0.5,), (LARGEST_DRAW,), DRAWS):
            for course in self.courses():
                for delay in delays(self.make(), course, random=CyclingRandom(draws)):
                    self._check(delay)

    def _check(self, delay: Delay) -> None:
        if delay is not None:
            assert type(delay) in (float, int), f"got {delay!r}"
            assert math.isfinite(delay) and delay >= 0, f"got {delay!r}"

    def test_it_supports_many_failures(self) -> None:
        course = list(self.failures_to_try)
        for draws in ((0.0,), (LARGEST_DRAW,)):
            for delay in delays(self.make(), course, number=LONG_RUN, random=CyclingRandom(draws)):
                self._check(delay)

    def test_state_is_json_that_continues_in_another_process(self) -> None:
        here = self.all_delays(self.make(), travel=self._written)
        elsewhere = self.all_delays(self.make(), travel=json_round_trip)
        check_same(elsewhere, here, "the state that was written and read back gives other delays")

    def _written(self, state: Any) -> Any:
        as_json(state)
        return state

    def test_a_state_is_never_changed_in_place(self) -> None:
        backoff = self.make()
        random = CyclingRandom()
        for course in self.courses():
            state = backoff.start()
            for failure in course * 3:
                before = as_json(state)
                _, fresh = backoff.next(state, failure, random)
                assert as_json(state) == before, "next() changed the state that it was given"
                state = fresh

    def test_the_same_random_numbers_give_the_same_delays(self) -> None:
        backoff = self.make()
        first = self.all_delays(backoff)
        check_same(self.all_delays(backoff), first, "the same backoff, called again")
        check_same(self.all_delays(self.make()), first, "an equal backoff")

    def test_it_uses_only_the_random_source_that_is_passed(self) -> None:
        before = global_random.getstate()
        try:
            global_random.seed(1)
            first = self.all_delays(self.make())
            global_random.seed(2)
            unmixed = global_random.getstate()
            check_same(self.all_delays(self.make()), first, "delays differ with random.seed()")
            untouched = global_random.getstate() == unmixed
            assert untouched, "numbers were drawn from the module random"
        finally:
            global_random.setstate(before)

    def test_executions_do_not_mix(self) -> None:
        backoff = self.make()
        alone = self.all_delays(self.make())
        running = [delays(backoff, course) for course in self.courses()]
        together = zip(*(zip(*running, strict=True)), strict=True)
        check_same(list(map(list, together)), alone, "one execution's delays depend on another's")

    _results = all_delays

    def _use(self, backoff: Backoff, failure: BaseException) -> Any:
        return backoff.next(backoff.start(), failure, CyclingRandom())

    def test_one_that_never_waits_has_no_delays(self) -> None:
        backoff = self.make().resolved()
        assert type(backoff.never_waits) is bool
        if backoff.never_waits:
            for course in self.all_delays(backoff):
                assert set(course) == {0}, "never_waits is True, but there are delays"

    def test_reading_its_numbers_does_not_change_its_delays(self) -> None:
        backoff = self.make()
        assert type(backoff.dynamic) is bool
        read = backoff.resolved()
        assert isinstance(read, Backoff)
        check_same(self.all_delays(read), self.all_delays(backoff), "read from its settings")

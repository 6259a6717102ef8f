"""A fixed delay, and a random delay between two bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from retrytemplate._internal import validation
from retrytemplate._internal.validation import number_field
from retrytemplate.backoff import base
from retrytemplate.backoff.base import JSON, NumbersBackoff

if TYPE_CHECKING:
    from typing import Self

    from retrytemplate.backoff.base import RandomSource

__all__ = ["FixedBackoff", "UniformRandomBackoff"]


def _zero_or_two_parameters(name: str, value: Any) -> None:
    if not callable(value):
        validation.check_delay(name, value)
        return
    validation.check_function(name, value)
    if not validation.accepts(value, 2) and not validation.accepts(value, 0):
        raise TypeError(
            f"{name} must be a number, or a callable that takes nothing or (failures, exception), "
            f"got {value!r}"
        )


@frozen(eq=False, repr=False)
class FixedBackoff(NumbersBackoff):
    """The same delay before every further attempt.

    :param delay: seconds or a ``timedelta``, at least 0 and finite; a callable without parameters,
        called once per execution; or a callable that is called after every failure with
        ``(failures, exception)`` and returns the delay.  ``failures`` counts the delays, this one
        included.
    :raises ValueError: if ``delay`` is below 0 or infinite.
    :raises TypeError: if ``delay`` is a callable with other parameters.

    Source: ``org.springframework.retry.backoff.FixedBackOffPolicy``.

    >>> FixedBackoff(1.5).next(None, ValueError(), None)[0]
    1.5
    >>> slow_down = FixedBackoff(lambda failures, error: 10.0 if "busy" in str(error) else 0.0)
    >>> slow_down.next(slow_down.start(), OSError("busy"), None)[0]
    10.0
    """

    delay: Any = field(
        converter=base.as_float, validator=validation.checked_by(_zero_or_two_parameters)
    )
    _per_failure: bool = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "never_waits", self.delay == 0)
        per_failure = callable(self.delay) and bool(validation.accepts(self.delay, 2))
        object.__setattr__(self, "_per_failure", per_failure)
        object.__setattr__(self, "_dynamic", callable(self.delay) and not per_failure)

    def start(self) -> JSON:
        return 0 if self._per_failure else None

    def next(
        self, state: JSON, failure: BaseException, random: RandomSource
    ) -> tuple[float | None, JSON]:
        if self._per_failure:
            failures = (state or 0) + 1
            delay = base.as_float(self.delay(failures, failure))
            validation.check_delay("delay", delay)
            return delay, failures
        if self._dynamic:
            return self.resolved().next(state, failure, random)
        return self.delay, state

    def resolved(self) -> Self:
        if not self._dynamic:
            return self
        delay = validation.read_number("delay", self.delay, validation.check_delay)
        return evolve(self, delay=delay)


@frozen(eq=False, repr=False)
class UniformRandomBackoff(NumbersBackoff):
    """A random delay, uniformly distributed between *minimum* and *maximum*.

    :param minimum: seconds or a ``timedelta``, default 0.5, at least 0; or a callable that returns
        it, called once per execution.
    :param maximum: default 1.5, at least ``minimum``; otherwise like ``minimum``.
    :raises ValueError: if ``minimum`` is below 0 or above ``maximum``.

    Source: ``org.springframework.retry.backoff.UniformRandomBackOffPolicy``.

    >>> from random import Random
    >>> delay, _ = UniformRandomBackoff(0.5, 1.5).next(None, ValueError(), Random())
    >>> 0.5 <= delay <= 1.5
    True
    """

    minimum: Any = number_field(0.5, validation.check_delay, base.as_float)
    maximum: Any = number_field(1.5, validation.check_delay, base.as_float)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_dynamic", callable(self.minimum) or callable(self.maximum))
        low: Any = self.minimum
        high: Any = self.maximum
        if not self._dynamic and low > high:
            raise ValueError(
                f"minimum must be a number of seconds from 0 to maximum ({high!r}), got {low!r}"
            )
        object.__setattr__(self, "never_waits", self.maximum == 0)

    def start(self) -> JSON:
        return None

    def next(
        self, state: JSON, failure: BaseException, random: RandomSource
    ) -> tuple[float | None, JSON]:
        if self._dynamic:
            return self.resolved().next(state, failure, random)
        spread = self.maximum - self.minimum
        return min(self.minimum + spread * random.random(), self.maximum), state

"""A random wait between two bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate import _checks
from retrytemplate.backoff import _numbers
from retrytemplate.backoff.base import JSON, Backoff

if TYPE_CHECKING:
    from retrytemplate.backoff.base import RandomSource

__all__ = ["UniformRandomBackoff"]


@frozen(eq=False, repr=False)
class UniformRandomBackoff(Backoff):
    """A wait drawn evenly between *minimum* and *maximum*.

    :param minimum: seconds or a ``timedelta``, from 0; or a callable, read once per execution.
    :param maximum: likewise, not below the minimum.
    :raises ValueError: for a minimum below 0 or above the maximum.

    Source: ``org.springframework.retry.backoff.UniformRandomBackOffPolicy``.

    >>> from random import Random
    >>> delay, _ = UniformRandomBackoff(0.5, 1.5).next(None, ValueError(), Random())
    >>> 0.5 <= delay <= 1.5
    True
    """

    minimum: Any = field(
        default=0.5,
        converter=_numbers.as_float,
        validator=_checks.number_or_callable(_checks.delay),
    )
    maximum: Any = field(
        default=1.5,
        converter=_numbers.as_float,
        validator=_checks.number_or_callable(_checks.delay),
    )
    never_waits: bool = field(init=False, eq=False, repr=False)
    _dynamic: bool = field(init=False, eq=False, repr=False)

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

    @property
    def dynamic(self) -> bool:
        return self._dynamic

    def resolved(self) -> UniformRandomBackoff:
        if not self._dynamic:
            return self
        return UniformRandomBackoff(
            _numbers.given("minimum", self.minimum, _checks.delay),
            _numbers.given("maximum", self.maximum, _checks.delay),
        )

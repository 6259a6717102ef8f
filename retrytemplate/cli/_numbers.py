"""The numbers of one simulated backoff that the table, the plots and the JSON show."""

from __future__ import annotations

from itertools import accumulate
from math import isfinite
from typing import TYPE_CHECKING, Any

from attrs import asdict, field, frozen

from retrytemplate.simulation import interpolated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate.simulation import Simulation, WorstCase

__all__ = ["Retry", "Run", "Spread", "seconds"]

# Digits after the point for seconds below a limit.
PLACES = ((1, 3), (10, 2), (100, 1))
# Seconds (31 years) from which on an exponent says more than the figures.
TOO_WIDE = 1e9


@frozen
class Spread:
    """Where some values lie: the ends, the middle, and where all but a tenth are below or above."""

    least: float
    tenth: float
    median: float
    ninetieth: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        ordered = sorted(values)
        return cls(*(interpolated(ordered, p) for p in (0.0, 0.1, 0.5, 0.9, 1.0)))


@frozen
class Retry:
    """The retry of one number: how many runs came to it, its delay, and what was waited by then."""

    number: int
    runs: int
    delay: Spread
    so_far: Spread


@frozen
class Run:
    """What was simulated for one backoff."""

    backoff: str
    simulation: Simulation
    worst: WorstCase
    retries: tuple[Retry, ...] = field(init=False, repr=False)
    total: Spread = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "retries", tuple(self._retries()))
        object.__setattr__(self, "total", Spread.of(self.simulation.totals))

    def _retries(self) -> Iterable[Retry]:
        runs = [tuple(zip(run, accumulate(run), strict=True)) for run in self.simulation.sequences]
        for place in range(self.simulation.retries):
            pairs = [run[place] for run in runs if len(run) > place]
            delays, sums = zip(*pairs, strict=True)
            yield Retry(place + 1, len(pairs), Spread.of(delays), Spread.of(sums))

    def as_json(self) -> dict[str, Any]:
        """The numbers as JSON values: what nothing bounds is null."""
        return {
            "backoff": self.backoff,
            "cut": self.simulation.cut,
            "percentiles": list(self.simulation.percentiles),
            "retries": [_finite(asdict(retry)) for retry in self.retries],
            "total": _finite(asdict(self.total)),
            "worst_case": _finite(asdict(self.worst)),
        }


def _finite(value: Any) -> Any:
    """The same without infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


def seconds(value: float, scale: float | None = None) -> str:
    """Seconds to about three figures of *scale* (of the value itself), as long as one reads them.

    >>> seconds(0.2), seconds(12.345), seconds(0.2, scale=30.0), seconds(0.0), seconds(1e300)
    ('0.200', '12.3', '0.2', '0', '1e+300')
    """
    if not isfinite(value):
        return "unbounded"
    size = value if scale is None else scale
    if size >= TOO_WIDE:
        return f"{value:.3g}"
    places = next((places for limit, places in PLACES if 0 < size < limit), 0)
    return f"{value:.{places}f}"

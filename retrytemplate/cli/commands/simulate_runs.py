"""Numbers of ``retrytemplate simulate``: delays of each retry, of each run, and their quantiles."""

from __future__ import annotations

from itertools import accumulate
from math import isfinite
from typing import TYPE_CHECKING, Any

from attrs import asdict, field, frozen

from retrytemplate.simulation import interpolated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate.simulation import Simulation, WorstCase


@frozen
class Quantiles:
    """Minimum, 10th percentile, median, 90th percentile and maximum of some values."""

    least: float
    tenth: float
    median: float
    ninetieth: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Quantiles:
        ordered = sorted(values)
        return cls(*(interpolated(ordered, p) for p in (0.0, 0.1, 0.5, 0.9, 1.0)))


@frozen
class Retry:
    """The retries of one number: the runs that reached it, their delays and total delays."""

    number: int
    runs: int
    delay: Quantiles
    so_far: Quantiles


@frozen
class Run:
    """The simulation of one backoff."""

    backoff: str
    simulation: Simulation
    worst: WorstCase
    retries: tuple[Retry, ...] = field(init=False, repr=False)
    total: Quantiles = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "retries", tuple(self._retries()))
        object.__setattr__(self, "total", Quantiles.of(self.simulation.totals))

    def _retries(self) -> Iterable[Retry]:
        runs = [tuple(zip(run, accumulate(run), strict=True)) for run in self.simulation.sequences]
        for place in range(self.simulation.retries):
            pairs = [run[place] for run in runs if len(run) > place]
            delays, sums = zip(*pairs, strict=True)
            yield Retry(place + 1, len(pairs), Quantiles.of(delays), Quantiles.of(sums))

    def as_json(self) -> dict[str, Any]:
        """The numbers as JSON values: an unbounded one is null."""
        return {
            "backoff": self.backoff,
            "cut": self.simulation.cut,
            "percentiles": list(self.simulation.percentiles),
            "retries": [_finite(asdict(retry)) for retry in self.retries],
            "total": _finite(asdict(self.total)),
            "worst_case": _finite(asdict(self.worst)),
        }


def _finite(value: Any) -> Any:
    """The value with null for infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value

"""The chunk in flight, as the journal keeps it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, field, frozen

from retrytemplate.batch.errors import JobRepositoryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from retrytemplate._values import JSON

__all__ = ["Marker", "indexes_of", "ranges_of"]

FORMAT = 1

Ranges = tuple[tuple[int, int], ...]


@frozen
class Marker:
    """What is known of the chunk under way before it is over.

    It is written with the end of the chunk before, hence before anything of this one is touched.

    :param position: the reader's, before the chunk.
    :param count: how many items it has; None: they were not read yet.
    :param pending: which of them are left, as ranges ``(first, behind the last)``.
    :param careful: a process died with this chunk: item by item from now on, nothing else in
        flight.
    :param alone: the item that is under way by itself.
    :param deaths: of items that were so when their process died, its worker and the time of each.
    :param stray: deaths in careful mode while no item was under way.
    :param payloads: the items themselves, where the reader cannot give them again.
    :param broken: which of those are records that could not be read, and what was wrong with them;
        their payload is their text.
    """

    position: JSON = None
    count: int | None = None
    pending: Ranges = ()
    careful: bool = False
    alone: int | None = None
    deaths: Mapping[int, tuple[tuple[str, float], ...]] = field(factory=dict)
    stray: int = 0
    payloads: tuple[str, ...] | None = None
    broken: Mapping[int, str] = field(factory=dict)

    @property
    def waiting(self) -> int:
        """How many of its items are left, as far as is known."""
        return sum(high - low for low, high in self.pending)

    def after_death(self, worker: str, at: float) -> Marker:
        """The same chunk, as the next process finds it."""
        marker = evolve(self, careful=True, alone=None)
        if self.alone is not None:
            died = (*self.deaths.get(self.alone, ()), (worker, at))
            return evolve(marker, deaths={**self.deaths, self.alone: died}, stray=0)
        return evolve(marker, stray=self.stray + self.careful)

    def after_stop(self) -> Marker:
        """The same chunk, which nobody suspects any more."""
        return evolve(self, careful=False, alone=None, stray=0)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        data = asdict(self, recurse=False)
        data["format"] = FORMAT
        for name in ("deaths", "broken"):
            data[name] = {str(index): value for index, value in data[name].items()}
        return data

    @classmethod
    def from_json(cls, data: Any) -> Marker:
        """The marker that a JSON object holds.

        :raises JobRepositoryError: it is none, or of a newer version of the library.
        """
        try:
            data = dict(data)
            if data.pop("format") > FORMAT:
                raise JobRepositoryError("the run was written by a newer version: update this one")
            data["pending"] = tuple((int(low), int(high)) for low, high in data["pending"])
            data["deaths"] = {
                int(index): tuple((str(worker), float(at)) for worker, at in died)
                for index, died in data["deaths"].items()
            }
            data["broken"] = {int(index): str(why) for index, why in data["broken"].items()}
            if data["payloads"] is not None:
                data["payloads"] = tuple(data["payloads"])
            return cls(**data)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise JobRepositoryError(f"the run's marker cannot be read: {exc!r}") from exc


def ranges_of(indexes: Iterable[int]) -> Ranges:
    """Rising numbers as ranges.

    >>> ranges_of([0, 1, 2, 5, 7, 8])
    ((0, 3), (5, 6), (7, 9))
    """
    found = list(indexes)
    if not found:
        return ()
    breaks = [(end + 1, start) for end, start in pairwise(found) if start != end + 1]
    starts = [found[0], *(start for _, start in breaks)]
    ends = [*(end for end, _ in breaks), found[-1] + 1]
    return tuple(zip(starts, ends, strict=True))


def indexes_of(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Ranges as rising numbers.

    >>> indexes_of([(0, 3), (5, 6)])
    [0, 1, 2, 5]
    """
    return [index for low, high in ranges for index in range(low, high)]

"""The chunk in flight, as the journal keeps it."""

from __future__ import annotations

import reprlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, field, frozen

from retrytemplate.caches.record_schema import (
    ANY,
    COUNT,
    FLAG,
    FORMAT_NUMBER,
    LIST,
    OBJECT,
    TEXT,
    TIME,
    check,
    check_all,
    fault,
    or_null,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from retrytemplate._internal.values import JSON
    from retrytemplate.caches.record_schema import Field

FORMAT = 1

Ranges = tuple[tuple[int, int], ...]


@frozen
class Checkpoint:
    """State of the chunk in progress.

    It is written with the end of the previous chunk, before the first effect of this one.

    :param entered: whether the run has entered the isolation gate for this chunk. If not, the chunk
        was not in progress when the process crashed.
    :param position: the reader's, before the chunk.
    :param count: number of its items; None: they were not read yet.
    :param fingerprint: ``Records.fingerprint`` of its items.
    :param pending: the remaining ones, as ranges ``(first, last + 1)``.
    :param isolating: True after the first crash of a process with this chunk: from then on items
        are processed one by one, and no other is in flight.
    :param isolated_item: the index of the item that is processed exclusively.
    :param crashes: by item, the worker and time of each crash while it was the isolated item.
    :param unattributed_crashes: crashes while isolating with no item in progress.
    :param payloads: the items themselves, where the reader cannot give them again.
    :param broken: records that could not be read, with the problem of each; their payload is their
        text.
    """

    position: JSON = None
    entered: bool = False
    count: int | None = None
    fingerprint: int | None = None
    pending: Ranges = ()
    isolating: bool = False
    isolated_item: int | None = None
    crashes: Mapping[int, tuple[tuple[str, float], ...]] = field(factory=dict)
    unattributed_crashes: int = 0
    payloads: tuple[str, ...] | None = None
    broken: Mapping[int, str] = field(factory=dict)

    @property
    def waiting(self) -> int:
        """Number of its remaining items, as far as known."""
        return sum(high - low for low, high in self.pending)

    def after_crash(self, worker: str, at: float) -> Checkpoint:
        """The same chunk, as the next process finds it; unchanged if it was not in progress."""
        if not self.entered:
            return self
        checkpoint = evolve(self, entered=False, isolating=True, isolated_item=None)
        if self.isolated_item is not None:
            crashed = (*self.crashes.get(self.isolated_item, ()), (worker, at))
            return evolve(
                checkpoint,
                crashes={**self.crashes, self.isolated_item: crashed},
                unattributed_crashes=0,
            )
        return evolve(checkpoint, unattributed_crashes=self.unattributed_crashes + self.isolating)

    def after_claim(self, *, gate_is_open: bool) -> Checkpoint:
        """The same chunk in the process that continues with it.

        :param gate_is_open: whether a shared entry is granted at once: then it counts as entered.
        """
        entered = gate_is_open and not self.isolating
        return evolve(self, entered=entered, isolated_item=None)

    def after_stop(self) -> Checkpoint:
        """The same chunk after a stop without a crash: no item is suspect."""
        return evolve(
            self, entered=False, isolating=False, isolated_item=None, unattributed_crashes=0
        )

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        data = asdict(self, recurse=False)
        data["format"] = FORMAT
        for name in ("crashes", "broken"):
            data[name] = {str(index): value for index, value in data[name].items()}
        return data

    @classmethod
    def from_json(cls, data: Any) -> Checkpoint:
        """The checkpoint that a JSON object holds.

        :raises ValueError: it holds none, or one of a newer version of the library.
        """
        check("it", data, OBJECT)
        number = data.get("format")
        check("format", number, FORMAT_NUMBER)
        if number > FORMAT:
            raise ValueError(f"format {number} is of a newer version of the library: update it")
        check_all("", data, FIELDS, FIELDS)
        values = {name: value for name, value in data.items() if name != "format"}
        values["pending"] = _ranges(data["pending"])
        values["crashes"] = {
            _index("crashes", index): _crashes(f"crashes.{index}", found)
            for index, found in data["crashes"].items()
        }
        if data["payloads"] is not None:
            values["payloads"] = tuple(data["payloads"])
        values["broken"] = {_index("broken", index): why for index, why in data["broken"].items()}
        checkpoint = cls(**values)
        checkpoint._check()
        return checkpoint

    def _check(self) -> None:
        """Raise unless its parts fit together: they are about the items of one chunk."""
        pending, payloads = self.pending, self.payloads
        faults = {
            "pending must be of items of the chunk": bool(pending)
            and pending[-1][1] > (self.count or 0),
            "payloads must be of all items": payloads is not None and len(payloads) != self.count,
            "position must be that of payloads": payloads is not None
            and not _is_kept(self.position),
            "broken must be of payloads": max(self.broken, default=-1) >= len(payloads or ()),
            "broken must be strings": not all(isinstance(why, str) for why in self.broken.values()),
        }
        for wrong, found in faults.items():
            if found:
                raise ValueError(f"{wrong}, got {reprlib.repr(self)}")


FIELDS: Mapping[str, Field] = {
    "format": FORMAT_NUMBER,
    "position": ANY,
    "entered": FLAG,
    "count": or_null(COUNT),
    "fingerprint": or_null(COUNT),
    "pending": LIST,
    "isolating": FLAG,
    "isolated_item": or_null(COUNT),
    "crashes": OBJECT,
    "unattributed_crashes": COUNT,
    "payloads": or_null(
        (
            lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
            "a list of strings",
        )
    ),
    "broken": OBJECT,
}
CRASH: Mapping[str, Field] = {"worker": TEXT, "at": TIME}


def _ranges(data: list[Any]) -> Ranges:
    """Ranges that rise, and do not touch each other."""
    found: list[tuple[int, int]] = []
    for place, each in enumerate(data):
        least = found[-1][1] + 1 if found else 0
        pair = isinstance(each, list) and [type(end) for end in each] == [int, int]
        if not pair or not least <= each[0] < each[1]:
            raise ValueError(
                f"pending[{place}] must be a range of indexes from {least} on, "
                f"got {reprlib.repr(each)}"
            )
        found.append((each[0], each[1]))
    return tuple(found)


def _index(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and str(int(text[:20])) == text):
        raise ValueError(f"{name} must have indexes as names, got {reprlib.repr(text)}")
    return int(text)


def _crashes(place: str, data: Any) -> tuple[tuple[str, float], ...]:
    check(place, data, LIST)
    for number, each in enumerate(data):
        name = f"{place}[{number}]"
        check(name, each, LIST)
        wrong = fault(f"{name}.", dict(zip(CRASH, each, strict=False)), CRASH, CRASH)
        if wrong is not None or len(each) != len(CRASH):
            raise ValueError(wrong or f"{name} must have {len(CRASH)} values, got {len(each)}")
    return tuple((worker, at) for worker, at in data)


def _is_kept(position: Any) -> bool:
    """Whether it is that of items in the journal: their source, first number, and the reader's."""
    return (
        isinstance(position, list)
        and len(position) == 3
        and isinstance(position[0], str)
        and type(position[1]) is int
    )


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
